from __future__ import annotations

import math

import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting

CURVATURES = [0.1, 1.0, 5.0]


def drawn(ax: Axes, index: int = -1) -> Tensor:
    """The drawn curves ``(N, nodes, 2)``."""
    return torch.stack([torch.as_tensor(segment) for segment in ax.collections[index].get_segments()])


@pytest.mark.parametrize("c", [0.0, *CURVATURES])
def test_geodesic_is_that_of_the_manifold(c: float, ax: Axes) -> None:
    ball = PoincareBall(c)
    x, y = ball.expmap0(torch.randn(2, 6, 1, 2, dtype=torch.float64) / math.sqrt(c or 1))
    plotting.geodesic(x, y, ball, ax)
    curves = drawn(ax)
    assert len(curves) == 6
    t = torch.linspace(0, 1, curves.shape[1], dtype=torch.float64)
    torch.testing.assert_close(curves, ball.geodesic(t, x, y), rtol=1e-9, atol=1e-9)
    assert bool(ball.contains(curves).all())


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize("angle", [1e-3, 1.0, 3.0, math.pi])
def test_geodesic_is_a_smooth_arc_up_to_the_border(c: float, gap: float, angle: float, ax: Axes) -> None:
    ball, radius = PoincareBall(c), math.sqrt((1 - gap) / c)
    x = radius * torch.tensor([1.0, 0.0], dtype=torch.float64)
    y = radius * torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    plotting.geodesic(x, y, ball, ax)
    (curve,) = drawn(ax)
    assert bool(ball.contains(curve).all())
    through = ball.dist(curve, x) + ball.dist(curve, y)
    assert float((through / ball.dist(x, y) - 1).abs().max()) < 1e-6
    # How far the chords leave the arc: the middle of the geodesic between two nodes from the middle of the chord.
    middle = ball.geodesic(0.5, curve[:-1], curve[1:])
    sagitta = (middle - (curve[:-1] + curve[1:]) / 2).norm(dim=-1).max()
    assert float(sagitta) * math.sqrt(c) < 4e-4


def test_geodesics_broadcast_and_may_be_none(ax: Axes) -> None:
    ball = PoincareBall(1.0)
    plotting.geodesic(torch.zeros(2), torch.rand(3, 4, 2) / 2, ball, ax, lw=2, color="red", label="edge")
    assert len(drawn(ax)) == 12
    assert ax.collections[-1].get_linewidth() == [2]
    plotting.geodesic(torch.zeros(0, 2), torch.zeros(0, 2), ball, ax)
    assert len(ax.collections[-1].get_segments()) == 0


@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("distance", [0.0, 0.3, 3.0, 12.0])
def test_gyroplane_is_the_whole_plane(c: float, distance: float, ax: Axes) -> None:
    ball = PoincareBall(c)
    direction = torch.nn.functional.normalize(torch.randn(5, 2, dtype=torch.float64), dim=-1)
    p = ball.expmap0(0.5 * distance / math.sqrt(c) * direction)
    a = torch.randn(5, 2, dtype=torch.float64)
    plotting.gyroplane(p, a, ball, ax)
    curves = drawn(ax)
    assert len(curves) == 5
    assert bool(ball.contains(curves).all())

    # Every node is on the plane: how far it is off, as a length in the picture.
    off = ball.dist2plane(x=curves, p=p.unsqueeze(-2), a=a.unsqueeze(-2), signed=False) / ball.lambda_x(curves)
    assert float(math.sqrt(c) * off.max()) < 1e-10

    # The ends are on the border, and the curve meets it at a right angle.
    ends, tangents = curves[:, [0, -1]], curves[:, [0, -1]] - curves[:, [1, -2]]
    radial = torch.nn.functional.normalize(ends, dim=-1)
    torch.testing.assert_close(math.sqrt(c) * ends, radial, rtol=0, atol=1e-12)
    cosine = (radial * torch.nn.functional.normalize(tangents, dim=-1)).sum(-1)
    assert float(cosine.min()) > 0.999

    # It goes through p, at a right angle to a: p is no farther from the nodes than their spacing.
    nearest = (curves - p.unsqueeze(-2)).norm(dim=-1).amin(-1)
    spacing = (curves[:, 1:] - curves[:, :-1]).norm(dim=-1).amax(-1)
    assert bool((nearest <= spacing).all())


def test_gyroplane_through_the_origin_is_a_diameter(ax: Axes) -> None:
    plotting.gyroplane(torch.zeros(2), torch.tensor([0.0, 7.0]), PoincareBall(4.0), ax)
    (curve,) = drawn(ax)
    torch.testing.assert_close(curve[:, 1], torch.zeros(len(curve), dtype=torch.float64))
    assert sorted(curve[[0, -1], 0].tolist()) == pytest.approx([-0.5, 0.5])


def test_gyroplane_in_the_plane_is_a_line_without_ends(ax: Axes) -> None:
    p, a = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([3.0, 4.0])
    plotting.gyroplane(p, a, PoincareBall(0.0), ax, lw=2, label="plane")
    assert [line.get_label() == "plane" for line in ax.lines] == [True, False]
    for line, (x, y) in zip(ax.lines, p.tolist(), strict=True):
        assert line.get_xy1() == (x, y)
        u, v = (b - a for a, b in zip(line.get_xy1(), line.get_xy2(), strict=True))
        assert 3 * u + 4 * v == pytest.approx(0)


def test_gyroplane_needs_a_normal() -> None:
    with pytest.raises(ValueError, match="a must not be zero"):
        plotting.gyroplane(torch.zeros(2), torch.zeros(2), PoincareBall(1.0))
