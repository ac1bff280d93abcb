"""Minibatches of data that lie on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class Minibatches:
    """Shuffled epochs, without replacement, of a tensor that stays where it is.

    The order of an epoch depends on the seed and on its number alone, so that a run can be resumed at any epoch. There
    is no worker, no copy from the host and no synchronisation: a loader on the host would be the bottleneck of
    :class:`FastSVI` and :class:`EnsembleSVI`.

    :param data: ``(N, ...)``.
    :param batch_size: data per batch; the last batch of an epoch may be smaller.
    :param seed: of the order.
    :param members: give every member of an ensemble an order of its own; batches are then ``(members, batch, ...)``.

    >>> batches = Minibatches(torch.arange(5), batch_size=2, seed=0)
    >>> [len(batch) for batch in batches.epoch(1)]
    [2, 2, 1]
    >>> torch.cat(list(batches.epoch(1))).sort().values
    tensor([0, 1, 2, 3, 4])
    """

    def __init__(self, data: Tensor, batch_size: int, seed: int = 0, members: int | None = None) -> None:
        if len(data) == 0:
            raise ValueError("data must not be empty.")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        if members is not None and members < 1:
            raise ValueError(f"members must be at least 1, got {members}.")
        self.data, self.batch_size, self.seed, self.members = data, batch_size, seed, members

    def __len__(self) -> int:
        """Batches in an epoch."""
        return -(-len(self.data) // self.batch_size)

    def epoch(self, number: int) -> Iterator[Tensor]:
        """The batches of one epoch."""
        generator = torch.Generator(self.data.device).manual_seed(self.seed * 1_000_003 + number)
        shape = (len(self.data),) if self.members is None else (self.members, len(self.data))
        order = torch.rand(shape, generator=generator, device=self.data.device, dtype=torch.float64).argsort(-1)
        for index in order.split(self.batch_size, -1):
            yield self.data[index]
