"""The operations that follow from Möbius addition: their identities, one map in both charts, and geoopt's opinion."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from pyro_hyperbolic import Lorentz, PoincareBall
from tests.geometry.cases import Case, every_case
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, same

every_chart = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])


@every_case
def test_cooperations_undo_each_other(case):
    ball, x, y = case.ball, case.point(5), case.point(5)
    case.assert_near(ball.mobius_sub(ball.mobius_coadd(x, y), y), x, points=4)
    case.assert_near(ball.mobius_cosub(ball.mobius_add(x, y), y), x, points=4)
    case.assert_near(ball.mobius_coadd(x, y), ball.mobius_coadd(y, x))
    case.assert_near(ball.mobius_sub(x, x), torch.zeros_like(x))
    case.assert_near(ball.mobius_cosub(x, x), torch.zeros_like(x))


@every_case
def test_coaddition_is_its_definition(case):
    ball, x, y = case.ball, case.point(5), case.point(5)
    case.assert_near(ball.mobius_coadd(x, y), ball.mobius_add(x, ball.gyration(x, -y, y)), points=4)


@every_case
def test_half_of_the_cosum_is_the_midpoint(case):
    ball, x, y = case.ball, case.point(5), case.point(5)
    case.assert_near(ball.mobius_scalar_mul(0.5, ball.mobius_coadd(x, y)), ball.geodesic(0.5, x, y), points=4)


@every_case
def test_unit_geodesic_goes_as_far_as_it_says(case):
    ball, x = case.ball, case.point(5)
    y = ball.geodesic_unit(torch.full((5,), case.radius, dtype=case.dtype), x, case.tangent(x))
    case.assert_equal(ball.dist(x, y), case.radius, case.radius, points=4)


@every_chart
def test_unit_geodesic_of_no_direction_stays(chart):
    manifold = chart(1.0)
    x = manifold.from_normal_coords(None, torch.ones(3))
    u = torch.zeros_like(x).requires_grad_()
    y = manifold.geodesic_unit(1.0, x, u)
    same(y, x, 1e-6)
    assert torch.autograd.grad(y.sum(), u)[0].isfinite().all()


# One map of the space in both charts: of points x, y, a tangent vector with components v at x, a number and a matrix.
BOTH = {
    "mobius_sub": lambda M, x, y, v: M.mobius_sub(x, y),
    "mobius_coadd": lambda M, x, y, v: M.mobius_coadd(x, y),
    "mobius_cosub": lambda M, x, y, v: M.mobius_cosub(x, y),
    "mobius_pointwise_mul": lambda M, x, y, v: M.mobius_pointwise_mul(v, x),
    "mobius_fn_apply": lambda M, x, y, v: M.mobius_fn_apply(torch.add, x, v, alpha=0.5),
    "mobius_fn_apply_chain": lambda M, x, y, v: M.mobius_fn_apply_chain(x, torch.tanh, torch.exp),
    "mobius_fn_apply_chain-none": lambda M, x, y, v: M.mobius_fn_apply_chain(x),
    "geodesic_unit": lambda M, x, y, v: M.geodesic_unit(0.7, x, M.frame(x, v)),
    "antipode": lambda M, x, y, v: M.antipode(x),
    "weighted_midpoint": lambda M, x, y, v: M.weighted_midpoint(torch.stack([x, y]), v[:, 0].abs(), reducedim=[0]),
}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_one_map_in_both_charts(name, c):
    ball, hyperboloid = PoincareBall(c), Lorentz(c)
    noise = torch.Generator().manual_seed(1)
    coords = torch.randn(3, 20, 4, generator=noise, dtype=torch.float64) / math.sqrt(c)
    actual, expected = (
        BOTH[name](M, M.from_normal_coords(None, coords[0]), M.from_normal_coords(None, coords[1]), coords[2])
        for M in (hyperboloid, ball)
    )
    same(hyperboloid.to_poincare(actual), expected, GEOMETRY[torch.float64])


# --- midpoints --------------------------------------------------------------------------------------------------


@every_chart
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("distance", [0.0, 3.0, 12.0])
def test_midpoint_commutes_with_isometries(chart, dtype, distance):
    manifold = chart(1.0)
    noise = torch.Generator().manual_seed(2)
    v, weights = torch.randn(6, 3, generator=noise, dtype=dtype), torch.rand(6, generator=noise, dtype=dtype)
    far = manifold.from_normal_coords(None, torch.tensor([distance, 0.0, 0.0], dtype=dtype))
    near = manifold.weighted_midpoint(manifold.from_normal_coords(None, v), weights)
    moved = manifold.weighted_midpoint(manifold.from_normal_coords(far, v), weights)
    # A coordinate error of eps is a distance error of eps times the conformal factor.
    tolerance = ROUNDING[dtype] * math.exp(distance)
    assert manifold.dist(moved, manifold.mobius_add(far, near)) <= tolerance


@every_chart
def test_midpoint_is_close_to_the_frechet_mean_of_close_points(chart):
    manifold = chart(1.0)
    v = 1e-2 * torch.randn(5, 3, dtype=torch.float64)
    x = manifold.from_normal_coords(manifold.from_normal_coords(None, torch.ones(3, dtype=torch.float64)), v)
    assert manifold.dist(manifold.weighted_midpoint(x), manifold.frechet_mean(x)) < 1e-5


@pytest.mark.parametrize("c", [0.0, 0.7])
def test_midpoint_has_derivatives(c):
    c = torch.tensor(c, dtype=torch.float64, requires_grad=True)
    x = 0.4 * torch.rand(3, 2, dtype=torch.float64) - 0.2
    weights = torch.rand(3, dtype=torch.float64)
    leaves = [c, x.requires_grad_(), weights.requires_grad_()]

    def f(c, x, weights):
        return PoincareBall(c + 0.01).weighted_midpoint(x, weights, lincomb=True)

    assert torch.autograd.gradcheck(f, leaves)
    assert torch.autograd.gradgradcheck(f, leaves)


def test_midpoint_at_zero_curvature_is_the_mean():
    x, weights = torch.rand(5, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    expected = (weights.unsqueeze(-1) * x).sum(0) / weights.sum()
    same(PoincareBall(0.0).weighted_midpoint(x, weights), expected, ROUNDING[torch.float64])


@every_chart
@pytest.mark.parametrize("shape", [(), (4,), (2, 4)])
def test_no_dimension_is_reduced(chart, shape):
    """Neither where none is asked for, nor where there is none but that of the coordinates."""
    manifold = chart(0.7)
    x = manifold.from_normal_coords(None, torch.randn(*shape, 3, dtype=torch.float64))
    w = torch.randn(shape, dtype=torch.float64)
    for keepdim in (False, True):
        same(manifold.weighted_midpoint(x, w, reducedim=[], keepdim=keepdim), x, 1e-12)
    if not shape:
        same(manifold.weighted_midpoint(x), x, 1e-12)
    turned = torch.where((w < 0).unsqueeze(-1), manifold.antipode(x), x)
    same(manifold.weighted_midpoint(x, w, reducedim=[], posweight=True), turned, 1e-12)
    scaled = manifold.weighted_midpoint(x, w, reducedim=[], lincomb=True)
    same(scaled, manifold.mobius_scalar_mul(w, x), 1e-12)


@pytest.mark.parametrize("reducedim", [[-1], [2], [0, -3], [3], [-4]])
def test_dimensions_that_cannot_be_reduced(reducedim):
    with pytest.raises(ValueError, match=r"reducedim must be different dimensions of x, of shape \(4, 5, 2\)"):
        PoincareBall(1.0).weighted_midpoint(torch.zeros(4, 5, 2), reducedim=reducedim)


def test_a_curvature_per_point_has_no_midpoint():
    with pytest.raises(ValueError, match=r"c must have size 1 in the dimensions that are reduced, got shape \(4,\)"):
        PoincareBall(torch.ones(4)).weighted_midpoint(torch.zeros(4, 2))


# --- checks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mobius_add", "mobius_coadd", "mobius_sub", "mobius_matvec", "proju", "egrad2rgrad"])
@every_chart
def test_points_of_another_dimension(chart, name):
    for dims in ((2, 1), (2, 3)):
        x, y = (chart(1.0).origin(dim) for dim in dims)
        with pytest.raises(ValueError, match=r"\d (normal )?coordinates|number of coordinates, got \d and \d"):
            getattr(chart(1.0), name)(*([torch.ones(4, dims[1]), x] if name == "mobius_matvec" else [x, y]))
    with pytest.raises(ValueError, match="number of coordinates"):
        chart(1.0).gyration(x, x, y)


@every_chart
def test_checks(chart):
    manifold = chart(torch.tensor([0.5, 1.0]))
    x = manifold.from_normal_coords(None, torch.ones(5, 2, 3))
    u = manifold.frame(x, torch.ones(5, 2, 3))
    assert manifold.check_point_on_manifold(x) is True
    assert manifold.check_vector_on_tangent(x, u) is True
    assert manifold.check_vector_on_tangent(x, u, explain=True) == (True, None)
    ok, reason = manifold.check_point_on_manifold(3 * x, explain=True)
    assert not ok
    assert "10 of the points do not lie on" in reason
    assert not manifold.check_vector_on_tangent(3 * x, u)
    bad = u if chart is Lorentz else u * math.nan
    bad = bad + 1
    ok, reason = manifold.check_vector_on_tangent(x, bad, explain=True)
    assert not ok
    assert "10 of the vectors are not tangent" in reason
    assert manifold.check_vector_on_tangent(x, manifold.proju(x, torch.ones_like(x)))
    assert manifold.check_vector_on_tangent(3 * x, u, ok_point=True)


# --- a second opinion -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def geoopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it scripts its functions, which this torch calls deprecated
        return pytest.importorskip("geoopt")


W = torch.tensor([0.3, 1.2, 0.7, 2.0], dtype=torch.float64)
ON_THE_BALL = {
    "antipode": lambda M, x: M.antipode(x),
    "proju": lambda M, x: M.proju(x, x[0]),
    "midpoint": lambda M, x: M.weighted_midpoint(x),
    "midpoint-keepdim": lambda M, x: M.weighted_midpoint(x, keepdim=True),
    "midpoint-weights": lambda M, x: M.weighted_midpoint(x, W),
    "midpoint-reducedim": lambda M, x: M.weighted_midpoint(x, W, reducedim=[1]),
    "midpoint-two": lambda M, x: M.weighted_midpoint(x, W, reducedim=[0, 1], keepdim=True),
    "midpoint-lincomb": lambda M, x: M.weighted_midpoint(0.2 * x, 0.1 * W, reducedim=[1], lincomb=True),
    "midpoint-posweight": lambda M, x: M.weighted_midpoint(x, W - 1.0, reducedim=[1], posweight=True),
    "fn_apply": lambda M, x: M.mobius_fn_apply(torch.nn.functional.leaky_relu, x, 0.3),
    "fn_apply_chain": lambda M, x: M.mobius_fn_apply_chain(x, torch.tanh, torch.exp),
    "fn_apply_chain-none": lambda M, x: M.mobius_fn_apply_chain(x),
}


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", ON_THE_BALL)
def test_geoopt_agrees_on_the_ball(geoopt, name, c):
    x = Case(dim=3, c=c, radius=2 / math.sqrt(c)).point(5, 4)
    same(ON_THE_BALL[name](PoincareBall(c), x), ON_THE_BALL[name](geoopt.PoincareBall(c=c), x), GEOMETRY[torch.float64])


ON_THE_HYPERBOLOID = {
    "dist": lambda M, x, u: M.dist(x, x.flip(0)),
    "dist0": lambda M, x, u: M.dist0(x),
    "expmap": lambda M, x, u: M.expmap(x, M.proju(x, u)),
    "logmap": lambda M, x, u: M.logmap(x, x.flip(0)),
    "transp": lambda M, x, u: M.transp(x, x.flip(0), M.proju(x, u)),
    "inner": lambda M, x, u: M.inner(x, M.proju(x, u), M.proju(x, u + 1)),
    "proju": lambda M, x, u: M.proju(x, u),
    "egrad2rgrad": lambda M, x, u: M.egrad2rgrad(x, u.clone()),  # it changes u
    "inner0": lambda M, x, u: M.inner0(x),
    "transp0back": lambda M, x, u: M.transp0back(x, M.proju(x, u)),
}


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("name", ON_THE_HYPERBOLOID)
def test_geoopt_agrees_on_the_hyperboloid(geoopt, name, c):
    theirs = geoopt.Lorentz(k=torch.tensor(1 / c, dtype=torch.float64))
    noise = torch.Generator().manual_seed(3)
    x = Lorentz(c).from_normal_coords(None, torch.randn(20, 3, generator=noise, dtype=torch.float64) / math.sqrt(c))
    u = torch.randn(20, 4, generator=noise, dtype=torch.float64) / math.sqrt(c)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ON_THE_HYPERBOLOID[name](theirs, x, u)
    same(ON_THE_HYPERBOLOID[name](Lorentz(c), x, u), expected, 1e-7)
