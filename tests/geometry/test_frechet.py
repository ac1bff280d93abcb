"""The weighted Fréchet mean: optimality, symmetry, far-spread points, derivatives, shapes, errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic import Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.geometry import frechet
from pyro_hyperbolic.geometry.frechet import _derivatives
from tests.geometry.cases import Case, lost_distance, place, some_cases
from tests.helpers import DTYPES, ROUNDING, same

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FAR = [
    (PoincareBall, torch.float32, 8.0),
    (PoincareBall, torch.float64, 14.0),
    (Lorentz, torch.float32, 8.0),
    (Lorentz, torch.float64, 16.0),
]
curvatures = pytest.mark.parametrize("c", [0.0, 1e-4, 1.0, 5.0])


def residual(ball: PoincareBall, mean: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Length of the gradient of half the weighted mean of squared distances."""
    v = ball.to_normal_coords(mean.unsqueeze(-2), x)
    return (weights.unsqueeze(-1) * v).sum(-2).norm(dim=-1) / weights.sum(-1)


@some_cases
def test_gradient_vanishes_at_the_mean(case):
    x = case.point(9)
    weights = torch.rand(9, generator=case.generator, dtype=case.dtype)
    mean = case.ball.frechet_mean(x, weights)
    assert mean.dtype == case.dtype
    assert residual(case.ball, mean.double(), x.double(), weights.double()) <= case.tolerance() * case.radius


@some_cases
def test_mean_is_lower_than_its_neighbours(case):
    ball, x = case.ball, case.point(5).double()
    mean = ball.frechet_mean(x)
    around = ball.from_normal_coords(mean, 0.01 * case.vector(20).double())

    def variance(m):
        return ball.dist(m.unsqueeze(-2), x).square().mean(-1)

    assert (variance(around) > variance(mean)).all()


@some_cases
def test_mean_of_two_points_is_their_midpoint(case):
    x = case.point(2)
    case.assert_near(case.ball.frechet_mean(x), case.ball.geodesic(0.5, x[0], x[1]))


@some_cases
def test_weighted_mean_of_two_points_divides_their_geodesic(case):
    x, weights = case.point(2), torch.tensor([3.0, 1.0], dtype=case.dtype)
    case.assert_near(case.ball.frechet_mean(x, weights), case.ball.geodesic(0.25, x[0], x[1]))


@some_cases
def test_mean_of_one_point_is_the_point(case):
    x = case.point(1)
    case.assert_near(case.ball.frechet_mean(x), x[0])


@some_cases
def test_mean_moves_with_isometries(case):
    ball, x, shift = case.ball, case.point(5), case.point()
    moved = ball.frechet_mean(ball.mobius_add(shift, x))
    case.assert_near(moved, ball.mobius_add(shift, ball.frechet_mean(x)), points=3)


@some_cases
def test_integer_weights_repeat_points(case):
    ball, x = case.ball, case.point(3)
    repeated = ball.frechet_mean(x[[0, 0, 0, 1, 2, 2]])
    case.assert_near(ball.frechet_mean(x, torch.tensor([3.0, 1.0, 2.0], dtype=case.dtype)), repeated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_weights_of_another_dtype_are_those_numbers(dtype):
    ball = PoincareBall(1.0)
    x = 0.4 * torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.tensor([1, 2, 4])
    same(ball.frechet_mean(x, weights.to(dtype)), ball.frechet_mean(x, weights.double()), 1e-14)


@some_cases
def test_weights_count_up_to_a_factor(case):
    ball, x = case.ball, case.point(4)
    weights = torch.rand(4, generator=case.generator, dtype=case.dtype)
    case.assert_near(ball.frechet_mean(x, 7 * weights), ball.frechet_mean(x, weights))


@some_cases
def test_zero_weight_leaves_a_point_out(case):
    ball, x = case.ball, case.point(4)
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=case.dtype)
    case.assert_near(ball.frechet_mean(x, weights), ball.frechet_mean(x[[0, 1, 3]]))


