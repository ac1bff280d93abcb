"""A regular tree in the disc."""

from __future__ import annotations

from matplotlib.figure import Figure

from examples.regular_tree import draw_tree, embed_tree, shortest_edge
from experiments.figures.source import Source
from experiments.figures.style import subplots
from pyro_hyperbolic.geometry import PoincareBall

BRANCHING, DEPTH = 2, 7


def tree_embedding(source: Source) -> Figure:
    """A regular tree in the disc; its edges are geodesics of one length."""
    ball = PoincareBall(1.0)
    points, parents = embed_tree(BRANCHING, DEPTH, shortest_edge(BRANCHING, ball), ball)
    figure, axes = subplots(1, 1, size=4.2)
    draw_tree(points, parents, ball, axes[0, 0])
    return figure
