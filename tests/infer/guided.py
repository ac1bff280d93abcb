"""Programs that AutoWrappedNormal approximates."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Lorentz, Sphere, Stereographic
from pyro_hyperbolic.nn import ManifoldModule

BALL = PoincareBall(0.7)
CHARTS = [BALL, Lorentz(0.7), PoincareBall(0.0), Sphere(0.7), Stereographic(0.7)]
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)


def programs(chart, distribution=hdist.WrappedNormal):
    """Points in and outside of a plate, points as one event, and two latents that are no points."""
    anchor = chart.from_normal_coords(None, torch.tensor([1.0, 0.4]))

    def model(x):
        width = pyro.sample("width", dist.LogNormal(-0.5, 0.3))
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        pyro.sample("pair", distribution(chart.origin(3).expand(2, -1), 0.5, chart).to_event(1))
        top = pyro.sample("top", distribution(chart.origin(2), 1.0, chart))
        with pyro.plate("data", len(x), dim=-1):
            z = pyro.sample("z", distribution(top, width.unsqueeze(-1), chart))
            pyro.sample("x", dist.Normal(chart.dist(z, anchor) + shift, 0.3), obs=x)

    return model


X = torch.tensor([0.5, 1.0, 1.5, 2.0])
POINTS = {"pair": (2, 3), "top": (2,), "z": (4, 2)}


class Curved(pyro.nn.PyroModule):
    """A model that learns its curvature, ``how`` ever it keeps it."""

    def __init__(self, how, chart=PoincareBall):
        super().__init__()
        self.how, self.chart = how, chart
        if how == "module":
            self.manifold = ManifoldModule(chart(0.7), learnable=True)

    def now(self):
        if self.how == "module":
            return self.manifold()
        if self.how == "param":
            return self.chart(pyro.param("c", torch.tensor(0.7), constraint=constraints.positive))
        return self.chart(pyro.sample("c", dist.LogNormal(-0.3, 0.2)))

    def forward(self, x):
        manifold = self.now()
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", hdist.WrappedNormal(manifold.origin(2), 1.0, manifold))
            pyro.sample("x", dist.Normal(manifold.dist0(z), 0.3), obs=x)

    def curvature(self):
        return self.manifold.c if self.how == "module" else pyro.param("c")
