"""The hyperboloid far out: the textbook with 400 digits, and what the coordinates hold."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from mpmath import mp, mpf

from pyro_hyperbolic import Lorentz
from tests.geometry import hyperboloid_reference as ref
from tests.geometry.lorentz_cases import (
    FAR,
    FAR_TOLERANCE,
    OPERATIONS,
    assert_finite,
    dtypes,
    far_coordinates,
    plain,
)
from tests.helpers import DTYPES, ROUNDING, same

far_out = pytest.mark.parametrize("c", [1e-3, 1.0, 1.4])
share = pytest.mark.parametrize("share", [0.2, 1.0])  # of the way out


@dtypes
@far_out
@share
def test_distance_to_the_origin_far_out(dtype, c, share):
    v = far_coordinates(dtype, c, share).requires_grad_()
    curvature = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    h = Lorentz(curvature)
    x = h.from_normal_coords(None, v)
    distance = h.dist0(x)
    distance.backward(retain_graph=True)
    same(distance, v.detach().double().norm(), FAR_TOLERANCE[dtype])
    same(v.grad, v.detach().double() / v.detach().double().norm(), FAR_TOLERANCE[dtype])
    # Neither the distance nor its derivatives depend on the curvature at fixed normal coordinates ...
    assert curvature.grad.abs() <= FAR_TOLERANCE[dtype] * distance / c
    # ... while they do at a fixed point.
    leaf = x.detach().clone().requires_grad_()
    slope_c, slope_x = torch.autograd.grad(h.dist0(leaf), (curvature, leaf))
    exact_c, exact_x = ref.gradient(
        lambda c, xs: ref.dist0([0, *xs], c), ref.number(curvature), ref.vector(leaf.detach()[1:])
    )
    same(slope_c, ref.tensor(exact_c), FAR_TOLERANCE[dtype], scale=0)
    same(slope_x[1:], ref.tensor(exact_x), FAR_TOLERANCE[dtype], scale=ref.tensor(exact_x).norm())


@dtypes
@far_out
@share
def test_exponential_and_logarithm_at_the_origin_far_out(dtype, c, share):
    v, h = far_coordinates(dtype, c, share), Lorentz(c)
    x = h.from_normal_coords(None, v)
    assert h.contains(x)
    with mp.workdps(ref.DIGITS):
        expected = ref.tensor(ref.from_normal_coords(None, ref.vector(v), mpf(c)))
    same(x, expected, FAR_TOLERANCE[dtype], scale=expected[0])
    same(h.to_normal_coords(None, x), v, FAR_TOLERANCE[dtype], scale=v.norm())
    same(h.logmap0(x), torch.cat([torch.zeros(1), v]), FAR_TOLERANCE[dtype], scale=v.norm())


@dtypes
@far_out
@share
def test_distance_to_planes_far_out(dtype, c, share):
    # The plane is given as a layer keeps it, by an offset and a normal at the origin.
    v = far_coordinates(dtype, c, share).requires_grad_()
    offset = (torch.tensor([0.3, -0.8, 0.1], dtype=dtype) / math.sqrt(c)).requires_grad_()
    normal = torch.tensor([-0.5, 0.4, 1.0], dtype=dtype, requires_grad=True)
    curvature = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    h = Lorentz(curvature)
    p = h.from_normal_coords(None, offset)
    distance = h.dist2plane(x=h.from_normal_coords(None, v), p=p, a=h.frame(p, normal))

    def textbook(v, offset, normal, c):
        p = ref.from_normal_coords(None, offset, c)
        return ref.dist2plane(ref.from_normal_coords(None, v, c), ref.frame(p, normal, c), c)

    leaves = (v, offset, normal, curvature)
    exact = [ref.vector(t.detach()) if t.dim() else ref.number(t) for t in leaves]
    expected = ref.exact(textbook)(*exact)
    assert abs(expected) > 0.9 * share * FAR[dtype] / math.sqrt(c)
    same(distance, ref.tensor(expected), FAR_TOLERANCE[dtype], scale=0)
    slopes = torch.autograd.grad(distance, leaves)
    for actual, slope in zip(slopes, ref.gradient(textbook, *exact), strict=True):
        # At a given v the derivative in c is a difference of terms as large as distance / c.
        scale = ref.tensor(slope).norm() if actual.dim() else abs(float(expected)) / c
        same(actual, ref.tensor(slope), FAR_TOLERANCE[dtype], scale=scale)


@dtypes
@far_out
def test_operations_between_far_points(dtype, c):
    h = Lorentz(c)
    v, w = far_coordinates(dtype, c, 1.0), far_coordinates(dtype, c, 1.0, seed=1)
    x, y = h.from_normal_coords(None, v), h.from_normal_coords(None, w)
    step = far_coordinates(dtype, c, 0.02, seed=2)
    u = h.frame(x, step)
    with mp.workdps(ref.DIGITS):
        curvature = mpf(c)
        there, other = (ref.lift(ref.vector(t[1:]), curvature) for t in (x, y))
        expected = {
            "dist": ref.dist(there, other, curvature),
            "frame": ref.frame(there, ref.vector(step), curvature),
            "step": ref.from_normal_coords(there, ref.vector(step), curvature),
            "transp": ref.transp(there, other, ref.vector(u), curvature),
            "to_poincare": ref.to_poincare(there, curvature),
        }
    actual = {
        "dist": h.dist(x, y),
        "frame": u,
        "step": h.from_normal_coords(x, step),
        "transp": h.transp(x, y, u),
        "to_poincare": h.to_poincare(x),
    }
    assert expected["dist"] > 1.7 * FAR[dtype] / math.sqrt(c)
    for name, value in expected.items():
        value = ref.tensor(value)
        same(actual[name], value, FAR_TOLERANCE[dtype], scale=value.norm())


@dtypes
@far_out
@pytest.mark.parametrize("size", [1.0, 2.0, 4.0])
def test_looking_back_loses_no_more_than_the_docstring_says(dtype, c, size):
    # Two points near each other at distance `size` from the origin, in units that reach half the digits.
    assert r"e^{2\sqrt{c}\,d(0, x)}" in Lorentz.__doc__
    radius = size / math.sqrt(c)
    h = Lorentz(c)
    n = torch.randn(40, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = h.from_normal_coords(None, radius * n / n.norm(dim=-1, keepdim=True)).to(dtype)
    v = (0.5 / math.sqrt(c) * n.flip(0) / n.flip(0).norm(dim=-1, keepdim=True)).to(dtype)
    y = h.from_normal_coords(x, v)
    error = (h.to_normal_coords(x, y) - v).double().norm(dim=-1) / v.double().norm(dim=-1)
    bound = ROUNDING[dtype] * math.exp(2 * size)
    assert error.max() <= bound
    assert error.max() > 1e-4 * bound  # the limit is one of the coordinates, not of the test


@dtypes
def test_pairwise_distances_of_near_and_of_far_points(dtype):
    h = Lorentz(0.8)
    far = torch.stack([far_coordinates(dtype, 0.8, share, seed) for seed in (0, 1) for share in (1e-9, 0.01, 0.5, 1.0)])
    x = h.from_normal_coords(None, far)
    x = torch.cat([x, h.projx(x * (1 + 4 * torch.finfo(dtype).eps))])
    same(h.pairwise_dist(x, x), h.dist(x.unsqueeze(1), x), ROUNDING[dtype], scale=0)
    assert (h.pairwise_dist(x, x).diagonal() == 0).all()


def test_frechet_mean_of_far_points():
    # Three points at equal angles, at a distance that no ball holds: their mean is the origin.
    angle = 2 * math.pi / 3 * torch.arange(3, dtype=torch.float64)
    directions = torch.stack([angle.cos(), angle.sin()], -1)
    h = Lorentz(1.0)
    mean = h.frechet_mean(h.from_normal_coords(None, 60 * directions))
    assert h.dist0(mean) <= 1e-9
    assert not h.frechet_mean(h.from_normal_coords(None, 60 * directions[:2])).isnan().any()


@pytest.mark.parametrize(("dim", "distance"), [(1, 5.0), (2, 5.0), (3, 8.0)])
def test_samples_that_come_back_are_on_the_sheet(dim, distance):
    h = Lorentz(1.0)
    loc = h.from_normal_coords(None, torch.cat([torch.tensor([distance]), torch.zeros(dim - 1)]))
    x = h.from_normal_coords(loc, 3.0 * torch.randn(20_000, dim))
    assert h.contains(x).all()


@pytest.mark.parametrize("distance", [5.0, 8.0, 12.0])
def test_length_of_normal_coordinates_is_the_distance(distance):
    # In one dimension the coordinates hold the distance to rounding, however far out.
    h = Lorentz(1.0)
    v = distance + torch.rand(1000, 1)
    x = h.from_normal_coords(None, torch.tensor([distance]))
    y = h.from_normal_coords(None, v)
    same(h.to_normal_coords(x, y).abs().squeeze(-1), h.dist(x, y), 1e-6, scale=1.0)


@dtypes
@pytest.mark.parametrize("c", [1e-6, 0.01, 1.0, 16.0])
def test_coordinates_hold_what_reach_says(dtype, c):
    h = Lorentz(c)
    reach = h.reach(dtype)
    v = reach * torch.tensor([0.6, 0.0, -0.8], dtype=dtype)
    x = h.from_normal_coords(None, v)
    assert h.contains(x)
    same(h.dist0(x), reach, 1e-5)
    assert not h.from_normal_coords(None, v * (1 + 12 / math.sqrt(c) / reach)).isfinite().all()


def test_reach_is_that_of_the_docstring():
    assert r":math:`87/\sqrt c` in float32" in Lorentz.__doc__
    assert r":math:`708/\sqrt c` in float64" in Lorentz.__doc__
    assert Lorentz(4.0).reach(torch.float32) == pytest.approx(87.7 / 2, abs=0.3)
    assert Lorentz(4.0).reach(torch.float64) == pytest.approx(708.8 / 2, abs=0.3)


# --- derivatives ------------------------------------------------------------------------------------------------------


# Operations that a far point may enter, and as which arguments. The others look back from it.
FAR_ARGUMENTS = {
    "mobius_add": ["x", "y"],
    "mobius_scalar_mul": ["x"],
    "mobius_matvec": ["x"],
    "expmap0": ["v"],
    "logmap0": ["y"],
    "from_normal_coords": ["x", "w"],
    "to_normal_coords": ["x", "y", "xy"],
    "dist": ["x", "y", "xy"],
    "dist0": ["x"],
    "transp": ["y", "xy"],
    "transp0": ["y"],
    "frame": ["x"],
    "dist2plane": ["x", "p"],
    "geodesic": ["y"],
    "projx": ["x"],
    "to_poincare": ["x"],
    "log_volume_element": ["x"],
}
# Of two points: equal, opposite, different, and both along an axis.
DIRECTIONS = torch.tensor(
    [
        [[1.0, -2.0, 2.0], [1.0, -2.0, 2.0]],
        [[1.0, -2.0, 2.0], [-1.0, 2.0, -2.0]],
        [[1.0, -2.0, 2.0], [2.0, 2.0, 1.0]],
        [[0.0, 3.0, 0.0], [0.0, 3.0, 0.0]],
    ]
).unbind(1)


@pytest.mark.parametrize(("name", "arguments"), [(name, a) for name, all_of in FAR_ARGUMENTS.items() for a in all_of])
def test_values_and_gradients_are_finite_far_out(name, arguments):
    op = OPERATIONS[name]
    for dtype, c in itertools.product(DTYPES, [0.01, 1.0, 16.0]):
        values = {key: value.expand(4, *value.shape).clone() for key, value in plain(dtype, c).items()}
        for key, directions in zip(arguments, DIRECTIONS, strict=False):
            values[key] = (FAR[dtype] / math.sqrt(c) * directions / 3).to(dtype)
        h = Lorentz(torch.tensor(c, dtype=dtype, requires_grad=True))

        def size(out, h=h):
            """The distance of a point, the size of anything else: as large as the argument, not its exponential."""
            if op.returns == "point":
                return h.dist0(out).sum()
            lengths = out.detach().abs() if op.returns == "number" else out.detach().norm(dim=-1, keepdim=True)
            return (out / lengths.clamp(1)).sum()

        assert_finite(name, h, [values[key].requires_grad_() for key in op.arguments], size)


@dtypes
@far_out
def test_gradients_of_coordinates_far_out(dtype, c):
    # Coordinates and their derivatives are both of the size of exp(60), and their product is too large for float32.
    h, identity = Lorentz(c), torch.eye(3, dtype=dtype)
    v = far_coordinates(dtype, c, 1.0).requires_grad_()
    x = h.from_normal_coords(None, v)
    (expected,) = torch.autograd.grad(x.sum(), v, retain_graph=True)
    assert expected.isfinite().all()
    for same_point in (h.mobius_matvec(identity, x), h.mobius_scalar_mul(1.0, x), h.expmap0(h.logmap0(x))):
        (slope,) = torch.autograd.grad(same_point.sum(), v, retain_graph=True)
        same(slope, expected.double(), FAR_TOLERANCE[dtype], scale=expected.double().norm())


@dtypes
def test_pairwise_distances_of_near_and_far_points_have_finite_gradients(dtype):
    v = torch.stack([far_coordinates(dtype, 1.0, s, seed) for s in (0.0, 1e-6, 0.02, 1.0) for seed in (0, 0, 1)])
    v.requires_grad_()
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    x = Lorentz(c).from_normal_coords(None, v)
    gradients = torch.autograd.grad(Lorentz(c).pairwise_dist(x, x).sum(), (v, c))
    assert all(g.isfinite().all() for g in gradients)