@dtypes
def test_mean_of_a_symmetric_set_is_the_origin(dtype):
    x = Case(dim=3, c=1.0, radius=2.0, dtype=dtype).point(4)
    mean = PoincareBall(1.0).frechet_mean(torch.cat([x, -x]))
    same(mean, torch.zeros(3, dtype=dtype), ROUNDING[dtype])


def test_euclidean_mean():
    x, weights = torch.randn(6, 3, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    expected = weights @ x / weights.sum()
    same(PoincareBall(0.0).frechet_mean(x, weights), expected, ROUNDING[torch.float64])


@dtypes
@pytest.mark.parametrize("c", [0.01, 1.0])
@pytest.mark.parametrize("count", [3, 10])
def test_points_far_apart(dtype, c, count):
    # All at distance 10/sqrt(c) from the origin, most on one side.
    generator = torch.Generator().manual_seed(count)
    direction = torch.randn(count, 3, generator=generator) + torch.tensor([1.0, 0.0, 0.0])
    x = place(direction, 10 / math.sqrt(c), c).to(dtype)
    ball = PoincareBall(c)
    mean = ball.frechet_mean(x)
    error = math.sqrt(c) * residual(ball, mean.double(), x.double(), torch.ones(count, dtype=torch.float64))
    # What the coordinates of the points themselves lose at that distance.
    assert error <= lost_distance(torch.tensor(10.0), dtype)


@pytest.mark.parametrize("weight", [1e-6, 1e-2, 1e2, 1e6])
def test_uneven_weights_far_apart(weight):
    x = place(torch.eye(2), 5.0, 1.0)
    weights = torch.tensor([1.0, weight], dtype=torch.float64)
    ball = PoincareBall(1.0)
    distance = ball.dist(x[0], x[1])
    # Rounding at distance 5 from the origin.
    expected = distance * weight / (1 + weight)
    same(ball.dist(x[0], ball.frechet_mean(x, weights)), expected, ROUNDING[torch.float64] * math.exp(5))


@curvatures
def test_derivatives(c):
    case = Case(dim=2, c=c, radius=1.0)
    x = case.point(4).requires_grad_()
    weights = (0.5 + torch.rand(4, dtype=torch.float64)).requires_grad_()
    # Finite differences step to both sides of c.
    c = torch.tensor(max(c, 1e-4), dtype=torch.float64, requires_grad=True)
    mean = gradcheck(lambda x, w, c: PoincareBall(c).frechet_mean(x, w), (x, weights, c), eps=1e-5, atol=1e-6)
    assert mean


def test_derivative_in_c_at_zero():
    x = Case(dim=2, c=0.0, radius=1.0).point(4)

    def mean(c):
        return PoincareBall(c).frechet_mean(x)

    h = 1e-4
    difference = (-11 * mean(0.0) + 18 * mean(h) - 9 * mean(2 * h) + 2 * mean(3 * h)) / (6 * h)
    c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    slopes = torch.stack([torch.autograd.grad(entry, c, retain_graph=True)[0] for entry in mean(c)])
    same(slopes, difference, 1e-8)


@dtypes
def test_derivatives_are_finite_where_a_point_is_the_mean(dtype):
    x = torch.tensor([[0.3, 0.0], [0.0, 0.0], [-0.3, 0.0]], dtype=dtype, requires_grad=True)
    c = torch.ones((), dtype=dtype, requires_grad=True)
    gradients = torch.autograd.grad(PoincareBall(c).frechet_mean(x).sum(), (x, c))
    assert all(g.isfinite().all() for g in gradients)


def test_mean_of_equal_points_passes_the_gradient_in_equal_shares():
    x = torch.full((4, 2), 0.3, dtype=torch.float64, requires_grad=True)
    PoincareBall(1.0).frechet_mean(x).sum().backward()
    same(x.grad, torch.full((4, 2), 0.25), ROUNDING[torch.float64])


@pytest.mark.parametrize(
    ("points", "weights", "expected"),
    [
        ((4, 3), None, (3,)),
        ((4, 3), (4,), (3,)),
        ((2, 4, 3), None, (2, 3)),
        ((2, 4, 3), (4,), (2, 3)),
        ((4, 3), (2, 4), (2, 3)),
        ((5, 1, 4, 3), (2, 4), (5, 2, 3)),
        ((4, 1), None, (1,)),
    ],
)
def test_shapes(points, weights, expected):
    x = 0.3 * torch.rand(points)
    weights = None if weights is None else torch.rand(weights)
    assert PoincareBall(1.0).frechet_mean(x, weights).shape == expected


def test_a_batch_is_its_rows():
    case = Case(dim=3, c=1.0, radius=2.0)
    x, weights = case.point(5, 4), torch.rand(5, 4, dtype=torch.float64)
    rows = [case.ball.frechet_mean(a, w) for a, w in zip(x, weights, strict=True)]
    case.assert_near(case.ball.frechet_mean(x, weights), torch.stack(rows))


@pytest.mark.parametrize("shape", [(), (3,), (0, 3)])
def test_points_of_a_wrong_shape(shape):
    with pytest.raises(ValueError, match="x must have shape"):
        PoincareBall(1.0).frechet_mean(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(), (3,), (4, 1)])
