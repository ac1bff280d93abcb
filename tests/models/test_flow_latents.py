"""Priors and posteriors that are flows."""

import math

import pyro
import pytest
import torch
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO

from pyro_hyperbolic import Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.infer import DReG_ELBO, EnsembleSVI, check_model_guide, log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVGAE, ManifoldVAE
from pyro_hyperbolic.models.latent import ManifoldLatent
from pyro_hyperbolic.nn import ManifoldModule
from tests.helpers import each

FLOW = {"layers": 2, "hidden_dims": (8,), "bins": 4}
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def _vae(manifold="p2", prior="flow", posterior="flow", dim=2, **options):
    options = {"decoder": "logmap", "likelihood": "normal", **options}
    return ManifoldVAE(manifold, dim, 5, 8, prior=prior, posterior=posterior, flow=FLOW, **options)


def _shaken(net):
    with torch.no_grad():
        for name, parameter in net.latent.named_parameters():
            if "flow" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def _noise(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@each("manifold", [PoincareBall(1.0), Lorentz(0.5), Stereographic(-0.7)])
def test_they_start_as_the_wrapped_ones(manifold):
    flows = ManifoldLatent(manifold, 2, prior="flow", posterior="flow", flow=FLOW)
    plain = ManifoldLatent(manifold, 2)
    loc, scale = _noise((4, 2)), _noise((4, 1)).exp()
    z = plain.posterior(loc, 0.3 * scale).sample((3,))
    for one, other in ((flows.posterior(loc, scale), plain.posterior(loc, scale)), (flows.prior(), plain.prior())):
        torch.testing.assert_close(one.log_prob(z), other.log_prob(z), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(flows.posterior(loc, scale).loc, plain.posterior(loc, scale).loc, rtol=1e-4, atol=1e-5)


@each("manifold", [Lorentz(0.5), Sphere(0.7), "h2,s1"])
def test_densities_of_posteriors_are_those_of_their_draws(manifold):
    """One flow at two locations: the mean ratio of their densities under draws of one of them is 1."""
    dim = 3 if manifold == "h2,s1" else 2
    latent = _shaken(_vae(manifold, dim=dim)).latent.double()
    loc = 0.2 * _noise((dim,)).double()
    with torch.no_grad():
        wide = latent.posterior(loc, torch.tensor([0.5], dtype=torch.float64))
        narrow = ManifoldLatent(manifold, dim).posterior(loc, torch.tensor([0.15], dtype=torch.float64))
        z = wide.sample((20_000,))
        ratio = (narrow.log_prob(z) - wide.log_prob(z.clone())).exp()
        torch.testing.assert_close(wide.log_prob(z), wide.log_prob(z.clone()), rtol=1e-4, atol=1e-4)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / math.sqrt(len(ratio)) < 0.5
    assert latent.manifold().contains(z).all()


@each(
    ("manifold", "loss"),
    [("p2", Trace_ELBO), ("h2", RenyiELBO), ("s2", DReG_ELBO), ("u2", TraceMeanField_ELBO), ("e2", Trace_ELBO)],
)
def test_losses(manifold, loss):
    vae = _shaken(_vae(manifold, posterior_scale="diagonal", **({"decoder": "mlp"} if manifold == "e2" else {})))
    check_model_guide(vae.model, vae.guide, X)
    assert math.isfinite(loss(num_particles=2).loss_and_grads(vae.model, vae.guide, X))
    for name, parameter in vae.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert vae.reconstruct(X).shape == vae.generate(6).shape == X.shape
    assert log_marginal_likelihood(vae.model, vae.guide, X, num_samples=3).shape == (6,)


@pytest.mark.slow
def test_the_exact_posterior_takes_flows():
    draws = _shaken(_vae()).posterior(X[:2], num_samples=5, num_proposals=100, seed=0)
    assert draws.samples.shape == (5, 2, 2)
    assert draws.samples.isfinite().all()


def test_a_learned_curvature_gets_its_gradient():
    vae = _shaken(_vae(ManifoldModule(PoincareBall(1.0), learnable=True)))
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    before = vae.manifold.c.item()
    for _ in range(3):
        assert math.isfinite(svi.step(X))
    assert abs(vae.manifold.c.item() - before) > 1e-3


def test_ensembles_and_graphs():
    vaes = [_shaken(_vae()) for _ in range(2)]
    svi = EnsembleSVI([(v.model, v.guide) for v in vaes], pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO())
    assert svi.step(X, shared=True).isfinite().all()
    edges = torch.tensor([[0, 1], [1, 2], [2, 3]])
    vgae = HyperbolicVGAE(PoincareBall(1.0), 4, edges, 2, hidden_dim=4, prior="flow", posterior="flow", flow=FLOW)
    assert math.isfinite(Trace_ELBO().loss(vgae.model, vgae.guide))


def test_options_without_a_flow_are_refused():
    with pytest.raises(ValueError, match="flow holds the options of a prior or a posterior 'flow', of which"):
        EuclideanVAE(2, 5, flow=FLOW)
