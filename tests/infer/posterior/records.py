"""Posteriors for tests, as a sampler hands them over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.infer import Posterior

F64 = torch.float64


def posterior(samples: dict[str, Tensor], **fields: Any) -> Posterior:
    """A posterior with these draws, of a run without complaints unless the fields say otherwise."""
    shape = next(iter(samples.values())).shape[:2]
    defaults: dict[str, Any] = {
        "divergences": torch.zeros(shape, dtype=torch.bool),
        "acceptance": torch.full(shape, 0.8),
        "energy": torch.randn(shape),
        "manifolds": {},
        "deterministic": set(),
        "failed": {},
        "gauges": [],
        "seconds": {"compile": 2.0, "sampling": 3.5},
        "settings": {
            "num_samples": shape[1],
            "warmup": 100,
            "seed": 0,
            "step_size": 0.2,
            "steps": 8.0,
            "scale_moves": 0.05,
        },
    }
    return Posterior(samples=samples, **defaults | fields)


def autoregressive(chains: int, draws: int, slowness: float, count: int = 1) -> Tensor:
    """Chains ``(chains, draws, count)`` whose draws forget the one before by the factor ``slowness``."""
    noise = torch.randn(draws, chains, count, dtype=F64)
    x = [noise[0]]
    for e in noise[1:]:
        x.append(slowness * x[-1] + (1 - slowness**2) ** 0.5 * e)
    return torch.stack(x, 1)


def rotations(*shape: int) -> Tensor:
    """Random rotations and reflections, ``(*shape, d, d)`` for a shape that ends with ``d``."""
    q, r = torch.linalg.qr(torch.randn(*shape, shape[-1], dtype=F64))
    return q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
