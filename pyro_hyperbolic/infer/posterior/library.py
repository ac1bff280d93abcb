"""Moves of points that have led far, to be tried again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MOST = 500  # that are kept
_TRIED, _TAKEN = 4.0, 0.2  # of a new one, as if it had been tried so often before
_RARE = 0.02  # share of accepted tries of what is tried most often


class Library:
    """Sets of points with the mirrors at which they went to another arrangement.

    Of all sets and mirrors that may be tried, few lead from one arrangement of many points to another one of about the
    same energy, and those that have done so once will again. What is in here does not depend on where a chain is, so
    that the way back is tried as often as the way there.

    :ivar moves: by mirror, the points that it moves, ``(L, M, N)``.
    :ivar spans: by mirror, weights of points whose sums span it, ``(L, M, d, N)``.
    :ivar weights: how often each is to be chosen, ``(L,)``; new ones are not until :meth:`learn`.
    :ivar known: how many can be chosen.
    """

    def __init__(self, mirrors: int, columns: Tensor) -> None:
        (number, dim), device = columns.shape, columns.device
        self.moves = torch.zeros(0, mirrors, number, dtype=torch.bool, device=device)
        self.spans = torch.zeros(0, mirrors, dim, number, dtype=torch.bool, device=device)
        self.weights = torch.zeros(0, dtype=torch.float64, device=device)
        self._tried, self._taken = self.weights, self.weights
        self.known = 0

    def draw(self, count: int) -> Tensor:
        """The numbers of some entries."""
        return torch.multinomial(self.weights, count, replacement=True)

    def note(self, entries: Tensor, accepted: Tensor) -> None:
        """Remember whether entries, by their numbers ``(K,)``, were accepted."""
        self._tried = self._tried.index_add(0, entries, torch.ones_like(accepted, dtype=torch.float64))
        self._taken = self._taken.index_add(0, entries, accepted.double())

    def add(self, moves: Tensor, spans: Tensor) -> None:
        """Take in what has led far: ``(K, M, N)`` and ``(K, M, d, N)``."""
        none = torch.zeros(len(moves), dtype=torch.float64, device=moves.device)
        self.moves, self.spans = torch.cat([self.moves, moves]), torch.cat([self.spans, spans])
        self.weights = torch.cat([self.weights, none])
        self._tried, self._taken = torch.cat([self._tried, none + _TRIED]), torch.cat([self._taken, none + _TAKEN])

    def learn(self) -> None:
        """Choose the weights.

        Each set has its share by the number of its points, since more points find another place more rarely, and the
        largest one if it is accepted in few of its tries, but in some. The mirrors of a set have theirs by how often
        they were accepted.
        """
        if not len(self.weights):
            return
        share = self._taken / self._tried
        kept = share.argsort(descending=True)[:_MOST]
        self.moves, self.spans, share = self.moves[kept], self.spans[kept], share[kept]
        self._tried, self._taken = self._tried[kept], self._taken[kept]
        sets, own = self.moves.flatten(1).unique(dim=0, return_inverse=True)
        total = share.new_zeros(len(sets)).index_add(0, own, share)
        best = share.new_zeros(len(sets)).scatter_reduce(0, own, share, "amax")
        points = self.moves.any(1).sum(-1)
        self.weights = points * (best / (best + _RARE).square())[own] * share / total[own]
        self.known = len(self.weights)

    def state(self) -> list[Any]:
        """What :meth:`load` takes."""
        return [self.moves, self.spans, self.weights]

    def load(self, state: list[Any]) -> None:
        """Choose as another one; what was tried is not known any more, and nothing is to be learned after that."""
        self.moves, self.spans, self.weights = state
        self._tried, self._taken = torch.ones_like(self.weights), torch.ones_like(self.weights)
        self.known = len(self.weights)
