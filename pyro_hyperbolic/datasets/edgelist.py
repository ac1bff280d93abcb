"""Edge lists as plain text: a strict reader."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

_COMMENTS = ("%", "#")
_MATRIX_MARKET = "%%MatrixMarket"
_SEPARATOR = re.compile(r"\s*,\s*|\s+")
_LARGEST = torch.iinfo(torch.int64).max


def read_edge_list(path: Path) -> Tensor:
    """Read one pair of node identifiers per line, in the order of the file.

    Identifiers are non-negative integers, separated by white space or a comma. A third column, the
    weight, is ignored. Empty lines and lines that start with ``%`` or ``#`` are skipped. So is the
    line of sizes in MatrixMarket files (those with its banner or the suffix ``.mtx``), which must
    tell the number of edges that follow.

    Args:
        path: the file.

    Returns:
        The pairs, int64 ``(M, 2)``, ``M > 0``. :func:`read_weighted_edge_list` returns the weights too.

    Raises:
        ValueError: with the number of the first line that is malformed, or if there is no edge.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "tiny.edges"
        ...     _ = path.write_text("# a path\\n0 1\\n1,2\\n2 3 0.5\\n")
        ...     read_edge_list(path).tolist()
        [[0, 1], [1, 2], [2, 3]]
    """
    return read_weighted_edge_list(path)[0]


def read_weighted_edge_list(path: Path) -> tuple[Tensor, Tensor]:
    """The pairs of :func:`read_edge_list`, and the third column, float64 ``(M,)``; 1 where there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file ({error}); give an edge list, uncompressed") from error
    size_line_allowed = path.suffix == ".mtx" or text.startswith(_MATRIX_MARKET)
    announced: int | None = None
    pairs: list[tuple[int, int]] = []
    weights: list[float] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line.startswith(_COMMENTS):
            continue
        fields = _SEPARATOR.split(line)
        if size_line_allowed and not pairs and announced is None and len(fields) == 3:
            # Only the first line can be the one of sizes, and an edge there has two fields.
            announced = _identifier(fields[2], path=path, number=number, line=line)
            continue
        if len(fields) not in (2, 3) or (len(fields) == 3 and not _is_number(fields[2])):
            raise ValueError(
                f"{path}, line {number}: expected two node ids and at most a weight, "
                f"found {line!r}; correct the line, or put # before it if it is a comment"
            )
        source, target = (_identifier(field, path=path, number=number, line=line) for field in fields[:2])
        pairs.append((source, target))
        weights.append(float(fields[2]) if len(fields) == 3 else 1.0)
    if not pairs:
        raise ValueError(f"{path} has no edges; give a file with two node ids on each line")
    if announced is not None and announced != len(pairs):
        raise ValueError(
            f"{path}: its line of sizes announces {announced} edges, found {len(pairs)}; "
            "the file is damaged: fetch it again"
        )
    return torch.tensor(pairs, dtype=torch.int64), torch.tensor(weights, dtype=torch.float64)


def _identifier(field: str, *, path: Path, number: int, line: str) -> int:
    # int() alone would also take "1_000", "+1" and digits of other scripts.
    if not (field.isascii() and field.isdecimal()) or int(field) > _LARGEST:
        raise ValueError(
            f"{path}, line {number}: expected a non-negative 64-bit integer, found {field!r} in "
            f"{line!r}; number the nodes, or put # before the line if it is a comment"
        )
    return int(field)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
