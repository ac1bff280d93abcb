"""Ensembles of auto-encoders, and runs of their members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.optim
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE
from pyro_hyperbolic.nn import ManifoldModule

STEPS = 4
EDGES = torch.tensor([[0, 1], [0, 2], [1, 3], [1, 4], [2, 5]])
GRAPHS = [EDGES, torch.tensor([[0, 5], [1, 2], [2, 3], [3, 4], [4, 5]])]  # as many edges, other ones


def wrapped(c: float = 1.0, **options: Any) -> HyperbolicVAE:
    return HyperbolicVAE(PoincareBall(c), 2, 6, hidden_dim=8, **options)


MEMBERS: dict[str, list[Callable[[], Any]]] = {
    "wrapped": [wrapped, wrapped, wrapped],
    "riemannian": [lambda: wrapped(prior="riemannian", posterior="riemannian")] * 2,
    "euclidean": [lambda: EuclideanVAE(2, 6, hidden_dim=8)] * 3,
    "graph": [lambda: HyperbolicVGAE(PoincareBall(1.0), 6, EDGES, latent_dim=2, hidden_dim=4)] * 2,
    "graphs": [lambda edges=edges: HyperbolicVGAE(PoincareBall(1.0), 6, edges, latent_dim=2) for edges in GRAPHS],
    "hyperboloid": [lambda: HyperbolicVAE(Lorentz(1.0), 2, 6, hidden_dim=8)] * 2,
    "one member": [wrapped],
    "curvatures": [lambda: wrapped(0.1), lambda: wrapped(1.0), lambda: wrapped(1.4)],
    "curvatures, riemannian": [
        lambda: wrapped(0.3, prior="riemannian", posterior="riemannian"),
        lambda: wrapped(1.4, prior="riemannian", posterior="riemannian"),
    ],
    "prior scales": [lambda: wrapped(prior_scale=0.5), lambda: wrapped(prior_scale=2.0)],
    "learnable curvature": [
        lambda: HyperbolicVAE(ManifoldModule(PoincareBall(0.5), learnable=True), 2, 6, hidden_dim=8),
        lambda: HyperbolicVAE(ManifoldModule(PoincareBall(1.0), learnable=True), 2, 6, hidden_dim=8),
    ],
}


def adam(**clip: float) -> Any:
    return pyro.optim.Adam({"lr": 0.01}, clip or None)


def build(name: str) -> list[Any]:
    return [make() for make in MEMBERS[name]]


def ensemble(modules: list[Any], optim: Any = None, loss: Any = None, **options: Any) -> EnsembleSVI:
    optim, loss = optim or adam(), loss or Trace_ELBO()
    return EnsembleSVI([(m.model, m.guide) for m in modules], optim, loss, **options)


def data(modules: list[Any], *lead: int) -> tuple[Tensor, ...]:
    return () if isinstance(modules[0], HyperbolicVGAE) else (torch.rand(*lead, 10, 6),)


def together(svi: EnsembleSVI, args: tuple[Tensor, ...], shared: bool) -> Tensor:
    torch.manual_seed(1)
    return torch.stack([svi.step(*args, shared=shared) for _ in range(STEPS)])
