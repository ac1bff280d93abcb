"""The hyperboloid: the ball through an isometry, textbook formulas far out, the metric, limits, shapes, the object."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given, settings
from mpmath import mp, mpf
from torch.autograd import gradcheck
from torch.func import jvp, vmap

from pyro_hyperbolic import Lorentz, PoincareBall
from tests.geometry import hyperboloid_reference as ref
from tests.geometry.cases import OPS, POINTS, Case, Op, cases
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, LargestStorage, oracle, same

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FAR = {torch.float32: 60.0, torch.float64: 300.0}  # sqrt(c) times the distance to the origin
FAR_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


def over_cases(count):
    """Run ``test(case)`` over random cases of a curved space, the same ones in every run."""

    def decorate(test):
        curved = cases().filter(lambda case: case.c > 0)
        return settings(derandomize=True, deadline=None, max_examples=count, database=None)(given(case=curved)(test))

    return decorate


every_case = over_cases(12)


def lorentz(case: Case) -> Lorentz:
    return Lorentz(case.c)


def point(case: Case, *shape: int) -> torch.Tensor:
    """Random points of the hyperboloid."""
    return lorentz(case).from_poincare(case.point(*shape).double()).to(case.dtype)


def tangent(case: Case, x: torch.Tensor) -> torch.Tensor:
    """Random tangent vectors at ``x``, about as long as the points are far."""
    return lorentz(case).frame(x, coordinates(case, *x.shape[:-1]))


def coordinates(case: Case, *shape: int) -> torch.Tensor:
    """Random normal coordinates, about as long as the points are far."""
    return 2 * case.vector(*shape)


def assert_near(case: Case, actual: torch.Tensor, expected: torch.Tensor, points: int = 2) -> None:
    """Two points are the same: their distance is within the tolerance of the case's radius."""
    assert actual.dtype == expected.dtype == case.dtype
    error = (lorentz(case).dist(actual.double(), expected.double()) / case.radius).max()
    # Rounding of x_0 near the origin is no error of the point, but enters where the point is computed from it.
    assert error <= 4 * case.tolerance(points), f"{case}: error {error:.3g} exceeds {case.tolerance(points):.3g}"


# --- the isometry -----------------------------------------------------------------------------------------------

# Where the tangent vectors of an operation live: an argument, or the origin ("0"); "-" are components in a frame.
PLACES = {
    "mobius_add": "",
    "mobius_sub": "",
    "mobius_coadd": "",
    "mobius_cosub": "",
    "mobius_scalar_mul": "",
    "mobius_matvec": "",
    "gyration": "00",
    "inner": "xx",
    "norm": "x",
    "expmap": "x",
    "logmap": "x",
    "expmap0": "0",
    "logmap0": "0",
    "from_normal_coords": "-",
    "to_normal_coords": "-",
    "dist": "",
    "dist0": "",
    "transp": "xy",
    "transp0": "0y",
    "transp0back": "x0",
    "geodesic": "",
    "coframe": "x-",
    "dist2plane": "p",
}


