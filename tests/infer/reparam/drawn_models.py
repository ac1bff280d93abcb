"""Models whose curvature is a latent."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import MCMC
from torch import nn

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall

every_chart = pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
every_family = pytest.mark.parametrize("family", [hdist.WrappedNormal, hdist.RiemannianNormal])
DISTANCES = [1.0, 1.2, 0.7]


def distances(
    chart=PoincareBall, family=hdist.WrappedNormal, prior=None, curvature=lambda c: c, noise=0.3, dim=2, scale=1.0
):
    """Three points and their noisy distances; ``curvature`` is computed from the latent ``"c"``."""

    def model(x=None):
        space = chart(curvature(pyro.sample("c", dist.LogNormal(0.0, 0.5) if prior is None else prior)))
        loc = space.from_normal_coords(None, torch.zeros(dim))
        with pyro.plate("points", 3):
            z = pyro.sample("z", family(loc, scale, space))
            d = space.dist(z, z.roll(1, -2))
            pyro.sample("x", dist.Normal(d, noise), obs=torch.tensor(DISTANCES) if x is None else x)
        return z

    return model


def no_data(chart, family, dim, sigma=0.5):
    """A point whose curvature is drawn; nothing is observed, so the posterior of the curvature is its prior."""

    def model():
        space = chart(pyro.sample("c", dist.LogNormal(0.0, 0.5)))
        loc = space.from_normal_coords(None, torch.full((dim,), 0.3))
        pyro.sample("z", family(loc, sigma, space))

    return model


def point(c, name="z", family=hdist.WrappedNormal, **kwargs):
    return pyro.sample(name, family(torch.zeros(2), 0.5, PoincareBall(c)), **kwargs)


def learned():
    return pyro.param("learned", torch.tensor(0.7), constraint=dist.constraints.positive)


CURVATURE = dist.LogNormal(0.0, 0.5)
GROUPS = torch.tensor([0, 1, 1])


def of_groups():
    with pyro.plate("groups", 2):
        c = pyro.sample("c", CURVATURE)
    with pyro.plate("points", 3):
        return point(c[..., GROUPS])


def of_a_component():
    k = pyro.sample("k", dist.Categorical(torch.ones(2)))
    return point(torch.tensor([0.5, 2.0])[k])


def without_gradient():
    with torch.no_grad():
        c = pyro.sample("c", CURVATURE) + 1.0
    return point(c)


def filled():
    c = torch.ones(2)
    c[0] = pyro.sample("c", CURVATURE)
    return point(c.sum())


def by_a_network():
    return point(nn.functional.softplus(torch.ones(1, 1) @ pyro.sample("c", CURVATURE).reshape(1, 1)).squeeze())


FOUND = {
    "itself": lambda: point(pyro.sample("c", CURVATURE)),
    "a function": lambda: point(torch.exp(pyro.sample("c", dist.Normal(0.0, 1.0)) / 2) + 0.1),
    "a network": by_a_network,
    "of groups": of_groups,
    "of a component": of_a_component,
    "without gradient": without_gradient,
    "detached": lambda: point(pyro.sample("c", CURVATURE).detach()),
    "in place": filled,
    "through a point": lambda: point(torch.linalg.vector_norm(point(1.0, "top")) + 0.1),
    "times a parameter": lambda: point(learned() * pyro.sample("c", CURVATURE)),
}


def run(kernel, model, **kwargs):
    MCMC(kernel(model, **kwargs), num_samples=2, warmup_steps=2, disable_progbar=True).run()
