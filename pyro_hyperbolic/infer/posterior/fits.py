"""Many fits at once, and the shape of the energy at a fit."""

from __future__ import annotations

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
    step = torch.finfo(vector.dtype).eps ** (1 / 3) * (1 + vector.abs())
    moves, found = torch.cat([torch.diag(step), -torch.diag(step)]), []
    for part in moves.split(count):
        points = vector + torch.cat([part, part.new_zeros(count - len(part), len(vector))])
        found.append(gradients(points)[1][: len(part)])
    up, down = torch.cat(found).split(len(vector))
    matrix = (up - down) / (2 * step.unsqueeze(-1))
    return 0.5 * (matrix + matrix.mT)


def root_of_inverse(matrix: Tensor) -> Tensor:
    """A root ``A`` with ``A A^T`` the inverse of a matrix, whose eigenvalues are taken to be at least 1.

    A direction in which the energy is flat, or curved the wrong way, is as wide as the others allow.
    """
    values, vectors = eigh(matrix)
    return vectors * values.abs().clamp(min=1.0).rsqrt()
