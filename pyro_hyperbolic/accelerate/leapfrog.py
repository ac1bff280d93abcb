"""Steps of Hamiltonian dynamics in memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, Leap, Metric, State
from pyro_hyperbolic.accelerate.trainers.graphs import Repeated


def leapfrog_of(steps: Callable[..., Any] | None, gradients: Gradients) -> Leap:
    """The steps of vectors that are always as many.

    :param steps: a function that takes many at once (:meth:`.CompiledRows.leap`), if there is one.
    :param gradients: a function that can be captured, for all else.
    """
    if steps is None:
        return CapturedLeapfrog(gradients)

    def leap(now: State, p: Tensor, metric: Metric, length: Any, count: int) -> tuple[State, Tensor]:
        own = torch.as_tensor(length, dtype=p.dtype)
        p = p - 0.5 * length * metric.transposed(now.gradient)
        x, p, energy, gradient = steps(now.x, p, own, metric.root, count)
        return State(x, energy, gradient), p + 0.5 * length * metric.transposed(gradient)

    return leap


class CapturedLeapfrog:
    """A :data:`~pyro_hyperbolic.accelerate.hmc.Leap` of vectors that are always as many, on CUDA captured.

    A step has a dozen small kernels beside those of the gradient, and to launch them takes longer than they do.

    :param gradients: a function that can be captured.
    """

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._repeated: Repeated | None = None
        self._last: Metric | None = None

    def __call__(self, now: State, p: Tensor, metric: Metric, length: Any, steps: int) -> tuple[State, Tensor]:
        given = [now.x, now.energy, now.gradient, p - 0.5 * length * metric.transposed(now.gradient)]
        if self._repeated is None:
            self._state, self._length = [t.clone() for t in given], torch.zeros_like(p[:, :1])
            self._metric = Metric(metric.root.clone())
            self._repeated = Repeated(self._step, self._state)
        if metric is not self._last:
            self._metric.root.copy_(metric.root)
            self._last = metric
        for own, value in zip(self._state, given, strict=True):
            own.copy_(value)
        self._length.copy_(torch.as_tensor(length, dtype=p.dtype))
        self._repeated(steps)
        *parts, p = (t.clone() for t in self._state)
        there = State(*parts)
        return there, p + 0.5 * length * metric.transposed(there.gradient)

    def _step(self) -> None:
        x, energy, gradient, p = self._state
        x.add_(self._length * self._metric.times(p))
        for own, value in zip((energy, gradient), self._gradients(x), strict=True):
            own.copy_(value)
        p.sub_(self._length * self._metric.transposed(gradient))
