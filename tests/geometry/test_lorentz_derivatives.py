"""Derivatives on the hyperboloid: against differences, where points coincide, and in the curvature."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic import Lorentz, PoincareBall
from tests.geometry.cases import Case
from tests.geometry.lorentz_cases import (
    OPERATIONS,
    apply,
    assert_finite,
    coordinates,
    dtypes,
    free_arguments,
    operations,
    plain,
)
from tests.helpers import DTYPES, same


@operations
def test_gradcheck(name):
    case = Case(dim=3, c=0.7, radius=1.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    free = [a.requires_grad_() for a in free_arguments(case, OPERATIONS[name])]
    assert gradcheck(lambda c, *free: apply(name, Lorentz(c), list(free)), (c, *free), eps=1e-5, atol=1e-7)


def test_pairwise_distances_gradcheck():
    case = Case(dim=3, c=0.7, radius=2.0)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    v, w = coordinates(case, 2).requires_grad_(), coordinates(case, 4).requires_grad_()

    def distances(c, v, w):
        h = Lorentz(c)
        return h.pairwise_dist(h.from_normal_coords(None, v), h.from_normal_coords(None, w))

    assert gradcheck(distances, (c, v, w))


def test_frechet_mean_gradcheck():
    case = Case(dim=2, c=0.7, radius=1.5)
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    v = coordinates(case, 3).requires_grad_()
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)

    def mean(c, v, weights):
        h = Lorentz(c)
        return h.to_normal_coords(None, h.frechet_mean(h.from_normal_coords(None, v), weights))

    assert gradcheck(mean, (c, v, weights))


def degenerate(dtype: torch.dtype, c: float) -> dict[str, dict[str, torch.Tensor]]:
    """What takes the place of the free arguments."""
    v = plain(dtype, c)["x"]
    zero = torch.zeros_like(v)
    return {
        "equal points": {"y": v, "p": v},
        "opposite points": {"y": -v, "p": -v},
        "zero vectors": {"u": zero, "v": zero, "w": zero, "a": zero, "t": torch.zeros((), dtype=dtype)},
        "points at the origin": {"x": zero, "y": zero, "p": zero},
        "one point at the origin": {"y": zero, "p": zero},
        "all zero": dict.fromkeys("xypuvwa", zero) | {"m": torch.zeros(3, 3, dtype=dtype)},
    }


@operations
def test_values_and_gradients_are_finite(name):
    """All degenerate arguments as the rows of one batch: a row that is not finite is seen in its own gradient."""
    for dtype, c in itertools.product(DTYPES, [1e-6, 1.0, 16.0]):
        rows = [plain(dtype, c) | changed for changed in degenerate(dtype, c).values()]
        free = [torch.stack([row[key] for row in rows]).requires_grad_() for key in OPERATIONS[name].arguments]
        assert_finite(name, Lorentz(torch.tensor(c, dtype=dtype, requires_grad=True)), free, torch.sum)


@dtypes
def test_gradient_of_the_distance_at_equal_points_is_zero(dtype):
    for v in ([0.0, 0.0], [0.3, 0.4], [30.0, 0.0]):
        x = Lorentz(1.0).from_normal_coords(None, torch.tensor(v, dtype=dtype))
        x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        for distance in (Lorentz(1.0).dist(x, y), Lorentz(1.0).pairwise_dist(x[None], y[None])[0, 0]):
            gradients = torch.autograd.grad(distance, (x, y))
            assert [g.abs().max().item() for g in gradients] == [0, 0]


SMALL_CURVATURES = [1.0, 1e-2, 1e-4, 1e-6]


@pytest.mark.parametrize("c", SMALL_CURVATURES[1::2])
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
