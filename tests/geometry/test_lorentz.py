"""The hyperboloid: the ball through an isometry, shapes and dtypes, the set, the object."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.autograd.functional import jvp
from torch.func import vmap

from pyro_hyperbolic import Lorentz, PoincareBall
from tests.geometry.cases import OPS, POINTS, Case
from tests.geometry.lorentz_cases import (
    OPERATIONS,
    PLACES,
    apply,
    dtypes,
    every_case,
    free_arguments,
    lorentz,
    operations,
    point,
    tangent,
)
from tests.helpers import GEOMETRY, ROUNDING, LargestStorage, oracle, same


def assert_near(case: Case, actual: torch.Tensor, expected: torch.Tensor, points: int = 2) -> None:
    """Two points are the same: their distance is within the tolerance of the case's radius."""
    assert actual.dtype == expected.dtype == case.dtype
    error = (lorentz(case).dist(actual.double(), expected.double()) / case.radius).max()
    # Rounding of x_0 near the origin is no error of the point, but enters where the point is computed from it.
    assert error <= 4 * case.tolerance(points), f"{case}: error {error:.3g} exceeds {case.tolerance(points):.3g}"


# --- the isometry -----------------------------------------------------------------------------------------------------


def push(case: Case, at: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The differential of the isometry from the ball."""
    return jvp(lorentz(case).from_poincare, at, v)[1]


def test_every_operation_of_the_ball_is_there():
    # The conformal factor is one of coordinates, and so are the border, the volume element and the gradient, which have
    # their tests; factors and the step of a unit geodesic are of no size of a case, and have theirs too.
    elsewhere = {"lambda_x", "projx", "log_volume_element", "egrad2rgrad", "geodesic_unit", "mobius_pointwise_mul"}
    assert OPS.keys() - PLACES.keys() == elsewhere
    public = {name for name in dir(PoincareBall) if not name.startswith("_")}
    assert public - set(dir(Lorentz)) == {"lambda_x"}


# Sums of terms of either sign, whose roundings are as large as the terms and not as what is left of them.
SIZES = {
    "inner": lambda ball, x, u, v: ball.norm(x, u) * ball.norm(x, v),
    "dist2plane": lambda ball, x, p, a: ball.dist0(x) + ball.dist0(p),
}


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
        assert h.contains(actual)
        assert_near(case, actual, h.from_poincare(expected).to(case.dtype), points=3)
        return
    place = next(places, "-")
    if op.returns == "vector" and place != "-":
        expected = push(case, points[place], expected)
    # A vector is measured by its coordinates, which are as large as those of a point.
    scale = expected.abs().max() + (case.radius if op.returns == "vector" else 0)
    if name in SIZES:
        scale = SIZES[name](ball, *inputs.values())
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
    back = jvp(h.to_poincare, h.from_poincare(b), pushed)[1]
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
@pytest.mark.parametrize("dim", sorted({row["d"] for row in oracle("geometry")}))
def test_oracle(dtype, dim):
    rows = [row for row in oracle("geometry") if row["d"] == dim and row["c"] > 0]
    columns = {key: torch.tensor([row[key] for row in rows], dtype=torch.float64) for key in rows[0]}
    h, root = Lorentz(columns["c"]), columns["c"].sqrt()
    x, y, p = (h.from_poincare(columns[key]).to(dtype) for key in "xyp")
    normal = jvp(h.from_poincare, columns["p"], columns["a"])[1].to(dtype)
    same(h.dist(x, y), columns["dist"], GEOMETRY[dtype], scale=0)
    same(h.dist0(x), columns["dist0"], GEOMETRY[dtype], scale=0)
    size = torch.asinh(root * y.norm(dim=-1) * normal.norm(dim=-1) / h.norm(p, normal)) / root
    same(h.dist2plane(x=y, p=p, a=normal), columns["gyroplane_signed_distance"], GEOMETRY[dtype], scale=size)


@every_case
def test_distance_to_another_point_is_positive(case):
    h, x = lorentz(case), point(case)
    y = h.projx(x * (1 + 16 * torch.finfo(case.dtype).eps))
    assert h.dist(x, y) > 0


# --- shapes, dtypes, memory -------------------------------------------------------------------------------------------


@operations
def test_shape_and_dtype(name):
    """Leading dimensions broadcast, and the points decide the dtype, whatever that of the curvature."""
    op, case = OPERATIONS[name], Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    size = {"point": (6,), "vector": (6,), "coordinates": (5,), "number": ()}[op.returns]
    curvatures = [0.7, torch.tensor(0.7), torch.tensor(0.7, dtype=torch.float64)]
    for i, leading in enumerate([((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((0,), ())]):
        shapes = [leading[k % 2] for k in range(len(op.arguments))]
        free = [free_arguments(case, op, *shape)[k] for k, shape in enumerate(shapes)]
        out = apply(name, Lorentz(curvatures[i % 3]), free)
        assert out.shape == torch.broadcast_shapes(*shapes) + size, leading
        assert out.dtype == torch.float32, leading


@operations
def test_vmap_over_points_and_curvature(name):
    op, case = OPERATIONS[name], Case(dim=3, c=0.7, radius=1.0)
    free = free_arguments(case, op, 4)
    c = torch.tensor([1e-3, 0.1, 0.5, 0.7], dtype=torch.float64)
    actual = vmap(lambda c, *free: apply(name, Lorentz(c), list(free)))(c, *free)
    rows = [apply(name, Lorentz(c[k]), [a[k] for a in free]) for k in range(4)]
    same(actual, torch.stack(rows), ROUNDING[torch.float64], scale=torch.stack(rows).abs().max())


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


# --- the set ----------------------------------------------------------------------------------------------------------


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


# --- the object -------------------------------------------------------------------------------------------------------


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
    assert Lorentz(1.0).with_curvatures([meta]).c is meta


def test_equality():
    assert Lorentz(1.0) == Lorentz(1)
    assert Lorentz(0.5) == Lorentz(torch.tensor(0.5))
    assert Lorentz(1.0) != Lorentz(2.0)
    assert Lorentz(1.0) != PoincareBall(1.0)
    assert len({Lorentz(0.5), Lorentz(torch.tensor(0.5)), PoincareBall(0.5)}) == 2


@dtypes
@pytest.mark.parametrize("c", [4.0, torch.tensor(4.0)], ids=["float", "tensor"])
def test_origin(dtype, c):
    origin = Lorentz(c).origin(3, dtype=dtype)
    assert torch.equal(origin, torch.tensor([0.5, 0.0, 0.0, 0.0], dtype=dtype))
    assert Lorentz(c).dist0(origin) == 0


def test_one_more_coordinate_than_dimensions():
    assert (Lorentz(1.0).intrinsic_dim(6), Lorentz(1.0).ambient_dim(5)) == (5, 6)
