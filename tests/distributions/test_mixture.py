"""Mixtures of our distributions as priors: their support, chains and guides."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_mean
from pyro.infer.mcmc.util import initialize_model
from torch.distributions import biject_to, transform_to

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.analysis import fit_mixture
from pyro_hyperbolic.distributions.constraints import on
from pyro_hyperbolic.infer import AutoWrappedNormal, FastNUTS, with_drawn_curvature
from pyro_hyperbolic.nn import exp0

FAMILIES = [dist.MixtureSameFamily, hdist.ManifoldMixture]
SPACES = [PoincareBall(1.0), Lorentz(0.7), Sphere(1.0), Euclidean()]
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)
every_family = pytest.mark.parametrize("family", FAMILIES)


def mixture(family, manifold, normal=hdist.WrappedNormal):
    loc = exp0(manifold, torch.tensor([[0.4, 0.0], [0.1, -0.3]], dtype=torch.float64))
    return family(dist.Categorical(WEIGHTS), normal(loc, 0.5, manifold))


@pytest.mark.parametrize("manifold", SPACES, ids=repr)
@every_family
def test_unconstrained_coordinates_are_those_of_the_manifold(family, manifold):
    support = mixture(family, manifold).support
    for registry in (biject_to, transform_to):
        assert registry(support) == registry(on(manifold))


def test_mixtures_of_other_distributions_are_left_to_torch():
    other = dist.MixtureSameFamily(dist.Categorical(WEIGHTS), dist.Normal(torch.zeros(2), 1.0))
    for registry in (biject_to, transform_to):
        with pytest.raises(NotImplementedError, match="Cannot transform MixtureSameFamilyConstraint constraints"):
            registry(other.support)


@every_family
def test_support_of_a_batch_of_curvatures(family):
    ball = PoincareBall(torch.tensor([[0.5], [2.0], [3.0]], dtype=torch.float64))
    batch = mixture(family, ball)
    assert batch.batch_shape == (3,)
    points = biject_to(batch.support)(torch.randn(5, 3, 2, dtype=torch.float64))
    assert points.shape == (5, 3, 2)
    assert batch.log_prob(points).shape == (5, 3)


@every_family
def test_components_of_several_curvatures_are_refused(family):
    ball = PoincareBall(torch.tensor([0.5, 2.0], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"must lie on one manifold, got curvatures of shape \(2,\); give them size 1"):
        biject_to(mixture(family, ball).support)


def test_mean_is_not_the_average_of_coordinates():
    points = hdist.WrappedNormal(torch.tensor([[0.6, 0.0], [0.0, -0.6]]), 0.2, PoincareBall(1.0)).sample((50,))
    fit = fit_mixture(points.flatten(0, 1), PoincareBall(1.0), 2)
    with pytest.raises(NotImplementedError, match="Fréchet mean of a mixture has no closed form; use"):
        _ = fit.distribution.mean
    with pytest.raises(NotImplementedError, match="has no variance"):
        _ = fit.distribution.variance


@pytest.mark.parametrize(
    ("family", "manifold", "kernel"),
    [
        (dist.MixtureSameFamily, PoincareBall(1.0), NUTS),
        pytest.param(hdist.ManifoldMixture, PoincareBall(1.0), FastNUTS, marks=pytest.mark.slow),
        (hdist.ManifoldMixture, Sphere(1.0), NUTS),
    ],
)
def test_a_chain_starts_and_runs(family, manifold, kernel):
    prior = mixture(family, manifold)
    mcmc = MCMC(kernel(lambda: pyro.sample("z", prior)), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run()
    assert manifold.contains(mcmc.get_samples()["z"]).all()


@every_family
def test_potential_of_a_chain(family):
    manifold = Lorentz(0.7)
    prior = mixture(family, manifold, hdist.RiemannianNormal)
    _, potential, transforms, _ = initialize_model(lambda: pyro.sample("z", prior))
    v = torch.tensor([0.3, -0.4], dtype=torch.float64)
    z = manifold.from_normal_coords(None, v)
    torch.testing.assert_close(transforms["z"](z), v)
    torch.testing.assert_close(potential({"z": v}), -prior.log_prob(z) - manifold.log_det_exp(v))


@pytest.mark.parametrize(("family", "guide"), list(zip(FAMILIES, [AutoNormal, AutoWrappedNormal], strict=True)))
def test_guides_approach_the_prior(family, guide):
    pyro.set_rng_seed(0)
    prior = mixture(family, PoincareBall(1.0))
    program = guide(lambda: pyro.sample("z", prior), init_loc_fn=init_to_mean)
    svi, exact = (
        SVI(lambda: pyro.sample("z", prior), program, pyro.optim.Adam({"lr": 0.05}), loss)
        for loss in (Trace_ELBO(), Trace_ELBO(num_particles=2000, vectorize_particles=True, max_plate_nesting=0))
    )
    start = exact.evaluate_loss()
    for _ in range(50):
        svi.step()
    # The evidence of a prior is 1, and the loss is above minus its logarithm.
    assert -0.05 < exact.evaluate_loss() < 0.4 < start


@every_family
def test_drawn_curvature(family):
    def model():
        c = pyro.sample("c", dist.LogNormal(torch.tensor(0.0, dtype=torch.float64), 0.5))
        pyro.sample("z", mixture(family, PoincareBall(c)))

    trace = pyro.poutine.trace(with_drawn_curvature(model)).get_trace()
    assert trace.stochastic_nodes == ["c", "z_coords"]
    # Coordinates and Jacobian, whatever the curvature is.
    c, v = trace.nodes["c"]["value"], trace.nodes["z_coords"]["value"]
    ball = PoincareBall(c)
    expected = mixture(family, ball).log_prob(ball.from_normal_coords(None, v)) + ball.log_det_exp(v)
    trace.compute_log_prob()
    torch.testing.assert_close(trace.nodes["z_coords"]["log_prob"], expected)
    mcmc = MCMC(NUTS(with_drawn_curvature(model)), num_samples=3, warmup_steps=3, disable_progbar=True)
    mcmc.run()
    assert math.isfinite(mcmc.get_samples()["c"].sum())
