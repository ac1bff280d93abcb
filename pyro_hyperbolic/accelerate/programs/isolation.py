"""Evaluations that leave no trace in the run of a program, and work that Python's collector is kept from."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Evaluate without changing the state of the random numbers, and without gradients.

    >>> state = torch.get_rng_state()
    >>> with isolated():
    ...     noise = torch.randn(3)
    >>> torch.equal(torch.get_rng_state(), state)
    True
    """
    # All devices by name: without it torch warns where there are several.
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        yield


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Without Python's collector, which would look through the million objects of a compiler again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
