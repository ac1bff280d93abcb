"""Losses that are no longer finite."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


class NaNWatch:
    """Notes the first step whose loss is not finite, and warns about it once, without waiting for the device.

    Of several losses it does so for each of them.

    :param every: how many steps lie between two looks at what is on a GPU.
    """

    def __init__(self, every: int = 100) -> None:
        self.every = every
        self._reported: set[int] = set()
        self._single = True
        self._first: Tensor | None = None
        self._copy: tuple[Tensor, Any] | None = None

    def see(self, losses: Tensor, step: int) -> None:
        self._single = losses.dim() == 0
        bad = ~losses.detach().reshape(-1).isfinite()
        if self._first is None:
            self._first = torch.full(bad.shape, -1, dtype=torch.int64, device=bad.device)
        self._first = torch.where((self._first < 0) & bad, step, self._first)
        if self._first.device.type == "cpu":
            self.flush()
        elif self._copy is None and step % self.every == 0:
            host = torch.empty(self._first.shape, dtype=torch.int64, device="cpu", pin_memory=True)
            host.copy_(self._first, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._copy = host, event
        elif self._copy is not None and self._copy[1].query():
            self._report(self._copy[0])
            self._copy = None

    def flush(self) -> None:
        """Report what has not been reported; this waits for the device."""
        if self._first is not None:
            self._report(self._first)

    def _report(self, first: Tensor) -> None:
        if bool((first < 0).all()):
            return
        for i, step in enumerate(first.tolist()):
            if step >= 0 and i not in self._reported:
                self._reported.add(i)
                which = "the loss" if self._single else f"the loss of member {i}"
                warnings.warn(f"{which} is not finite since step {step}", stacklevel=5)
