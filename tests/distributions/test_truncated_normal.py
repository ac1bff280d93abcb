"""The truncated normal distribution against scipy."""

import math

import pytest
import torch
from scipy import stats

import pyro_hyperbolic.distributions as hdist
from tests.helpers import each, same


@each(("loc", "scale"), [(0.0, 1.0), (2.0, 0.5), (-3.0, 1.5), (-40.0, 1.0), (0.3, 7.0)])
def test_against_scipy(loc, scale):
    distribution = hdist.TruncatedNormal(torch.tensor(loc, dtype=torch.float64), scale)
    exact = stats.truncnorm(-loc / scale, math.inf, loc, scale)
    x = torch.tensor([0.0, 0.1, 1.0, 4.0], dtype=torch.float64)
    same(distribution.log_prob(x), torch.tensor(exact.logpdf(x)), 1e-12)
    same(distribution.mean, torch.tensor(exact.mean()), 1e-10)
    same(distribution.variance, torch.tensor(exact.var()), 1e-8)
    if loc > -10:
        assert stats.kstest(distribution.rsample((4000,)), exact.cdf).pvalue > 1e-3


def test_contract():
    loc, scale = torch.zeros(3, 1, requires_grad=True), torch.ones(4, requires_grad=True)
    distribution = hdist.TruncatedNormal(loc, scale)
    wide = distribution.expand((2, 3, 4))
    assert wide.rsample((5,)).shape == (5, 2, 3, 4)
    distribution.rsample().sum().backward()
    assert bool((torch.cat([loc.grad.flatten(), scale.grad]) > 0).all())
    assert hdist.TruncatedNormal(0.0, 1.0, validate_args=False).log_prob(torch.tensor(-1.0)) == -math.inf
    with pytest.raises(ValueError, match="within the support"):
        distribution.log_prob(torch.tensor(-1.0))
