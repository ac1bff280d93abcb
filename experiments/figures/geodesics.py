"""Geodesics and exponential maps."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from experiments.figures.source import Source
from experiments.figures.style import BLUE, ORANGE, PURPLE, RED, annotate, subplots
from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall

# Pairs of points; only a diameter is straight.
ENDS = (
    ((-0.62, -0.124), (0.55, 0.11), BLUE),
    ((-0.86, 0.25), (-0.05, 0.83), RED),
    ((0.1, -0.9), (0.9, -0.2), PURPLE),
    ((0.1, 0.6), (0.84, 0.3), ORANGE),
)
# Points and tangent vectors at them.
VECTORS = (
    ((-0.5, 0.0), (0.32, 0.55)),
    ((-0.5, 0.0), (-0.04, -0.5)),
    ((0.42, -0.35), (0.3, 0.42)),
    ((0.42, -0.35), (-0.5, -0.3)),
)


def geodesics(source: Source) -> Figure:
    """Shortest paths between pairs of points, and tangent vectors with where the exponential map takes them."""
    ball = PoincareBall(1.0)
    figure, axes = subplots(1, 2, size=3.3)
    left, right = axes[0]
    for *ends, colour in ENDS:
        x, y = torch.tensor(ends, dtype=torch.float64)
        direction = ball.logmap(x, y)
        # The whole line, as the plane whose normal is orthogonal to the way.
        normal = torch.stack([-direction[1], direction[0]])
        plotting.gyroplane(x, normal, ball, left, color=colour, linewidth=0.8, linestyle="--", alpha=0.6)
        plotting.geodesic(x, y, ball, left, color=colour, linewidth=1.8)
        plotting.embedding(torch.stack([x, y]), ball, ax=left, color=colour, s=24)
    for pair in VECTORS:
        at, vector = torch.tensor(pair, dtype=torch.float64)
        plotting.exponential_map(at, vector, ball, right, color=BLUE, linewidth=1.8)
    (z, v), *_ = VECTORS
    end_x, end_y = ball.expmap(*torch.tensor((z, v), dtype=torch.float64)).tolist()
    annotate(right, "$z$", z, (-9, 0))
    annotate(right, "$v$", (z[0] + v[0], z[1] + v[1]), (8, -4))
    annotate(right, r"$\exp_z(v)$", (end_x, end_y), (-10, 10), color=BLUE)
    left.set_title("geodesics")
    right.set_title("exponential maps")
    return figure
