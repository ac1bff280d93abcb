"""Rows of data: of tensors, of sparse matrices, and of what lies on a disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Unsigned integers that few of torch's operations know, and signed ones that hold them.
_SIGNED = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}


class DenseRows:
    """Rows of a tensor, ``(N, ...)``."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def device(self) -> torch.device:
        return self.tensor.device

    def take(self, index: Tensor) -> Tensor:
        """The rows at an index of any shape, which comes first in that of the result."""
        return self.tensor[index]

    def to(self, device: Any) -> DenseRows:
        return DenseRows(self.tensor.to(device))

    @staticmethod
    def cat(parts: Sequence[DenseRows]) -> DenseRows:
        return DenseRows(torch.cat([part.tensor for part in parts]))


class SparseRows:
    """Rows of a sparse matrix by rows (CSR), which come out dense.

    No number of entries is read on the host while rows are taken: each row is read as if it had as many as the
    longest, and what is beyond its end goes to a column that is cut off.

    :param starts: where rows begin among the entries, ``(N + 1,)``.
    :param columns: of the entries, each at most once in a row.
    :param values: of the entries.
    :param num_columns: of the matrix.
    """

    def __init__(self, starts: Tensor, columns: Tensor, values: Tensor, num_columns: int) -> None:
        self.starts, self.columns, self.values, self.num_columns = starts, columns, values, num_columns
        self._longest = int(starts.diff().max()) if len(starts) > 1 else 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def device(self) -> torch.device:
        return self.values.device

    def take(self, index: Tensor) -> Tensor:
        """The rows at an index of any shape, which comes first in that of the result."""
        start = self.starts[index].unsqueeze(-1)
        place = torch.arange(self._longest, device=index.device)
        inside = place < self.starts[index + 1].unsqueeze(-1) - start
        # The entries of all rows lie in one piece: beyond the end of a row is another one, except at the very end.
        entry = (start + place).clamp(max=max(0, len(self.values) - 1))
        column = torch.where(inside, self.columns[entry], self.num_columns).long()
        dense = self.values.new_zeros(*index.shape, self.num_columns + 1)
        return dense.scatter_(-1, column, self.values[entry])[..., : self.num_columns]

    def to(self, device: Any) -> SparseRows:
        parts = (self.starts.to(device), self.columns.to(device), self.values.to(device))
        return SparseRows(*parts, self.num_columns)

    @staticmethod
    def cat(parts: Sequence[SparseRows]) -> SparseRows:
        ends = torch.tensor([0, *[len(part.values) for part in parts]]).cumsum(0)
        starts = [part.starts[:-1].long() + end for part, end in zip(parts, ends, strict=False)]
        return SparseRows(
            torch.cat([*starts, ends[-1:]]),
            torch.cat([part.columns for part in parts]),
            torch.cat([part.values for part in parts]),
            parts[0].num_columns,
        )


Rows = DenseRows | SparseRows


class Stream:
    """Rows that are read from a source when they are needed, some consecutive ones at a time.

    :param source: anything whose ``source[start:stop]`` are rows: an array, mapped from a file (``numpy.memmap``) or
        not, a data set of h5py, a matrix of scipy, the ``X`` of an ``AnnData`` that is backed by a file, or an object
        of yours that gives :class:`DenseRows` or :class:`SparseRows`.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return _length(self.source)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``, in memory."""
        return in_memory(self.source[start:stop])


def in_memory(rows: Any) -> Rows:
    """Rows of an array or a sparse matrix that have been read."""
    if isinstance(rows, (DenseRows, SparseRows)):
        return rows
    if isinstance(rows, Tensor):
        if rows.layout == torch.sparse_csr:
            return SparseRows(rows.crow_indices(), rows.col_indices(), rows.values(), rows.shape[1])
        if rows.layout != torch.strided:
            raise ValueError(f"a sparse tensor must be by rows, got {rows.layout}; convert it with .to_sparse_csr().")
        return DenseRows(rows)
    if hasattr(rows, "tocsr"):
        matrix = rows.tocsr()
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        starts, columns, values = (_as_tensor(part) for part in (matrix.indptr, matrix.indices, matrix.data))
        return SparseRows(starts, columns, values, matrix.shape[1])
    return DenseRows(_as_tensor(np.asarray(rows)))


def as_rows(data: Any) -> Rows | Stream | None:
    """What minibatches can be taken from; ``None`` of what has no rows and is passed on as it is."""
    if isinstance(data, (DenseRows, SparseRows)):
        return data
    if isinstance(data, Tensor):
        return in_memory(data) if data.dim() else None
    if isinstance(data, (str, bytes)) or not hasattr(data, "__getitem__"):
        return None
    return Stream(data)


def _as_tensor(array: Any) -> Tensor:
    # A copy: arrays that are mapped from a file may not be written, which torch warns of.
    return torch.from_numpy(np.array(array, dtype=_SIGNED.get(array.dtype.name, array.dtype)))


def _length(source: Any) -> int:
    # A sparse matrix has a shape, but no length.
    shape = getattr(source, "shape", None)
    return shape[0] if shape else len(source)
