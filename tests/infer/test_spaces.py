"""Inference on every space: posteriors against a grid."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC, NUTS, SVI, Predictive, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.optim import Adam

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.geometry import Stereographic, from_signature, signature_dim
from pyro_hyperbolic.infer import (
    AutoWrappedNormal,
    DReG_ELBO,
    EnsembleSVI,
    ManifoldReparam,
    NoiseReparam,
)
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import same

# Two-dimensional spaces, and whether normal coordinates end at a right angle grid (a product) or in a disc.
SPACES = {
    "p2": (from_signature("p2"), 9.0),
    "e2": (from_signature("e2"), 9.0),
    "s2": (from_signature("s2", 0.7), math.pi / math.sqrt(0.7)),
    "u2+": (Stereographic(torch.tensor(0.7, dtype=torch.float64)), math.pi / math.sqrt(0.7)),
    "u2-": (Stereographic(torch.tensor(-0.7, dtype=torch.float64)), 9.0),
    "s1,e1": (from_signature("s1,e1"), None),
    "h1,s1": (from_signature("h1,s1"), None),
}
every_space = pytest.mark.parametrize("name", SPACES)
TARGETS = torch.tensor([[0.8, 0.3], [-0.2, 1.1]], dtype=torch.float64)
DISTANCES = torch.tensor([0.5, 0.9], dtype=torch.float64)


def model_of(manifold, distribution=hdist.WrappedNormal):
    origin = manifold.origin(2, torch.float64)
    targets = manifold.from_normal_coords(None, TARGETS)

    def model():
        z = pyro.sample("z", distribution(origin, torch.tensor([0.8], dtype=torch.float64), manifold))
        pyro.sample("x", dist.Normal(manifold.dist(z.unsqueeze(-2), targets), 0.4).to_event(1), obs=DISTANCES)

    return model


def statistics(manifold, z):
    """Functions of a point that know no coordinates: distances to two others."""
    others = manifold.from_normal_coords(None, torch.tensor([[0.0, 0.0], [1.0, -0.5]], dtype=torch.float64))
    return manifold.dist(z.unsqueeze(-2), others)


def grid_mean(name, distribution=hdist.WrappedNormal):
    manifold, end = SPACES[name]
    if end is None:
        a = torch.linspace(-math.pi, math.pi, 201, dtype=torch.float64)[:-1]
        line = torch.linspace(-7, 7, 281, dtype=torch.float64)
        first, second = (a, line) if name.startswith("s") else (line, a)
        v = torch.cartesian_prod(first, second) + 1e-9
        log_area = torch.zeros(len(v), dtype=torch.float64)
    else:
        r = (torch.arange(300, dtype=torch.float64) + 0.5) * end / 300
        turn = 2 * math.pi * torch.arange(120, dtype=torch.float64) / 120
        v = (r[:, None, None] * torch.stack([turn.cos(), turn.sin()], -1)).reshape(-1, 2)
        log_area = v.norm(dim=-1).log()
    z = manifold.from_normal_coords(None, v)
    prior = distribution(manifold.origin(2, torch.float64), torch.tensor([0.8], dtype=torch.float64), manifold)
    targets = manifold.from_normal_coords(None, TARGETS)
    likelihood = dist.Normal(manifold.dist(z.unsqueeze(-2), targets), 0.4).log_prob(DISTANCES).sum(-1)
    weights = (prior.log_prob(z) + likelihood + manifold.log_det_exp(v) + log_area).softmax(0)
    return (weights.unsqueeze(-1) * statistics(manifold, z)).sum(0)


DISTRIBUTIONS = [hdist.WrappedNormal, hdist.RiemannianNormal]
ROWS = [(name, distribution) for name in SPACES for distribution in DISTRIBUTIONS]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "distribution"), ROWS, ids=str)
def test_nuts(name, distribution):
    manifold, _ = SPACES[name]
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(model_of(manifold, distribution)), num_samples=250, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    found = statistics(manifold, mcmc.get_samples()["z"])
    # About every second draw counts.
    error = (found.mean(0) - grid_mean(name, distribution)).abs()
    assert (error < 5 * found.std(0) / math.sqrt(125)).all()


@pytest.mark.slow
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize(("name", "distribution"), ROWS, ids=str)
def test_reparametrised(name, distribution, centered):
    manifold, _ = SPACES[name]
    pyro.set_rng_seed(0)
    reparam = ManifoldReparam() if centered else NoiseReparam()
    model = pyro.poutine.reparam(model_of(manifold, distribution), config={"z": reparam})
    mcmc = MCMC(NUTS(model), num_samples=250, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    points = Predictive(model, mcmc.get_samples(), return_sites=["z"])()["z"]
    found = statistics(manifold, points)
    error = (found.mean(0) - grid_mean(name, distribution)).abs()
    assert (error < 5 * found.std(0) / math.sqrt(125)).all()


@pytest.mark.parametrize(("name", "distribution"), ROWS, ids=str)
def test_density_of_coordinates(name, distribution):
    """What the chains of test_reparametrised see: the density of the point and the Jacobian of its coordinates."""
    manifold, _ = SPACES[name]
    reparametrised = pyro.poutine.reparam(model_of(manifold, distribution), config={"z": ManifoldReparam()})
    for v in TARGETS:
        z = manifold.from_unconstrained(v)
        values = pyro.poutine.condition(reparametrised, {"z_coords": v})
        expected = pyro.poutine.trace(pyro.poutine.condition(model_of(manifold, distribution), {"z": z})).get_trace()
        found = pyro.poutine.trace(values).get_trace()
        same(found.log_prob_sum(), expected.log_prob_sum() + manifold.log_det_unconstrained(v), 1e-12)
        same(found.nodes["z"]["value"], z, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("guide_of", [AutoWrappedNormal, AutoMultivariateNormal])
@every_space
def test_autoguides_by_importance(name, guide_of):
    """A guide is right if importance weights with it give the posterior: density and draws then agree."""
    manifold, _ = SPACES[name]
    pyro.set_rng_seed(1)
    model = model_of(manifold)
    guide = guide_of(model, init_scale=0.3)
    svi = SVI(model, guide, Adam({"lr": 0.03}), Trace_ELBO())
    for _ in range(150):
        svi.step()
    log_weights, points = [], []
    with torch.no_grad():
        for _ in range(600):
            trace = pyro.poutine.trace(guide).get_trace()
            replayed = pyro.poutine.trace(pyro.poutine.replay(model, trace)).get_trace()
            log_weights.append(replayed.log_prob_sum() - trace.log_prob_sum())
            points.append(replayed.nodes["z"]["value"])
    weights = torch.stack(log_weights).softmax(0)
    found = statistics(manifold, torch.stack(points))
    mean = (weights.unsqueeze(-1) * found).sum(0)
    spread = (weights.unsqueeze(-1) * (found - mean)).square().sum(0).sqrt()
    assert 1 / weights.square().sum() > 100
    assert ((mean - grid_mean(name)).abs() < 5 * spread).all()


# Signatures, the curvature of the factors u, and the posterior.
VAES = [
    ("e3", 0.0, "wrapped"),
    ("s3", 0.0, "wrapped"),
    ("s3", 0.0, "riemannian"),
    ("u3", 0.0, "wrapped"),
    ("u3", 0.6, "wrapped"),
    ("u3", -0.6, "riemannian"),
    ("h2,s2,e2", 0.0, "wrapped"),
    ("u2,s1", -0.6, "riemannian"),
]
every_vae = pytest.mark.parametrize("vae", VAES, ids=str, indirect=True)
DATUM = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def vae(request):
    signature, k, distribution = request.param
    torch.manual_seed(0)
    manifold = ManifoldModule(from_signature(signature, k=k), learnable=signature != "e3")
    return ManifoldVAE(
        manifold,
        signature_dim(signature),
        4,
        hidden_dim=5,
        likelihood="normal",
        prior=distribution,
        posterior=distribution,
    ).double()


def plain_bound(num_particles):
    return RenyiELBO(alpha=0, num_particles=num_particles, vectorize_particles=True, max_plate_nesting=1)


@every_vae
def test_doubly_reparametrised_bound(vae):
    """It is that of Pyro for the same noise."""
    values = []
    for loss in (DReG_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1), plain_bound(4)):
        pyro.set_rng_seed(0)
        values.append(torch.tensor(loss.loss_and_grads(vae.model, vae.guide, DATUM), dtype=torch.float64))
    same(*values, 1e-9)
    assert all(p.grad.isfinite().all() for p in vae.parameters() if p.grad is not None)


@pytest.mark.slow
@every_vae
def test_doubly_reparametrised_gradient(vae):
    """Its mean is that of the plain gradient of the same bound, also in the curvatures."""
    # Of one datum: of several data the two bounds would weigh particles differently.
    parameters = [vae.encoder.loc.bias, *vae.latent.manifold.parameters()]

    def gradients(loss, count):
        draws = []
        for _ in range(count):
            vae.zero_grad()
            loss.loss_and_grads(vae.model, vae.guide, DATUM)
            draws.append(torch.cat([p.grad.flatten() for p in parameters]))
        return torch.stack(draws)

    pyro.set_rng_seed(0)
    ours = gradients(DReG_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1), 250)
    plain = gradients(plain_bound(4), 500)
    error = (ours.var(0) / len(ours) + plain.var(0) / len(plain)).sqrt()
    # The one of the encoder is the doubly reparametrised one; a learned curvature keeps the same mean.
    assert ((ours.mean(0) - plain.mean(0)).abs() < 5 * error).all()


@pytest.mark.slow
def test_ensemble():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    members = []
    for seed in range(3):
        torch.manual_seed(seed)
        members.append(ManifoldVAE(ManifoldModule("h2,s2,u2", learnable=True), 6, 4, hidden_dim=5, likelihood="normal"))
    ensemble = EnsembleSVI([(m.model, m.guide) for m in members], Adam({"lr": 3e-2}), Trace_ELBO())
    losses = torch.stack([ensemble.step(x, shared=True).detach().clone() for _ in range(9)])
    assert losses.isfinite().all()
    assert (losses[-4:].mean(0) < losses[:4].mean(0)).all()
