"""The disc, and what every drawing function promises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting

X = torch.tensor([[0.1, 0.2], [-0.3, 0.1], [0.0, 0.0]])
V = torch.tensor([[0.1, -0.2], [0.1, 0.1], [0.2, 0.0]])
WINDOW = (-1.0, 1.0, -1.0, 1.0)

# One row for each function that draws on a manifold.
DRAWINGS: dict[str, Callable[..., Axes]] = {
    "disc": lambda ball, **k: plotting.disc(ball, **k),
    "geodesic": lambda ball, **k: plotting.geodesic(X, X.roll(1, 0), ball, **k),
    "gyroplane": lambda ball, **k: plotting.gyroplane(X, V, ball, **k),
    "tangent": lambda ball, **k: plotting.tangent(X, V, ball, **k),
    "exponential_map": lambda ball, **k: plotting.exponential_map(X, V, ball, **k),
    "density": lambda ball, **k: plotting.density(hdist.WrappedNormal(X[0], 0.5, ball), resolution=16, **k),
    "heatmap": lambda ball, **k: plotting.heatmap(
        lambda z: z.norm(dim=-1), ball, extent=None if ball.c > 0 else WINDOW, resolution=16, **k
    ),
    "embedding": lambda ball, **k: plotting.embedding(X, ball, labels=[0, 1, 1], edges=[[0, 1], [1, 2]], **k),
}


@pytest.mark.parametrize("c", [0.0, 0.1, 1.0, 5.0, torch.tensor(2.0, requires_grad=True)])
@pytest.mark.parametrize("name", DRAWINGS)
def test_every_function_draws_on_the_given_axes(name: str, c: Any, ax: Axes) -> None:
    assert DRAWINGS[name](PoincareBall(c), ax=ax) is ax
    c = c.item() if isinstance(c, torch.Tensor) else c
    assert len(plt.get_fignums()) == 1
    circles = [p for p in ax.patches if isinstance(p, Circle)]
    assert len(circles) == (c > 0)
    if c > 0:
        radius = 1 / math.sqrt(c)
        assert circles[0].radius == pytest.approx(radius)
        assert ax.get_xlim() == ax.get_ylim() == pytest.approx((-1.03 * radius, 1.03 * radius))
    assert ax.get_aspect() == 1
    assert len(ax.get_xticks()) == len(ax.get_yticks()) == 0
    ax.figure.canvas.draw()


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_function_makes_axes(name: str) -> None:
    assert isinstance(DRAWINGS[name](PoincareBall(1.0)), Axes)


def test_the_border_is_drawn_once_and_a_zoom_is_kept(ax: Axes) -> None:
    ball = PoincareBall(1.0)
    plotting.disc(ball, ax, edgecolor="red", lw=3)
    ax.set_xlim(0.5, 1.0)
    plotting.geodesic(X[0], X[1], ball, ax)
    assert len(ax.patches) == 1
    assert ax.patches[0].get_linewidth() == 3
    assert ax.get_xlim() == (0.5, 1.0)


def test_limits_follow_the_points_in_the_plane(ax: Axes) -> None:
    far = torch.tensor([[-7.0, 3.0], [20.0, 3.5]])
    plotting.embedding(far, PoincareBall(0.0), edges=torch.tensor([[0, 1]]), ax=ax)
    low, high = ax.get_xlim()
    assert low <= -7
    assert high >= 20
    assert all(spine.get_visible() for spine in ax.spines.values())


POINT_ARGUMENTS: dict[str, Callable[[torch.Tensor, PoincareBall], Axes]] = {
    "x": lambda x, ball: plotting.geodesic(x, X[0], ball),
    "y": lambda x, ball: plotting.geodesic(X[0], x, ball),
    "p": lambda x, ball: plotting.gyroplane(x, V[0], ball),
    "points": lambda x, ball: plotting.embedding(x, ball),
}


@pytest.mark.parametrize("name", POINT_ARGUMENTS)
@pytest.mark.parametrize(
    ("bad", "remedy"),
    [
        (torch.zeros(4, 3), r"\(\.\.\., 2\), got \(4, 3\); project"),
        (torch.tensor(0.5), "project"),
        (torch.tensor([[0.6, 0.0]]), r"radius 1/sqrt\(c\) = 0.5, got a point of norm 0.6.*projx"),
        (torch.tensor([[math.nan, 0.0]]), "finite"),
    ],
)
def test_bad_points(name: str, bad: torch.Tensor, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must .*{remedy}"):
        POINT_ARGUMENTS[name](bad, PoincareBall(4.0))
    assert not plt.get_fignums()  # nothing is left behind


def test_other_manifolds_are_refused() -> None:
    with pytest.raises(ValueError, match="manifold must be a PoincareBall, got 3"):
        plotting.disc(3)  # type: ignore[arg-type]


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"x and y must broadcast, got x \(3, 2\), y \(2, 2\)"):
        plotting.geodesic(X, X[:2], PoincareBall(1.0))


def test_a_batch_of_curvatures_is_refused() -> None:
    with pytest.raises(ValueError, match=r"manifold must have one curvature, got PoincareBall.*PoincareBall\(c\[i\]\)"):
        plotting.disc(PoincareBall(torch.tensor([1.0, 2.0])))
    assert plotting.disc(PoincareBall(torch.tensor([4.0]))).get_xlim()[1] == pytest.approx(0.515)
