"""Pairs of programs in all the ways in which parameters come: what the trainers are compared on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import with_drawn_curvature
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE
from pyro_hyperbolic.nn import Continuous, Covariates, Embedding, ManifoldModule, OneHot


class Programs(NamedTuple):
    """A pair of programs with the arguments of a step."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    loss: Callable[[], Any] = Trace_ELBO


def vae(build: Callable[[], Any], **kwargs: Any) -> Programs:
    module = build()
    return Programs(module.model, module.guide, (torch.rand(10, 6),), kwargs)


def wrapped(**options: Any) -> HyperbolicVAE:
    return HyperbolicVAE(PoincareBall(1.0), 2, 6, hidden_dim=8, **options)


def learnable() -> HyperbolicVAE:
    return HyperbolicVAE(ManifoldModule(PoincareBall(0.7), learnable=True), 2, 6, hidden_dim=8, learn_prior_scale=True)


def counts(**options: Any) -> Programs:
    """Counts with covariates and size factors, and a weight on the divergence."""
    covariates = Covariates(batch=OneHot(2), donor=Embedding(3, 2), age=Continuous())
    common = {"hidden_dim": 8, "likelihood": "negative_binomial", "covariates": covariates}
    module = HyperbolicVAE(PoincareBall(1.0), 2, 6, **common | {"beta": 0.5} | options)
    values = {"batch": torch.arange(10) % 2, "donor": torch.arange(10) % 3, "age": torch.rand(10)}
    kwargs = {"covariates": values, "size_factors": 0.5 + torch.rand(10), "data_size": 50}
    return Programs(module.model, module.guide, ((3 * torch.rand(10, 6)).exp().round(),), kwargs)


def vgae(**kwargs: Any) -> Programs:
    edges = torch.tensor([[0, 1], [0, 2], [1, 3], [1, 4], [2, 5]])
    module = HyperbolicVGAE(PoincareBall(1.0), 6, edges, latent_dim=2, hidden_dim=4)
    return Programs(module.model, module.guide, (), kwargs)


def registered() -> Programs:
    """Plain functions that register their modules."""
    encoder, decoder = nn.Linear(5, 4), nn.Linear(2, 5)

    def model(x: Tensor) -> None:
        pyro.module("decoder", decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(decoder(z), 1.0).to_event(1), obs=x)

    def guide(x: Tensor) -> None:
        pyro.module("encoder", encoder)
        with pyro.plate("data", len(x)):
            loc, raw = encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, nn.functional.softplus(raw)).to_event(1))

    return Programs(model, guide, (torch.randn(10, 5),))


def bare() -> Programs:
    """Nothing but pyro.param, with constraints, one of them read twice."""

    def model(x: Tensor) -> None:
        rate = pyro.param("rate", torch.tensor(2.0), constraint=constraints.interval(0.5, 4.0))
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        sigma = pyro.sample("sigma", dist.Exponential(rate))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mu, sigma), obs=x)

    def guide(x: Tensor) -> None:
        scale = pyro.param("scale", torch.tensor(0.3), constraint=constraints.positive)
        pyro.sample("mu", dist.Normal(pyro.param("loc", torch.tensor(0.1)), scale))
        pyro.sample("sigma", dist.LogNormal(pyro.param("log", torch.tensor(0.0)), pyro.param("scale") / 2))

    return Programs(model, guide, (torch.randn(10) + 2,))


