"""The tangent vector that a distribution keeps of its last sample, and the edge of what coordinates can hold."""

import math

import pyro
import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz
from tests.distributions.cases import NORMALS, NormalCase, tensors
from tests.helpers import DTYPES, LOG_PROB, each, same

every_normal = each("case", NORMALS)
every_dtype = each("dtype", DTYPES)


def _distribution_at_distance(distribution, distance, scale, dim=2, dtype=torch.float32, c=1.0):
    ball = PoincareBall(c)
    direction = torch.ones(dim, dtype=torch.float64) / math.sqrt(dim)
    loc = ball.from_normal_coords(ball.origin(dim, torch.float64), distance * direction)
    return distribution(loc.to(dtype), scale, ball)


def _exact_log_prob(distribution, v):
    """The density as a function of the tangent vector, in float64, whatever the coordinates hold."""
    wide = type(distribution)(
        torch.zeros_like(distribution.loc, dtype=torch.float64), distribution.scale.double(), distribution.manifold
    )
    return wide._log_density(v.double())


def _sample_with_coords(distribution, shape, seed=0):
    torch.manual_seed(seed)
    v = distribution._rsample_coords(torch.Size(shape))
    torch.manual_seed(seed)
    return distribution.rsample(shape), v


@pytest.mark.parametrize("case", NORMALS, ids=str)
def test_own_sample_needs_no_log_map(case, monkeypatch):
    distribution = case.make((3,))
    z = distribution.rsample()
    monkeypatch.setattr(type(case.manifold), "to_normal_coords", lambda *args: pytest.fail("the log map was called"))
    distribution.log_prob(z)
    distribution.to_event(1).log_prob(z)
    distribution.mask(torch.tensor([True, False, True])).log_prob(z)


@pytest.mark.parametrize("case", NORMALS, ids=str)
def test_foreign_point_needs_the_log_map(case, monkeypatch):
    distribution = case.make((3,))
    z = distribution.rsample()
    calls = []
    original = type(case.manifold).to_normal_coords
    monkeypatch.setattr(type(case.manifold), "to_normal_coords", lambda *args: calls.append(1) or original(*args))
    distribution.log_prob(z.clone())
    distribution.expand((2, 3)).log_prob(z)
    assert len(calls) == 2


@every_dtype
@every_normal
def test_own_density_is_that_of_the_tangent_vector(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    z, v = _sample_with_coords(distribution, (5,))
    torch.testing.assert_close(distribution.log_prob(z), distribution._log_density(v), rtol=0, atol=0)


@every_dtype
@every_normal
def test_own_and_foreign_density_agree_near_the_origin(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    z = distribution.rsample((500,))
    same(distribution.log_prob(z), distribution.log_prob(z.clone()), LOG_PROB[dtype])


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_own_density_is_right_where_the_log_map_is_lost(distribution):
    distribution = _distribution_at_distance(distribution, 10.0, 1.0)
    z, v = _sample_with_coords(distribution, (20_000,))
    far = distribution.manifold.dist0(z) > 13
    assert far.sum() > 20
    exact = _exact_log_prob(distribution, v)
    own, foreign = (
        (log_prob - exact).abs()[far].max() for log_prob in (distribution.log_prob(z), distribution.log_prob(z.clone()))
    )
    assert own < 1e-4
    assert foreign > 0.1


@every_normal
def test_score_of_a_sample_without_graph(case):
    # sample() has no graph, so the derivatives of log_prob in loc and c must come from the log map.
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)
    leaves = tensors(case.params())
    distribution = case.on({**case.params(), **leaves}, c=c)
    z = distribution.sample((4,))
    params = [*leaves.values(), *([c] if distribution.manifold.curvatures else [])]
    own = torch.autograd.grad(distribution.log_prob(z).sum(), params)
    for a, b in zip(own, torch.autograd.grad(distribution.log_prob(z.clone()).sum(), params), strict=True):
        torch.testing.assert_close(a, b)


@every_normal
def test_each_density_has_a_graph_of_its_own(case):
    # Also where the values of a curvature are not checked before.
    leaves = tensors(case.params())
    with pyro.validation_enabled(False):
        c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)
        distribution = case.on({**case.params(), **leaves}, c=c)
        z = distribution.sample((4,))
        for _ in range(2):
            distribution.log_prob(z).sum().backward()
            distribution.rsample().sum().backward()


