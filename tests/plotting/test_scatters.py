from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.plotting.labels import COLOURS

POINTS = torch.tensor([[0.0, 0.0], [0.6, 0.1], [-0.5, 0.2], [0.1, -0.7]], dtype=torch.float64)


@pytest.mark.parametrize("c", [0.0, 0.1, 1.0])
def test_points_and_edges(c: float, ax: Axes) -> None:
    ball = PoincareBall(c)
    edges = torch.tensor([[0, 1], [1, 2], [3, 0]])
    plotting.embedding(POINTS.requires_grad_(), ball, edges=edges, ax=ax, s=7)
    lines, dots = ax.collections
    assert isinstance(lines, LineCollection)
    ends = [(tuple(s[0]), tuple(s[-1])) for s in np.round([s[[0, -1]] for s in lines.get_segments()], 12)]
    rows = [tuple(row) for row in POINTS.tolist()]
    assert ends == [(rows[i], rows[j]) for i, j in edges.tolist()]
    assert dots.get_offsets().tolist() == POINTS.tolist()
    assert dots.get_sizes().tolist() == [7]
    assert dots.get_zorder() > lines.get_zorder()


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([3, 1, 3, 7]), np.array([3, 1, 3, 7]), [3, 1, 3, 7], torch.tensor([3, 1, 3, 7], dtype=torch.uint8)],
)
def test_classes_get_a_legend(labels: Any, ax: Axes) -> None:
    plotting.embedding(POINTS, PoincareBall(1.0), labels=labels, ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["1", "3", "7"]
    assert [len(dots.get_offsets()) for dots in ax.collections] == [1, 2, 1]
    assert [to_hex(dots.get_facecolor()[0]) for dots in ax.collections] == list(COLOURS[:3])


def test_names_are_classes_however_many(ax: Axes) -> None:
    names = [f"n{i:02d}" for i in range(23)]
    plotting.embedding(torch.rand(23, 2) / 2, PoincareBall(1.0), labels=names, ax=ax)
    looks = {(to_hex(d.get_facecolor()[0]), d.get_paths()[0].vertices.tobytes()) for d in ax.collections}
    assert len(looks) == 23


@pytest.mark.parametrize("labels", [torch.linspace(0, 1, 30), torch.arange(30)])
def test_other_numbers_get_a_colour_bar(labels: torch.Tensor, ax: Axes) -> None:
    plotting.embedding(torch.rand(30, 2) / 2, PoincareBall(1.0), labels=labels, ax=ax)
    assert ax.get_legend() is None
    assert len(ax.figure.axes) == 2
    assert ax.collections[0].get_array().tolist() == labels.tolist()


def test_legend_may_be_left_out(ax: Axes) -> None:
    plotting.embedding(POINTS, PoincareBall(1.0), labels=[0, 0, 1, 1], ax=ax, legend=False)
    plotting.embedding(POINTS, PoincareBall(1.0), labels=[0.5, 0.0, 1.0, 1.0], ax=ax, legend=False)
    assert ax.get_legend() is None
    assert len(ax.figure.axes) == 1


def test_crosses_have_lines(ax: Axes) -> None:
    plotting.embedding(POINTS, PoincareBall(1.0), ax=ax, marker="x", color="black")
    assert ax.collections[0].get_linewidth() == [1]


def test_errors() -> None:
    ball = PoincareBall(1.0)
    with pytest.raises(ValueError, match=r"points must have shape \(N, 2\), got \(2, 2, 2\)"):
        plotting.embedding(POINTS.reshape(2, 2, 2), ball)
    with pytest.raises(ValueError, match=r"edges must be indices of the 4 points, got -1 to 1"):
        plotting.embedding(POINTS, ball, edges=torch.tensor([[-1, 0], [0, 1]]))
    with pytest.raises(ValueError, match=r"edges must be integers of shape \(E, 2\)"):
        plotting.embedding(POINTS, ball, edges=torch.tensor([0, 1]))
