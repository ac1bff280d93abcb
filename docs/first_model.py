"""A model by hand: the code of docs/getting_started.rst, which a test runs."""

# ruff: noqa: E402

# [model]
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from torch.nn import Linear, ReLU, Sequential

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, datasets, nn

pyro.set_rng_seed(0)
ball = PoincareBall(c=1.0)
data = datasets.branching_diffusion()  # noisy observations of the nodes of a tree, 50 features each
encoder = Sequential(Linear(50, 200), ReLU(), Linear(200, 3))
decoder = Sequential(nn.GyroplaneLinear(2, 200, ball), ReLU(), Linear(200, 50))


def model(x):
    pyro.module("decoder", decoder)
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.7, ball))
        pyro.sample("x", dist.Normal(decoder(z), 1.0).to_event(1), obs=x)


def guide(x):
    pyro.module("encoder", encoder)
    loc, scale = encoder(x).split([2, 1], dim=-1)
    with pyro.plate("data", len(x)):
        pyro.sample("z", hdist.WrappedNormal(ball.expmap0(loc), scale.exp(), ball))


svi = SVI(model, guide, pyro.optim.Adam({"lr": 5e-3}), Trace_ELBO())
losses = [svi.step(data.train) for _ in range(200)]
# [picture]
from pyro_hyperbolic import plotting

with torch.no_grad():
    z = ball.expmap0(encoder(data.nodes)[:, :2])  # posterior means of the nodes without noise
edges = torch.stack([data.parents[1:], torch.arange(1, len(z))], dim=-1)
ax = plotting.embedding(z, ball, labels=data.depths, edges=edges)
