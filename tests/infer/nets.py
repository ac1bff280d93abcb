"""A small auto-encoder and what trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.optim
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor, nn

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


def adam(**options: Any) -> Any:
    return pyro.optim.Adam({"lr": 0.01} | options)


def trainer(kind: Any, net: Any, optim: Any = None, **options: Any) -> Any:
    return kind(net.model, net.guide, optim or adam(), Trace_ELBO(), **options)


def losses(svi: Any, *args: Any, steps: int = STEPS, **kwargs: Any) -> Tensor:
    return torch.stack([torch.as_tensor(svi.step(*args, **kwargs)) for _ in range(steps)])
