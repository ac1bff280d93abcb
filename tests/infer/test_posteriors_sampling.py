"""Weighted draws, predictions and the handlers, against the grid."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    EmpiricalMarginal,
    Importance,
    MHResampler,
    Predictive,
    SMCFilter,
    TraceTMC_ELBO,
    WeighedPredictive,
    config_enumerate,
)
from pyro.infer.importance import psis_diagnostic, vectorized_importance_weights

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz
from pyro_hyperbolic.infer import log_marginal_likelihood
from tests.infer.agreement import SIGMAS, Found, agrees, evidence
from tests.infer.posterior_models import (
    ANCHORS,
    DISTANCES,
    NOISE,
    C,
    Triangulation,
    distance,
    in_chart,
    on_disc,
)

HYPERBOLOID = Lorentz(C)
PROGRAMS = {
    "wrapped": Triangulation(),
    "riemannian": Triangulation("riemannian"),
    "hyperboloid": Triangulation(manifold=HYPERBOLOID),
    "riemannian hyperboloid": Triangulation("riemannian", manifold=HYPERBOLOID),
}
every_program = pytest.mark.parametrize("name", PROGRAMS)


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)


def propose(program, widen=1.2):
    """Set the guide's parameters to the moments of the posterior, a little wider."""
    exact = program.exact()
    covariance = exact.moments_at(exact.mean)[1]
    pyro.get_param_store().clear()
    loc = in_chart(exact.mean, program.manifold)
    pyro.param("loc", loc, constraint=hdist.constraints.on(program.manifold))
    pyro.param("scale_tril", widen * torch.linalg.cholesky(covariance), constraint=dist.constraints.lower_cholesky)
    return program


def importance(program):
    propose(program)
    posterior = Importance(program.model, program.guide, num_samples=100).run()
    draws = torch.stack([trace.nodes["z"]["value"].squeeze(0) for trace in posterior.exec_traces]).detach()
    log_weights = torch.stack(posterior.log_weights).detach()
    assert posterior.get_log_normalizer().item() == pytest.approx(evidence(log_weights)[0])
    marginal = EmpiricalMarginal(posterior, sites="z")
    torch.testing.assert_close(marginal.mean.squeeze(0), (log_weights.softmax(0).unsqueeze(-1) * draws).sum(0))
    return Found(on_disc(draws, program.manifold), log_weights=log_weights, evidence=evidence(log_weights))


def weighted(program, num_samples=2000):
    """The same, all draws at once."""
    propose(program)
    return at_once(program, program.guide, num_samples)


def from_the_prior(program):
    """The prior proposes, and few of its draws weigh anything."""
    return at_once(program, poutine.block(program.model, hide=["x"]), num_samples=20_000)


def at_once(program, guide, num_samples):
    with torch.no_grad():
        log_weights, _, trace = vectorized_importance_weights(
            program.model, guide, num_samples=num_samples, max_plate_nesting=1
        )
    draws = on_disc(trace.nodes["z"]["value"].squeeze(-2), program.manifold)
    return Found(draws, log_weights=log_weights, evidence=evidence(log_weights))


def predicted(program, num_samples=2000):
    """Predictions that come with weights."""
    propose(program)
    result = WeighedPredictive(program.model, guide=program.guide, num_samples=num_samples, parallel=True)()
    draws = on_disc(result.samples["z"].squeeze(-2), program.manifold)
    return Found(draws, log_weights=result.log_weights, evidence=evidence(result.log_weights))


def resampled(program, rounds=15, num_samples=2000):
    """The same draws, each the state of a Metropolis-Hastings chain with the guide as its proposal."""
    propose(program)
    sampler = WeighedPredictive(program.model, guide=program.guide, num_samples=num_samples, parallel=True)
    resampler = MHResampler(sampler)
    for _ in range(rounds):
        draws = resampler().samples["z"]
    return Found(on_disc(draws.squeeze(-2), program.manifold))


def filtered(program, filters=16, particles=1000):
    """One distance after another, by the bootstrap filter; the filters are independent."""

    class Model:
        def init(self, state):
            state["z"] = pyro.sample("z", program.prior())

        def step(self, state, j):
            to_anchor = program.manifold.dist(state["z"], program.anchors[j])
            pyro.sample(f"x_{j}", dist.Normal(to_anchor, NOISE), obs=DISTANCES[j])

    class Guide:
        def init(self, state):
            pyro.sample("z", program.prior())

        def step(self, state, j):
            pass

    draws, log_evidences = [], []
    for _ in range(filters):
        smc = SMCFilter(Model(), Guide(), particles, max_plate_nesting=0)
        smc.init()
        total = 0.0
        for j in range(len(DISTANCES)):
            before = smc.get_empirical()["z"]
            z = before.enumerate_support()
            predicted = dist.Normal(program.manifold.dist(z, program.anchors[j]), NOISE).log_prob(DISTANCES[j])
            total = total + (before.log_weights.log_softmax(0) + predicted).logsumexp(0)
            smc.step(j)
        draws.append(smc.get_empirical()["z"].sample((particles,)))
        log_evidences.append(total)
    return Found(on_disc(torch.stack(draws), program.manifold), evidence=evidence(torch.stack(log_evidences)))


