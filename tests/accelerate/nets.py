"""A small auto-encoder, a regression, and what trains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import pyro.poutine as poutine
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.distributions import constraints

STEPS = 4


class Net(nn.Module):
    """An auto-encoder of plain modules, registered by ``pyro.module``."""

    def __init__(self, activation: Callable[[], nn.Module] = nn.Tanh, seed: int = 0) -> None:
        super().__init__()
        pyro.clear_param_store()
        pyro.set_rng_seed(seed)
        self.encoder = nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, 4))
        self.decoder = nn.Linear(2, 3)

    def model(self, x: Tensor) -> None:
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(self.decoder(z), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("encoder", self.encoder)
        loc, log_scale = self.encoder(x).chunk(2, -1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def regression(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=x.sum(-1))


class Slope(PyroModule):
    """A regression that is a module, with a constrained parameter and a buffer."""

    def __init__(self, beta: float = 1.0, size: int = 3) -> None:
        super().__init__()
        self.size = size
        self.noise = PyroParam(0.5 + torch.rand(()), constraint=constraints.positive)
        self.register_buffer("beta", torch.tensor(beta))

    def forward(self, x: Tensor) -> None:
        with poutine.scale(scale=self.beta):
            w = pyro.sample("w", dist.Normal(torch.zeros(self.size), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, self.noise), obs=x.sum(-1))


class SlopeGuide(PyroModule):
    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.randn(size))
        self.scale = PyroParam(0.1 + torch.rand(size), constraint=constraints.positive)

    def forward(self, x: Tensor) -> Any:
        return pyro.sample("w", dist.Normal(self.loc, self.scale).to_event(1))


def adam(**options: Any) -> Any:
    return pyro.optim.Adam({"lr": 0.01} | options)


def trainer(kind: Any, net: Any, optim: Any = None, **options: Any) -> Any:
    return kind(net.model, net.guide, optim or adam(), Trace_ELBO(), **options)


def losses(svi: Any, *args: Any, steps: int = STEPS, **kwargs: Any) -> Tensor:
    return torch.stack([torch.as_tensor(svi.step(*args, **kwargs)) for _ in range(steps)])
