"""The IDX format of the MNIST files: a strict reader and its inverse.

An IDX file is, in big-endian order, two zero bytes, one byte for the element type (8: unsigned
byte), one for the number of dimensions, a 32-bit size for each dimension, and the elements.
It may be gzipped.

References:
    Y. LeCun, C. Cortes, C. Burges: The MNIST database of handwritten digits.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

_UNSIGNED_BYTE = 8
_GZIP_MAGIC = b"\x1f\x8b"
_REMEDY = "the file is damaged: delete it and download it again"


def read_idx(path: Path, *, ndim: int) -> Tensor:
    """Read a whole IDX file of unsigned bytes, plain or gzipped.

    Args:
        path: the file.
        ndim: the number of dimensions that it must have: 3 for images, 1 for labels.

    Returns:
        A ``torch.uint8`` tensor of the shape that the header announces.

    Raises:
        ValueError: unless every byte is as the header says.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels.gz"
        ...     write_idx(path, torch.tensor([7, 2, 1], dtype=torch.uint8))
        ...     read_idx(path, ndim=1)
        tensor([7, 2, 1], dtype=torch.uint8)
    """
    content = _decompress(path)
    header = 4 + 4 * ndim
    if len(content) < header:
        raise ValueError(f"{path}: expected a header of {header} bytes, found {len(content)}; {_REMEDY}")
    magic = bytes((0, 0, _UNSIGNED_BYTE, ndim))
    if content[:4] != magic:
        raise ValueError(
            f"{path}: expected the magic number 0x{magic.hex()} of a {ndim}-dimensional IDX file "
            f"of bytes, found 0x{content[:4].hex()}; it is damaged or another kind of file: "
            "delete it and download it again"
        )
    shape = struct.unpack(f">{ndim}I", content[4:header])
    expected = header + math.prod(shape)
    if len(content) != expected:
        raise ValueError(f"{path}: expected {expected} bytes for the shape {shape}, found {len(content)}; {_REMEDY}")
    if expected == header:
        raise ValueError(f"{path}: the shape {shape} holds no element; {_REMEDY}")
    # bytearray: torch warns about a buffer that it may not write to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)


def write_idx(path: Path, values: Tensor) -> None:
    """Write a ``torch.uint8`` tensor as an IDX file, gzipped if the name ends in ``.gz``.

    The same values give the same bytes: the compressed file carries no time stamp.
    """
    if values.dtype != torch.uint8:
        raise ValueError(f"values must be torch.uint8, got {values.dtype}; convert them first")
    header = bytes((0, 0, _UNSIGNED_BYTE, values.dim()))
    content = header + struct.pack(f">{values.dim()}I", *values.shape)
    content += bytes(values.flatten().tolist())
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=9, mtime=0)
    path.write_bytes(content)


def _decompress(path: Path) -> bytes:
    content = path.read_bytes()
    if not content.startswith(_GZIP_MAGIC):
        if path.name.endswith(".gz"):
            raise ValueError(f"{path}: the name says gzip but the {len(content)} bytes do not start like it; {_REMEDY}")
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: a broken gzip stream of {len(content)} bytes ({error}); {_REMEDY}") from error
