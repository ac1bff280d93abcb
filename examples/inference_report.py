"""What ``inference_swaps.py`` compares its methods with, and how it shows them: a grid, a table and a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from inference_methods import Found
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, plotting

GRID, GRID_REACH = 301, 7.0  # nodes on a side, and the largest normal coordinate
HEADER = f"{'method':<18}{'mean off by':>12}{'spread':>8}{'bound':>9}{'log evidence':>20}{'CPU s':>8}  note"


def grid(program: Any) -> Found:
    """The nodes of a square of normal coordinates, weighted by density and volume."""
    axis = torch.linspace(-GRID_REACH, GRID_REACH, GRID)
    v = torch.cartesian_prod(axis, axis)
    z = program.manifold.from_normal_coords(None, v)
    log_volume = hdist.ExpMapTransform(program.manifold).log_abs_det_jacobian(v, z) + 2 * (axis[1] - axis[0]).log()
    log_weights = program.log_joint(z) + log_volume
    return Found(z, log_weights, evidence=(log_weights.logsumexp(0).item(), 0.0))


def row(name: str, found: Found, exact: Found, program: Any, seconds: float) -> dict[str, Any]:
    """Fréchet mean, its distance from that of the grid, and the root of the mean squared distance from it."""
    mean, reference = (program.manifold.frechet_mean(each.draws, each.weights) for each in (found, exact))
    square = program.manifold.dist(mean, found.draws).square()
    value, error = found.evidence or (None, None)
    return {
        "method": name,
        "mean": on_disc(mean, program).tolist(),
        "distance_of_means": program.manifold.dist(mean, reference).item(),
        "spread": math.sqrt((found.weights * square).sum().item() / found.weights.sum().item()),
        "bound": found.bound,
        "log_evidence": value,
        "log_evidence_error": error,
        "cpu_seconds": seconds,
        "note": found.note,
    }


def line(entry: dict[str, Any]) -> str:
    """A row as it is printed."""
    bound = "" if entry["bound"] is None else f"{entry['bound']:.3f}"
    value, error = entry["log_evidence"], entry["log_evidence_error"]
    evidence = "" if value is None else f"{value:.3f} ± {error:.3f}"
    start = f"{entry['method']:<18}{entry['distance_of_means']:>12.3f}{entry['spread']:>8.3f}{bound:>9}{evidence:>20}"
    return f"{start}{entry['cpu_seconds']:>8.1f}  {entry['note']}".rstrip()


def on_disc(z: Tensor, program: Any) -> Tensor:
    return program.manifold.to_poincare(z) if isinstance(program.manifold, Lorentz) else z


def draw(found: dict[str, Found], program: Any, resolution: int, path: Path) -> None:
    """A panel for each method: a hundred of its draws on the regions of the grid."""
    ball = PoincareBall(program.manifold.c)
    columns = min(7, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 1.9 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()

    def log_joint(z: Tensor) -> Tensor:
        return program.log_joint(program.manifold.from_normal_coords(None, ball.to_normal_coords(None, z)))

    for ax, (name, entry) in zip(axes.flat, found.items(), strict=False):
        ax.set_title(name, fontsize="medium")
        plotting.credible_regions(log_joint, ball, ax=ax, resolution=resolution, filled=True)
        plotting.embedding(on_disc(program.anchors, program), ball, ax=ax, marker="^", color="0.2", s=12)
        if name != "grid":
            some = torch.multinomial(entry.weights, min(100, len(entry.draws)), replacement=len(entry.draws) > 100)
            size = 2 if len(some) > 1 else 20
            plotting.embedding(on_disc(entry.draws[some], program), ball, ax=ax, color="#bd1f01", s=size)
    plotting.save(figure, path, dpi=130)
    plt.close(figure)
