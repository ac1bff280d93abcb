"""Hamiltonian Monte Carlo of many chains at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# From vectors (..., D) to energies (...) and their gradients (..., D).
Gradients = Callable[[Tensor], tuple[Tensor, Tensor]]

_TARGET = 0.8  # mean acceptance
_LARGEST_ERROR = 1000.0  # of the energy, beyond which a trajectory counts as diverged, as in Stan
_MOST_STEPS = 512
_SMALL = 0.3  # the share of trajectories with smaller steps
_SHORTEST, _LONGEST = 0.5, 8.0  # of trajectories, in quarters of a period


@dataclass
class State:
    """Where the chains are: ``x`` ``(..., D)``, with the energies ``(...)`` and the gradients there."""

    x: Tensor
    energy: Tensor
    gradient: Tensor

    @classmethod
    def at(cls, gradients: Gradients, x: Tensor) -> State:
        """At vectors."""
        return cls(x, *gradients(x))

    def taken(self, other: State, where: Tensor) -> State:
        """The other one for some of the chains."""
        rows = where.unsqueeze(-1)
        return State(
            torch.where(rows, other.x, self.x),
            torch.where(where, other.energy, self.energy),
            torch.where(rows, other.gradient, self.gradient),
        )


@dataclass
class Sweep:
    """What one trajectory of every chain did.

    :ivar acceptance: probabilities ``(...)``.
    :ivar diverged: ``(...)``.
    :ivar energy: of place and momentum at the start ``(...)``.
    """

    acceptance: Tensor
    diverged: Tensor
    energy: Tensor


class Metric:
    """A root ``A`` of the inverse mass matrix: a diagonal ``(D,)`` or a matrix ``(D, D)``.

    Several matrices ``(..., D, D)``, for chains ``(..., D)`` that broadcast with them, do not learn by themselves.
    """

    def __init__(self, root: Tensor) -> None:
        self.root = root

    def times(self, p: Tensor) -> Tensor:
        """``A p`` for rows ``p``."""
        if self.root.dim() > 2:
            return (self.root @ p.unsqueeze(-1)).squeeze(-1)
        return p * self.root if self.root.dim() == 1 else p @ self.root.mT

    def transposed(self, g: Tensor) -> Tensor:
        """``A^T g`` for rows ``g``."""
        if self.root.dim() > 2:
            return (self.root.mT @ g.unsqueeze(-1)).squeeze(-1)
        return g * self.root if self.root.dim() == 1 else g @ self.root

    def whitened(self, x: Tensor) -> Tensor:
        """``A^{-1} x`` for rows ``x``."""
        return x / self.root if self.root.dim() == 1 else torch.linalg.solve(self.root, x.mT).mT

    def learned(self, draws: Tensor, gradients: Tensor) -> Metric:
        """From the spread of draws ``(N, D)`` and of the gradients there, drawn towards this one where there are few.

        The geometric mean of the covariance of the draws and of the inverse of that of the gradients (Seyboldt et al.,
        *Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence*, 2025). Both are the covariance of a
        normal posterior; several modes widen the one and not the other.
        """
        weight = len(draws) / (len(draws) + 5.0 * draws.shape[-1])
        if self.root.dim() == 1:
            spread = weight * draws.var(0) + (1 - weight) * self.root.square()
            force = weight * gradients.square().mean(0) + (1 - weight) / self.root.square()
            return Metric((spread / force) ** 0.25)
        # In the coordinates of this metric, in which both are near to the identity.
        eye = torch.eye(len(self.root), dtype=draws.dtype, device=draws.device)
        spread = weight * torch.cov(self.whitened(draws).mT) + (1 - weight) * eye
        g = self.transposed(gradients)
        force = weight * g.mT @ g / len(g) + (1 - weight) * eye
        if not bool((spread.isfinite() & force.isfinite()).all()):
            return self
        mean = geometric_mean(spread, force)
        root, info = torch.linalg.cholesky_ex(mean)
        return self if bool(info) else Metric(self.root @ root)


def geometric_mean(a: Tensor, b: Tensor) -> Tensor:
    """The matrix ``m`` with ``m b m = a``, for positive ones."""
    values, vectors = eigh(b)
    root = (vectors * values.clamp(min=torch.finfo(b.dtype).tiny).sqrt()) @ vectors.mT
    inverse = torch.linalg.inv(root)
    values, vectors = eigh(root @ a @ root)
    return inverse @ (vectors * values.clamp(min=0).sqrt()) @ vectors.mT @ inverse


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, by LAPACK where the algorithm of the GPU does not converge."""
    try:
        return torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:
        if not matrix.is_cuda:
            raise
        values, vectors = torch.linalg.eigh(matrix.cpu())
        return values.to(matrix.device), vectors.to(matrix.device)


