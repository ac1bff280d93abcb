"""Weights of the divergence that grow during training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_hyperbolic.ops.checks import checked_integer


@dataclass(frozen=True)
class WarmUp:
    """A weight that grows linearly from ``start`` to ``end`` over ``num_steps`` steps and then stays at ``end``.

    :param num_steps: number of steps that it grows.
    :param start: the weight before the first step.
    :param end: the weight after the last one.

    >>> schedule = WarmUp(4)
    >>> [schedule(step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    num_steps: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        checked_integer("num_steps", self.num_steps, least=1)
        if not (0 <= self.start < math.inf and 0 < self.end < math.inf):
            raise ValueError(f"start must be at least 0 and end positive, got {self.start!r} and {self.end!r}.")

    def __call__(self, step: int) -> float:
        """The weight at a step. The first step is 0."""
        share = min(1.0, (step + 1) / self.num_steps)
        return self.start + (self.end - self.start) * share
