"""The Poincaré ball as a gyrogroup: sums, gyrations, scalars and matrices."""

from __future__ import annotations

import torch

from pyro_hyperbolic import PoincareBall
from tests.geometry.cases import Case, every_case
from tests.helpers import ROUNDING, same

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