@every_normal
def test_value_changed_in_place_is_seen(case):
    # As an optimiser does with a parameter.
    distribution = case.make()
    z = distribution.sample().clone()
    before = distribution.log_prob(z)
    z.copy_(distribution.sample())
    assert distribution.log_prob(z) != before
    torch.testing.assert_close(distribution.log_prob(z), distribution.log_prob(z.clone()), rtol=0, atol=0)


@every_normal
def test_one_distribution_may_score_a_parameter_again_and_again(case):
    distribution = case.make()
    z = distribution.sample().clone().requires_grad_()
    for _ in range(2):
        distribution.log_prob(z).backward()
    torch.testing.assert_close(z.grad, 2 * torch.autograd.grad(distribution.log_prob(z), z)[0])


@every_dtype
@every_normal
def test_density_at_the_centre(case, dtype):
    c = torch.tensor(case.c, dtype=dtype, requires_grad=True)
    leaves = tensors(case.params(dtype=dtype))
    distribution = case.on({**case.params(dtype=dtype), **leaves}, c=c)
    value = leaves["loc"].detach().clone().requires_grad_()
    log_prob = distribution.log_prob(value)
    gradients = torch.autograd.grad(log_prob, [value, c, *leaves.values()], allow_unused=True)
    assert log_prob.isfinite()
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
    assert (gradients[0] == 0).all()  # its maximum


@every_dtype
@each("case", [case for case in NORMALS if case.kind == "isotropic"])
def test_density_at_the_origin_of_a_distribution_centred_there(case, dtype):
    origin = case.manifold.origin(case.dim, dtype).requires_grad_()
    value = origin.detach().clone().requires_grad_()
    distribution = case.on({"loc": origin, "scale": case.params(dtype=dtype)["scale"]})
    gradients = torch.autograd.grad(distribution.log_prob(value), [value, origin])
    assert all((gradient == 0).all() for gradient in gradients)


# Half of all, as the black squares of a board: what one distribution lacks the other has.
SWEEP = [
    NormalCase(distribution, "isotropic", dim, c)
    for i, distribution in enumerate((hdist.WrappedNormal, hdist.RiemannianNormal))
    for j, dim in enumerate((1, 2, 10, 50))
    for k, c in enumerate((1e-4, 0.1, 1.4))
    if (i + j + k) % 2 == 0
]


@pytest.mark.parametrize("case", SWEEP, ids=str)
def test_everything_is_finite_up_to_where_the_coordinates_end(case):
    ball, refused, accepted = case.manifold, 0, 0
    for share in (0.0, 0.3, 0.6, 0.9, 1.0):
        for scale in (1e-3, 0.1, 1.0, 3.0):
            distance = share * ball.reach(torch.float32)
            direction = torch.ones(case.dim) / math.sqrt(case.dim)
            loc = ball.from_normal_coords(torch.zeros(case.dim), distance * direction).requires_grad_()
            sigma = torch.full((1,), scale, requires_grad=True)
            c = torch.tensor(case.c, requires_grad=True)
            distribution = case.on({"loc": loc, "scale": sigma}, c=c)
            try:
                z = distribution.rsample((200,))
            except ValueError:
                refused += 1
                continue
            accepted += 1
            log_prob = distribution.log_prob(z)
            gradients = torch.autograd.grad(log_prob.sum() + z.sum(), [loc, sigma, c])
            foreign = distribution.log_prob(z.detach())
            gradients += torch.autograd.grad(foreign.sum(), [loc, sigma, c])
            for tensor in (z, log_prob, foreign, *gradients):
                assert tensor.isfinite().all(), (share, scale)
    assert accepted > 0
    assert refused > 0


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_sampling_beyond_float32_is_refused_with_the_remedy(distribution):
    with pytest.raises(ValueError, match=r"scale.*float32.*use float64"):
        _distribution_at_distance(distribution, 14.0, 1.0).rsample()


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_the_remedy_works(distribution):
    wide = _distribution_at_distance(distribution, 14.0, 1.0, dtype=torch.float64)
    z = wide.rsample((1000,))
    same(wide.log_prob(z), wide.log_prob(z.clone()), 1e-3)


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_sampling_beyond_float64_is_refused(distribution):
    with pytest.raises(ValueError, match=r"loc and scale put mass at .* but torch.float64 coordinates end"):
        _distribution_at_distance(distribution, 34.0, 1.0, dtype=torch.float64).sample()


