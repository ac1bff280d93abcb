"""Moves of points that have led far, to be tried again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MIRRORS = 3  # of one entry
_MOST, _EACH = 500, 4  # that are kept, in all and of each set
_TRIED, _TAKEN = 4.0, 0.2  # of a new one, as if it had been tried so often before
_RARE = 0.02  # share of accepted tries of what is tried most often


def balanced(share: Tensor) -> Tensor:
    """How often to try what is accepted with this probability: less what is often accepted, and what hardly ever is."""
    return share / (share + _RARE).square()


class Library:
    """Sets of points with the mirrors or exchanges by which they go to another arrangement.

    Of all that may be tried, little leads from one arrangement of many points to another one of about the same energy,
    and what may do so once will again. What is in here does not depend on where a chain is, so that the way back is
    tried as often as the way there.

    :ivar moves: by mirror, the points that it moves, ``(L, M, N)``.
    :ivar spans: by mirror, weights of points whose sums span it, ``(L, M, d, N)``.
    :ivar sources: whose place each point takes before that, ``(L, N)``.
    :ivar weights: how often each is to be chosen, ``(L,)``; new ones are not until :meth:`learn`.
    :ivar known: how many can be chosen.
    """

    def __init__(self, columns: Tensor) -> None:
        (number, dim), device = columns.shape, columns.device
        self.moves = torch.zeros(0, _MIRRORS, number, dtype=torch.bool, device=device)
        self.spans = torch.zeros(0, _MIRRORS, dim, number, dtype=torch.bool, device=device)
        self.sources = torch.zeros(0, number, dtype=torch.long, device=device)
        self.weights = torch.zeros(0, dtype=torch.float64, device=device)
        self._tried, self._taken = self.weights, self.weights
        self.known = 0

    def draw(self, count: int) -> Tensor:
        """The numbers of some entries."""
        return torch.multinomial(self.weights, count, replacement=True)

    def note(self, entries: Tensor, chance: Tensor) -> None:
        """Remember the probabilities to accept entries, by their numbers ``(K,)``."""
        self._tried = self._tried.index_add(0, entries, torch.ones_like(self._tried[entries]))
        self._taken = self._taken.index_add(0, entries, chance.to(self._taken.dtype))

    def add(self, sources: Tensor, moves: Tensor, spans: Tensor, chance: Tensor) -> None:
        """Take in what leads far, with the probabilities to accept it ``(K,)``."""
        self.sources = torch.cat([self.sources, sources])
        self.moves, self.spans = torch.cat([self.moves, moves]), torch.cat([self.spans, spans])
        self.weights = torch.cat([self.weights, torch.zeros_like(chance, dtype=self.weights.dtype)])
        self._tried = torch.cat([self._tried, torch.full_like(chance, 1 + _TRIED, dtype=self._tried.dtype)])
        self._taken = torch.cat([self._taken, chance.to(self._taken.dtype) + _TAKEN])

    def learn(self) -> None:
        """Choose the weights.

        Each set has its share by the number of its points, since more points find another place more rarely, and the
        largest one if it is accepted in few of its tries, but in some. The best few entries of a set have theirs by how
        often they were accepted.
        """
        if not len(self.weights):
            return
        share = self._taken / self._tried
        order = share.argsort(descending=True)
        moved = torch.cat([self.moves, self._exchanged().unsqueeze(1)], 1)[order]
        sets, own = moved.flatten(1).unique(dim=0, return_inverse=True)
        # The best of each set, by their rank in it.
        grouped, count = own.argsort(stable=True), own.bincount(minlength=len(sets))
        place = torch.empty_like(own)
        place[grouped] = torch.arange(len(own), device=own.device) - (count.cumsum(0) - count)[own[grouped]]
        order, own = order[place < _EACH], own[place < _EACH]
        share = share[order]
        total = share.new_zeros(len(sets)).index_add(0, own, share)
        best = share.new_zeros(len(sets)).scatter_reduce(0, own, share, "amax")
        weights = moved[place < _EACH].any(1).sum(-1).square() * balanced(best)[own] * share / total[own]
        kept = weights.argsort(descending=True)[: min(_MOST, int((weights > 0).sum()))]
        self.weights, order = weights[kept], order[kept]
        self.moves, self.spans, self.sources = self.moves[order], self.spans[order], self.sources[order]
        self._tried, self._taken = self._tried[order], self._taken[order]
        self.known = len(self.weights)

    def state(self) -> list[Any]:
        """What :meth:`load` takes."""
        return [self.moves, self.spans, self.sources, self.weights]

    def load(self, state: list[Any]) -> None:
        """Choose as another one; what was tried is not known any more, and nothing is to be learned after that."""
        self.moves, self.spans, self.sources, self.weights = state
        self._tried, self._taken = torch.ones_like(self.weights), torch.ones_like(self.weights)
        self.known = len(self.weights)

    def _exchanged(self) -> Tensor:
        return self.sources != torch.arange(self.sources.shape[-1], device=self.sources.device)
