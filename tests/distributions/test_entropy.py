"""Entropies, which not every distribution on a manifold need have."""

import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from tests.distributions.cases import DISTRIBUTIONS, ONE_TO_ONE, RADII, WINDING, RadiusCase, tensors
from tests.helpers import ROUNDING

OPEN_RADII = [case for case in RADII if case.distribution is hdist.HyperbolicRadius]
every_distribution = pytest.mark.parametrize("case", DISTRIBUTIONS, ids=str)


@every_distribution
def test_entropy_of_an_empty_batch(case):
    if case not in WINDING:
        distribution = case.make((0,), validate_args=False if getattr(case, "kind", None) == "full" else None)
        assert distribution.entropy().shape == (0,)


@every_distribution
def test_entropy_is_that_of_samples(case):
    distribution = case.make((3,))
    if case in WINDING:
        with pytest.raises(NotImplementedError, match="windings"):
            distribution.entropy()
        return
    surprise = -distribution.log_prob(distribution.sample((20_000,)))
    error = (surprise.mean(0) - distribution.entropy()).abs()
    assert distribution.entropy().shape == (3,)
    assert (error <= 5 * surprise.std(0) / 20_000**0.5 + ROUNDING[torch.float64]).all()


@pytest.mark.parametrize("case", [c for c in [*ONE_TO_ONE, *OPEN_RADII] if getattr(c, "kind", "") != "number"], ids=str)
def test_entropy_grows_with_the_scale(case):
    params = tensors(case.params((3,)))
    scale = params.get("scale", params.get("scale_tril"))
    (slope,) = torch.autograd.grad(case.on(params).entropy().sum(), scale)
    growth = (slope * scale).flatten(1).sum(-1) if scale.dim() > 1 else slope * scale
    # Of a Gaussian it is the dimension; curvature adds to it.
    assert (growth >= (1 if isinstance(case, RadiusCase) else case.dim) * (1 - 1e-9)).all()
