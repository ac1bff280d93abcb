"""At c = 0 distributions are Gaussian, with the metric 4 dz^2; nothing breaks on the way there or in one dimension."""

import pytest
import torch
from scipy import stats

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.distributions.cases import FLAT, HYPERBOLIC, NormalCase, tensors
from tests.helpers import DTYPES, ROUNDING, same

every_flat = pytest.mark.parametrize("case", FLAT, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# The flat cases, and one of every kind of scale in one dimension.
ON_THE_LINE = [case for case in HYPERBOLIC if case.dim == 1] + [
    NormalCase(hdist.WrappedNormal, "diagonal", 1, 0.3),
    NormalCase(hdist.WrappedNormal, "number", 1, 0.0),
    NormalCase(hdist.RiemannianNormal, "number", 1, 0.0),
]


def _root(case, batch=(), dtype=torch.float64):
    """Cholesky factor of the covariance of the normal coordinates, from the parameters alone."""
    params = case.params(batch, dtype=dtype)
    if "scale_tril" in params:
        return params["scale_tril"]
    return torch.diag_embed(torch.as_tensor(params["scale"], dtype=dtype).expand((*batch, case.dim)))


@every_dtype
@every_flat
def test_density_is_gaussian_in_normal_coordinates(case, dtype):
    distribution = case.make((3,), dtype=dtype)
    value = distribution.sample((20,))
    v = 2 * (value - distribution.loc)
    gaussian = torch.distributions.MultivariateNormal(
        torch.zeros_like(distribution.loc), scale_tril=_root(case, (3,), dtype)
    )
    same(distribution.log_prob(value.clone()), gaussian.log_prob(v), 10 * ROUNDING[dtype])


@every_flat
def test_lebesgue_density_is_gaussian_with_half_the_scale(case):
    distribution = case.make((3,))
    value = distribution.sample((20,))
    gaussian = torch.distributions.MultivariateNormal(distribution.loc, scale_tril=_root(case, (3,)) / 2)
    same(distribution.lebesgue_log_prob(value), gaussian.log_prob(value), 1e-12)


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_samples_are_affine_in_the_noise(distribution):
    """``z = loc + scale * noise / 2``: scaling the distribution scales its samples."""
    ball, loc = PoincareBall(0.0), torch.tensor([3.0, -40.0], dtype=torch.float64)
    torch.manual_seed(0)
    once = distribution(loc, 1.0, ball).rsample((50,))
    torch.manual_seed(0)
    twice = distribution(loc, 2.0, ball).rsample((50,))
    torch.testing.assert_close(twice - loc, 2 * (once - loc))


@every_flat
def test_no_point_is_outside_of_flat_space(case):
    distribution = case.make()
    assert distribution.support.check(torch.full((case.dim,), 1e6, dtype=torch.float64))
    assert distribution.log_prob(torch.full((case.dim,), 1e3, dtype=torch.float64)).isfinite()


def _quantities(case, c, leaves):
    """Density of a fixed point, and samples with fixed noise."""
    distribution = case.on({**case.params((2,)), **leaves}, c=c)
    torch.manual_seed(4)
    z = distribution.rsample((3,))
    point = torch.linspace(-0.3, 0.4, 2 * case.dim, dtype=torch.float64).reshape(2, case.dim)
    return {"density": distribution.log_prob(point), "sample": z, "own density": distribution.log_prob(z)}


@pytest.mark.parametrize("what", ["density", "sample", "own density"])
@every_flat
def test_values_and_gradients_are_continuous_at_zero(case, what):
    results = []
    for c in (0.0, 1e-12):
        leaves = tensors(case.params((2,)))
        value = _quantities(case, c, leaves)[what]
        gradients = torch.autograd.grad(value.sin().sum(), list(leaves.values()), allow_unused=True)
        results.append([value, *(gradient for gradient in gradients if gradient is not None)])
    for at_zero, near in zip(*results, strict=True):
        torch.testing.assert_close(near, at_zero, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("what", ["density", "sample", "own density"])
@every_flat
def test_derivative_in_the_curvature_at_zero(case, what):
    def value(c):
        return _quantities(case, c, {})[what].sin().sum()

    c = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(c), c)
    step = 1e-4
    with torch.no_grad():  # one-sided, of second order
        difference = (4 * value(step) - value(2 * step) - 3 * value(0.0)) / (2 * step)
    torch.testing.assert_close(slope, difference, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 100])
def test_radius_is_a_chi_variable(dim):
    distribution, chi = (
        hdist.HyperbolicRadius(dim, torch.tensor(1.7, dtype=torch.float64), 0.0),
        stats.chi(dim, scale=1.7),
    )
    r = torch.tensor(chi.ppf([0.01, 0.3, 0.5, 0.99]))
    same(distribution.log_prob(r), chi.logpdf(r), 1e-10)
    same(distribution.cdf(r), chi.cdf(r), 1e-10)
    same(distribution.icdf(distribution.cdf(r)), r, 1e-8)
    same(torch.stack([distribution.mean, distribution.variance]), [chi.mean(), chi.var()], 1e-10)


@pytest.mark.parametrize("c", [0.0, 0.3, 10.0])
def test_radius_in_one_dimension_is_half_normal_whatever_the_curvature(c):
    distribution, half = hdist.HyperbolicRadius(1, torch.tensor(0.6, dtype=torch.float64), c), stats.halfnorm(scale=0.6)
    r = torch.tensor([0.0, 1e-3, 0.5, 3.0], dtype=torch.float64)
    same(distribution.log_prob(r), half.logpdf(r), 1e-12)
    same(distribution.cdf(r), half.cdf(r), 1e-12)
    same(distribution.log_normalizer, 0.5 * torch.log(torch.tensor(torch.pi * 0.36 / 2, dtype=torch.float64)), 1e-12)


@pytest.mark.parametrize("case", ON_THE_LINE, ids=str)
def test_every_distribution_on_the_line_is_gaussian_in_the_distance(case):
    distribution = case.make()
    value = distribution.sample((100,))
    v = distribution.manifold.dist(distribution.loc, value)
    gaussian = torch.distributions.Normal(0.0, _root(case).squeeze())
    same(distribution.log_prob(value.clone()), gaussian.log_prob(v), 1e-12)


def test_derivative_of_the_radius_density_at_zero_in_one_dimension():
    r = torch.zeros((), requires_grad=True)
    assert torch.autograd.grad(hdist.HyperbolicRadius(1, 1.0, 1.0).log_prob(r), r)[0] == 0