def push(case: Case, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The differential of the isometry from the ball."""
    return jvp(lorentz(case).from_poincare, (at,), (v,))[1]


def test_every_operation_of_the_ball_is_there():
    # The conformal factor is one of coordinates, and so are the border, the volume element and the gradient, which have
    # their tests; factors and the step of a unit geodesic are of no size of a case, and have theirs too.
    elsewhere = {"lambda_x", "projx", "log_volume_element", "egrad2rgrad", "geodesic_unit", "mobius_pointwise_mul"}
    assert OPS.keys() - PLACES.keys() == elsewhere
    public = {name for name in dir(PoincareBall) if not name.startswith("_")}
    assert public - set(dir(Lorentz)) == {"lambda_x"}


@pytest.mark.parametrize("name", PLACES)
@every_case
def test_operation_is_that_of_the_ball(name, case):
    op, ball, h = OPS[name], case.ball, lorentz(case)
    inputs = dict(zip(op.arguments, (a.double() for a in case.arguments(op)), strict=True))
    points = {"0": torch.zeros(case.dim, dtype=torch.float64), **{k: v for k, v in inputs.items() if k in POINTS}}
    places = iter(PLACES[name])
    moved = {}
    for key, value in inputs.items():
        if key in POINTS:
            moved[key] = h.from_poincare(value)
        elif key in "uva":
            place = next(places)
            if name == "expmap":  # of a length that makes sense at x
                inputs[key] = value = case.tangent(points[place]).double()
            moved[key] = value if place == "-" else push(case, points[place], value)
        else:
            moved[key] = value
    expected = getattr(ball, name)(*inputs.values())
    actual = getattr(h, name)(*(value.to(case.dtype) for value in moved.values()))
    assert actual.dtype == case.dtype
    if op.returns == "point":
        assert_near(case, actual, h.from_poincare(expected).to(case.dtype), points=3)
        return
    place = next(places, "-")
    if op.returns == "vector" and place != "-":
        expected = push(case, points[place], expected)
    # A vector is measured by its coordinates, which are as large as those of a point.
    scale = expected.abs().max() + (case.radius if op.returns == "vector" else 0)
    case.assert_equal(actual, expected, scale=scale, points=3)


@every_case
def test_isometries_invert_each_other(case):
    h, b = lorentz(case), case.point(5)
    x = h.from_poincare(b)
    assert x.shape == (5, case.dim + 1)
    assert h.contains(x).all()
    case.assert_near(h.to_poincare(x), b)
    assert_near(case, h.from_poincare(h.to_poincare(x)), x)


@every_case
def test_isometry_keeps_lengths_of_tangent_vectors(case):
    b, v = case.point().double(), case.vector().double()
    h, ball = lorentz(case), case.ball
    pushed = push(case, b, v)
    same(h.norm(h.from_poincare(b), pushed), ball.norm(b, v), 1e-9, scale=0)
    back = jvp(h.to_poincare, (h.from_poincare(b),), (pushed,))[1]
    same(back, v, 1e-9, scale=v.norm())


def test_isometries_are_differentiable_in_points_and_curvature():
    case = Case(dim=3, c=0.7, radius=2.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    b = case.point(2).requires_grad_()
    x = lorentz(case).from_poincare(b).detach().requires_grad_()
    assert gradcheck(lambda c, b: Lorentz(c).from_poincare(b), (c, b))
    assert gradcheck(lambda c, x: Lorentz(c).to_poincare(x), (c, x))


@dtypes
def test_isometry_to_the_ball_stays_inside_however_far(dtype):
    h = Lorentz(1.3)
    v = torch.linspace(1, h.reach(dtype), 50, dtype=dtype).unsqueeze(-1) * torch.tensor([0.6, 0.8], dtype=dtype)
    b = h.to_poincare(h.from_normal_coords(None, v))
    ball = PoincareBall(1.3)
    assert ball.contains(b).all()
    same(ball.dist0(b), v.norm(dim=-1).clamp(max=ball.reach(dtype)), 0.3)


def test_isometry_from_outside_of_the_ball_gives_nan():
    b = torch.tensor([[0.2, 0.3], [0.8, 0.7]])
    assert Lorentz(1.0).from_poincare(b).isnan().all(-1).tolist() == [False, True]


@dtypes
def test_oracle(dtype):
    for row in oracle("geometry"):
        if row["c"] == 0:
            continue
        h = Lorentz(row["c"])
        x, y, p, a = (torch.tensor(row[key], dtype=torch.float64) for key in "xypa")
        normal = jvp(h.from_poincare, (p,), (a,))[1]
        x, y, p, normal = (t.to(dtype) for t in (h.from_poincare(x), h.from_poincare(y), h.from_poincare(p), normal))
        same(h.dist(x, y), row["dist"], GEOMETRY[dtype], scale=0)
        same(h.dist0(x), row["dist0"], GEOMETRY[dtype], scale=0)
        size = math.asinh(math.sqrt(row["c"]) * y.norm() * normal.norm() / h.norm(p, normal)) / math.sqrt(row["c"])
        same(h.dist2plane(x=y, p=p, a=normal), row["gyroplane_signed_distance"], GEOMETRY[dtype], scale=size)


# --- far out: the textbook with 400 digits ----------------------------------------------------------------------

far_out = pytest.mark.parametrize("c", [1e-3, 1.0, 1.4])
share = pytest.mark.parametrize("share", [0.2, 1.0])  # of the way out


def far_coordinates(dtype, c, share, seed=0, dim=3):
    n = torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (share * FAR[dtype] / math.sqrt(c) * n / n.norm()).to(dtype)


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


# --- metric -----------------------------------------------------------------------------------------------------


@every_case
def test_distance_is_symmetric(case):
    h, x, y = lorentz(case), point(case), point(case)
    case.assert_equal(h.dist(x, y), h.dist(y, x), scale=h.dist(x, y), points=0)


@every_case
def test_distance_to_itself_is_zero(case):
    x = point(case)
    assert lorentz(case).dist(x, x) == 0


@every_case
def test_distance_to_another_point_is_positive(case):
    h, x = lorentz(case), point(case)
    y = h.projx(x * (1 + 16 * torch.finfo(case.dtype).eps))
    assert h.dist(x, y) > 0


@every_case
def test_triangle_inequality(case):
    h, x, y, z = lorentz(case), point(case), point(case), point(case)
    assert h.dist(x, z) <= (h.dist(x, y) + h.dist(y, z)) * (1 + case.tolerance())


@every_case
def test_distance_to_the_origin(case):
    h, x = lorentz(case), point(case)
    origin = h.origin(case.dim, case.dtype)
    case.assert_equal(h.dist0(x), h.dist(origin, x), scale=h.dist0(x), points=1)


@every_case
def test_inner_product_is_minkowskis(case):
    h = lorentz(case)
    x = h.projx(point(case).double())
    u, v = tangent(case, x), tangent(case, x)
    expected = (u[1:] * v[1:]).sum() - u[0] * v[0]
    scale = u.norm() * v.norm()
    same(h.inner(x, u, v), expected, 1e-12, scale=scale)
    same(h.norm(x, u).square(), h.inner(x, u, u), 1e-12, scale=scale)


@every_case
def test_tangent_vectors_are_orthogonal_to_their_point(case):
    h = lorentz(case)
    x, y = h.projx(point(case, 2).double())
    for u in (tangent(case, x), h.logmap(x, y)):
        product = (u[1:] * x[1:]).sum() - u[0] * x[0]
        same(product, 0.0, ROUNDING[torch.float64], scale=u.norm() * x.norm())


@every_case
def test_pairwise_distances(case):
    h, x, y = lorentz(case), point(case, 4), point(case, 3)
    expected = h.dist(x.unsqueeze(1), y)
    case.assert_equal(h.pairwise_dist(x, y), expected, scale=expected.max(), points=0)


@dtypes
def test_pairwise_distances_of_near_and_of_far_points(dtype):
    h = Lorentz(0.8)
    far = torch.stack([far_coordinates(dtype, 0.8, share, seed) for seed in (0, 1) for share in (1e-9, 0.01, 0.5, 1.0)])
    x = h.from_normal_coords(None, far)
    x = torch.cat([x, h.projx(x * (1 + 4 * torch.finfo(dtype).eps))])
    same(h.pairwise_dist(x, x), h.dist(x.unsqueeze(1), x), ROUNDING[dtype], scale=0)
    assert (h.pairwise_dist(x, x).diagonal() == 0).all()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_volume_element_is_that_of_the_ball(dim):
    # Lebesgue measure of the space part against that of the ball's coordinates: the Jacobian of the isometry.
    case = Case(dim=dim, c=0.7, radius=2.0)
    h, b = lorentz(case), case.point()
    jacobian = torch.func.jacrev(lambda b: h.from_poincare(b)[1:])(b)
    expected = case.ball.log_volume_element(b) - torch.linalg.slogdet(jacobian)[1]
    same(h.log_volume_element(h.from_poincare(b)), expected, 1e-12)


# --- exponential, logarithm, transport, geodesics ---------------------------------------------------------------


@every_case
def test_exponential_inverts_the_logarithm(case):
    h, x, y = lorentz(case), point(case), point(case)
    assert_near(case, h.expmap(x, h.logmap(x, y)), y)
    assert_near(case, h.from_normal_coords(x, h.to_normal_coords(x, y)), y)
    assert_near(case, h.expmap0(h.logmap0(y)), y)


@every_case
def test_logarithm_inverts_the_exponential(case):
    h, x, v = lorentz(case), point(case), coordinates(case)
    case.assert_equal(h.to_normal_coords(x, h.from_normal_coords(x, v)), v, scale=case.radius, points=4)
    u = h.frame(x, v)
    case.assert_equal(h.coframe(x, u), v, scale=case.radius)
    scale = u.abs().max() + case.radius
    case.assert_equal(h.logmap(x, h.expmap(x, u)), u, scale=scale, points=4)


@every_case
def test_points_made_are_on_the_hyperboloid(case):
    h, x, y = lorentz(case), point(case), point(case)
    u = tangent(case, x)
    for z in (h.expmap(x, u), h.geodesic(0.3, x, y), h.mobius_add(x, y), h.expmap0(h.logmap0(y))):
        assert h.contains(z)


@every_case
def test_length_of_the_logarithm_is_the_distance(case):
    h, x, y = lorentz(case), point(case), point(case)
    distance = h.dist(x, y)
    case.assert_equal(h.norm(x, h.logmap(x, y)), distance, scale=case.radius)
    case.assert_equal(h.to_normal_coords(x, y).norm(), distance, scale=case.radius)


@every_case
def test_frame_is_orthonormal_and_carried_from_the_origin(case):
    h, x, v = lorentz(case), point(case), coordinates(case)
    case.assert_equal(h.norm(x, h.frame(x, v)), v.norm(), scale=v.norm())
    ambient = torch.cat([torch.zeros_like(v[:1]), v])
    expected = h.transp(h.origin(case.dim, case.dtype), x, ambient)
    scale = v.norm() * math.exp(math.sqrt(case.c) * case.radius)
    case.assert_equal(h.frame(x, v), expected, scale=scale)
    case.assert_equal(h.transp0(x, ambient), expected, scale=scale)


@every_case
def test_transport_keeps_inner_products(case):
    h, x, y = lorentz(case), point(case), point(case)
    u, v = tangent(case, x), tangent(case, x)
    moved = h.inner(y, h.transp(x, y, u), h.transp(x, y, v))
    case.assert_equal(moved, h.inner(x, u, v), scale=h.norm(x, u) * h.norm(x, v), points=3)


@every_case
def test_transport_to_the_same_point_is_the_identity(case):
    x = point(case)
    v = tangent(case, x)
    assert torch.equal(lorentz(case).transp(x, x, v), v)


@every_case
def test_transport_back_is_the_inverse(case):
    h, x, y = lorentz(case), point(case), point(case)
    v = tangent(case, x)
    case.assert_equal(h.transp(y, x, h.transp(x, y, v)), v, scale=v.norm() + case.radius, points=3)


@every_case
def test_transport_carries_the_velocity_of_the_geodesic(case):
    h, x, y = lorentz(case), point(case), point(case)
    arriving = -h.logmap(y, x)
    scale = arriving.norm() + case.radius
    case.assert_equal(h.transp(x, y, h.logmap(x, y)), arriving, scale=scale, points=3)


@every_case
def test_geodesic_has_constant_speed(case):
    h, x, y = lorentz(case), point(case), point(case)
    assert_near(case, h.geodesic(0.0, x, y), x)
    assert_near(case, h.geodesic(1.0, x, y), y)
    path = h.geodesic(torch.linspace(-0.2, 1.2, 8, dtype=case.dtype), x, y)
    lengths = h.dist(path[:-1], path[1:])
    case.assert_equal(lengths, (0.2 * h.dist(x, y)).expand(7), scale=case.radius, points=4)


@every_case
def test_gyroplane_along_its_normal_and_inside(case):
    h, p, a, v = lorentz(case), point(case), coordinates(case), coordinates(case)
    normal = h.frame(p, a)
    x = h.from_normal_coords(p, 0.5 * case.radius * a / a.norm())
    case.assert_equal(h.dist2plane(x=x, p=p, a=normal), 0.5 * case.radius, scale=case.radius, points=3)
    case.assert_equal(h.dist2plane(x=x, p=p, a=-normal), -0.5 * case.radius, scale=case.radius, points=3)
    unsigned = h.dist2plane(x=x, p=p, a=-normal, signed=False)
    case.assert_equal(unsigned, 0.5 * case.radius, scale=case.radius, points=3)
    inside = h.from_normal_coords(p, v - (v @ a) / (a @ a) * a)
    case.assert_equal(h.dist2plane(x=inside, p=p, a=normal), 0.0, scale=case.radius, points=3)


# --- Fréchet means ----------------------------------------------------------------------------------------------


@over_cases(8)
def test_frechet_mean_is_that_of_the_ball(case):
    b = case.point(6).double()
    weights = torch.rand(6, generator=case.generator, dtype=torch.float64)
    h = lorentz(case)
    expected = h.from_poincare(case.ball.frechet_mean(b, weights))
    error = h.dist(h.frechet_mean(h.from_poincare(b), weights), expected)
    assert error <= 1e-9 * case.radius


def test_frechet_mean_of_far_points():
    # Three points at equal angles, at a distance that no ball holds: their mean is the origin.
    angle = 2 * math.pi / 3 * torch.arange(3, dtype=torch.float64)
    directions = torch.stack([angle.cos(), angle.sin()], -1)
    h = Lorentz(1.0)
    mean = h.frechet_mean(h.from_normal_coords(None, 60 * directions))
    assert h.dist0(mean) <= 1e-9
    assert not h.frechet_mean(h.from_normal_coords(None, 60 * directions[:2])).isnan().any()


def test_frechet_mean_is_differentiable():
    case = Case(dim=2, c=0.7, radius=1.5)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    v = coordinates(case, 4).requires_grad_()
    weights = torch.tensor([1.0, 2.0, 0.5, 0.7], dtype=torch.float64, requires_grad=True)

    def mean(c, v, weights):
        h = Lorentz(c)
        return h.to_normal_coords(None, h.frechet_mean(h.from_normal_coords(None, v), weights))

    assert gradcheck(mean, (c, v, weights))


# --- derivatives ------------------------------------------------------------------------------------------------

# Arguments of the operations as functions of coordinates that are free: a point is made of its normal coordinates.
OPERATIONS = {name: OPS[name] for name in PLACES} | {
    "frame": Op("xw", "vector"),
    "coframe": Op("xv", "coordinates"),
    "log_volume_element": Op("x", "number"),
    "projx": Op("x", "point"),
    "geodesic_unit": OPS["geodesic_unit"],
    "to_poincare": Op("x", "coordinates"),
}
FREE = {"from_normal_coords": Op("xw", "point"), "to_normal_coords": Op("xy", "coordinates")}
OPERATIONS |= FREE
operations = pytest.mark.parametrize("name", OPERATIONS)


def free_arguments(case: Case, op: Op, *shape: int) -> list[torch.Tensor]:
    """Normal coordinates of points, components of vectors, numbers and matrices."""
    made = []
    for key in op.arguments:
        if key == "m":
            made.append(case.vector(*shape, case.dim) / case.radius)
        elif key == "t":
            made.append(torch.rand(shape, generator=case.generator, dtype=case.dtype))
        else:
            made.append(coordinates(case, *shape))
    return made


def apply(name: str, h: Lorentz, free: list[torch.Tensor]) -> torch.Tensor:
    op = OPERATIONS[name]
    values = dict(zip(op.arguments, free, strict=True))
    made = {}
    for key, value in values.items():
        if key in POINTS:
            made[key] = h.from_normal_coords(None, value)
    for key, value in values.items():
        if key in "uva":
            origin = h.origin(value.shape[-1], value.dtype)
            place = "" if name in ("gyration", "expmap0", "transp0") else "p" if key == "a" else "x"
            made[key] = h.frame(made.get(place, origin), value)
        elif key not in POINTS:
            made[key] = value
    return getattr(h, name)(*(made[key] for key in op.arguments))


@operations
def test_gradcheck(name):
    case = Case(dim=3, c=0.7, radius=1.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    free = [a.requires_grad_() for a in free_arguments(case, OPERATIONS[name], 2)]
    assert gradcheck(lambda c, *free: apply(name, Lorentz(c), list(free)), (c, *free), eps=1e-5, atol=1e-7)


def test_pairwise_distances_gradcheck():
    case = Case(dim=3, c=0.7, radius=2.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    v, w = coordinates(case, 2).requires_grad_(), coordinates(case, 4).requires_grad_()

    def distances(c, v, w):
        h = Lorentz(c)
        return h.pairwise_dist(h.from_normal_coords(None, v), h.from_normal_coords(None, w))

    assert gradcheck(distances, (c, v, w))


def plain(dtype: torch.dtype, c: float) -> dict[str, torch.Tensor]:
    """Free arguments by name, of points about 0.6 / sqrt(c) from the origin."""
    v = torch.tensor([0.5, -0.3, 0.2], dtype=dtype) / math.sqrt(c)
    values = {"x": v, "y": 2 * v.flip(0), "p": -v, "u": v, "v": v.flip(0), "w": v, "a": v.flip(0)}
    return values | {"t": torch.tensor(0.3, dtype=dtype), "m": torch.eye(3, dtype=dtype)}


def degenerate(what: str, dtype: torch.dtype, c: float) -> dict[str, torch.Tensor]:
    v = plain(dtype, c)["x"]
    zero = torch.zeros_like(v)
    return {
        "equal points": {"y": v, "p": v},
        "opposite points": {"y": -v, "p": -v},
        "zero vectors": {"u": zero, "v": zero, "w": zero, "a": zero, "t": torch.zeros((), dtype=dtype)},
        "points at the origin": {"x": zero, "y": zero, "p": zero},
        "one point at the origin": {"y": zero, "p": zero},
        "all zero": dict.fromkeys("xypuvwa", zero) | {"m": torch.zeros(3, 3, dtype=dtype)},
    }[what]


DEGENERATE = [
    "equal points",
    "opposite points",
    "zero vectors",
    "points at the origin",
    "one point at the origin",
    "all zero",
]


def assert_finite(name, h, free, readout):
    out = apply(name, h, free)
    gradients = torch.autograd.grad(readout(out), [h.c, *free], allow_unused=True)
    assert out.isfinite().all(), f"value of {out} with c = {h.c} in {out.dtype}"
    assert all(g.isfinite().all() for g in gradients if g is not None), f"gradient at c = {h.c} in {out.dtype}"


@operations
@pytest.mark.parametrize("what", DEGENERATE)
def test_values_and_gradients_are_finite(name, what):
    for dtype, c in itertools.product(DTYPES, [1e-6, 1.0, 16.0]):
        values = plain(dtype, c) | degenerate(what, dtype, c)
        h = Lorentz(torch.tensor(c, dtype=dtype, requires_grad=True))
        assert_finite(name, h, [values[key].requires_grad_() for key in OPERATIONS[name].arguments], torch.sum)


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


@pytest.mark.parametrize(("name", "arguments"), [(name, a) for name, all_of in FAR_ARGUMENTS.items() for a in all_of])
def test_values_and_gradients_are_finite_far_out(name, arguments):
    far_directions = {
        "equal": torch.tensor([1.0, -2.0, 2.0]).expand(2, 3) / 3,
        "opposite": torch.tensor([[1.0, -2.0, 2.0], [-1.0, 2.0, -2.0]]) / 3,
        "different": torch.tensor([[1.0, -2.0, 2.0], [2.0, 2.0, 1.0]]) / 3,
        "along an axis": torch.tensor([0.0, 1.0, 0.0]).expand(2, 3),
    }
    for dtype, c, directions in itertools.product(DTYPES, [0.01, 1.0, 16.0], far_directions.values()):
        values = plain(dtype, c)
        for key, direction in zip(arguments, directions, strict=False):
            values[key] = (FAR[dtype] / math.sqrt(c) * direction).to(dtype)
        h = Lorentz(torch.tensor(c, dtype=dtype, requires_grad=True))

        def size(out, h=h):
            """The distance of a point, the size of anything else: as large as the argument, not its exponential."""
            return h.dist0(out) if OPERATIONS[name].returns == "point" else (out / out.detach().norm().clamp(1)).sum()

        assert_finite(name, h, [values[key].requires_grad_() for key in OPERATIONS[name].arguments], size)


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


@dtypes
def test_gradient_of_the_distance_at_equal_points_is_zero(dtype):
    for v in ([0.0, 0.0], [0.3, 0.4], [30.0, 0.0]):
        x = Lorentz(1.0).from_normal_coords(None, torch.tensor(v, dtype=dtype))
        x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        for distance in (Lorentz(1.0).dist(x, y), Lorentz(1.0).pairwise_dist(x[None], y[None])[0, 0]):
            gradients = torch.autograd.grad(distance, (x, y))
            assert [g.abs().max().item() for g in gradients] == [0, 0]


@dtypes
def test_plane_without_a_normal_is_at_distance_zero(dtype):
    h = Lorentz(1.0)
    p, x = (h.from_normal_coords(None, torch.tensor(v, dtype=dtype)) for v in ([1.0, 2.0], [3.0, -1.0]))
    assert h.dist2plane(x=x, p=p, a=torch.zeros(3, dtype=dtype)) == 0


# --- shapes, dtypes, memory -------------------------------------------------------------------------------------


@operations
def test_leading_dimensions_broadcast(name):
    op, case = OPERATIONS[name], Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    size = {"point": (6,), "vector": (6,), "coordinates": (5,), "number": ()}[op.returns]
    for leading in [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((0,), ())]:
        shapes = [leading[i % 2] for i in range(len(op.arguments))]
        free = [free_arguments(case, op, *shape)[i] for i, shape in enumerate(shapes)]
        out = apply(name, Lorentz(0.7), free)
        assert out.shape == torch.broadcast_shapes(*shapes) + size, leading


@operations
def test_vmap_over_points_and_curvature(name):
    op, case = OPERATIONS[name], Case(dim=3, c=0.7, radius=1.0)
    free = free_arguments(case, op, 4)
    c = torch.tensor([1e-3, 0.1, 0.5, 0.7], dtype=torch.float64)
    actual = vmap(lambda c, *free: apply(name, Lorentz(c), list(free)))(c, *free)
    rows = [apply(name, Lorentz(c[k]), [a[k] for a in free]) for k in range(4)]
    same(actual, torch.stack(rows), ROUNDING[torch.float64], scale=torch.stack(rows).abs().max())


@operations
def test_broadcast_values_are_those_of_the_rows(name):
    op, case = OPERATIONS[name], Case(dim=5, c=0.7, radius=1.0)
    free = [a[0] if i % 2 else a for i, a in enumerate(free_arguments(case, op, 3))]
    rows = [apply(name, Lorentz(0.7), [a if i % 2 else a[k] for i, a in enumerate(free)]) for k in range(3)]
    same(apply(name, Lorentz(0.7), free), torch.stack(rows), ROUNDING[torch.float64])


@operations
@pytest.mark.parametrize("shape", [(), (4,)])
def test_dtype_is_that_of_the_points(name, shape):
    op, case = OPERATIONS[name], Case(dim=3, c=0.7, radius=1.0, dtype=torch.float32)
    for c in (0.7, torch.tensor(0.7), torch.tensor(0.7, dtype=torch.float64)):
        assert apply(name, Lorentz(c), free_arguments(case, op, *shape)).dtype == torch.float32


@operations
def test_float32_curvature_does_not_spoil_float64_points(name):
    # 0.7 in float32 is a number like another: the same one in float64 must give the same, derivatives included.
    op, case = OPERATIONS[name], Case(dim=3, c=0.7, radius=3.0)
    free = [a.requires_grad_() for a in free_arguments(case, op, 4)]
    outputs, slopes = [], []
    for c in (torch.tensor(0.7), torch.tensor(0.7).double()):
        out = apply(name, Lorentz(c), free)
        outputs.append(out)
        slopes.append(torch.autograd.grad(out.sum(), free))
    same(outputs[0], outputs[1], ROUNDING[torch.float64])
    for a, b in zip(*slopes, strict=True):
        same(a, b, ROUNDING[torch.float64], scale=b.abs().max())


@pytest.mark.parametrize("leading", [((), ()), ((3,), ()), ((2, 1), (3,))])
def test_pairwise_distances_broadcast(leading):
    case = Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    x, y = point(case, *leading[0], 4), point(case, *leading[1], 6)
    assert Lorentz(0.7).pairwise_dist(x, y).shape == torch.broadcast_shapes(*leading) + (4, 6)


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_pairwise_distances_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, y = point(case, 30).requires_grad_(), point(case, 40).requires_grad_()
    with LargestStorage() as largest:
        Lorentz(c).pairwise_dist(x, y).sum().backward()
    assert largest.numel == 40 * 101  # the larger input, not 30 * 40 * 100


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_many_gyroplanes_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, p = point(case, 30, 1).requires_grad_(), point(case, 40).requires_grad_()
    a = tangent(case, p.detach()).requires_grad_()
    with LargestStorage() as largest:
        Lorentz(c).dist2plane(x=x, p=p, a=a).sum().backward()
    assert largest.numel == 40 * 101  # the planes, not 30 * 40 * 100


# --- the set ----------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_contains(dtype, c):
    h = Lorentz(c)
    good = h.from_normal_coords(None, torch.tensor([[0.0, 0.0], [1.0, 2.0], [20.0, -30.0]], dtype=dtype))
    assert h.contains(good).tolist() == [True, True, True]
    beside = good * torch.tensor([1.001, 1.0, 1.0], dtype=dtype)
    assert h.contains(beside).tolist() == [False, False, False]
    assert h.contains(good * torch.tensor([-1.0, 1.0, 1.0], dtype=dtype)).tolist() == [False, False, False]
    for bad in (math.nan, math.inf):
        for i in range(3):
            spoilt = good.clone()
            spoilt[:, i] = bad
            assert h.contains(spoilt).tolist() == [False, False, False]


def test_points_of_another_curvature_are_not_contained():
    x = Lorentz(1.0).from_normal_coords(None, torch.tensor([0.3, 0.4]))
    assert not Lorentz(1.1).contains(x)


@dtypes
@pytest.mark.parametrize("c", [1e-4, 1.0, 7.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_projection_keeps_the_space_part_and_lands_on_the_hyperboloid(dtype, c, dim):
    h = Lorentz(c)
    size = torch.logspace(-6, 12, 40, dtype=dtype).unsqueeze(-1)
    x = torch.cat([torch.zeros(40, 1, dtype=dtype), size * torch.randn(40, dim, dtype=dtype)], -1)
    assert not h.contains(x).any()
    made = h.projx(x)
    assert h.contains(made).all()
    assert torch.equal(made[:, 1:], x[:, 1:])
    expected = (1 / c + x[:, 1:].double().square().sum(-1)).sqrt()
    same(made[:, 0], expected, ROUNDING[dtype], scale=0)


@every_case
def test_projection_moves_no_point(case):
    x = point(case, 20)
    same(lorentz(case).projx(x), x, 4 * ROUNDING[case.dtype], scale=x.abs().max())


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


# --- the object -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "c",
    [0, 0.0, -1.0, -1e-9, math.nan, math.inf, True, "1", None, [1.0], 1j]
    + [torch.tensor(v) for v in (0.0, -1.0, math.nan, math.inf)]
    + [torch.tensor([1.0, -2.0]), torch.ones(2, dtype=torch.complex64), torch.tensor(1), torch.tensor(True)],
    ids=repr,
)
def test_bad_curvature(c):
    with pytest.raises(ValueError, match="c must be"):
        Lorentz(c)


def test_flat_space_is_sent_to_the_ball():
    with pytest.raises(ValueError, match=r"c must be positive, got 0.*use PoincareBall\(0\)"):
        Lorentz(0)


def test_curvature_is_kept_as_it_is():
    c = torch.tensor(1.0, requires_grad=True)
    assert Lorentz(c).c is c
    meta = torch.tensor(1.0, device="meta")
    assert Lorentz.with_curvature(meta).c is meta


def test_equality():
    assert Lorentz(1.0) == Lorentz(1)
    assert Lorentz(0.5) == Lorentz(torch.tensor(0.5))
    assert Lorentz(1.0) != Lorentz(2.0)
    assert Lorentz(1.0) != PoincareBall(1.0)
    assert len({Lorentz(0.5), Lorentz(torch.tensor(0.5)), PoincareBall(0.5)}) == 2


@pytest.mark.parametrize("c", [0.5, torch.tensor(0.5, requires_grad=True)], ids=["float", "tensor"])
@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))], ids=["copy", "pickle"])
def test_copies(c, copy_of):
    h = Lorentz(c)
    other = copy_of(h)
    assert other == h
    assert other is not h
    assert repr(other) == "Lorentz(c=0.5)"
    assert getattr(other.c, "requires_grad", None) == getattr(c, "requires_grad", None)


@dtypes
@pytest.mark.parametrize("c", [4.0, torch.tensor(4.0)], ids=["float", "tensor"])
def test_origin(dtype, c):
    origin = Lorentz(c).origin(3, dtype=dtype)
    assert torch.equal(origin, torch.tensor([0.5, 0.0, 0.0, 0.0], dtype=dtype))
    assert Lorentz(c).dist0(origin) == 0


def test_one_more_coordinate_than_dimensions():
    assert (Lorentz(1.0).intrinsic_dim(6), Lorentz(1.0).ambient_dim(5)) == (5, 6)


# --- a second opinion -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def geoopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it scripts its functions, which this torch calls deprecated
        return pytest.importorskip("geoopt")


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", ["dist", "dist0", "expmap", "logmap", "transp", "inner"])
def test_geoopt_agrees(geoopt, name, c):
    case = Case(dim=4, c=c, radius=2 / math.sqrt(c))
    h, theirs = Lorentz(c), geoopt.Lorentz(k=torch.tensor(1 / c, dtype=torch.float64))
    x, y = point(case, 50), point(case, 50)
    u, v = tangent(case, x), tangent(case, x)
    arguments = {"dist": (x, y), "dist0": (x,), "expmap": (x, u), "logmap": (x, y), "transp": (x, y, v)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "inner":  # it leaves the point out
            actual, expected = h.inner(x, u, v), theirs.inner(x, u, v)
        else:
            actual, expected = getattr(h, name)(*arguments[name]), getattr(theirs, name)(*arguments[name])
    same(actual, expected, 1e-7)


SMALL_CURVATURES = [1.0, 1e-2, 1e-4, 1e-6]


@pytest.mark.parametrize("c", SMALL_CURVATURES)
@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in ("lambda_x", "from_poincare")])
def test_derivatives_in_c_in_float32(name, c):
    """They do not go by way of the time component, which is as large as 1/sqrt(c): against float64."""
    torch.manual_seed(0)
    free = free_arguments(Case(dim=3, c=1.0, radius=1.5), OPERATIONS[name], 4)
    slopes = []
    for dtype in (torch.float32, torch.float64):
        curvature = torch.tensor(c, dtype=dtype, requires_grad=True)
        h = Lorentz(curvature)
        out = apply(name, h, [value.to(dtype) for value in free])
        # Of a point, what does not depend on the chart.
        out = h.to_normal_coords(None, out) if OPERATIONS[name].returns == "point" else out
        out = h.coframe(h.from_normal_coords(None, free[1].to(dtype)), out) if name == "transp" else out
        (first,) = torch.autograd.grad(out.sum(), curvature, create_graph=True, allow_unused=True)
        slopes.append(None if first is None else first.detach())
    if slopes[0] is not None:
        same(slopes[0], slopes[1], 1e-3, scale=1e-2)


@pytest.mark.parametrize("c", SMALL_CURVATURES)
def test_second_derivative_in_c_in_float32(c):
    v, w = (torch.randn(6, 3, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    seconds = []
    for dtype in (torch.float32, torch.float64):
        curvature = torch.tensor(c, dtype=dtype, requires_grad=True)
        h = Lorentz(curvature)
        distance = h.dist(h.from_normal_coords(None, v.to(dtype)), h.from_normal_coords(None, w.to(dtype))).sum()
        (first,) = torch.autograd.grad(distance, curvature, create_graph=True)
        seconds.append(torch.autograd.grad(first, curvature)[0])
    same(seconds[0], seconds[1], 1e-2, scale=0)


@pytest.mark.parametrize("name", ["to_normal_coords", "transp", "geodesic"])
def test_second_derivatives_at_coinciding_points(name):
    """As those of the ball, whose formulas have no square root there."""
    v = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    u = torch.tensor([0.7, 0.1, -0.4], dtype=torch.float64)

    def result(chart, w):
        manifold = chart(1.0)
        x, y = manifold.from_normal_coords(None, v), manifold.from_normal_coords(None, w)
        if name == "to_normal_coords":
            return manifold.to_normal_coords(x, y)
        if name == "geodesic":
            return manifold.to_normal_coords(None, manifold.geodesic(0.3, x, y))
        carried = manifold.transp(x, y, manifold.frame(x, u))
        return (
            carried
            if chart is Lorentz
            else Lorentz(1.0).frame(Lorentz(1.0).from_poincare(y), carried * manifold.lambda_x(y))
        )

    def second(chart):
        return torch.func.jacfwd(torch.func.jacrev(lambda w: result(chart, w)))(v)

    same(second(Lorentz), second(PoincareBall), 1e-9, scale=1.0)


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
