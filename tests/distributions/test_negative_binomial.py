"""The negative binomial distribution against arithmetic of fifty digits."""

import math

import mpmath
import pytest
import torch
from scipy import stats

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.ops.counts import _plain_log_mass
from tests.helpers import same

MP = mpmath.mp.clone()
MP.dps = 50
LOG_MEANS = [-10.0, -1.0, 0.3, 2.0, 6.9, 11.0]
COUNTS = [0.0, 1.0, 2.0, 7.0, 100.0, 1003.0, 60_000.0]


def exact(log_mean, log_r, x):
    """The logarithm of the mass function and its derivatives in all three."""
    log_mean, log_r, x = (MP.mpf(number) for number in (log_mean, log_r, x))
    r, q = MP.exp(log_r), MP.exp(log_mean - log_r)
    gammas = MP.loggamma(r + x) - MP.loggamma(r) - MP.loggamma(1 + x)
    slope = r * (MP.digamma(r + x) - MP.digamma(r) - MP.log1p(q)) - x + (r + x) * q / (1 + q)
    return [
        gammas + x * (log_mean - log_r) - (r + x) * MP.log1p(q),
        (x - MP.exp(log_mean)) / (1 + q),
        slope,
        MP.digamma(r + x) - MP.digamma(1 + x) + log_mean - log_r - MP.log1p(q),
    ]


@pytest.mark.parametrize("log_r", [-20.0, -3.0, 0.0, 2.4, 5.0, 12.0, 15.0, 18.0, 30.0])
def test_values_and_derivatives_in_float32(log_r):
    log_mean, x = (t.flatten() for t in torch.meshgrid(torch.tensor(LOG_MEANS), torch.tensor(COUNTS), indexing="ij"))
    leaves = [log_mean.requires_grad_(), torch.full_like(x, log_r).requires_grad_(), x.requires_grad_()]
    log_prob = hdist.NegativeBinomial(*leaves[:2]).log_prob(x)
    found = [log_prob, *torch.autograd.grad(log_prob.sum(), leaves)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    compiled = _plain_log_mass(wide[2], *wide[:2])
    for value, slope in zip(found, [compiled, *torch.autograd.grad(compiled.sum(), wide)], strict=True):
        same(value, slope, 2.0**-23, scale=1e-30 if log_r > -20 else 1e-3)
    for m, r, count, *values in zip(*[t.tolist() for t in leaves], *[t.tolist() for t in found], strict=True):
        for value, expected in zip(values, exact(m, r, count), strict=True):
            assert abs(value - expected) <= 2**-23 * abs(expected)


@pytest.mark.parametrize("log_r", [-2.0, 1.0, 15.0, 30.0])
def test_sum_over_many_genes(log_r):
    torch.manual_seed(0)
    log_mean = torch.randn(300)
    distribution = hdist.NegativeBinomial(log_mean, torch.tensor(log_r)).to_event(1)
    x = distribution.sample()
    expected = sum(exact(m, log_r, count)[0] for m, count in zip(log_mean.tolist(), x.tolist(), strict=True))
    same(distribution.log_prob(x), float(expected), 1e-6)


def test_derivatives_in_other_modes():
    x = torch.tensor([0.0, 3.0, 40.0], dtype=torch.float64)
    leaves = [torch.tensor([0.2, 1.0, 3.0]).double(), torch.tensor([-1.0, 0.5, 4.0]).double(), x]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def log_prob(log_mean, log_r, x):
        return hdist.NegativeBinomial(log_mean, log_r, validate_args=False).log_prob(x)

    assert torch.autograd.gradcheck(log_prob, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(log_prob, leaves)
    values = [leaf.detach() for leaf in leaves]
    same(torch.func.vmap(log_prob)(*values), log_prob(*values), 1e-14)
    slopes = torch.func.vmap(torch.func.grad(log_prob))(*values)
    same(slopes, torch.autograd.grad(log_prob(*leaves).sum(), leaves[0])[0], 1e-14)


@pytest.mark.parametrize("shape", [(5, 20_000), (2, 19, 2000), (80_000, 1)])
def test_many_numbers_are_those_of_each(shape):
    """Rows are worked on in parts; the dispersion is shared by all of them, or not."""
    torch.manual_seed(0)
    log_mean, x = torch.randn(shape, requires_grad=True), torch.poisson(torch.rand(shape) * 9)
    for log_r in (torch.randn(shape[-1:], requires_grad=True), torch.randn(shape, requires_grad=True)):
        log_prob = hdist.NegativeBinomial(log_mean, log_r).log_prob(x)
        wide = _plain_log_mass(x.double(), log_mean.double(), log_r.double())
        same(log_prob, wide, 2.0**-22)
        for slope, other in zip(
            *[torch.autograd.grad(t.sum(), (log_mean, log_r)) for t in (log_prob, wide)], strict=True
        ):
            same(slope, other, 1e-5)


@pytest.mark.parametrize(("log_mean", "log_r"), [(1.0, 0.3), (2.0, -1.0), (3.0, 30.0)])
def test_samples_and_moments(log_mean, log_r):
    torch.manual_seed(0)
    distribution = hdist.NegativeBinomial(torch.tensor(log_mean), torch.tensor(log_r))
    mean, variance = math.exp(log_mean), math.exp(log_mean) + math.exp(2 * log_mean - log_r)
    same(torch.stack([distribution.mean, distribution.variance]), [mean, variance], 1e-5)
    x = distribution.sample((20_000,))
    assert abs(x.mean().item() - mean) < 5 * math.sqrt(variance / 20_000)
    counts = torch.arange(8.0)
    share = torch.stack([(x == count).double().mean() for count in counts])
    error = (share - distribution.log_prob(counts).exp()).abs()
    assert (error < 5 * (share / 20_000).sqrt() + 1e-4).all()


def test_contract():
    distribution = hdist.NegativeBinomial(torch.zeros(3, 1), torch.zeros(4))
    assert distribution.batch_shape == (3, 4)
    assert distribution.event_shape == ()
    wide = distribution.expand((2, 3, 4))
    x = wide.sample((5,))
    assert wide.log_prob(x).shape == (5, 2, 3, 4)
    same(wide.log_prob(x), stats.nbinom(1, 0.5).logpmf(x.numpy()), 1e-5)
    with pytest.raises(ValueError, match="support"):
        distribution.log_prob(torch.tensor(0.5))
    with pytest.raises(ValueError, match="log_mean"):
        hdist.NegativeBinomial(torch.tensor(math.nan), torch.tensor(0.0))
