"""Losses that are no longer finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.warning import warn_user


class NaNWatch:
    """Notes the first step whose loss is not finite, and warns about it once, without waiting for the device.

    Of several losses it does so for each of them.

    :param every: how many steps lie between two looks at what is on a GPU.
    """

    def __init__(self, every: int = 100) -> None:
        self.every = every
        self._reported: set[int] = set()
        self._unseen: list[Tensor] = []
        self._count = 0
        self._last = 0
        self._copy: tuple[Tensor, Any] | None = None

    def see(self, losses: Tensor, last: int) -> None:
        """Take the losses ``(steps,)`` or ``(steps, members)`` of some steps, of which ``last`` is the last."""
        self._unseen.append(losses.detach())
        self._count += len(losses)
        self._last = last
        if losses.device.type == "cpu" and losses.isfinite().all():
            self._unseen, self._count = [], 0
        elif losses.device.type == "cpu":
            self.flush()
        elif self._count >= self.every:
            self._look()

    def flush(self) -> None:
        """Report what has not been reported; this waits for the device."""
        if self._copy is not None:
            self._copy[1].synchronize()
            self._report(self._copy[0])
            self._copy = None
        if self._unseen:
            self._report(self._first())

    def _look(self) -> None:
        """Start to copy what is known to the host, and report what has arrived there."""
        if self._copy is not None:
            if not self._copy[1].query():
                return
            self._report(self._copy[0])
        first = self._first()
        host = torch.empty(first.shape, dtype=torch.int64, device="cpu", pin_memory=True)
        host.copy_(first, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._copy = host, event

    def _first(self) -> Tensor:
        """The first step of each loss that is not finite, or -1; 0-dim for a single loss."""
        bad = ~torch.cat(self._unseen).isfinite()
        begin = self._last - self._count + 1
        self._unseen, self._count = [], 0
        return torch.where(bad.any(0), bad.int().argmax(0) + begin, -1)

    def _report(self, first: Tensor) -> None:
        for i, step in enumerate(first.reshape(-1).tolist()):
            if step >= 0 and i not in self._reported:
                self._reported.add(i)
                which = f"the loss of member {i}" if first.dim() else "the loss"
                warn_user(f"{which} is not finite since step {step}")