def test_weights_of_a_wrong_shape(shape):
    with pytest.raises(ValueError, match="weights must have one entry per point"):
        PoincareBall(1.0).frechet_mean(torch.zeros(4, 2), torch.ones(shape))


@pytest.mark.parametrize(
    ("bad", "got"),
    [
        ([1.0, -0.5], "-0.5 and a sum of 0.5"),
        ([0.0, 0.0], "0 and a sum of 0"),
        ([math.nan, 1.0], "nan and a sum of nan"),
    ],
)
def test_bad_weights(bad, got):
    with pytest.raises(ValueError, match=f"weights must be non-negative .*, got a weight of {got}; drop"):
        PoincareBall(1.0).frechet_mean(torch.zeros(2, 2), torch.tensor(bad))


def test_a_point_outside_gives_nan():
    x = torch.tensor([[0.3, 0.0], [1.2, 0.0]])
    assert PoincareBall(1.0).frechet_mean(x).isnan().all()


@pytest.mark.parametrize(("chart", "dtype", "distance"), FAR, ids=str)
def test_a_far_cluster_takes_a_few_steps(monkeypatch, chart, dtype, distance):
    """Where the coordinates of the mean are coarser than the step asked for, steps of their size end the iteration."""
    manifold, calls = chart(1.0), []

    def derivatives(*args):
        calls.append(args)
        return _derivatives(*args)

    monkeypatch.setattr(frechet, "_derivatives", derivatives)
    loc = manifold.from_normal_coords(None, torch.tensor([0.6, 0.0, 0.8], dtype=dtype) * distance)
    v = 0.5 * torch.randn(50, 3, dtype=dtype)
    x = manifold.from_normal_coords(loc, v)
    mean = manifold.frechet_mean(x)
    assert len(calls) <= 15
    # In wide arithmetic the gradient at the mean is what moving it by a rounding makes of it.
    gradient = _derivatives(manifold, mean.double(), x.double(), torch.full((50, 1), 0.02, dtype=torch.float64))[0]
    assert gradient.norm() <= ROUNDING[dtype] * math.cosh(distance)


@some_cases
def test_search_from_a_point_ends_at_the_same_mean(case):
    x = case.point(6)
    case.assert_near(frechet.frechet_mean(case.ball, x, start=x[2]), case.ball.frechet_mean(x))


def test_the_start_chooses_among_the_minima_of_a_sphere():
    sphere = Sphere(1.0)
    x = sphere.from_normal_coords(None, torch.tensor([[2.9], [-1.1], [-1.2]], dtype=torch.float64))
    starts = sphere.from_normal_coords(None, torch.tensor([[0.5], [-2.5]], dtype=torch.float64))
    means = frechet.frechet_mean(sphere, x, start=starts)

    def variance(m):
        return sphere.dist(m.unsqueeze(-2), x).square().sum(-1)

    assert (means[0] - means[1]).norm() > 1
    assert (variance(means) < variance(starts)).all()


def test_one_point_is_found_without_a_search(monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(1)
        return _derivatives(*arguments)

    monkeypatch.setattr(frechet, "_derivatives", counted)
    x = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64)
    PoincareBall(1.4).frechet_mean(x)
    assert len(calls) < 10
