"""Variational inference on the small programs: every loss and every guide against the grid.

A row's draws and its bound may differ from the posterior by what its family of guides cannot represent, which the grid
says, and by the noise of the last steps.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import (
    SVGD,
    SVI,
    JitTrace_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
    RBFSteinKernel,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
)
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoGaussian,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalMessenger,
    AutoStructured,
    init_to_mean,
    init_to_value,
)
from pyro.infer.importance import vectorized_importance_weights
from torch.autograd.functional import hessian, jacobian

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz
from pyro_hyperbolic.infer import AutoWrappedNormal, DReG_ELBO
from tests.infer.agreement import SIGMAS, agrees, disagreements, evidence, look_at
from tests.infer.posterior_models import BALL, C, Triangulation, in_coordinates, log_jacobian

HYPERBOLOID = Lorentz(C)
# What the noise of the last steps may cost, in nats.
OPTIMISER = 0.03
PLATES = {"vectorize_particles": True, "max_plate_nesting": 1}


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)


def train(model, guide, loss, steps, rate=0.2):
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": rate, "lrd": 0.05 ** (1 / steps)}), loss)
    for _ in range(steps):
        svi.step()


def gap(program, family):
    """Divergence from the posterior of the member of a family that has the right moments."""
    return program.exact().divergence(FAMILIES[family](program.exact()))


def _wrapped(exact):
    scale_tril = torch.linalg.cholesky(exact.moments_at(exact.mean)[1])
    return hdist.WrappedNormal(exact.mean, manifold=BALL, scale_tril=scale_tril).log_prob


def _wrapped_diagonal(exact):
    return hdist.WrappedNormal(exact.mean, _mean_field(exact.moments_at(exact.mean)[1]), BALL).log_prob


def _gaussian(exact):
    return in_coordinates(dist.MultivariateNormal(*exact.moments_at(None)))


def _gaussian_diagonal(exact):
    mean, covariance = exact.moments_at(None)
    return in_coordinates(dist.Normal(mean, _mean_field(covariance)).to_event(1))


def _mean_field(covariance):
    """The diagonal Gaussian that is nearest to a Gaussian has the diagonal of its precision."""
    return torch.linalg.inv(covariance).diagonal().rsqrt()


FAMILIES = {
    "wrapped": _wrapped,
    "wrapped diagonal": _wrapped_diagonal,
    "gaussian": _gaussian,
    "gaussian diagonal": _gaussian_diagonal,
}

# Losses that average over the plate see many copies of the data, whose noise in the gradient averages out; those
# whose weights run over all particles take as many of these, and more steps.
COPIES = PARTICLES = 128
slow = pytest.mark.slow
compiled = {"ignore_jit_warnings": True}
LOSSES = [
    pytest.param(Trace_ELBO(), COPIES, id="Trace_ELBO"),
    pytest.param(TraceMeanField_ELBO(), COPIES, id="TraceMeanField_ELBO"),
    pytest.param(TraceGraph_ELBO(), COPIES, id="TraceGraph_ELBO", marks=slow),
    pytest.param(RenyiELBO(alpha=0, num_particles=4, **PLATES), COPIES, id="RenyiELBO, alpha 0"),
    pytest.param(RenyiELBO(alpha=0.5, num_particles=4, **PLATES), COPIES, id="RenyiELBO, alpha 1/2", marks=slow),
    pytest.param(DReG_ELBO(num_particles=4, **PLATES), COPIES, id="DReG_ELBO"),
    pytest.param(RenyiELBO(alpha=2, num_particles=4, **PLATES), COPIES, id="RenyiELBO, alpha 2", marks=slow),
    pytest.param(TraceTailAdaptive_ELBO(num_particles=PARTICLES, **PLATES), 1, id="TraceTailAdaptive_ELBO", marks=slow),
    pytest.param(
        ReweightedWakeSleep(num_particles=PARTICLES, model_has_params=False, max_plate_nesting=1),
        1,
        id="ReweightedWakeSleep",
        marks=slow,
    ),
    pytest.param(JitTrace_ELBO(**compiled), COPIES, id="JitTrace_ELBO", marks=slow),
    pytest.param(JitTraceGraph_ELBO(**compiled), COPIES, id="JitTraceGraph_ELBO", marks=slow),
    pytest.param(JitTraceMeanField_ELBO(**compiled), COPIES, id="JitTraceMeanField_ELBO", marks=slow),
]


@pytest.mark.parametrize(("loss", "copies"), LOSSES)
def test_loss(loss, copies):
    training, program = Triangulation(copies=copies), Triangulation()
    train(training.model, training.guide, loss, steps=150 if copies == 1 else 30)
    agrees(look_at(program.model, program.guide, gap(program, "wrapped") + OPTIMISER), program)


@pytest.mark.parametrize(
    ("distribution", "manifold"),
    [
        pytest.param("riemannian", HYPERBOLOID, id="Riemannian prior, hyperboloid"),
        pytest.param("riemannian", BALL, id="Riemannian prior", marks=slow),
        pytest.param("wrapped", HYPERBOLOID, id="hyperboloid", marks=slow),
    ],
)
def test_prior_and_chart(distribution, manifold):
    training, program = Triangulation(distribution, manifold, COPIES), Triangulation(distribution, manifold)
    train(training.model, training.guide, Trace_ELBO(), steps=30)
    found = look_at(program.model, program.guide, gap(program, "wrapped") + OPTIMISER, manifold)
    agrees(found, program)


@pytest.mark.parametrize("beta", [2.0, pytest.param(0.5, marks=slow)])
def test_weighted_divergence_is_a_tempered_posterior(beta):
    # beta-VAE: the optimum is the posterior of the likelihood to the power 1 / beta, and the bound beta times its own.
    training, program = Triangulation(copies=COPIES, beta=beta), Triangulation(beta=beta)
    train(training.model, training.guide, Trace_ELBO(), steps=30)
    found = look_at(program.model, program.guide, gap(program, "wrapped") + OPTIMISER)
    bound, error = found.bound
    tempered = replace(found, bound=(bound / beta, error / beta), evidence=None)
    agrees(tempered, program)
    assert disagreements(tempered, Triangulation().exact())


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0])
def test_renyi_bound_is_that_of_the_grid(alpha):
    # Above the evidence, the evidence itself, between it and the ELBO, and the ELBO.
    program = Triangulation()
    pyro.param("scale_tril", torch.eye(2), constraint=dist.constraints.lower_cholesky)
    guide = hdist.WrappedNormal(program.prior_loc, 1.0, BALL)
    exact = program.exact().renyi_bound(guide.log_prob, alpha)
    count = 20_000
    make = Trace_ELBO if alpha == 1 else partial(RenyiELBO, alpha=alpha)
    found = -make(num_particles=count, **PLATES).loss(program.model, program.guide)
    log_weights, _, _ = vectorized_importance_weights(
        program.model, program.guide, num_samples=count, max_plate_nesting=1
    )
    if alpha == 1:
        error = log_weights.std().item() / math.sqrt(count)
    else:
        error = evidence((1 - alpha) * log_weights.detach())[1] / (1 - alpha)
    assert found == pytest.approx(exact, abs=SIGMAS * error)
    assert error < 0.1


WIDE = {"init_scale": 0.5}
GUIDES = [
    pytest.param(partial(AutoNormal, **WIDE), "gaussian diagonal", id="AutoNormal", marks=slow),
    pytest.param(partial(AutoMultivariateNormal, **WIDE), "gaussian", id="AutoMultivariateNormal"),
    pytest.param(
        partial(AutoLowRankMultivariateNormal, **WIDE), "gaussian", id="AutoLowRankMultivariateNormal", marks=slow
    ),
    pytest.param(partial(AutoIAFNormal, hidden_dim=[8]), "gaussian", id="AutoIAFNormal"),
    pytest.param(partial(AutoWrappedNormal, **WIDE), "wrapped diagonal", id="AutoWrappedNormal"),
    pytest.param(partial(AutoDiagonalNormal, **WIDE), "gaussian diagonal", id="AutoDiagonalNormal", marks=slow),
    pytest.param(partial(AutoStructured, **WIDE), "gaussian diagonal", id="AutoStructured", marks=slow),
    pytest.param(partial(AutoGaussian, **WIDE), "gaussian", id="AutoGaussian", marks=slow),
    pytest.param(partial(AutoNormalMessenger, **WIDE), "gaussian diagonal", id="AutoNormalMessenger", marks=slow),
]


@pytest.mark.parametrize(("make", "family"), GUIDES)
def test_guide(make, family):
    program = Triangulation()
    guide = make(program.model)
    train(program.model, guide, Trace_ELBO(num_particles=PARTICLES, **PLATES), steps=50, rate=0.15)
    agrees(look_at(program.model, guide, gap(program, family) + OPTIMISER), program)


@pytest.mark.parametrize("make", [AutoWrappedNormal, AutoMultivariateNormal])
def test_guide_on_the_hyperboloid(make):
    # The charts are isometric: with the same noise a guide takes the same steps.
    bounds = []
    for manifold in (BALL, HYPERBOLOID):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        program = Triangulation("riemannian", manifold)
        guide = make(program.model, init_loc_fn=init_to_mean, **WIDE)
        loss = Trace_ELBO(num_particles=PARTICLES, **PLATES)
        train(program.model, guide, loss, steps=5)
        bounds.append(loss.loss(program.model, guide))
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


def near(program):
    """Start from the mean."""
    return init_to_value(values={"z": program.exact().mean.unsqueeze(0)})


def mode(log_density):
    """The maximum of a function of normal coordinates at the origin, and its Hessian there."""
    exact = Triangulation().exact()
    nodes = BALL.to_normal_coords(None, exact.nodes)
    with torch.no_grad():
        v = nodes[log_density(nodes).argmax()]
    for _ in range(20):
        v = v - torch.linalg.solve(hessian(log_density, v), jacobian(log_density, v))
    return v, hessian(log_density, v)


def test_point_guide_finds_the_mode():
    # That of the density with respect to the Riemannian volume.
    program = Triangulation()
    guide = AutoDelta(program.model, init_loc_fn=near(program))
    train(program.model, guide, Trace_ELBO(), steps=60, rate=0.05)
    expected, _ = mode(lambda v: program.exact().log_joint(BALL.from_normal_coords(None, v)))
    found = BALL.to_normal_coords(None, guide.median()["z"].squeeze(-2))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)


def test_laplace_approximation():
    # The mode and the curvature are those of the density of the normal coordinates.
    program, exact = Triangulation(), Triangulation().exact()
    guide = AutoLaplaceApproximation(program.model, init_loc_fn=near(program))
    train(program.model, guide, Trace_ELBO(), steps=60, rate=0.05)
    laplace = guide.laplace_approximation()

    def log_density(v):
        z = BALL.from_normal_coords(None, v)
        return exact.log_joint(z) + log_jacobian(z)

    centre, second = mode(log_density)
    posterior = laplace.get_posterior()
    torch.testing.assert_close(posterior.mean, centre, rtol=0, atol=0.01)
    torch.testing.assert_close(posterior.covariance_matrix, torch.linalg.inv(-second), rtol=0.05, atol=0.005)
    agrees(look_at(program.model, laplace, exact.divergence(in_coordinates(posterior))), program)


@pytest.mark.slow
def test_stein_variational_gradient_descent():
    # Its particles are no independent draws: they spread more evenly, and their means are nearer.
    program = Triangulation()
    svgd = SVGD(program.model, RBFSteinKernel(), pyro.optim.Adam({"lr": 0.1}), num_particles=100, max_plate_nesting=1)
    for _ in range(100):
        svgd.step()
    (z,) = svgd.get_named_particles().values()
    mean, sd = program.exact().moments
    assert ((program.exact().statistics(z.squeeze(-2)).mean(0) - mean).abs() < 0.1 * sd).all()
