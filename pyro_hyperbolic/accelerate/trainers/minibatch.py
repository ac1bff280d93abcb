"""Minibatches of data that lie on the device, or on a disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.trainers.rows import DenseRows, Rows, Stream, as_rows
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.nested import flatten, unflatten

_SEEDS = 1 << 64  # that torch's generators know


class Minibatches:
    """Shuffled epochs, without replacement, of data that stay where they are.

    The order of an epoch depends on the seed and on its number alone, so that a run can be resumed at any epoch. A loop
    over the batches themselves is one over the next epoch, as with a ``DataLoader``. There
    is no worker, no copy from the host and no synchronisation: a loader on the host would be the bottleneck of
    :class:`FastSVI` and :class:`EnsembleSVI`.

    Several aligned tensors are given as a tuple or a dictionary, also one inside another, and batches come alike:
    a tuple holds arguments of :meth:`FastSVI.step`, a dictionary its keywords. What has no rows (a number, ``None``) is
    in every batch as it is. Rows of a sparse tensor (``torch.sparse_csr``), or of
    :class:`~pyro_hyperbolic.accelerate.trainers.rows.SparseRows`, come out dense.

    What is no tensor is read from where it is, block by block, in bounded memory: an array mapped from a file
    (``numpy.memmap``), a data set of h5py, a matrix of scipy, the ``X`` of an ``AnnData`` that is backed by a file, or
    anything else with ``data[start:stop]``. The order is then that of blocks of ``block_size`` consecutive rows in
    random order. The rows of ``num_blocks`` of them are in memory at a time, and shuffled.

    :param data: ``(N, ...)``, or tuples, lists and dictionaries of such; with ``own_data``, ``(members, N, ...)``.
    :param batch_size: data per batch; the last batch of an epoch may be smaller.
    :param seed: of the order, between ``-2**63`` and ``2**64 - 1`` as torch's are.
    :param members: give every member of an ensemble an order of its own; batches are then ``(members, batch, ...)``.
    :param own_data: every member has data of its own, in the first dimension of ``data``.
    :param drop_last: leave a last batch that would be smaller out. All batches then have one shape, and a compiled or
        captured step is made once.
    :param block_size: rows that are read at a time.
    :param num_blocks: how many blocks are shuffled together.
    :param device: where the batches of what is read come to lie; the host by default.

    >>> batches = Minibatches(torch.arange(5), batch_size=2, seed=0)
    >>> [len(batch) for batch in batches.epoch(1)]
    [2, 2, 1]
    >>> torch.cat(list(batches.epoch(1))).sort().values
    tensor([0, 1, 2, 3, 4])
    >>> [len(batch) for epoch in range(2) for batch in batches]
    [2, 2, 1, 2, 2, 1]
    >>> data = {"x": torch.rand(5, 3), "covariates": {"batch": torch.tensor([0, 1, 1, 0, 1])}, "data_size": 5}
    >>> batch = next(Minibatches(data, batch_size=4).epoch(0))
    >>> batch["x"].shape, batch["covariates"]["batch"].shape, batch["data_size"]
    (torch.Size([4, 3]), torch.Size([4]), 5)
    """

    def __init__(
        self,
        data: Any,
        batch_size: int,
        seed: int = 0,
        members: int | None = None,
        *,
        own_data: bool = False,
        drop_last: bool = False,
        block_size: int = 1024,
        num_blocks: int = 16,
        device: Any = None,
    ) -> None:
        self._leaves, self._spec = flatten(data)
        rows = [as_rows(leaf) for leaf in self._leaves]
        for leaf, r in zip(self._leaves, rows, strict=True):
            if r is None and not (leaf is None or isinstance(leaf, (Number, Tensor))):
                raise ValueError(
                    f"data must hold tensors and arrays with rows (N, ...), numbers and None, got {leaf!r:.60}; bind"
                    " other arguments to the programs by functools.partial."
                )
        self._rows = {i: r for i, r in enumerate(rows) if r is not None}
        self._streams = any(isinstance(r, Stream) for r in self._rows.values())
        members = None if members is None else checked_integer("members", members, least=1)
        self._size = self._common_size(members, own_data)
        batch_size = checked_integer("batch_size", batch_size, least=1)
        block_size = checked_integer("block_size", block_size, least=1)
        num_blocks = checked_integer("num_blocks", num_blocks, least=1)
        seed = checked_integer("seed", seed)
        if not -_SEEDS // 2 <= seed < _SEEDS:
            raise ValueError(f"seed must be between -2**63 and 2**64 - 1, got {seed}.")
        if members is not None and self._streams:
            raise ValueError(
                "members need tensors; for data that are read from elsewhere give all members the same batches,"
                " with step(..., shared=True)."
            )
        if drop_last and self._size < batch_size:
            raise ValueError(
                f"drop_last leaves no batch: {self._size} data do not fill one of {batch_size}; reduce batch_size."
            )
        self.data, self.batch_size, self.seed, self.members = data, batch_size, seed, members
        self.own_data, self.drop_last = own_data, drop_last
        self._iterations = 0
        self.block_size, self.num_blocks, self.device = block_size, num_blocks, _checked_device(device)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._size // self.batch_size if self.drop_last else -(-self._size // self.batch_size)

    def __iter__(self) -> Epoch:
        """The batches of the next epoch: of epoch 0 first, then 1, and so on, as a shuffled ``DataLoader`` gives them.

        What counts is how often this object was iterated over. A run that is to be resumed names its epochs by
        :meth:`epoch`.
        """
        self._iterations += 1
        return self.epoch(self._iterations - 1)

    def epoch(self, number: int, start: int = 0) -> Epoch:
        """The batches of one epoch, an iterator.

        :param start: leave the first ones out, which a run that goes on from there has seen.
        """
        number, start = checked_integer("number", number), checked_integer("start", start, least=0)
        if start > len(self):
            raise ValueError(f"start must be at most {len(self)}, the number of batches in an epoch, got {start}.")
        # Also where it wraps round, different seeds give different numbers: the factor is odd.
        seed = (self.seed * 1_000_003 + number) % _SEEDS
        batches = self._streamed(seed, start) if self._streams else self._order(seed, start)
        return Epoch(self, batches, len(self) - start)

    def take(self, index: Tensor) -> Any:
        """The batch of some rows, of data that are tensors."""
        own = torch.arange(len(index), device=index.device).unsqueeze(-1) if self.own_data else None
        return self._batch({i: _take(rows, index, own) for i, rows in self._rows.items()})

    @property
    def num_whole(self) -> int:
        """Batches of full size in an epoch."""
        return self._size // self.batch_size

    @property
    def is_fixed(self) -> bool:
        """Whether taking a batch is a matter of the device alone, which a captured graph can hold."""
        return not self._streams

    def _order(self, seed: int, start: int) -> list[Tensor]:
        """The rows of every batch, ``(batch,)`` or ``(members, batch)`` each."""
        device = next(rows.device for rows in self._rows.values() if not isinstance(rows, Stream))
        generator = torch.Generator(device).manual_seed(seed)
        shape = (self._size,) if self.members is None else (self.members, self._size)
        order = torch.rand(shape, generator=generator, device=device, dtype=torch.float64).argsort(-1)
        return list(order.split(self.batch_size, -1)[start : len(self)])

    def _streamed(self, seed: int, start: int) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(seed)
        blocks = torch.arange(0, self._size, self.block_size)[
            torch.randperm(-(-self._size // self.block_size), generator=generator)
        ]
        end = min(self._size, len(self) * self.batch_size)  # of what is yielded, in the order of the epoch
        place = 0
        begun: list[dict[int, Tensor]] = []  # parts of a batch that the next window completes
        for chosen in blocks.split(self.num_blocks):
            spans = [(begin, min(begin + self.block_size, self._size)) for begin in chosen.tolist()]
            count = sum(stop - begin for begin, stop in spans)
            order = torch.randperm(count, generator=generator)  # also where it is left out: the next one depends on it
            first = max(0, start * self.batch_size - place)
            order = order[first : max(first, end - place)]
            if len(order):
                missing = -(place + first) % self.batch_size  # of the batch that has begun
                take = self._window(spans)
                for index in filter(len, (order[:missing], *order[missing:].split(self.batch_size))):
                    begun.append(take(index))
                    if sum(len(next(iter(part.values()))) for part in begun) == self.batch_size:
                        yield self._batch(_joined(begun))
                        begun = []
            place += count
        if begun:
            yield self._batch(_joined(begun))

    def _window(self, spans: list[tuple[int, int]]) -> Callable[[Tensor], dict[int, Tensor]]:
        """Reads some blocks, and takes rows of them by their number among these."""
        read = {i: _read(rows, spans).to(self.device) for i, rows in self._rows.items() if isinstance(rows, Stream)}
        number = torch.cat([torch.arange(*span) for span in spans])

        def take(index: Tensor) -> dict[int, Tensor]:
            there = index if self.device is None else index.to(self.device)
            rows = {i: part.take(there) for i, part in read.items()}
            for i, part in self._rows.items():
                if not isinstance(part, Stream):
                    rows[i] = part.take(number[index].to(part.device)).to(self.device)
            return rows

        return take

    def _batch(self, rows: dict[int, Tensor]) -> Any:
        return unflatten([rows.get(i, leaf) for i, leaf in enumerate(self._leaves)], self._spec)

    def _common_size(self, members: int | None, own_data: bool) -> int:
        if own_data:
            tensors = [rows.tensor if isinstance(rows, DenseRows) else None for rows in self._rows.values()]
            if members is None or any(t is None or t.dim() < 2 or len(t) != members for t in tensors):
                parts = sorted({len(rows) for rows in self._rows.values()})
                raise ValueError(
                    "own_data needs dense tensors with one part per member in their first dimension, got"
                    f" {', '.join(map(str, parts))} parts for members={members}."
                )
            sizes = {t.shape[1] for t in tensors if t is not None}
        else:
            sizes = {len(rows) for rows in self._rows.values()}
        if not sizes:
            raise ValueError(
                "data must hold tensors or arrays with rows (N, ...), got none in"
                f" {', '.join(sorted({type(leaf).__name__ for leaf in self._leaves})) or 'nothing'}."
            )
        if 0 in sizes:
            raise ValueError("data must not be empty.")
        if len(sizes) > 1:
            raise ValueError(f"all parts of data must have the same number of rows, got {sorted(sizes)}.")
        return sizes.pop()


class Epoch(Iterator[Any]):
    """The batches of one epoch; those that have been taken do not come again.

    :param source: whose epoch it is.
    :param batches: the rows of every batch, or an iterator over batches that are read from elsewhere.
    :param left: how many they are.
    """

    def __init__(self, source: Minibatches, batches: list[Tensor] | Iterator[Any], left: int) -> None:
        self.source = source
        self._order = batches if isinstance(batches, list) else None
        self._streamed = iter(()) if isinstance(batches, list) else batches
        self._left = left
        self._place = 0

    def __length_hint__(self) -> int:
        """How many batches are left."""
        return self._left - self._place

    def __next__(self) -> Any:
        if self._order is None:
            batch = next(self._streamed)
            self._place += 1
            return batch
        if self._place == len(self._order):
            raise StopIteration
        self._place += 1
        return self.source.take(self._order[self._place - 1])

    def rows(self, count: int) -> Tensor | None:
        """The rows ``(count, ..., batch)`` of the next batches.

        ``None`` where there are fewer of one size, or where a captured graph could not take them.
        """
        ahead = [] if self._order is None else self._order[self._place : self._place + count]
        whole = len(ahead) == count and all(index.shape[-1] == self.source.batch_size for index in ahead)
        return torch.stack(ahead) if whole and self.source.is_fixed else None

    def skip(self, count: int) -> None:
        """Leave the next batches out: they have been taken by their rows."""
        self._place += count


def _checked_device(device: Any) -> Any:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device must be one that torch finds here, got {device!r} ({reason}).") from error
    return device


def _take(rows: Any, index: Tensor, own: Tensor | None) -> Tensor:
    return rows.take(index) if own is None else rows.tensor[own, index]


def _read(stream: Stream, spans: list[tuple[int, int]]) -> Rows:
    parts: Any = [stream.read(*span) for span in spans]
    return type(parts[0]).cat(parts)


def _joined(parts: list[dict[int, Tensor]]) -> dict[int, Tensor]:
    return parts[0] if len(parts) == 1 else {i: torch.cat([part[i] for part in parts]) for i in parts[0]}