@pytest.mark.parametrize(("dim", "c"), [(20, 0.7), (20, 1.4), (10, 1.4)])
def test_the_starred_cells_of_the_paper_are_refused_in_float32(dim, c):
    with pytest.raises(ValueError, match="RiemannianNormal on PoincareBall"):
        hdist.RiemannianNormal(torch.zeros(dim), 1.0, PoincareBall(c)).rsample()


@pytest.mark.parametrize(("dim", "c"), [(20, 0.7), (20, 1.4), (10, 1.4)])
def test_the_hyperboloid_holds_the_starred_cells(dim, c):
    hyperboloid = Lorentz(c)
    distribution = hdist.RiemannianNormal(hyperboloid.origin(dim), 1.0, hyperboloid)
    z, v = _sample_with_coords(distribution, (1000,))
    same(hyperboloid.dist0(z), v.norm(dim=-1), 1e-4)
    same(distribution.log_prob(z), distribution.log_prob(z.clone()), LOG_PROB[torch.float32])


def test_the_density_is_right_where_sampling_is_refused():
    point = 0.5 * torch.ones(20) / math.sqrt(20)
    narrow, wide = (
        hdist.RiemannianNormal(torch.zeros(20, dtype=dtype), 1.0, PoincareBall(1.4)).log_prob(point.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    same(narrow, wide, LOG_PROB[torch.float32])


@every_normal
def test_without_validation_the_density_at_infinity_is_zero(case):
    leaves = tensors(case.params())
    distribution = case.on({**case.params(), **leaves}, validate_args=False)
    good = distribution.sample().detach()
    off = torch.full_like(good, torch.inf)
    bad = good.clone()
    bad[..., 0] = torch.nan
    values = torch.stack([good, off, bad])
    log_prob = distribution.log_prob(values)
    same(log_prob[0], distribution.log_prob(good.clone()), 1e-12)
    assert (log_prob[1] == -torch.inf).all()
    assert log_prob[2].isnan().all()
    gradients = torch.autograd.grad(log_prob[0].sum() + log_prob[1].clamp(min=0).sum(), list(leaves.values()))
    for a, b in zip(
        gradients, torch.autograd.grad(distribution.log_prob(good).sum(), list(leaves.values())), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_without_validation_the_density_outside_of_the_ball_is_zero():
    distribution = hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0), validate_args=False)
    values = torch.tensor([[0.6, 0.8], [0.3, 0.2]])
    for density in (distribution.log_prob(values), distribution.lebesgue_log_prob(values)):
        assert density[0] == -torch.inf
        assert density[1].isfinite()
    with pytest.raises(ValueError, match="within the support"):
        hdist.WrappedNormal(torch.zeros(2), 1.0, PoincareBall(1.0), validate_args=True).log_prob(values)


def test_without_validation_sampling_beyond_is_not_refused_and_finite():
    distribution = hdist.WrappedNormal(torch.zeros(2), 10.0, PoincareBall(1.0), validate_args=False)
    z = distribution.rsample((1000,))
    assert distribution.support.check(z).all()
    assert distribution.log_prob(z).isfinite().all()
    assert distribution.log_prob(z.clone()).isfinite().all()
