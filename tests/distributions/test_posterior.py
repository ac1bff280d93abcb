"""One posterior, three ways: NUTS, an autoguide and a grid integral agree.

The density is with respect to the Riemannian volume and the transform onto the ball reports its Jacobian in the same
measure, so that the algorithms, which work with Lebesgue densities of the unconstrained coordinates, are right.
"""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.ops.stats import effective_sample_size

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall

BALL = PoincareBall(0.7)
ANCHORS = BALL.from_normal_coords(None, torch.tensor([[4.0, 1.0], [3.0, -2.0], [4.0, 2.0]], dtype=torch.float64))
DISTANCES = torch.tensor([1.5, 2.0, 2.0], dtype=torch.float64)
NOISE = 3.0
PRIOR_LOC = torch.tensor([0.2, -0.1], dtype=torch.float64)

every_prior = pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])


def _prior(distribution):
    return distribution(PRIOR_LOC, 2.5, BALL)


def _likelihood(z):
    return dist.Normal(BALL.dist(z.unsqueeze(-2), ANCHORS), NOISE).to_event(1)


def _model(distribution):
    def model():
        z = pyro.sample("z", _prior(distribution))
        pyro.sample("x", _likelihood(z), obs=DISTANCES)

    return model


def _coordinates(z):
    return BALL.to_normal_coords(None, z)


def _grid_moments(distribution, volume_of_the_coordinates=True):
    """Mean and standard deviation of the normal coordinates at the origin, on a grid that holds all mass."""
    axis = torch.linspace(-12, 12, 481, dtype=torch.float64)
    v = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    z = BALL.from_normal_coords(None, v)
    log_weight = _prior(distribution).log_prob(z) + _likelihood(z).log_prob(DISTANCES)
    if volume_of_the_coordinates:
        s = math.sqrt(BALL.c) * v.norm(dim=-1).clamp(min=1e-9)
        log_weight = log_weight + torch.log(torch.sinh(s) / s)
    weight = log_weight.softmax(0).unsqueeze(-1)
    mean = (weight * v).sum(0)
    return mean, (weight * (v - mean).square()).sum(0).sqrt()


def _agrees(distribution, mean, sd, mean_error, sd_error):
    """Whether the moments are the grid's, to errors in units of its standard deviation.

    The errors must be small enough to see the volume of the coordinates: without it the posterior is another one.
    """
    exact_mean, exact_sd = _grid_moments(distribution)
    wrong_mean, _ = _grid_moments(distribution, volume_of_the_coordinates=False)
    assert ((wrong_mean - exact_mean).abs() > mean_error * exact_sd).any()
    assert ((mean - exact_mean).abs() < mean_error * exact_sd).all()
    assert ((sd - exact_sd).abs() < sd_error * exact_sd).all()


@pytest.mark.slow
@every_prior
def test_nuts_agrees_with_the_grid(distribution):
    kernel = NUTS(_model(distribution), step_size=0.5, target_accept_prob=0.7, max_tree_depth=3)
    mcmc = MCMC(kernel, num_samples=260, warmup_steps=50, disable_progbar=True)
    mcmc.run()
    v = _coordinates(mcmc.get_samples()["z"])
    # The standard error of a mean of n independent draws is sd / sqrt(n), of a standard deviation sd / sqrt(2 n).
    n = effective_sample_size(v.unsqueeze(0), chain_dim=0, sample_dim=1)
    _agrees(distribution, v.mean(0), v.std(0), mean_error=3.5 / n.sqrt(), sd_error=3.5 / (2 * n).sqrt())


@pytest.mark.slow
@every_prior
def test_autoguide_agrees_with_the_grid(distribution):
    model = _model(distribution)
    guide = AutoMultivariateNormal(model, init_scale=1.0)
    loss = Trace_ELBO(num_particles=32, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.98}), loss)
    for _ in range(200):
        svi.step()
    posterior = guide.get_posterior()
    # A Gaussian is not quite the posterior: the best one is off by about 0.02, and the noise of the last steps adds.
    _agrees(distribution, posterior.mean, posterior.stddev, mean_error=0.1, sd_error=0.08)
