"""Many fits at once, and the shape of the energy at a fit."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients

_FIRST_RATE, _LAST_RATE = 0.1, 0.001


def descend(gradients: Gradients, vectors: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
    """Adam from each of the vectors ``(P, D)``; the best that each has met, and its energy."""
    x, first, second = vectors, torch.zeros_like(vectors), torch.zeros_like(vectors)
    best, lowest = x, torch.full_like(x[:, 0], torch.inf)
    for step in range(1, num_steps + 1):
        energy, gradient = gradients(x)
        lower = energy < lowest
        best, lowest = torch.where(lower.unsqueeze(-1), x, best), torch.where(lower, energy, lowest)
        wild = ~(energy.isfinite() & gradient.isfinite().all(-1)).unsqueeze(-1)
        gradient = torch.where(wild, 0.0, gradient)
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient.square()
        rate = _FIRST_RATE * (_LAST_RATE / _FIRST_RATE) ** (step / num_steps)
        root = (second / (1 - 0.99**step)).sqrt() + torch.finfo(x.dtype).tiny ** 0.5
        x = torch.where(wild, best, x - rate * first / (1 - 0.9**step) / root)
    return best, lowest


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
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.abs().clamp(min=1.0).rsqrt()