# From a state and momenta (..., D), with a metric, the length of a step and how many there are, to those after them.
Leap = Callable[[State, Tensor, Metric, Any, int], tuple[State, Tensor]]


def leapfrog(gradients: Gradients) -> Leap:
    """Steps of Hamiltonian dynamics."""

    def leap(now: State, p: Tensor, metric: Metric, length: Any, steps: int) -> tuple[State, Tensor]:
        p = p - 0.5 * length * metric.transposed(now.gradient)
        for step in range(steps):
            now = State.at(gradients, now.x + length * metric.times(p))
            p = p - (1.0 if step < steps - 1 else 0.5) * length * metric.transposed(now.gradient)
        return now, p

    return leap


def trajectories(leap: Leap, start: State, metric: Metric, size: float | Tensor, steps: int) -> tuple[State, Sweep]:
    """One trajectory of so many steps of every chain, accepted or not; ``size`` may differ between chains."""
    length = size.unsqueeze(-1) if isinstance(size, Tensor) else size
    p = torch.randn_like(start.x)
    before = start.energy + 0.5 * p.square().sum(-1)
    now, p = leap(start, p, metric, length, steps)
    error = (now.energy + 0.5 * p.square().sum(-1) - before).nan_to_num(math.inf)
    probability = (-error).clamp(max=0).exp()
    # Where an energy is infinite a gradient may be nan: such a proposal is never taken.
    accepted = (torch.rand_like(probability) < probability) & now.gradient.isfinite().all(-1)
    return start.taken(now, accepted), Sweep(probability, error > _LARGEST_ERROR, before)


class StepSize:
    """Nesterov's dual averaging on the mean acceptance of all chains (Hoffman and Gelman, 2014).

    :param size: where it begins: a number, or a tensor of sizes that are adapted each by its own acceptance.
    """

    def __init__(self, size: Any) -> None:
        self.restart(size)

    def restart(self, size: Any) -> None:
        """Begin anew around a size."""
        self.size = self.mean = size
        self._centre, self._error, self._count = _log(2 * size), 0.0 * size, 0

    def see(self, acceptance: Any) -> None:
        """Take the acceptance of a trajectory with ``size``, and choose the next one."""
        self._count += 1
        weight, decay = 1 / (self._count + 10), self._count**-0.75
        self._error = (1 - weight) * self._error + weight * (_TARGET - acceptance)
        log = self._centre - math.sqrt(self._count) / 0.05 * self._error
        self.mean = _exp(decay * log + (1 - decay) * _log(self.mean))
        self.size = _exp(log)


def drawn(size: float) -> tuple[float, int]:
    """The step size and the number of steps of the next trajectory.

    Now and then the steps are much smaller, for chains in a place where the usual ones are too large. Lengths are drawn
    from half a quarter to eight quarters of a period, all scales alike: along directions that are longer than the
    metric knows only long trajectories get anywhere, and the energy changes by no more than one momentum in each,
    however long it is.
    """
    few, share, least = torch.rand(3).tolist()
    own = size * least**0.5 if few < _SMALL else size
    length = math.pi / 2 * _SHORTEST * (_LONGEST / _SHORTEST) ** share
    return own, max(1, min(_MOST_STEPS, round(length / size)))


def _log(x: Any) -> Any:
    return x.log() if isinstance(x, Tensor) else math.log(x)


def _exp(x: Any) -> Any:
    return x.exp() if isinstance(x, Tensor) else math.exp(x)
