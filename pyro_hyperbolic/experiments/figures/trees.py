"""A regular tree in the disc."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pyro_hyperbolic import plotting
from pyro_hyperbolic.experiments.figures.source import Source
from pyro_hyperbolic.experiments.figures.style import RED, subplots
from pyro_hyperbolic.geometry import PoincareBall

BRANCHING, DEPTH = 2, 7


def tree_embedding(source: Source) -> Figure:
    """A regular tree isometrically embedded in the disc; its edges are geodesics of one length."""
    ball = PoincareBall(1.0)
    points, parents = embed_tree(BRANCHING, DEPTH, shortest_edge(BRANCHING, ball), ball)
    figure, axes = subplots(1, 1, size=4.2)
    draw_tree(points, parents, ball, axes[0, 0])
    return figure


def shortest_edge(branching: int, ball: PoincareBall) -> float:
    """The shortest edges with which the branches of the endless tree do not meet.

    The lines that halve two neighbouring edges at right angles then touch at the border: with ``q`` neighbours
    of each node, tanh(sqrt(c) l / 2) = cos(pi / q).
    """
    return 2 * math.atanh(math.cos(math.pi / (branching + 1))) / math.sqrt(float(ball.c))


def embed_tree(branching: int, depth: int, length: float, ball: PoincareBall) -> tuple[Tensor, Tensor]:
    """Points ``(N, 2)`` and parents ``(N,)`` (-1 for the root) of a regular tree, level by level.

    The root lies at the origin and has one child more than the other nodes. The children of a node are placed at one
    and the same distance from it, in directions that together with that of its parent are equally spread (R. Sarkar,
    Low distortion Delaunay embedding of trees in hyperbolic plane, 2011).
    """
    angles = 2 * math.pi / (branching + 1) * torch.arange(branching + 1, dtype=torch.float64)
    points, parents, depths = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([-1]), torch.tensor([0])
    for level in range(1, depth + 1):
        last = (depths == level - 1).nonzero().squeeze(-1)
        if level == 1:
            directions = _unit(angles).unsqueeze(0)
        else:
            back = ball.to_normal_coords(points[last], points[parents[last]])
            # The chart is conformal: angles of normal coordinates are angles in the picture.
            directions = _unit(torch.atan2(back[:, 1], back[:, 0]).unsqueeze(-1) + angles[1:])
        children = ball.from_normal_coords(points[last].unsqueeze(-2), length * directions).flatten(0, 1)
        points = torch.cat([points, children])
        parents = torch.cat([parents, last.repeat_interleave(directions.shape[1])])
        depths = torch.cat([depths, torch.full((len(children),), level)])
    return points, parents


def draw_tree(points: Tensor, parents: Tensor, ball: PoincareBall, ax: Axes) -> None:
    """Draw a tree whose first node is the root; what is drawn at a point shrinks as the metric does."""
    # But stays visible.
    shrink = 2 / ball.lambda_x(points)
    width = (2.2 * shrink[parents[1:]].sqrt()).clamp(min=0.3)
    plotting.geodesic(points[parents[1:]], points[1:], ball, ax, color=RED, linewidth=width.tolist())
    plotting.embedding(points, ball, ax=ax, s=(40 * shrink).clamp(min=0.4).tolist())


def _unit(angle: Tensor) -> Tensor:
    return torch.stack([angle.cos(), angle.sin()], -1)
