"""Many fits at once, and the shape of the energy at a fit."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, eigh
from pyro_hyperbolic.accelerate.trainers.graphs import Repeated

_FIRST_RATE, _LAST_RATE = 0.1, 0.001


class Descent:
    """Adam from many vectors at once.

    :param gradients: a function that can be captured.
    :param like: vectors ``(P, D)``, of which there are always as many.
    """

    def __init__(self, gradients: Gradients, like: Tensor) -> None:
        self._gradients = gradients
        self._x, self._best, self._first, self._second = (torch.zeros_like(like) for _ in range(4))
        self._lowest = torch.zeros_like(like[:, 0])
        self._number, self._count, self._rate = (torch.zeros_like(like[0, 0]) for _ in range(3))
        state = [self._x, self._best, self._first, self._second, self._lowest, self._number]
        self._repeated = Repeated(self._step, state)

    def __call__(self, vectors: Tensor, num_steps: int, rate: float = _FIRST_RATE) -> tuple[Tensor, Tensor]:
        """The best that each vector has met in so many steps, and its energy."""
        self._x.copy_(vectors)
        self._best.copy_(vectors)
        self._lowest.fill_(torch.inf)
        for zero in (self._first, self._second, self._number):
            zero.zero_()
        self._count.fill_(num_steps)
        self._rate.fill_(rate)
        self._repeated(num_steps)
        return self._best.clone(), self._lowest.clone()

    def _step(self) -> None:
        x, best, step = self._x, self._best, self._number
        step.add_(1)
        energy, gradient = self._gradients(x)
        lower = energy < self._lowest
        best.copy_(torch.where(lower.unsqueeze(-1), x, best))
        self._lowest.copy_(torch.where(lower, energy, self._lowest))
        wild = ~(energy.isfinite() & gradient.isfinite().all(-1)).unsqueeze(-1)
        gradient = torch.where(wild, 0.0, gradient)
        self._first.mul_(0.9).add_(gradient, alpha=0.1)
        self._second.mul_(0.99).add_(gradient.square(), alpha=0.01)
        rate = self._rate * (_LAST_RATE / self._rate) ** (step / self._count)
        root = (self._second / (1 - 0.99**step)).sqrt() + torch.finfo(x.dtype).tiny ** 0.5
        x.copy_(torch.where(wild, best, x - rate * self._first / (1 - 0.9**step) / root))


def hessian(gradients: Gradients, vector: Tensor, count: int) -> Tensor:
    """That of the energy at a vector ``(D,)``, by differences of gradients, ``count`` of which come at a time."""
    matrix = torch.cat([part for _, part in _rows(gradients, vector, count)])
    return 0.5 * (matrix + matrix.mT)


def diagonal(gradients: Gradients, vector: Tensor, count: int) -> Tensor:
    """That of the :func:`hessian`, of which no more than a few rows are held."""
    found = _rows(gradients, vector, count)
    return torch.cat([part.gather(-1, rows.unsqueeze(-1)).squeeze(-1) for rows, part in found])


def _rows(gradients: Gradients, vector: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The second derivatives, a few rows at a time, and which these are."""
    step = torch.finfo(vector.dtype).eps ** (1 / 3) * (1 + vector.abs())
    for rows in torch.arange(len(vector), device=vector.device).split(max(1, count // 2)):
        moves = vector.new_zeros(count, len(vector))
        at = torch.arange(len(rows), device=vector.device)
        moves[at, rows], moves[at + len(rows), rows] = step[rows], -step[rows]
        found = gradients(vector + moves)[1][: 2 * len(rows)]
        up, down = found.chunk(2)
        yield rows, (up - down) / (2 * step[rows].unsqueeze(-1))


def root_of_inverse(matrix: Tensor) -> Tensor:
    """A root ``A`` with ``A A^T`` the inverse of a matrix, whose eigenvalues are taken to be at least 1.

    A direction in which the energy is flat, or curved the wrong way, is as wide as the others allow.

    :param matrix: ``(D, D)``, or the diagonal ``(D,)`` of one, for the diagonal of a root.
    """
    if matrix.dim() == 1:
        return matrix.abs().clamp(min=1.0).rsqrt()
    values, vectors = eigh(matrix)
    return vectors * values.abs().clamp(min=1.0).rsqrt()