METHODS = {
    "Importance": (importance, "wrapped"),
    "importance weights": (weighted, "wrapped"),
    "importance weights, Riemannian": (weighted, "riemannian"),
    "importance weights, hyperboloid": (weighted, "hyperboloid"),
    "importance weights, Riemannian hyperboloid": (weighted, "riemannian hyperboloid"),
    "proposals of the prior": (from_the_prior, "wrapped"),
    "proposals of the Riemannian prior": (from_the_prior, "riemannian"),
    "WeighedPredictive": (predicted, "wrapped"),
    "MHResampler": (resampled, "wrapped"),
    "SMCFilter": (filtered, "wrapped"),
    "SMCFilter, Riemannian hyperboloid": (filtered, "riemannian hyperboloid"),
}


@pytest.mark.parametrize("name", METHODS)
def test_agrees_with_the_grid(name):
    method, program = METHODS[name][0], PROGRAMS[METHODS[name][1]]
    agrees(method(program), program)


def test_tensor_monte_carlo():
    # Each value is the logarithm of an unbiased estimate of the evidence.
    program = propose(PROGRAMS["wrapped"])
    guide = config_enumerate(program.guide, "parallel", num_samples=100, expand=False)
    loss = TraceTMC_ELBO(max_plate_nesting=1)
    value, error = evidence(torch.tensor([-loss.loss(program.model, guide) for _ in range(20)]))
    assert error < 0.05
    assert value == pytest.approx(program.exact().log_evidence, abs=SIGMAS * error)


@every_program
def test_log_marginal_likelihood(name):
    program = propose(PROGRAMS[name])
    data = DISTANCES.expand(3, -1)
    estimates, errors = log_marginal_likelihood(
        program.model, program.guide, data, num_samples=2000, standard_error=True
    )
    assert estimates.shape == (3,)
    assert (errors < 0.02).all()
    assert ((estimates - program.exact().log_evidence).abs() < SIGMAS * errors).all()


@pytest.mark.parametrize(("widen", "good"), [(1.2, True), (0.4, False)])
def test_psis_diagnostic(widen, good):
    program = propose(PROGRAMS["wrapped"], widen)
    k = psis_diagnostic(program.model, program.guide, num_particles=4000, max_plate_nesting=1)
    assert (k < 0.5) == good


def exact_draws(program, count):
    """Draws of the posterior from the grid."""
    exact = program.exact()
    nodes = exact.nodes[torch.multinomial(exact.weights, count, replacement=True)]
    return in_chart(nodes, program.manifold).unsqueeze(-2)


def test_predictions_of_new_distances():
    program = PROGRAMS["hyperboloid"]
    z = exact_draws(program, 4000)
    x = Predictive(poutine.uncondition(program.model), {"z": z}, return_sites=["x"], parallel=True)()["x"].squeeze(-2)
    _expected_distances(x, program.exact())


def _expected_distances(x, exact):
    """Mean and variance of the distances to the anchors, with the noise of a new observation."""
    mean = exact.expectation(lambda z: distance(z.unsqueeze(-2), ANCHORS))
    square = exact.expectation(lambda z: distance(z.unsqueeze(-2), ANCHORS).square())
    variance = square - mean.square() + NOISE**2
    assert ((x.mean(0) - mean).abs() < SIGMAS * (variance / len(x)).sqrt()).all()
    # The standard error of a variance is at most that of a Gaussian's times 1.5 at these kurtoses.
    assert ((x.var(0) / variance - 1).abs() < SIGMAS * 1.5 * math.sqrt(2 / len(x))).all()


@every_program
def test_condition_gives_the_joint_density(name):
    program = PROGRAMS[name]
    z = exact_draws(program, 5)
    joint = poutine.condition(
        Triangulation(program.distribution, program.manifold, copies=5).model, data={"z": z.squeeze(-2)}
    )
    trace = poutine.trace(joint).get_trace()
    trace.compute_log_prob()
    found = trace.nodes["z"]["log_prob"] + trace.nodes["x"]["log_prob"]
    torch.testing.assert_close(found, program.exact().log_joint(on_disc(z.squeeze(-2), program.manifold)))


@every_program
def test_replay_and_block_split_the_joint_density(name):
    program = propose(PROGRAMS[name])
    guide = poutine.trace(program.guide).get_trace()
    z = guide.nodes["z"]["value"]
    replayed = poutine.trace(poutine.replay(program.model, trace=guide)).get_trace()
    prior = poutine.trace(poutine.block(poutine.replay(program.model, trace=guide), hide=["x"])).get_trace()
    likelihood = poutine.trace(poutine.block(poutine.replay(program.model, trace=guide), hide=["z"])).get_trace()
    expected = program.exact().log_joint(on_disc(z, program.manifold)).sum()
    torch.testing.assert_close(replayed.log_prob_sum(), expected)
    torch.testing.assert_close(prior.log_prob_sum() + likelihood.log_prob_sum(), expected)
