"""Comparison of checkpoints, bit for bit."""

from __future__ import annotations

from typing import Any

import torch


def equal(a: Any, b: Any) -> bool:
    """Whether two nested containers of tensors and plain values are the same, types and bits included."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        # Pyro hands its parameters on as a set: the optimiser's entries have no fixed order.
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b
