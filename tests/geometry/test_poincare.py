"""The Poincaré ball: values of the oracle, the gyrogroup laws, the metric, shapes, and a second opinion."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import pytest
import torch
from torch.func import vmap

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.ops.tolerances import border_margin
from tests.geometry.cases import OPS, Case, every_case
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, LargestStorage, oracle, same

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
operations = pytest.mark.parametrize("name", OPS)

# --- the oracle -------------------------------------------------------------------------------------------------

# Column of the oracle: the operation and its arguments; the plane's distance is that of y.
ORACLE = {
    "mobius_add": ("mobius_add", {"x": "x", "y": "y"}),
    "expmap": ("expmap", {"x": "x", "v": "v"}),
    "logmap": ("logmap", {"x": "x", "y": "y"}),
    "dist": ("dist", {"x": "x", "y": "y"}),
    "dist0": ("dist0", {"x": "x"}),
    "lambda_x": ("lambda_x", {"x": "x"}),
    "gyroplane_signed_distance": ("dist2plane", {"x": "y", "p": "p", "a": "a"}),
}


@dtypes
@pytest.mark.parametrize("column", ORACLE)
def test_oracle(column, dtype):
    name, arguments = ORACLE[column]
    for row in oracle("geometry"):
        tensors = {key: torch.tensor(row[source], dtype=dtype) for key, source in arguments.items()}
        actual = getattr(PoincareBall(row["c"]), name)(**tensors)
        assert actual.dtype == dtype
        # A vector is measured by its length.
        size = torch.tensor(row[column], dtype=torch.float64).norm()
        same(actual, row[column], GEOMETRY[dtype], scale=size)


# --- gyrogroup --------------------------------------------------------------------------------------------------


@every_case
def test_left_cancellation(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_near(ball.mobius_add(-x, ball.mobius_add(x, y)), y)


@every_case
def test_zero_is_neutral(case):
    ball, x = case.ball, case.point()
    zero = torch.zeros_like(x)
    case.assert_near(ball.mobius_add(zero, x), x, points=1)
    case.assert_near(ball.mobius_add(x, zero), x, points=1)


@every_case
def test_inverse_is_exact(case):
    ball, x = case.ball, case.point()
    assert torch.equal(ball.mobius_add(-x, x), torch.zeros_like(x))


@every_case
def test_gyrocommutativity(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_near(ball.mobius_add(x, y), ball.gyration(x, y, ball.mobius_add(y, x)))


@every_case
def test_left_gyroassociativity(case):
    ball, x, y, z = case.ball, case.point(), case.point(), case.point()
    left = ball.mobius_add(x, ball.mobius_add(y, z))
    right = ball.mobius_add(ball.mobius_add(x, y), ball.gyration(x, y, z))
    case.assert_near(left, right, points=3)


@every_case
def test_left_loop_property(case):
    ball, x, y, v = case.ball, case.point(), case.point(), case.vector()
    actual = ball.gyration(ball.mobius_add(x, y), y, v)
    case.assert_equal(actual, ball.gyration(x, y, v), scale=v.norm())


@every_case
def test_gyration_is_its_definition(case):
    ball, a, b, u = case.ball, case.point(), case.point(), case.point()
    add = ball.mobius_add
    case.assert_near(ball.gyration(a, b, u), add(-add(a, b), add(a, add(b, u))), points=3)


@every_case
def test_gyration_is_an_isometry(case):
    ball, x, y, u, v = case.ball, case.point(), case.point(), case.vector(), case.vector()
    turned = ball.gyration(x, y, u) @ ball.gyration(x, y, v)
    case.assert_equal(turned, u @ v, scale=u.norm() * v.norm())


@every_case
def test_gyration_is_linear(case):
    ball, x, y, u, v = case.ball, case.point(), case.point(), case.vector(), case.vector()
    actual = ball.gyration(x, y, 3 * u - v)
    expected = 3 * ball.gyration(x, y, u) - ball.gyration(x, y, v)
    case.assert_equal(actual, expected, scale=3 * u.norm() + v.norm())


# --- scalars and matrices ---------------------------------------------------------------------------------------


@every_case
def test_one_times_a_point(case):
    ball, x = case.ball, case.point()
    case.assert_near(ball.mobius_scalar_mul(1.0, x), x, points=1)


@every_case
def test_scalars_distribute(case):
    ball, x = case.ball, case.point()
    left = ball.mobius_scalar_mul(1.3, x)
    right = ball.mobius_add(ball.mobius_scalar_mul(0.8, x), ball.mobius_scalar_mul(0.5, x))
    case.assert_near(left, right)


@every_case
def test_scalars_associate(case):
    ball, x = case.ball, case.point()
    left = ball.mobius_scalar_mul(-0.6, x)
    case.assert_near(left, ball.mobius_scalar_mul(-3.0, ball.mobius_scalar_mul(0.2, x)))


@every_case
def test_twice_a_point_is_its_sum(case):
    ball, x = case.ball, case.point()
    case.assert_near(ball.mobius_scalar_mul(2.0, x), ball.mobius_add(x, x))


@every_case
def test_scalars_scale_the_distance_to_the_origin(case):
    ball, x = case.ball, case.point()
    distance = ball.dist0(x)
    case.assert_equal(ball.dist0(ball.mobius_scalar_mul(-1.5, x)), 1.5 * distance, scale=distance)


@every_case
def test_scaled_identity_matrix(case):
    ball, x = case.ball, case.point()
    matrix = 0.7 * torch.eye(case.dim, dtype=case.dtype)
    case.assert_near(ball.mobius_matvec(matrix, x), ball.mobius_scalar_mul(0.7, x), points=1)


@every_case
def test_matrices_associate(case):
    ball, x = case.ball, case.point()
    first, second = (case.vector(case.dim) / case.radius for _ in range(2))
    left = ball.mobius_matvec(first @ second, x)
    # Rows of length at most 1/2 each: entries of the product are at most dim / 4.
    case.assert_near(left, ball.mobius_matvec(first, ball.mobius_matvec(second, x)), points=4)


@every_case
def test_orthogonal_matrices_rotate(case):
    ball, x = case.ball, case.point()
    rotation = torch.linalg.qr(case.vector(case.dim).double())[0].to(case.dtype)
    case.assert_near(ball.mobius_matvec(rotation, x), rotation @ x)


def test_matrix_changes_the_dimension():
    ball, matrix = PoincareBall(0.5), torch.randn(5, 3, dtype=torch.float64)
    x = Case(dim=3, c=0.5, radius=1.0).point(4)
    expected = torch.stack([ball.expmap0(matrix @ ball.logmap0(row)) for row in x])
    same(ball.mobius_matvec(matrix, x), expected, ROUNDING[torch.float64])


# --- metric -----------------------------------------------------------------------------------------------------


@every_case
def test_conformal_factor_from_the_distance(case):
    ball, x = case.ball, case.point()
    expected = 2 * torch.cosh(math.sqrt(case.c) * ball.dist0(x.double()) / 2) ** 2
    case.assert_equal(ball.lambda_x(x), expected, scale=expected)


@every_case
def test_inner_product(case):
    ball, x, u, v = case.ball, case.point(), case.vector(), case.vector()
    expected = ball.lambda_x(x) ** 2 * (u * v).sum()
    case.assert_equal(ball.inner(x, u, v), expected, scale=ball.norm(x, u) * ball.norm(x, v), points=0)


@every_case
def test_norm_is_the_root_of_the_inner_product(case):
    ball, x, v = case.ball, case.point(), case.vector()
    case.assert_equal(ball.norm(x, v), ball.inner(x, v, v).sqrt(), scale=ball.norm(x, v), points=0)


@every_case
def test_volume_element(case):
    ball, x = case.ball, case.point()
    actual = ball.log_volume_element(x)
    case.assert_equal(actual, case.dim * ball.lambda_x(x).log(), scale=actual.abs() + 1, points=0)


@every_case
def test_volume_element_is_the_jacobian_of_translation(case):
    ball, x, y = case.ball, case.point().double(), case.point().double()
    jacobian = torch.func.jacrev(lambda y: ball.mobius_add(x, y))(y)
    expected = ball.log_volume_element(y) - ball.log_volume_element(ball.mobius_add(x, y))
    case.assert_equal(torch.linalg.slogdet(jacobian)[1], expected, scale=case.dim)


@every_case
def test_distance_is_symmetric(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_equal(ball.dist(x, y), ball.dist(y, x), scale=ball.dist(x, y), points=0)


@every_case
def test_distance_to_itself_is_zero(case):
    ball, x = case.ball, case.point()
    assert ball.dist(x, x) == 0


@every_case
def test_distance_to_another_point_is_positive(case):
    ball, x = case.ball, case.point()
    y = x.clone()
    y[0] = torch.nextafter(x[0], torch.zeros_like(x[0]))
    assert ball.dist(x, y) > 0


@every_case
def test_triangle_inequality(case):
    ball, x, y, z = case.ball, case.point(), case.point(), case.point()
    detour = ball.dist(x, y) + ball.dist(y, z)
    assert ball.dist(x, z) <= detour * (1 + case.tolerance(1))


@every_case
def test_distance_to_the_origin(case):
    ball, x = case.ball, case.point()
    case.assert_equal(ball.dist0(x), ball.dist(torch.zeros_like(x), x), scale=ball.dist0(x), points=0)


@every_case
def test_distance_is_that_of_the_textbook(case):
    ball, x, y = case.ball, case.point().double(), case.point().double()
    moved = ball.mobius_add(-x, y).norm()
    root = math.sqrt(case.c)
    expected = 2 / root * torch.atanh(root * moved) if case.c > 0 else 2 * moved
    case.assert_equal(ball.dist(x, y), expected, scale=case.radius)


@every_case
def test_translations_are_isometries(case):
    ball, x, y, z = case.ball, case.point(), case.point(), case.point()
    moved = ball.dist(ball.mobius_add(z, x), ball.mobius_add(z, y))
    case.assert_equal(moved, ball.dist(x, y), scale=case.radius)


@every_case
def test_pairwise_distances(case):
    ball, x, y = case.ball, case.point(4), case.point(3)
    expected = torch.stack([torch.stack([ball.dist(a, b) for b in y]) for a in x])
    case.assert_equal(ball.pairwise_dist(x, y), expected, scale=expected.max(), points=0)


@dtypes
def test_pairwise_distances_of_near_points_do_not_cancel(dtype):
    step = torch.finfo(dtype).eps
    x = torch.tensor([[0.6, 0.5]], dtype=dtype)
    y = x + step * torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]], dtype=dtype)
    ball = PoincareBall(1.0)
    same(ball.pairwise_dist(x, y)[0], ball.dist(x.double(), y.double()), GEOMETRY[dtype], scale=0)


# --- exponential, logarithm, transport, geodesics ---------------------------------------------------------------


@every_case
def test_exponential_inverts_the_logarithm(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_near(ball.expmap(x, ball.logmap(x, y)), y)


@every_case
def test_logarithm_inverts_the_exponential(case):
    ball, x = case.ball, case.point()
    v = case.tangent(x)
    case.assert_equal(ball.logmap(x, ball.expmap(x, v)), v, scale=case.radius / ball.lambda_x(x), points=3)


@every_case
def test_exponential_at_the_origin(case):
    ball, v = case.ball, case.vector()
    case.assert_near(ball.expmap0(v), ball.expmap(torch.zeros_like(v), v), points=1)


@every_case
def test_logarithm_at_the_origin(case):
    ball, y = case.ball, case.point()
    case.assert_equal(ball.logmap0(y), ball.logmap(torch.zeros_like(y), y), scale=case.radius, points=1)


@every_case
def test_exponential_at_the_origin_travels_its_length(case):
    ball, v = case.ball, case.vector()
    case.assert_equal(ball.dist0(ball.expmap0(v)), 2 * v.norm(), scale=case.radius, points=1)


@every_case
def test_length_of_the_logarithm_is_the_distance(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_equal(ball.norm(x, ball.logmap(x, y)), ball.dist(x, y), scale=ball.dist(x, y))


@every_case
def test_normal_coordinates_are_the_scaled_logarithm(case):
    ball, x, y = case.ball, case.point(), case.point()
    expected = ball.lambda_x(x) * ball.logmap(x, y)
    case.assert_equal(ball.to_normal_coords(x, y), expected, scale=case.radius, points=0)


@every_case
def test_normal_coordinates_are_inverted(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_near(ball.from_normal_coords(x, ball.to_normal_coords(x, y)), y)


@every_case
def test_normal_coordinates_at_the_origin_need_no_point(case):
    ball, y, v = case.ball, case.point(), case.vector()
    origin = torch.zeros_like(y)
    case.assert_near(ball.from_normal_coords(None, v), ball.from_normal_coords(origin, v), points=1)
    case.assert_equal(ball.to_normal_coords(None, y), ball.to_normal_coords(origin, y), scale=case.radius, points=1)


@every_case
def test_frame_is_orthonormal(case):
    ball, x, v = case.ball, case.point(), case.vector()
    case.assert_equal(ball.norm(x, ball.frame(x, v)), v.norm(), scale=v.norm(), points=0)


@every_case
def test_transport_keeps_inner_products(case):
    ball, x, y = case.ball, case.point(), case.point()
    u, v = case.tangent(x), case.tangent(x)
    moved = ball.inner(y, ball.transp(x, y, u), ball.transp(x, y, v))
    case.assert_equal(moved, ball.inner(x, u, v), scale=ball.norm(x, u) * ball.norm(x, v))


@every_case
def test_transport_to_the_same_point_is_the_identity(case):
    ball, x = case.ball, case.point()
    v = case.tangent(x)
    case.assert_equal(ball.transp(x, x, v), v, scale=v.norm(), points=0)


@every_case
def test_transport_back_is_the_inverse(case):
    ball, x, y = case.ball, case.point(), case.point()
    v = case.tangent(x)
    case.assert_equal(ball.transp(y, x, ball.transp(x, y, v)), v, scale=v.norm())


@every_case
def test_transport_from_the_origin(case):
    ball, y, v = case.ball, case.point(), case.vector()
    case.assert_equal(ball.transp0(y, v), ball.transp(torch.zeros_like(y), y, v), scale=v.norm(), points=0)


@every_case
def test_transport_carries_the_velocity_of_the_geodesic(case):
    ball, x, y = case.ball, case.point(), case.point()
    arriving = -ball.logmap(y, x)
    case.assert_equal(ball.transp(x, y, ball.logmap(x, y)), arriving, scale=case.radius / ball.lambda_x(y))


@every_case
def test_geodesic_ends(case):
    ball, x, y = case.ball, case.point(), case.point()
    case.assert_near(ball.geodesic(0.0, x, y), x)
    case.assert_near(ball.geodesic(1.0, x, y), y)


@every_case
def test_geodesic_has_constant_speed(case):
    ball, x, y = case.ball, case.point(), case.point()
    t = torch.linspace(-0.2, 1.2, 8, dtype=case.dtype)
    path = ball.geodesic(t, x, y)
    lengths = ball.dist(path[:-1], path[1:])
    case.assert_equal(lengths, (0.2 * ball.dist(x, y)).expand(7), scale=case.radius, points=3)


@every_case
def test_distances_add_along_a_geodesic(case):
    ball, x, y = case.ball, case.point(), case.point()
    z = ball.geodesic(0.3, x, y)
    case.assert_equal(ball.dist(x, z) + ball.dist(z, y), ball.dist(x, y), scale=case.radius)


# --- gyroplanes -------------------------------------------------------------------------------------------------


@every_case
def test_gyroplane_contains_its_own_points(case):
    ball, p, a, v = case.ball, case.point(), case.vector(), case.vector()
    inside = v - (v @ a) / (a @ a) * a
    x = ball.expmap(p, inside / ball.lambda_x(p))
    case.assert_equal(ball.dist2plane(x=x, p=p, a=a), 0.0, scale=case.radius)


@every_case
def test_distance_to_a_gyroplane_along_its_normal(case):
    ball, p, a = case.ball, case.point(), case.vector()
    for length in (-0.5 * case.radius, case.radius):
        x = ball.expmap(p, length * a / a.norm() / ball.lambda_x(p))
        case.assert_equal(ball.dist2plane(x=x, p=p, a=a), length, scale=case.radius)


@every_case
def test_gyroplane_is_nearer_than_its_points(case):
    ball, x, p, a, v = case.ball, case.point(), case.point(), case.vector(), case.vector(6)
    inside = v - (v @ a).unsqueeze(-1) / (a @ a) * a
    others = ball.expmap(p, inside / ball.lambda_x(p))
    nearest = ball.dist(x, others).min() + case.tolerance() * case.radius
    assert ball.dist2plane(x=x, p=p, a=a).abs() <= nearest


@every_case
def test_gyroplane_distance_is_that_of_the_paper(case):
    ball, x, p, a = case.ball, case.point().double(), case.point().double(), case.vector().double()
    z, root = ball.mobius_add(-p, x), math.sqrt(case.c)
    ratio = 2 * (z @ a) / ((1 - case.c * (z @ z)) * a.norm())
    expected = torch.asinh(root * ratio) / root if case.c > 0 else ratio
    case.assert_equal(ball.dist2plane(x=x, p=p, a=a), expected, scale=case.radius)


@every_case
def test_gyroplane_distance_does_not_depend_on_the_length_of_the_normal(case):
    ball, x, p, a = case.ball, case.point(), case.point(), case.vector()
    case.assert_equal(ball.dist2plane(x=x, p=p, a=9 * a), ball.dist2plane(x=x, p=p, a=a), scale=case.radius)


@every_case
def test_gyroplane_distance_turns_with_the_normal(case):
    ball, x, p, a = case.ball, case.point(), case.point(), case.vector()
    assert torch.equal(ball.dist2plane(x=x, p=p, a=-a), -ball.dist2plane(x=x, p=p, a=a))


@every_case
def test_unsigned_gyroplane_distance(case):
    ball, x, p, a = case.ball, case.point(8), case.point(), case.vector()
    signed = ball.dist2plane(x=x, p=p, a=a)
    assert torch.equal(ball.dist2plane(x=x, p=p, a=a, signed=False), signed.abs())


@every_case
def test_many_gyroplanes_at_once(case):
    ball, x, p, a = case.ball, case.point(4), case.point(3), case.vector(3)
    rows = [[ball.dist2plane(x=b, p=q, a=n) for q, n in zip(p, a, strict=True)] for b in x]
    expected = torch.tensor(rows, dtype=case.dtype)
    case.assert_equal(ball.dist2plane(x=x.unsqueeze(1), p=p, a=a), expected, scale=case.radius)


# --- shapes, dtypes, memory -------------------------------------------------------------------------------------


@operations
def test_leading_dimensions_broadcast(name):
    op, case = OPS[name], Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    for leading in [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((0,), ())]:
        shapes = [leading[i % 2] for i in range(len(op.arguments))]
        arguments = [case.arguments(op, *shape)[i] for i, shape in enumerate(shapes)]
        out = getattr(case.ball, name)(*arguments)
        expected = torch.broadcast_shapes(*shapes)
        assert out.shape == (expected if op.returns == "number" else expected + (5,)), leading


@operations
def test_broadcast_values_are_those_of_the_rows(name):
    op, case = OPS[name], Case(dim=5, c=0.7, radius=1.0)
    arguments = [a[0] if i % 2 else a for i, a in enumerate(case.arguments(op, 3))]
    f = getattr(case.ball, name)
    rows = [f(*(a if i % 2 else a[k] for i, a in enumerate(arguments))) for k in range(3)]
    same(f(*arguments), torch.stack(rows), ROUNDING[torch.float64])


@operations
def test_vmap_over_points_and_curvature(name):
    op, case = OPS[name], Case(dim=3, c=0.7, radius=1.0)
    arguments = case.arguments(op, 4)
    c = torch.tensor([0.0, 0.1, 0.5, 0.7], dtype=torch.float64)
    actual = vmap(lambda c, *args: getattr(PoincareBall(c), name)(*args))(c, *arguments)
    rows = [getattr(PoincareBall(c[k]), name)(*(a[k] for a in arguments)) for k in range(4)]
    same(actual, torch.stack(rows), ROUNDING[torch.float64])


@operations
@pytest.mark.parametrize("c", [0.0, 0.7])
def test_tensor_curvature_gives_the_same_values(name, c):
    op, case = OPS[name], Case(dim=3, c=c, radius=1.0)
    arguments = case.arguments(op, 4)
    by_tensor = getattr(PoincareBall(torch.tensor(c, dtype=torch.float64)), name)(*arguments)
    same(by_tensor, getattr(PoincareBall(c), name)(*arguments), ROUNDING[torch.float64])


@operations
@pytest.mark.parametrize("shape", [(), (4,)])
def test_dtype_is_that_of_the_points(name, shape):
    op, case = OPS[name], Case(dim=3, c=0.7, radius=1.0, dtype=torch.float32)
    for c in (0.7, torch.tensor(0.7), torch.tensor(0.7, dtype=torch.float64)):
        assert getattr(PoincareBall(c), name)(*case.arguments(op, *shape)).dtype == torch.float32


@pytest.mark.parametrize("leading", [((), ()), ((3,), ()), ((2, 1), (3,))])
def test_pairwise_distances_broadcast(leading):
    case = Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    out = case.ball.pairwise_dist(case.point(*leading[0], 4), case.point(*leading[1], 6))
    assert out.shape == torch.broadcast_shapes(*leading) + (4, 6)


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_pairwise_distances_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, y = case.point(30).requires_grad_(), case.point(40).requires_grad_()
    with LargestStorage() as largest:
        PoincareBall(c).pairwise_dist(x, y).sum().backward()
    assert largest.numel == 40 * 100  # the larger input, not 30 * 40 * 100


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_many_gyroplanes_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, p, a = case.point(30, 1).requires_grad_(), case.point(40).requires_grad_(), case.vector(40).requires_grad_()
    with LargestStorage() as largest:
        PoincareBall(c).dist2plane(x=x, p=p, a=a).sum().backward()
    assert largest.numel == 40 * 101  # the planes, not 30 * 40 * 100


# --- the border -------------------------------------------------------------------------------------------------


@every_case
def test_projection_moves_no_inner_point(case):
    ball, x = case.ball, case.point(20)
    assert torch.equal(ball.projx(x), x)


@dtypes
@pytest.mark.parametrize("c", [1e-4, 1.0, 7.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_projection_lands_inside_at_the_margin(dtype, c, dim):
    x = 3 / math.sqrt(c) * torch.nn.functional.normalize(torch.randn(100, dim, dtype=dtype), dim=-1)
    ball = PoincareBall(c)
    inner = ball.projx(x)
    gap = 1 - c * inner.double().square().sum(-1)
    assert ball.contains(inner).all()
    assert ((gap > 0) & (gap < 2 * border_margin(dtype))).all()
    same(inner, x / 3, ROUNDING[dtype], scale=1 / math.sqrt(c))


@dtypes
@pytest.mark.parametrize("c", [1e-4, 1.0, 7.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_projection_is_idempotent(dtype, c, dim):
    ball = PoincareBall(c)
    once = ball.projx(3 / math.sqrt(c) * torch.nn.functional.normalize(torch.randn(100, dim, dtype=dtype), dim=-1))
    same(ball.projx(once), once, ROUNDING[dtype], scale=1 / math.sqrt(c))


def test_euclidean_space_has_no_border():
    x = 1e6 * torch.randn(5, 3)
    assert torch.equal(PoincareBall(0.0).projx(x), x)
    assert PoincareBall(0.0).contains(x).all()


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_contains(c):
    x = torch.tensor([[0.0, 0.0], [0.99, 0.0], [1.0, 0.0], [0.8, 0.8], [math.nan, 0.0], [math.inf, 0.0]]) / math.sqrt(c)
    assert PoincareBall(c).contains(x).tolist() == [True, True, False, False, False, False]


@dtypes
@pytest.mark.parametrize("c", [0.01, 1.0, 4.0])
def test_reach_is_the_distance_of_the_outermost_point(dtype, c):
    ball = PoincareBall(c)
    outermost = ball.projx(torch.tensor([10.0 / math.sqrt(c), 0.0], dtype=dtype))
    # The margin is eight eps, known to one.
    same(ball.dist0(outermost), ball.reach(dtype), 0.25 / math.sqrt(c), scale=1.0)


def test_reach_of_a_learnable_curvature():
    c = torch.tensor(4.0, requires_grad=True)
    assert PoincareBall(c).reach(torch.float32) == PoincareBall(4.0).reach(torch.float32)


def test_reach_of_euclidean_space_is_infinite():
    assert PoincareBall(0.0).reach(torch.float32) == math.inf


# --- the object -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "c",
    [-1.0, -1e-9, math.nan, math.inf, True, "1", None, [1.0], 1j]
    + [torch.tensor(v) for v in (-1.0, math.nan, math.inf)]
    + [torch.tensor([1.0, -2.0]), torch.ones(2, dtype=torch.complex64), torch.tensor(1), torch.tensor(True)],
    ids=repr,
)
def test_bad_curvature(c):
    with pytest.raises(ValueError, match="c must be"):
        PoincareBall(c)


@pytest.mark.parametrize("c", [0, 1, 0.5, torch.tensor(0.0), torch.tensor(2.0, dtype=torch.float64)], ids=repr)
def test_good_curvature(c):
    assert PoincareBall(c).c == c


def test_curvature_is_kept_as_it_is():
    c = torch.tensor(1.0, requires_grad=True)
    assert PoincareBall(c).c is c


def test_curvature_known_to_be_valid_is_not_looked_at():
    c = torch.tensor(1.0, device="meta")
    assert PoincareBall.with_curvature(c).c is c


def test_equality():
    assert PoincareBall(1.0) == PoincareBall(1)
    assert PoincareBall(0.5) == PoincareBall(torch.tensor(0.5))
    assert PoincareBall(torch.tensor(0.5)) == PoincareBall(torch.tensor(0.5, dtype=torch.float64))
    assert PoincareBall(1.0) != PoincareBall(2.0)
    assert PoincareBall(1.0) != 1.0


def test_equal_balls_hash_alike():
    assert len({PoincareBall(0.5), PoincareBall(torch.tensor(0.5)), PoincareBall(0.5)}) == 1


@pytest.mark.parametrize("c", [0.5, torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)], ids=repr)
def test_repr(c):
    assert repr(PoincareBall(c)) == "PoincareBall(c=0.5)"


@pytest.mark.parametrize("c", [0.5, torch.tensor(0.5, requires_grad=True)], ids=["float", "tensor"])
@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda ball: pickle.loads(pickle.dumps(ball))], ids=["copy", "pickle"]
)
def test_copies(c, copy_of):
    ball = PoincareBall(c)
    other = copy_of(ball)
    assert other == ball
    assert other is not ball
    assert getattr(other.c, "requires_grad", None) == getattr(c, "requires_grad", None)


def test_copy_of_a_learnable_curvature_is_independent():
    c = torch.tensor(0.5, requires_grad=True)
    other = copy.deepcopy(PoincareBall(c))
    with torch.no_grad():
        c.fill_(2.0)
    assert other.c == 0.5


def test_origin():
    origin = PoincareBall(1.0).origin(3, dtype=torch.float64)
    assert torch.equal(origin, torch.zeros(3, dtype=torch.float64))


def test_one_coordinate_per_dimension():
    ball = PoincareBall(1.0)
    assert (ball.intrinsic_dim(5), ball.ambient_dim(5)) == (5, 5)


# --- a second opinion -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def geoopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it scripts its functions, which this torch calls deprecated
        return pytest.importorskip("geoopt")


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])  # it keeps c in float32
@pytest.mark.parametrize(
    "name",
    # Not inner, which sums over the batch there; the others are ours alone.
    sorted(OPS.keys() - {"inner", "coframe", "from_normal_coords", "to_normal_coords", "log_volume_element"}),
)
def test_geoopt_agrees(geoopt, name, c):
    case = Case(dim=4, c=c, radius=2 / math.sqrt(c))
    theirs = geoopt.PoincareBall(c=c)
    arguments = case.arguments(OPS[name], 50)
    options = {"signed": True} if name == "dist2plane" else {}
    other = list(arguments)
    if name in ("mobius_scalar_mul", "geodesic", "geodesic_unit"):
        other[0] = other[0].unsqueeze(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(theirs, name)(*other, **options)
    same(getattr(case.ball, name)(*arguments), expected, GEOMETRY[torch.float64])
