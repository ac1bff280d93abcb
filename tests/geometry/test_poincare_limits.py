"""The ball at its limits: zero curvature, coinciding points, the border of the dtype, and points outside."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import jacrev

from pyro_hyperbolic import PoincareBall
from tests.geometry.cases import OPS, POINTS, Case, lost_distance, place
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, each, same

dtypes = each("dtype", DTYPES)
operations = each("name", OPS)
FARTHEST = {torch.float64: 35.0, torch.float32: 15.0}  # sqrt(c) times the distance to the origin


def values_and_gradients(name, c, arguments):
    """The operation's value, and the derivatives of the sum of its entries in c and in every argument."""
    c = c.clone().requires_grad_()
    arguments = [a.clone().requires_grad_() for a in arguments]
    out = getattr(PoincareBall(c), name)(*arguments)
    gradients = torch.autograd.grad(out.sum(), [c, *arguments], allow_unused=True)
    return out, [g for g in gradients if g is not None]


# --- curvature zero ---------------------------------------------------------------------------------------------

# The Euclidean space with metric 4 dx^2.
EUCLIDEAN = {
    "mobius_add": lambda x, y: x + y,
    "mobius_sub": lambda x, y: x - y,
    "mobius_coadd": lambda x, y: x + y,
    "mobius_cosub": lambda x, y: x - y,
    "mobius_pointwise_mul": lambda u, x: u * x,
    "mobius_scalar_mul": lambda t, x: t.unsqueeze(-1) * x,
    "mobius_matvec": lambda m, x: (m @ x.unsqueeze(-1)).squeeze(-1),
    "gyration": lambda x, y, v: v,
    "lambda_x": lambda x: torch.full_like(x[..., 0], 2),
    "inner": lambda x, u, v: 4 * (u * v).sum(-1),
    "norm": lambda x, v: 2 * v.norm(dim=-1),
    "expmap": lambda x, v: x + v,
    "logmap": lambda x, y: y - x,
    "expmap0": lambda v: v,
    "logmap0": lambda y: y,
    "from_normal_coords": lambda x, v: x + v / 2,
    "to_normal_coords": lambda x, y: 2 * (y - x),
    "dist": lambda x, y: 2 * (x - y).norm(dim=-1),
    "dist0": lambda x: 2 * x.norm(dim=-1),
    "transp": lambda x, y, v: v,
    "transp0": lambda y, v: v,
    "transp0back": lambda x, v: v,
    "geodesic_unit": lambda t, x, v: x + t.unsqueeze(-1) / 2 * v / v.norm(dim=-1, keepdim=True),
    "coframe": lambda x, v: 2 * v,
    "egrad2rgrad": lambda x, v: v / 4,
    "geodesic": lambda t, x, y: x + t.unsqueeze(-1) * (y - x),
    "dist2plane": lambda x, p, a: 2 * ((x - p) * a).sum(-1) / a.norm(dim=-1),
    "projx": lambda x: x,
    "log_volume_element": lambda x: torch.full_like(x[..., 0], x.shape[-1] * math.log(2)),
}


@operations
@dtypes
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_zero_curvature_is_euclidean(name, dtype, kind):
    c = 0.0 if kind == "float" else torch.zeros((), dtype=dtype)
    for radius in (1e-6, 1.0, 1e3):
        arguments = Case(dim=4, c=0.0, radius=radius, dtype=dtype).arguments(OPS[name], 6)
        expected = EUCLIDEAN[name](*arguments)
        same(getattr(PoincareBall(c), name)(*arguments), expected, ROUNDING[dtype], scale=expected.abs().max())


@operations
def test_continuous_at_zero_curvature(name):
    arguments = Case(dim=4, c=1.0, radius=1.0).arguments(OPS[name], 6)
    expected = EUCLIDEAN[name](*arguments)
    for c in (1e-300, 1e-20, 1e-12):
        same(getattr(PoincareBall(c), name)(*arguments), expected, GEOMETRY[torch.float64])


@operations
def test_derivative_in_c_at_zero(name):
    arguments = Case(dim=4, c=1.0, radius=1.0).arguments(OPS[name], 6)

    def value(c):
        return getattr(PoincareBall(c), name)(*arguments)

    zero, h = torch.zeros((), dtype=torch.float64), 1e-4
    # One-sided, of third order.
    difference = (-11 * value(0.0) + 18 * value(h) - 9 * value(2 * h) + 2 * value(3 * h)) / (6 * h)
    same(jacrev(value)(zero), difference, 1e-8)


@operations
@pytest.mark.parametrize("c", [1e-3, 0.7])
def test_gradcheck(name, c):
    case = Case(dim=3, c=c, radius=1.0)
    c = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    arguments = [a.requires_grad_() for a in case.arguments(OPS[name], 2)]
    assert gradcheck(lambda c, *args: getattr(PoincareBall(c), name)(*args), (c, *arguments), eps=1e-5, atol=1e-7)