class Regression(PyroModule):
    """Constrained parameters of a PyroModule, in the model and in the guide."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = PyroParam(torch.tensor(0.5), constraint=constraints.positive)
        self.weights = PyroParam(torch.tensor([0.2, 0.3, 0.5]), constraint=constraints.simplex)

    def forward(self, x: Tensor) -> Any:
        slope = pyro.sample("slope", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal((x * slope * self.weights).sum(-1), self.noise), obs=x.sum(-1))


class RegressionGuide(PyroModule):
    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.randn(3))
        self.scale = PyroParam(torch.full((3,), 0.1), constraint=constraints.positive)

    def forward(self, x: Tensor) -> Any:
        return pyro.sample("slope", dist.Normal(self.loc, self.scale).to_event(1))


def modules() -> Programs:
    return Programs(Regression(), RegressionGuide(), (torch.randn(10, 3),))


def autoguide(kind: type) -> Programs:
    model = Regression()
    return Programs(model, kind(model), (torch.randn(10, 3),))


def lazy() -> Programs:
    """Parameters whose shape is known when the first data come."""

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    def guide(x: Tensor) -> None:
        loc = pyro.param("loc", lambda: torch.randn(len(x)))
        scale = pyro.param("scale", lambda: torch.ones(len(x)), constraint=dist.constraints.softplus_positive)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, scale))

    return Programs(model, guide, (torch.randn(6),))


class Network(PyroModule):
    """Layers that were made PyroModules, one of them with statistics of its batches; one parameter is frozen."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        # A bias before a BatchNorm would have the gradient 0, and Adam steps by the sign of its rounding.
        first = PyroModule[nn.Linear](3, 6, bias=False)
        self.layers = PyroModule[nn.Sequential](first, *layers, PyroModule[nn.Linear](6, 4))
        self.decoder = PyroModule[nn.Linear](2, 3)
        self.decoder.bias.requires_grad_(False)

    def model(self, x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2, device=x.device), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        loc, raw = self.layers(x).chunk(2, -1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, nn.functional.softplus(raw)).to_event(1))


class Registering(PyroModule):
    """A network, and the two programs as PyroModules: plain methods do not ask for parameters."""

    def __init__(self, program: Callable[..., Any], network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.program = program

    def forward(self, x: Tensor) -> Any:
        return self.program(x)


def network(*layers: nn.Module) -> Programs:
    net = Network(*layers)
    return Programs(Registering(net.model, net), Registering(net.guide, net), (torch.randn(10, 3),))


def sparse_gp() -> Programs:
    x = torch.linspace(0, 5, 20)
    kernel = gp.kernels.RBF(1)
    model = gp.models.VariationalSparseGP(
        x, torch.sin(x), kernel, Xu=torch.linspace(0, 5, 4), likelihood=gp.likelihoods.Gaussian(), jitter=1e-5
    )
    return Programs(model.model, model.guide)


def unused() -> Programs:
    """Parameters that the loss does not depend on, which only a decay of weights would move."""
    net = nn.Linear(3, 2)

    def model(x: Tensor) -> None:
        pyro.param("idle", torch.tensor(1.0, device=x.device))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(pyro.sample("z", dist.Normal(0.0, 1.0)), 1.0), obs=x[:, 0])

    def guide(x: Tensor) -> None:
        pyro.module("net", net)
        loc = pyro.param("loc", torch.tensor(1.0, device=x.device))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, 1.0))

    return Programs(model, guide, (torch.randn(10, 3),))


