"""The mixture, whose components are summed over: variational bounds, chains and the components themselves."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    HMC,
    MCMC,
    SVI,
    JitTraceEnum_ELBO,
    TraceEnum_ELBO,
    infer_discrete,
)
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, init_to_mean, init_to_value
from pyro.infer.mcmc.util import initialize_model

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz
from tests.infer.agreement import SIGMAS, Found, agrees, look_at
from tests.infer.posterior_models import (
    BALL,
    C,
    Mixture,
    in_chart,
    in_coordinates,
    log_components,
    log_jacobian,
    on_disc,
)

HYPERBOLOID = Lorentz(C)
PLATES = {"vectorize_particles": True, "max_plate_nesting": 2}
# What the noise of the last steps may cost, in nats.
OPTIMISER = 0.03
every_chart = pytest.mark.parametrize("manifold", [BALL, HYPERBOLOID], ids=["ball", "hyperboloid"])


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)


def train(model, guide, loss, steps=30):
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.2, "lrd": 0.05 ** (1 / steps)}), loss)
    for _ in range(steps):
        svi.step()


@pytest.mark.parametrize("loss", [TraceEnum_ELBO, pytest.param(JitTraceEnum_ELBO, marks=pytest.mark.slow)])
def test_enumerated_bound(loss):
    training, program = Mixture(copies=128), Mixture()
    options = {"ignore_jit_warnings": True} if loss is JitTraceEnum_ELBO else {}
    train(training.model, training.guide, loss(max_plate_nesting=2, **options))
    exact = program.exact()
    scale_tril = torch.linalg.cholesky(exact.moments_at(exact.mean)[1])
    gap = exact.divergence(hdist.WrappedNormal(exact.mean, manifold=BALL, scale_tril=scale_tril).log_prob)
    # Components drawn from their posterior leave the weights as they are when the components are summed out.
    found = look_at(program.model, program.guide_with_components, gap=gap + OPTIMISER)
    agrees(found, program)
    value = TraceEnum_ELBO(num_particles=4000, **PLATES).loss(program.model, program.guide)
    bound, error = found.bound
    assert -value == pytest.approx(bound, abs=SIGMAS * math.sqrt(2) * error)


@every_chart
def test_potential_energy_is_minus_the_log_density_of_the_coordinates(manifold):
    program = Mixture(manifold)
    _, potential, _, _ = initialize_model(program.model, max_plate_nesting=2)
    for v in torch.randn(4, 2):
        z = BALL.from_normal_coords(None, v)
        expected = program.exact().log_joint(z) + log_jacobian(z)
        torch.testing.assert_close(potential({"z": v.expand(1, 1, 2)}), -expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_chains():
    program = Mixture(copies=48)
    kernel = HMC(
        program.model,
        step_size=0.15,
        num_steps=5,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        init_strategy=init_to_mean,
        max_plate_nesting=2,
    )
    mcmc = MCMC(kernel, 30, 8, disable_progbar=True)
    mcmc.run()
    agrees(Found(mcmc.get_samples()["z"].squeeze(-2).transpose(0, 1)), program)


def test_autoguide():
    program, exact = Mixture(), Mixture().exact()
    guide = AutoMultivariateNormal(poutine.block(program.model, hide=["k"]), init_scale=0.5)
    train(program.model, guide, TraceEnum_ELBO(num_particles=128, **PLATES), steps=50)
    found, best = guide.get_posterior(), dist.MultivariateNormal(*exact.moments_at(None))
    gap, least = (exact.divergence(in_coordinates(distribution)) for distribution in (found, best))
    assert gap < least + OPTIMISER
    draws = BALL.from_normal_coords(None, found.sample((4000,)))
    agrees(Found(draws, bound=(exact.log_evidence - gap, 0.0), gap=gap), program)


@every_chart
def test_components_given_the_mean(manifold):
    program = Mixture(manifold, copies=2)
    z = in_chart(torch.tensor([[0.1, 0.2], [0.4, 0.0]]), manifold).unsqueeze(-2)
    start = init_to_value(values={"z": z})
    guide = AutoDelta(poutine.block(program.model, hide=["k"]), init_loc_fn=start)
    found = TraceEnum_ELBO(max_plate_nesting=2).compute_marginals(program.model, guide)["k"]
    expected = log_components(on_disc(z, manifold).squeeze(-2)).log_softmax(-1)
    torch.testing.assert_close(found.logits, expected)


def test_components_drawn_with_the_mean():
    # Draws of z from the grid, and of the components given each: together those of the posterior.
    exact = Mixture().exact()
    count = 5000
    z = exact.nodes[torch.multinomial(exact.weights, count, replacement=True)]
    program = Mixture(copies=count)
    given = poutine.condition(program.model, data={"z": z.unsqueeze(-2)})
    trace = poutine.trace(infer_discrete(given, first_available_dim=-3)).get_trace()
    k = trace.nodes["k"]["value"]
    found = torch.stack([(k == i).double().mean(0) for i in range(3)], -1)
    expected = exact.expectation(lambda z: log_components(z).softmax(-1))
    error = (expected * (1 - expected) / count).sqrt()
    assert ((found - expected).abs() < SIGMAS * error).all()