def test_pairwise_distances_gradcheck():
    case = Case(dim=3, c=0.7, radius=1.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x, y = case.point(2).requires_grad_(), case.point(4).requires_grad_()
    assert gradcheck(lambda c, x, y: PoincareBall(c).pairwise_dist(x, y), (c, x, y))


# --- coinciding and vanishing arguments -------------------------------------------------------------------------


def _degenerate(arguments: str, c: float, dtype: torch.dtype) -> dict[str, list[torch.Tensor]]:
    case = Case(dim=3, c=1.0, radius=1.0, dtype=dtype)
    point, zero = case.point(), torch.zeros(3, dtype=dtype)
    border = FARTHEST[dtype] / math.sqrt(c) if c else 1e3
    far = place(torch.tensor([1.0, -2.0, 2.0]), border, c).to(dtype)
    cases = {
        "equal points": {"x": point, "y": point, "p": point},
        "opposite points": {"x": point, "y": -point, "p": -point},
        "zero vectors": {"u": zero, "v": zero, "a": zero, "t": torch.zeros((), dtype=dtype)},
        "zero points": {"x": zero, "y": zero, "p": zero},
        "all zero": dict.fromkeys("xypuva", zero) | {"m": torch.zeros(3, 3, dtype=dtype)},
        "equal points at the border": {"x": far, "y": far, "p": far},
        "opposite points at the border": {"x": far, "y": -far, "p": -far},
        "different points at the border": {"x": far, "y": far.flip(0), "p": far.flip(0)},
        "long vectors at the border": {"x": far, "y": far, "v": 100 * far, "u": 100 * far, "p": far, "a": far},
    }
    generic = case.arguments(OPS_BY_ARGUMENTS[arguments])
    return {
        what: [made.get(name, value) for name, value in zip(arguments, generic, strict=True)]
        for what, made in cases.items()
    }


OPS_BY_ARGUMENTS = {op.arguments: op for op in OPS.values()}


@operations
def test_values_and_gradients_are_finite(name):
    for dtype, c in itertools.product(DTYPES, [0.0, 1e-6, 1.0]):
        cases = _degenerate(OPS[name].arguments, c, dtype)
        arguments = [torch.stack(values) for values in zip(*cases.values(), strict=True)]
        out, gradients = values_and_gradients(name, torch.tensor(c, dtype=dtype), arguments)
        # A sum over all cases, as the derivative in c is, cannot hide one that is not finite.
        for what, tensor in [("value", out), *(("gradient", gradient) for gradient in gradients)]:
            finite = tensor.isfinite()
            assert finite.all(), f"{what} at c = {c} in {dtype}: {finite.tolist()} of {list(cases)}"


@dtypes
@pytest.mark.parametrize("c", [0.0, 1.0])
def test_pairwise_distances_of_equal_points_have_finite_gradients(dtype, c):
    x = Case(dim=3, c=1.0, radius=1.0, dtype=dtype).point(4).requires_grad_()
    c = torch.tensor(c, dtype=dtype, requires_grad=True)
    distances = PoincareBall(c).pairwise_dist(x, x)
    gradients = torch.autograd.grad(distances.sum(), (x, c))
    assert torch.equal(distances.diagonal(), torch.zeros(4, dtype=dtype))
    assert all(g.isfinite().all() for g in gradients)


@dtypes
def test_gradient_of_the_distance_at_equal_points_is_zero(dtype):
    x = Case(dim=3, c=1.0, radius=1.0, dtype=dtype).point()
    _, gradients = values_and_gradients("dist", torch.ones((), dtype=dtype), [x, x])
    assert [g.abs().max().item() for g in gradients] == [0, 0, 0]


@dtypes
def test_plane_without_a_normal_is_at_distance_zero(dtype):
    case = Case(dim=3, c=1.0, radius=1.0, dtype=dtype)
    assert case.ball.dist2plane(x=case.point(), p=case.point(), a=torch.zeros(3, dtype=dtype)) == 0


# --- the border of the dtype ------------------------------------------------------------------------------------

curvatures = each("c", [1e-6, 1.0, 16.0])


def sweep(dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.logspace(-6, 0, 13), torch.linspace(1, FARTHEST[dtype], 30)]).double()


@curvatures
@dtypes
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_distance_of_the_exponential_to_the_border(c, dtype, dim):
    s = sweep(dtype)
    direction = torch.nn.functional.normalize(torch.randn(len(s), dim, dtype=torch.float64), dim=-1)
    v = ((s / (2 * math.sqrt(c))).unsqueeze(-1) * direction).to(dtype)
    ball = PoincareBall(c)
    x = ball.expmap0(v)
    assert ball.contains(x).all()
    error = (math.sqrt(c) * ball.dist0(x).double() - s).abs()
    assert (error <= lost_distance(s, dtype)).all()


