"""Programs that DReG_ELBO is tested on, and its value with gradients."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import RenyiELBO
from torch.distributions import constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import DReG_ELBO
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

PARTICLES = [(1, False), (4, False), (4, True)]
every_count = pytest.mark.parametrize(("count", "at_once"), PARTICLES)


def losses(count, at_once, nesting=1):
    options = {"num_particles": count, "vectorize_particles": at_once, "max_plate_nesting": nesting}
    return RenyiELBO(alpha=0, **options), DReG_ELBO(**options)


def evaluated(loss, model, guide, *args, seed=1, **kwargs):
    """The loss, and the gradients of all parameters by name."""
    for p in pyro.get_param_store().values():
        p.unconstrained().grad = None
    torch.manual_seed(seed)
    value = loss.loss_and_grads(model, guide, *args, **kwargs)
    return value, {name: p.grad for name, p in pyro.get_param_store().named_parameters()}


def small_vae(distribution="wrapped", **options):
    return HyperbolicVAE(
        PoincareBall(0.7),
        2,
        5,
        hidden_dim=6,
        prior=distribution,
        posterior=distribution,
        likelihood="normal",
        **options,
    )


def hierarchy():
    """Latents in and outside of a plate, a mask, an auxiliary site, and a guide from one latent to the next."""
    chart, mask = PoincareBall(0.7), torch.tensor([True, True, False, True])

    def model(x):
        top = pyro.sample("top", hdist.WrappedNormal(torch.zeros(2), 1.0, chart))
        width = pyro.sample("width", dist.LogNormal(0.0, 0.3))
        with pyro.plate("data", 4), pyro.poutine.mask(mask=mask):
            z = pyro.sample("z", hdist.WrappedNormal(top, width.unsqueeze(-1), chart))
            noise = pyro.param("noise", torch.tensor(0.5), constraint=constraints.positive)
            pyro.sample("x", dist.Normal(chart.dist(z, torch.tensor([0.4, 0.2])), noise), obs=x)

    def guide(x):
        pyro.sample("extra", dist.Normal(pyro.param("extra_loc", torch.tensor(0.5)), 1.0), infer={"is_auxiliary": True})
        loc = pyro.param("top_loc", torch.tensor([0.1, 0.2]), constraint=hdist.constraints.on(PoincareBall(0.7)))
        top = pyro.sample("top", hdist.WrappedNormal(loc, 0.4, chart))
        pyro.sample("width", dist.LogNormal(pyro.param("width_loc", torch.tensor(0.1)), 0.2))
        scale = pyro.param("z_scale", 0.3 * torch.ones(4, 1), constraint=constraints.positive)
        pull = pyro.param("pull", torch.tensor(0.8))
        with pyro.plate("data", 4), pyro.poutine.mask(mask=mask):
            pyro.sample("z", hdist.RiemannianNormal(chart.mobius_scalar_mul(pull, top), scale, chart))

    return model, guide, (torch.rand(4),)


PROGRAMS = {
    "wrapped": lambda: ((vae := small_vae()).model, vae.guide, (torch.randn(7, 5),)),
    "riemannian": lambda: ((vae := small_vae("riemannian")).model, vae.guide, (torch.randn(7, 5),)),
    "euclidean": lambda: ((vae := EuclideanVAE(2, 5, hidden_dim=6)).model, vae.guide, (torch.rand(7, 5),)),
    "hierarchy": hierarchy,
}
