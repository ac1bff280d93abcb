"""Minibatches of data that lie on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_SEEDS = 1 << 64  # that torch's generators know


class Minibatches:
    """Shuffled epochs, without replacement, of a tensor that stays where it is.

    The order of an epoch depends on the seed and on its number alone, so that a run can be resumed at any epoch. There
    is no worker, no copy from the host and no synchronisation: a loader on the host would be the bottleneck of
    :class:`FastSVI` and :class:`EnsembleSVI`.

    :param data: ``(N, ...)``; with ``own_data``, ``(members, N, ...)``.
    :param batch_size: data per batch; the last batch of an epoch may be smaller.
    :param seed: of the order, between ``-2**63`` and ``2**64 - 1`` as torch's are.
    :param members: give every member of an ensemble an order of its own; batches are then ``(members, batch, ...)``.
    :param own_data: every member has data of its own, in the first dimension of ``data``.
    :param drop_last: leave a last batch that would be smaller out. All batches then have one shape, and a compiled or
        captured step is made once.

    >>> batches = Minibatches(torch.arange(5), batch_size=2, seed=0)
    >>> [len(batch) for batch in batches.epoch(1)]
    [2, 2, 1]
    >>> torch.cat(list(batches.epoch(1))).sort().values
    tensor([0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        data: Tensor,
        batch_size: int,
        seed: int = 0,
        members: int | None = None,
        *,
        own_data: bool = False,
        drop_last: bool = False,
    ) -> None:
        if own_data and (members is None or len(data) != members):
            raise ValueError(
                f"own_data needs data with one part per member in its first dimension, got {len(data)} parts for"
                f" members={members}."
            )
        self._size = data.shape[1] if own_data else len(data)
        if self._size == 0:
            raise ValueError("data must not be empty.")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if not -_SEEDS // 2 <= seed < _SEEDS:
            raise ValueError(f"seed must be between -2**63 and 2**64 - 1, got {seed}.")
        if members is not None and members < 1:
            raise ValueError(f"members must be at least 1, got {members}.")
        if drop_last and self._size < batch_size:
            raise ValueError(
                f"drop_last leaves none of {self._size} data in batches of {batch_size}; make them smaller."
            )
        self.data, self.batch_size, self.seed, self.members = data, batch_size, seed, members
        self.own_data, self.drop_last = own_data, drop_last

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._size // self.batch_size if self.drop_last else -(-self._size // self.batch_size)

    def epoch(self, number: int) -> Iterator[Tensor]:
        """The batches of one epoch."""
        # Also where it wraps round, different seeds give different numbers: the factor is odd.
        generator = torch.Generator(self.data.device).manual_seed((self.seed * 1_000_003 + number) % _SEEDS)
        shape = (self._size,) if self.members is None else (self.members, self._size)
        order = torch.rand(shape, generator=generator, device=self.data.device, dtype=torch.float64).argsort(-1)
        rows = torch.arange(len(self.data), device=self.data.device).unsqueeze(-1) if self.own_data else None
        for index in order.split(self.batch_size, -1)[: len(self)]:
            yield self.data[index] if rows is None else self.data[rows, index]