@curvatures
@dtypes
def test_exponential_beyond_the_border_stays_inside(c, dtype):
    ball = PoincareBall(c)
    lengths = torch.logspace(1, 12, 12, dtype=dtype) / math.sqrt(c)
    v = lengths.unsqueeze(-1) * torch.tensor([0.6, -0.8], dtype=dtype)
    x = ball.expmap0(v)
    assert ball.contains(x).all()
    # The farthest that the dtype can hold, known to the margin's own rounding.
    reached = torch.minimum(2 * lengths.double(), torch.tensor(ball.reach(dtype)))
    same(ball.dist0(x), reached, 0.25 / math.sqrt(c), scale=1.0)


@dtypes
def test_exponential_of_an_overflowing_vector_is_not_the_origin(dtype):
    v = torch.tensor([0.0, torch.finfo(dtype).max / 4], dtype=dtype)
    assert not torch.equal(PoincareBall(1.0).expmap0(v), torch.zeros(2, dtype=dtype))


@dtypes
def test_projection_of_an_overflowing_point_is_not_the_origin(dtype):
    x = torch.tensor([0.0, torch.finfo(dtype).max / 4], dtype=dtype)
    assert not torch.equal(PoincareBall(1.0).projx(x), torch.zeros(2, dtype=dtype))


@curvatures
@dtypes
def test_logarithm_recovers_the_vector_to_the_border(c, dtype):
    s = sweep(dtype)
    v = ((s / (2 * math.sqrt(c))).unsqueeze(-1) * torch.tensor([0.6, -0.8], dtype=torch.float64)).to(dtype)
    ball = PoincareBall(c)
    error = (ball.logmap0(ball.expmap0(v)) - v).double().norm(dim=-1)
    assert (2 * math.sqrt(c) * error <= lost_distance(s, dtype)).all()


@curvatures
@dtypes
def test_far_distances_between_far_points(c, dtype):
    # Both at distance s from the origin, at a right angle: cosh d = cosh(s)^2.
    s = sweep(dtype)
    x = place(torch.tensor([1.0, 0.0]).expand(len(s), 2), s / math.sqrt(c), c).to(dtype)
    ball = PoincareBall(c)
    distance = math.sqrt(c) * ball.dist(x, x.flip(-1)).double()
    expected = 2 * torch.asinh(torch.sinh(s) / math.sqrt(2))
    assert ((distance - expected).abs() <= 2 * lost_distance(s, dtype)).all()


@curvatures
@dtypes
def test_every_sum_is_inside(c, dtype):
    ball = PoincareBall(c)
    far = place(torch.randn(200, 2), FARTHEST[dtype] / math.sqrt(c), c).to(dtype)
    sums = ball.mobius_add(far.unsqueeze(1), far)
    assert ball.contains(sums).all()


@curvatures
@dtypes
def test_signed_distance_to_planes_of_far_points(c, dtype):
    # The plane through the origin with normal e: sinh(sqrt(c) d) = sinh(s) cos(angle).
    s = sweep(dtype)
    x = place(torch.tensor([0.6, -0.8], dtype=torch.float64).expand(len(s), 2), s / math.sqrt(c), c).to(dtype)
    zero, normal = torch.zeros(2, dtype=dtype), torch.tensor([1.0, 0.0], dtype=dtype)
    distance = math.sqrt(c) * PoincareBall(c).dist2plane(x=x, p=zero, a=normal).double()
    assert ((distance - torch.asinh(0.6 * torch.sinh(s))).abs() <= lost_distance(s, dtype)).all()


# --- outside ----------------------------------------------------------------------------------------------------


OUTSIDE = [
    pytest.param(name, outside, id=f"{name}-{outside}")
    for name, op in OPS.items()
    if name != "projx"
    for points in [[a for a in op.arguments if a in POINTS]]
    for outside in dict.fromkeys([*points, "".join(points)])
    if outside
]


@pytest.mark.parametrize(("name", "outside"), OUTSIDE)
@dtypes
def test_points_outside_give_nan(name, outside, dtype):
    op, case = OPS[name], Case(dim=3, c=1.0, radius=1.0, dtype=dtype)
    arguments = [
        1.1 * torch.nn.functional.normalize(value, dim=-1) if kind in outside else value
        for kind, value in zip(op.arguments, case.arguments(op, 5), strict=True)
    ]
    out = getattr(case.ball, name)(*arguments)
    assert out.isnan().all()


@dtypes
def test_pairwise_distances_to_points_outside_are_nan(dtype):
    case = Case(dim=3, c=1.0, radius=1.0, dtype=dtype)
    x = torch.cat([case.point(2), torch.full((1, 3), 0.9, dtype=dtype)])
    outside = case.ball.pairwise_dist(x, x).isnan()
    assert outside.tolist() == [[False, False, True], [False, False, True], [True, True, True]]


@operations
def test_nan_in_gives_nan_out(name):
    op, case = OPS[name], Case(dim=3, c=1.0, radius=1.0)
    arguments = case.arguments(op)
    for i, value in enumerate(arguments):
        spoilt = arguments[:i] + [torch.full_like(value, math.nan)] + arguments[i + 1 :]
        assert getattr(case.ball, name)(*spoilt).isnan().all()
