"""Models whose curvature is a latent."""

import pyro
import pyro.distributions as dist
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall

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
