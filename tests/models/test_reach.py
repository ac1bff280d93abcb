"""Posteriors within the reach of their dtype."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam

from pyro_hyperbolic import Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.models import HyperbolicVAE, ManifoldLatent, ManifoldVAE, ManifoldVGAE
from pyro_hyperbolic.models.latent import within_reach
from pyro_hyperbolic.nn import ManifoldModule

KINDS = {
    "wrapped": {},
    "diagonal": {"posterior_scale": "diagonal"},
    "riemannian": {"posterior": "riemannian"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
LENGTHS = torch.tensor([0.0, 1e-3, 1.0, 5.0, 6.9, 7.0, 7.3, 7.5, 8.0, 20.0, 1e3])
SCALES = torch.tensor([1e-6, 1e-2, 0.3, 1.0, 2.0, 3.0, 5.0, 30.0, 1e3])


def parameters(latent, lengths=LENGTHS, scales=SCALES, copies=20):
    """Locations of all lengths, in several directions, with all scales."""
    noise = torch.Generator().manual_seed(0)
    direction = torch.randn(copies, len(lengths), len(scales), latent.dim, generator=noise)
    loc = direction / direction.norm(dim=-1, keepdim=True) * lengths[:, None, None]
    scale = scales[:, None].expand(copies, len(lengths), len(scales), latent.scale_dim)
    return tuple(t.to(latent.dtype).clone().requires_grad_() for t in (loc, scale))


@pytest.mark.parametrize(
    ("manifold", "dim", "dtype"),
    [
        (PoincareBall(1.0), 2, torch.float32),
        (PoincareBall(10.0), 20, torch.float32),
        (PoincareBall(0.01), 1, torch.float32),
        (PoincareBall(1.0), 5, torch.float64),
        (PoincareBall(torch.tensor([0.5, 2.0]).reshape(2, 1, 1, 1)), 2, torch.float32),
        (Lorentz(1.0), 2, torch.float32),
        (Lorentz(30.0), 3, torch.float32),
        (Stereographic(torch.tensor(-1.0)), 2, torch.float32),
        (Stereographic(torch.tensor(0.0)), 2, torch.float32),
        (from_signature("h2,s1,e1,p2"), 6, torch.float32),
    ],
    ids=repr,
)
@every_kind
def test_any_output_of_an_encoder_is_held(manifold, dim, dtype, kind):
    latent = ManifoldLatent(manifold, dim, dtype=dtype, **KINDS[kind])
    loc, scale = parameters(latent)
    posterior = latent.posterior(loc, scale)
    z = posterior.rsample()  # validated
    density = posterior.log_prob(z)
    gradients = torch.autograd.grad((manifold.dist0(z) + density).sum(), (loc, scale))
    assert all(t.isfinite().all() for t in (z, density, *gradients))


@pytest.mark.parametrize("manifold", [PoincareBall(1.0), Lorentz(1.0), from_signature("p2,p2")], ids=repr)
@every_kind
def test_inside_nothing_changes(manifold, kind):
    dim = 4 if len(manifold.curvatures) > 1 else 2
    latent = ManifoldLatent(manifold, dim, dtype=torch.float32, **KINDS[kind])
    # Distances up to 8.
    lengths, scales = torch.linspace(0, 4, 9), torch.tensor([0.01, 0.1, 0.5, 1.0, 1.3 if kind == "riemannian" else 1.5])
    loc, scale = parameters(latent, lengths, scales)
    distribution = latent.posterior_distribution
    found = within_reach(loc, scale, manifold, distribution)
    for new, old in zip(found, (loc, scale), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)
    weights = [torch.randn_like(t) for t in found]
    gradients = torch.autograd.grad(found, (loc, scale), weights)
    for new, old in zip(gradients, weights, strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0)


@pytest.mark.parametrize("distribution", [WrappedNormal, RiemannianNormal])
def test_the_bound_is_smooth_and_grows(distribution):
    ball = PoincareBall(1.0)
    length = torch.linspace(0.5, 30, 4000, dtype=torch.float64).unsqueeze(-1)
    one = torch.ones_like(length)
    # Arithmetic in float64 with the reach of float32 is that of a ball of greater curvature.
    ball = PoincareBall((ball.reach(torch.float64) / ball.reach(torch.float32)) ** 2)
    for values in (
        within_reach(torch.cat([length, 0 * length], -1), 0.3 * one, ball, distribution)[0][:, :1],
        within_reach(0 * torch.cat([one, one], -1), length / 3, ball, distribution)[1],
    ):
        slope = values.diff(dim=0) / (values[1] - values[0])
        assert (slope > 0).all()
        assert slope.max() < 1 + 1e-9
        assert slope.diff(dim=0).abs().max() < 0.05  # no kink
        assert slope[-1] < 0.05


@every_kind
def test_derivatives_in_a_learned_curvature(kind):
    latent = ManifoldLatent("p2", 2, dtype=torch.float64, **KINDS[kind])
    loc = torch.tensor([[3.0, 0.0], [30.0, 4.0], [2.0, 1.0]], dtype=torch.float64)
    scale = torch.tensor([[0.5], [0.5], [30.0]], dtype=torch.float64).expand(3, latent.scale_dim)

    def bound(c):
        return within_reach(loc, scale, PoincareBall(c), latent.posterior_distribution)

    torch.autograd.gradcheck(bound, torch.tensor(1.3, dtype=torch.float64, requires_grad=True))


def test_spheres_have_no_end():
    loc, scale = 100 * torch.ones(3, 2), torch.ones(3, 1)
    found = within_reach(loc, scale, Sphere(1.0), WrappedNormal)
    assert found[0] is loc
    assert found[1] is scale


@pytest.mark.parametrize(
    "build",
    [
        lambda: HyperbolicVAE(PoincareBall(1.0), 2, 10, hidden_dim=16, likelihood="laplace"),
        pytest.param(
            lambda: ManifoldVAE(ManifoldModule("p2,h2", learnable=True), 4, 10, hidden_dim=16, likelihood="laplace"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["ball", "product"],
)
def test_a_wild_training_ends(build):
    # Fast enough that an encoder without bounds leaves the ball of float32.
    pyro.set_rng_seed(0)
    x = 10 * torch.rand(16, 10).round()
    vae = build()
    svi = SVI(vae.model, vae.guide, Adam({"lr": 0.2}), Trace_ELBO())
    losses = [svi.step(x) for _ in range(40)]
    assert torch.tensor(losses).isfinite().all()


def test_nodes_stay_within_reach():
    vgae = ManifoldVGAE("p2", 3, torch.tensor([[0, 1], [1, 2]]), 2, hidden_dim=4)
    with torch.no_grad():
        vgae.encoder.loc.weight.mul_(1e3)
    assert vgae.encode().rsample().isfinite().all()
