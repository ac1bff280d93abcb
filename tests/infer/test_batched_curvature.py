"""Programs whose curvature has a batch shape: drawn once per particle, per sample of a predictive, per group."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.infer import (
    AutoWrappedNormal,
    DReG_ELBO,
    EnsembleSVI,
    FastSVI,
    check_model_guide,
    log_marginal_likelihood,
)
from tests.helpers import same

N, G = 4, 3
GROUP = torch.tensor([0, 2, 1, 2])
X = torch.tensor([0.5, 1.0, 1.5, 0.7], dtype=torch.float64)
every_chart = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
every_distribution = pytest.mark.parametrize("distribution", [WrappedNormal, RiemannianNormal])


class Program:
    """Points in a plate, of which the distances to the origin and to each other are observed."""

    def __init__(self, chart, distribution, groups=False):
        self.chart, self.distribution, self.groups = chart, distribution, groups
        self.scale = torch.full((1,), 0.5, dtype=torch.float64)

    def curvature(self, loc):
        if not self.groups:
            return pyro.sample("c", dist.LogNormal(loc, 0.3))
        with pyro.plate("groups", G):
            return pyro.sample("c", dist.LogNormal(loc, 0.3))[..., GROUP]

    def model(self, x=X):
        manifold = self.chart(self.curvature(torch.zeros((), dtype=torch.float64)))
        with pyro.plate("data", N):
            z = pyro.sample("z", self.distribution(manifold.origin(2, torch.float64), self.scale, manifold))
            pyro.sample("x", dist.Normal(manifold.dist0(z), 0.1), obs=x)
        if not self.groups:
            pyro.deterministic("pairs", manifold.pairwise_dist(z, z))
        return z

    def guide(self, x=X):
        loc = pyro.param("c_loc", lambda: torch.tensor(0.1, dtype=torch.float64))
        manifold = self.chart(self.curvature(loc))
        v = pyro.param("v", lambda: torch.full((N, 2), 0.2, dtype=torch.float64))
        with pyro.plate("data", N):
            pyro.sample("z", self.distribution(manifold.from_normal_coords(None, v), self.scale, manifold))


PROGRAMS = [
    Program(PoincareBall, WrappedNormal),
    Program(PoincareBall, RiemannianNormal, groups=True),
    Program(Lorentz, WrappedNormal, groups=True),
    Program(Lorentz, RiemannianNormal),
]
every_program = pytest.mark.parametrize(
    "program", PROGRAMS, ids=lambda p: f"{p.chart.__name__}-{p.distribution.__name__}-{'groups' if p.groups else 'one'}"
)


@every_program
def test_particles_equal_loop(program):
    with pyro.plate("particles", 5, dim=-2):
        trace = poutine.trace(program.model).get_trace(X)
    trace.compute_log_prob()
    for i in range(5):
        values = {"c": trace.nodes["c"]["value"][i], "z": trace.nodes["z"]["value"][i]}
        if not program.groups:
            values["c"] = values["c"].squeeze()
        one = poutine.trace(poutine.condition(program.model, values)).get_trace(X)
        one.compute_log_prob()
        for name in ("c", "z", "x"):
            same(one.nodes[name]["log_prob"], trace.nodes[name]["log_prob"][i].squeeze(), 1e-9)
        if not program.groups:
            same(one.nodes["pairs"]["value"], trace.nodes["pairs"]["value"][i], 1e-9)


PARTICLES = {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 1}
LOSSES = {
    "Trace_ELBO": lambda: Trace_ELBO(**PARTICLES),
    "TraceMeanField_ELBO": lambda: TraceMeanField_ELBO(**PARTICLES),
    "RenyiELBO": lambda: RenyiELBO(alpha=0, **PARTICLES),
    "DReG_ELBO": lambda: DReG_ELBO(**PARTICLES),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@every_program
def test_vectorised_particles(program, loss):
    check_model_guide(program.model, program.guide, X)
    svi = SVI(program.model, program.guide, pyro.optim.Adam({"lr": 0.01}), loss())
    losses = [svi.step(X) for _ in range(2)]
    assert torch.tensor(losses).isfinite().all()
    assert pyro.param("c_loc").item() != 0.1


@every_program
def test_fast_step_is_that_of_svi(program):
    results = []
    for kind in (SVI, FastSVI):
        pyro.clear_param_store()
        torch.manual_seed(0)
        svi = kind(program.model, program.guide, pyro.optim.Adam({"lr": 0.01}), LOSSES["Trace_ELBO"]())
        results.append([float(svi.step(X)) for _ in range(4)] + [pyro.param("c_loc").item()])
    same(results[1], results[0], 1e-9)


@every_program
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive(program, parallel):
    prior = Predictive(program.model, num_samples=5, parallel=parallel)(None)
    assert prior["z"].shape == (5, N, program.chart(1.0).ambient_dim(2))
    assert prior["x"].shape == (5, N)
    assert prior["x"].isfinite().all()
    svi = SVI(program.model, program.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    svi.step(X)
    posterior = Predictive(program.model, guide=program.guide, num_samples=5, parallel=parallel)(None)
    assert posterior["x"].shape == (5, N)
    draws = {"c": prior["c"], "z": prior["z"]}
    again = Predictive(program.model, posterior_samples=draws, return_sites=["x"], parallel=parallel)(None)
    assert again["x"].shape == (5, N)


@every_distribution
@every_chart
def test_a_predictive_of_curvatures_of_shape_one(chart, distribution):
    manifold = chart(torch.tensor([0.7]))
    z = distribution(manifold.origin(2), 0.5, manifold).expand((N,)).sample()
    assert manifold.pairwise_dist(z, z).shape == (N, N)
    assert manifold.frechet_mean(z).shape == z.shape[-1:]


@every_program
def test_autoguide(program):
    guide = AutoWrappedNormal(program.model)
    svi = SVI(program.model, guide, pyro.optim.Adam({"lr": 0.01}), LOSSES["Trace_ELBO"]())
    assert torch.tensor([svi.step(X) for _ in range(3)]).isfinite().all()
    assert guide.median(X)["z"].shape == (N, program.chart(1.0).ambient_dim(2))
    assert guide.quantiles([0.1, 0.9], X)["z"].shape[0] == 2
    draws = Predictive(program.model, guide=guide, num_samples=5, parallel=True)(None)
    assert draws["x"].shape == (5, N)


class Learned:
    """As above with a learned curvature for each group, and nothing but the points drawn: a model of data."""

    def __init__(self, chart, distribution):
        self.chart, self.distribution = chart, distribution
        self.raw = torch.nn.Parameter(torch.zeros(G, dtype=torch.float64))
        self.v = torch.nn.Parameter(torch.full((2,), 0.2, dtype=torch.float64))

    def manifold(self, group):
        return self.chart(pyro.param("raw", self.raw).exp()[group]), pyro.param("v", self.v)

    def model(self, x, group):
        manifold, _ = self.manifold(group)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", self.distribution(manifold.origin(2, x.dtype), 1.0, manifold))
            pyro.sample("x", dist.Normal(manifold.dist0(z), 0.3), obs=x)

    def guide(self, x, group):
        manifold, v = self.manifold(group)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.distribution(manifold.from_normal_coords(None, v * x.unsqueeze(-1)), 0.7, manifold))


@every_distribution
@every_chart
def test_marginal_likelihood_of_groups(chart, distribution):
    program = Learned(chart, distribution)
    with torch.no_grad():
        program.raw.copy_(torch.tensor([-1.0, 0.0, 0.5]))
    torch.manual_seed(0)
    together, error = log_marginal_likelihood(
        program.model, program.guide, X, GROUP, num_samples=4000, standard_error=True
    )
    alone = torch.cat(
        [
            log_marginal_likelihood(program.model, program.guide, X[i : i + 1], GROUP[i : i + 1], num_samples=4000)
            for i in range(N)
        ]
    )
    assert ((together - alone).abs() < 6 * error).all()


@every_distribution
@every_chart
def test_ensemble(chart, distribution):
    programs = [Learned(chart, distribution) for _ in range(2)]
    with torch.no_grad():
        programs[1].raw.fill_(0.5)
    ensemble = EnsembleSVI(
        [(p.model, p.guide) for p in programs], pyro.optim.Adam({"lr": 0.01}), LOSSES["Trace_ELBO"]()
    )
    for _ in range(3):
        losses = ensemble.step(X, GROUP, shared=True)
    assert losses.shape == (2,)
    assert losses.isfinite().all()