class Mixture(nn.Module):
    """A VAE whose prior is a mixture, the components of which are summed over."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = wrapped()
        self.places = nn.Parameter(0.1 * torch.randn(3, 2))
        self.logits = nn.Parameter(torch.zeros(3))

    def model(self, x: Tensor) -> None:
        pyro.module("mixture", self)
        ball = self.vae.manifold
        with pyro.plate("data", len(x)), poutine.scale(scale=5.0):
            k = pyro.sample("k", dist.Categorical(logits=self.logits), infer={"enumerate": "parallel"})
            z = pyro.sample("z", hdist.WrappedNormal(ball.expmap0(self.places)[k], 0.5, ball))
            pyro.sample("x", self.vae.decode(z), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("mixture", self)
        with pyro.plate("data", len(x)), poutine.scale(scale=5.0):
            pyro.sample("z", self.vae.encode(x))


class Classes(nn.Module):
    """Classes that are unknown, which the guide enumerates, with a latent that depends on them."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(6, 3)
        self.encoder = nn.Linear(9, 2)
        self.decoder = nn.Linear(5, 6)

    def model(self, x: Tensor) -> None:
        pyro.module("classes", self)
        with pyro.plate("data", len(x)):
            y = pyro.sample("y", dist.OneHotCategorical(logits=x.new_zeros(3)))
            z = pyro.sample("z", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
            both = torch.cat([z, y.expand(*z.shape[:-1], 3)], -1)  # z has a value for every class
            pyro.sample("x", dist.Normal(self.decoder(both), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("classes", self)
        with pyro.plate("data", len(x)):
            logits = self.classifier(x)
            y = pyro.sample("y", dist.OneHotCategorical(logits=logits), infer={"enumerate": "parallel"})
            shape = torch.broadcast_shapes(x.shape[:-1], y.shape[:-1])
            inputs = torch.cat([x.expand(*shape, 6), y.expand(*shape, 3)], -1)
            pyro.sample("z", dist.Normal(self.encoder(inputs), 0.5).to_event(1))


class Turns(nn.Module):
    """One of two networks for all data, which the guide tries in turns, with a latent that depends on it."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(0.3))
        self.encoders = nn.ModuleList([nn.Linear(6, 2), nn.Linear(6, 2)])
        self.decoders = nn.ModuleList([nn.Linear(2, 6), nn.Linear(2, 6)])

    def model(self, x: Tensor) -> None:
        pyro.module("turns", self)
        k = pyro.sample("k", dist.Bernoulli(0.3))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
            means = torch.stack([decoder(z) for decoder in self.decoders])
            pyro.sample("x", dist.Normal((1 - k) * means[0] + k * means[1], 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("turns", self)
        k = pyro.sample("k", dist.Bernoulli(logits=self.logit), infer={"enumerate": "sequential"})
        with pyro.plate("data", len(x)):
            means = torch.stack([encoder(x) for encoder in self.encoders])
            pyro.sample("z", dist.Normal((1 - k) * means[0] + k * means[1], 0.5).to_event(1))


def enumerated(build: Callable[[], Any]) -> Programs:
    module = build()
    return Programs(module.model, module.guide, (torch.rand(10, 6),), loss=lambda: TraceEnum_ELBO(max_plate_nesting=1))


def drawn() -> Programs:
    """Points from their distances, in a space of unknown curvature."""
    i, j = torch.triu_indices(5, 5, 1)

    @with_drawn_curvature
    def model(distances: Tensor) -> None:
        ball = PoincareBall(pyro.sample("c", dist.LogNormal(torch.tensor(-1.0), 0.3)))
        with pyro.plate("points", 5):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 0.5, ball))
        pyro.sample("distances", dist.Normal(ball.dist(z[i], z[j]), 0.3).to_event(1), obs=distances)

    guide = AutoNormal(model, init_scale=0.05)
    distances = torch.rand(len(i)) + 0.5
    guide(distances)
    return Programs(model, guide, (distances,))


PROGRAMS: dict[str, Callable[[], Programs]] = {
    "wrapped": lambda: vae(wrapped),
    "riemannian": lambda: vae(lambda: wrapped(prior="riemannian", posterior="riemannian")),
    "euclidean": lambda: vae(lambda: EuclideanVAE(2, 6, hidden_dim=8)),
    "hyperboloid": lambda: vae(lambda: HyperbolicVAE(Lorentz(1.0), 2, 6, hidden_dim=8, posterior_scale="diagonal")),
    "minibatch": lambda: vae(wrapped, data_size=50),
    "subsample": lambda: vae(wrapped, subsample_size=4),
    "learnable curvature": lambda: vae(learnable),
    "drawn curvature": drawn,
    "graph": vgae,
    "sampled graph": lambda: vgae(num_negatives=7),
    "counts with covariates": counts,
    "dropout": lambda: vae(lambda: wrapped(dropout=0.3, num_hidden_layers=2, activation="elu")),
    "enumerated in the model": lambda: enumerated(Mixture),
    "enumerated in the guide": lambda: enumerated(Classes),
    "enumerated in turns": lambda: enumerated(Turns),
    "registered": registered,
    "bare": bare,
    "modules": modules,
    "AutoNormal": lambda: autoguide(AutoNormal),
    "AutoMultivariateNormal": lambda: autoguide(AutoMultivariateNormal),
    "AutoDiagonalNormal": lambda: autoguide(AutoDiagonalNormal),
    "AutoLowRankMultivariateNormal": lambda: autoguide(AutoLowRankMultivariateNormal),
    "AutoLaplaceApproximation": lambda: autoguide(AutoLaplaceApproximation),
    "lazy": lazy,
    "network": lambda: network(nn.Tanh()),
    "statistics of batches": lambda: network(nn.BatchNorm1d(6), nn.Tanh()),
    "sparse GP": sparse_gp,
    "unused": unused,
}
