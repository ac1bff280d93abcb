"""The metric of the Poincaré ball: distances, exponential and logarithm, transport, geodesics, gyroplanes."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_hyperbolic import PoincareBall
from tests.geometry.cases import every_case
from tests.helpers import DTYPES, GEOMETRY, same

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


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
