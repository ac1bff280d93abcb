"""Validated evaluations between steps: how often, and how without holding up the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pyro_hyperbolic.ops.checks import checked_integer

# Steps between two validated evaluations. One takes as long as a hundred captured steps.
_USUAL, _CAPTURED = 1_000, 10_000


def checked_interval(validate_every: int | None) -> int | None:
    """What a trainer was given, if it is a number of steps."""
    return None if validate_every is None else checked_integer("validate_every", validate_every, least=1)


def interval(validate_every: int | None, captured: bool) -> int:
    """How many steps lie between two validated evaluations.

    >>> interval(None, captured=False), interval(None, captured=True), interval(50, captured=True)
    (1000, 10000, 50)
    """
    if validate_every is not None:
        return validate_every
    return _CAPTURED if captured else _USUAL


class Deferred:
    """An evaluation that is put off until the device has been given more work, and then runs beside it.

    An evaluation of a program keeps the host busy for as long as the device takes for many captured steps, which would
    wait for it. On a stream of its own it waits for none of the steps that were queued meanwhile. It reads the
    parameters while they are trained: each number as it was before a step or after it.
    """

    def __init__(self) -> None:
        self._due: tuple[Callable[[], Any], torch.cuda.Event | None] | None = None

    def put_off(self, evaluation: Callable[[], Any], device: torch.device) -> None:
        """Take an evaluation, whose inputs are on their way; the one before it is made now."""
        self.make()
        event = None
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
        self._due = evaluation, event

    def make(self) -> None:
        """Make the evaluation that was put off."""
        if self._due is None:
            return
        (evaluation, event), self._due = self._due, None
        if event is None:
            evaluation()
            return
        stream = torch.cuda.Stream(event.device)
        stream.wait_event(event)
        with torch.cuda.stream(stream):
            evaluation()
        stream.synchronize()  # before its inputs are given up
