"""Regular trees in the disc: their points, and how to draw them."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.analysis import sarkar_embedding

RED = "#bd1f01"


def shortest_edge(branching: int, ball: PoincareBall) -> float:
    """The shortest edges with which the branches of the endless tree do not meet.

    The lines that halve two neighbouring edges at right angles then touch at the border: with ``q`` neighbours
    of each node, tanh(sqrt(c) l / 2) = cos(pi / q).
    """
    return 2 * math.atanh(math.cos(math.pi / (branching + 1))) / math.sqrt(float(ball.c))


def embed_tree(branching: int, depth: int, length: float, ball: PoincareBall) -> tuple[Tensor, Tensor]:
    """Points ``(N, 2)`` and parents ``(N,)`` (-1 for the root) of a regular tree, level by level.

    The root has one child more than the other nodes, so that all inner nodes have equally many neighbours. The points
    are those of :func:`~pyro_hyperbolic.analysis.sarkar_embedding`.
    """
    parents, last = [torch.tensor([-1])], torch.tensor([0])
    for level in range(depth):
        parents.append(last.repeat_interleave(branching + (level == 0)))
        last = last[-1] + 1 + torch.arange(len(parents[-1]))
    nodes = torch.cat(parents)
    return sarkar_embedding(nodes, ball, length=length), nodes


def draw_tree(points: Tensor, parents: Tensor, ball: PoincareBall, ax: Axes) -> None:
    """Draw a tree whose first node is the root; what is drawn at a point shrinks as the metric does."""
    # But stays visible.
    shrink = 2 / ball.lambda_x(points)
    width = (2.2 * shrink[parents[1:]].sqrt()).clamp(min=0.3)
    plotting.geodesic(points[parents[1:]], points[1:], ball, ax, color=RED, linewidth=width.tolist())
    plotting.embedding(points, ball, ax=ax, s=(40 * shrink).clamp(min=0.4).tolist())
