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
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere, Stereographic, plotting
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.nn import ManifoldModule
from pyro_hyperbolic.plotting.canvas import drawn
from pyro_hyperbolic.plotting.lens import Lens, lens_of

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
    "regions": lambda ball, **k: plotting.regions(X, 0.2, ball, **k),
}
VIEWS = ("poincare", "klein", "equidistant")


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


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", DRAWINGS)
def test_every_function_has_views(name: str, view: str, ax: Axes) -> None:
    ball = PoincareBall(2.0)
    more = {"extent": WINDOW} if name == "heatmap" and view == "equidistant" else {}
    draw = (
        DRAWINGS[name]
        if name != "heatmap"
        else (lambda ball, **k: plotting.heatmap(lambda z: z.norm(dim=-1), ball, resolution=16, **more, **k))
    )
    assert draw(ball, ax=ax, view=view, center=X[1]) is ax
    assert len([p for p in ax.patches if isinstance(p, Circle)]) == (view != "equidistant")
    lens = lens_of(ax)
    assert lens is not None
    assert lens.view == view
    torch.testing.assert_close(lens(X[1].double()), torch.zeros(2).double(), rtol=0, atol=1e-12)
    # A further call draws the same picture; another one needs other axes.
    plotting.embedding(X, ball, ax=ax)
    dots = torch.tensor(ax.collections[-1].get_offsets().tolist(), dtype=torch.float64)
    torch.testing.assert_close(dots, lens(X.double()))
    with pytest.raises(ValueError, match="view and center must be those of the axes"):
        plotting.geodesic(X[0], X[1], ball, ax, center=X[2])
    ax.figure.canvas.draw()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("c", [0.0, 0.5, 3.0])
def test_lens(view: str, c: float) -> None:
    ball = drawn(PoincareBall(c))
    x, middle = X.double(), torch.tensor([0.15, -0.2]).double()
    lens = Lens(ball, view, middle)
    p = lens(x)
    torch.testing.assert_close(lens.back(p), x)
    distance = ball.dist(x, middle)
    root = math.sqrt(c)
    size = {
        "poincare": torch.tanh(root * distance / 2) / root if c else distance / 2,
        "klein": torch.tanh(root * distance) / root if c else distance / 2,
        "equidistant": distance,
    }[view]
    torch.testing.assert_close(p.norm(dim=-1), size)
    # The direction is that of the geodesic, whatever the view.
    direction = ball.to_normal_coords(middle, x)
    torch.testing.assert_close(p / p.norm(dim=-1, keepdim=True), direction / direction.norm(dim=-1, keepdim=True))
    # The area of the plane per area of paper is the Jacobian of the way back.
    for at in p:
        jacobian = torch.autograd.functional.jacobian(lens.back, at)
        area = torch.linalg.det(jacobian).abs().log() + ball.log_volume_element(lens.back(at))
        torch.testing.assert_close(lens.log_volume(at), area)


def test_vectors_are_pushed_along() -> None:
    ball = drawn(PoincareBall(0.5))
    lens = Lens(ball, "klein", X[1].double())
    at, along = lens.push(X.double(), V.double())
    step = 1e-6
    torch.testing.assert_close((lens(X.double() + step * V.double()) - at) / step, along, rtol=1e-4, atol=1e-5)


def test_geodesics_are_straight_in_the_klein_disc(ax: Axes) -> None:
    plotting.geodesic(X[0], X[1], PoincareBall(2.0), ax, view="klein", center=X[2] + 0.3)
    (segment,) = ax.collections[0].get_segments()
    first, last = segment[0], segment[-1]
    across = (segment[:, 0] - first[0]) * (last - first)[1] - (segment[:, 1] - first[1]) * (last - first)[0]
    assert abs(across).max() < 1e-12


def test_the_middle_is_a_point_an_index_or_the_mean() -> None:
    ball, x = PoincareBall(1.0), X.double()
    for center, point in ((2, x[2]), (-3, x[0]), ("mean", ball.frechet_mean(x)), (x[1], x[1])):
        lens = lens_of(plotting.embedding(x, ball, center=center))
        assert lens is not None
        torch.testing.assert_close(lens.center, point)
    with pytest.raises(ValueError, match="view must be one of poincare, klein, equidistant, got 'polar'"):
        plotting.disc(ball, view="polar")


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
        (torch.zeros(4, 3), r"\(\.\.\., 2\), got \(4, 3\); project .* with analysis.TangentPCA.* or analysis.HoroPCA"),
        (torch.tensor(0.5), "project"),
        (torch.tensor([[0.6, 0.0]]), r"radius 1/sqrt\(c\) = 0.5, got a point of norm 0.6.*projx"),
        (torch.tensor([[math.nan, 0.0]]), "finite"),
    ],
)
def test_bad_points(name: str, bad: torch.Tensor, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must .*{remedy}"):
        POINT_ARGUMENTS[name](bad, PoincareBall(4.0))
    assert not plt.get_fignums()  # nothing is left behind


@pytest.mark.parametrize(
    ("manifold", "message"),
    [
        (3, "manifold must be a Manifold, got 3"),
        (ManifoldModule(PoincareBall(1.0)), r"got a module, ManifoldModule; .* call it: module\(\)"),
        (Lorentz(1.0), r"a PoincareBall, got Lorentz\(c=1.0\); pass manifold.to_poincare\(points\) and PoincareBall"),
        (Stereographic(-1.0), r"a PoincareBall, got Stereographic\(k=-1.0\); pass PoincareBall\(manifold.c\)"),
        (Stereographic(1.0), r"got Stereographic\(k=1.0\); plotting.explore shows"),
        (Sphere(1.0), r"got Sphere\(c=1.0\); plotting.explore shows"),
        (Euclidean(), r"got Euclidean\(\); plotting.explore shows"),
        (from_signature("h1,s1"), r"got Product.*; plotting.explore shows .* of a product one factor at a time"),
        (PoincareBall(torch.tensor([1.0, 2.0])), "manifold must have one curvature, got PoincareBall.*with_curvatures"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_other_manifolds_are_refused(manifold: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plotting.embedding(X, manifold)


AXES: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda ax: plotting.embedding(X, PoincareBall(1.0), ax=ax),
    "heatmap": lambda ax: plotting.heatmap(lambda z: z[:, 0], PoincareBall(1.0), ax=ax),
    "images": lambda ax: plotting.images(torch.zeros(1, 2, 2), ax=ax),
}


@pytest.mark.parametrize("name", AXES)
def test_no_axes(name: str) -> None:
    with pytest.raises(ValueError, match=r"ax must be matplotlib Axes, got int; make them with .*plt.subplots\(\)"):
        AXES[name](3)
    assert not plt.get_fignums()


def test_a_center_outside_names_the_ball() -> None:
    with pytest.raises(ValueError, match=r"center must be points of PoincareBall\(c=1.0\), got 1"):
        plotting.embedding(X, PoincareBall(1.0), center=torch.tensor([2.0, 0.0]))


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(ValueError, match=r"x and y must broadcast, got x \(3, 2\), y \(2, 2\)"):
        plotting.geodesic(X, X[:2], PoincareBall(1.0))


def test_one_curvature_of_any_shape() -> None:
    assert plotting.disc(PoincareBall(torch.tensor([4.0]))).get_xlim()[1] == pytest.approx(0.515)
