"""The draws of every method on the disc."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from inference_parts.found import Found
from inference_parts.grid import log_joint
from pyro_hyperbolic import PoincareBall, plotting

if TYPE_CHECKING:
    from inference_swaps import Program


def draw(found: dict[str, Found], program: Program, curvature: float, resolution: int) -> Figure:
    """A panel for each method: its draws on the regions that hold 50, 80 and 95% of the posterior on the grid."""
    ball = PoincareBall(curvature)
    steps = torch.linspace(-1, 1, resolution) / math.sqrt(curvature)
    nodes = torch.cartesian_prod(steps, steps)
    inside = ball.contains(nodes)
    density = torch.zeros(len(nodes))
    points = program.manifold.from_normal_coords(None, ball.to_normal_coords(None, nodes[inside]))
    # Dots per area on paper follow the density of the coordinates.
    density[inside] = (log_joint(program, points) + ball.log_volume_element(nodes[inside])).softmax(0)
    falling = density.sort(descending=True).values
    held = falling.cumsum(0)
    levels = [falling[(held < part).sum()].item() for part in (0.95, 0.8, 0.5)]
    picture = density.reshape(resolution, resolution).T

    columns = min(7, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 1.9 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    for ax, (name, entry) in zip(axes.flat, found.items(), strict=False):
        plotting.disc(ball, ax)
        colours = ["#d6e6f4", "#9cc8e2", "#4a97c9"]
        ax.contourf(steps, steps, picture, levels=[*levels, falling[0].item()], colors=colours, zorder=0)
        plotting.embedding(program.on_disc(program.anchors), ball, ax=ax, marker="^", color="0.2", s=12)
        if name != "grid":
            z = _some(entry, 100)
            plotting.embedding(program.on_disc(z), ball, ax=ax, color="#bd1f01", s=2 if len(z) > 1 else 20)
        ax.set_title(name, fontsize="medium")
    return figure


def _some(found: Found, count: int) -> Tensor:
    """Some of the draws, by their weights."""
    weights = torch.ones(len(found.draws)) if found.log_weights is None else found.log_weights.softmax(0)
    return found.draws[torch.multinomial(weights, min(count, len(weights)), replacement=found.log_weights is not None)]
