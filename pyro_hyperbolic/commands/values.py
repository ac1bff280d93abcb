"""Types of command-line arguments; each raises what argparse prints."""

from __future__ import annotations

import math
import os
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from pyro_hyperbolic.geometry.signature import parse as parse_signature

Number = TypeVar("Number", int, float)

_WORDS = {int: "whole number", float: "number"}
_MOST = 2**31  # of sizes and counts; numpy takes seeds below 2**32, and programs add to theirs


def positive(kind: type[Number]) -> Callable[[str], Number]:
    """The type of positive numbers.

    :param kind: ``int`` or ``float``.

    >>> positive(float)("1e-3")
    0.001
    """

    def parse(text: str) -> Number:
        value = _number(text, kind)
        if value is None or value <= 0:
            raise ArgumentTypeError(f"must be a positive {_WORDS[kind]}, got {text!r}")
        return _limited(value)

    return parse


def curvature(text: str) -> float | str:
    """A positive number, or ``learn``.

    >>> curvature("1.4"), curvature("learn")
    (1.4, 'learn')
    """
    value = _number(text, float)
    if text != "learn" and (value is None or value <= 0):
        raise ArgumentTypeError(f"must be a positive number or learn, got {text!r}; flat space is --space e2")
    return text if value is None else value


def at_least(smallest: int) -> Callable[[str], int]:
    """The type of whole numbers that are not too small.

    >>> at_least(2)("3")
    3
    """

    def parse(text: str) -> int:
        value = _number(text, int)
        if value is None or value < smallest:
            raise ArgumentTypeError(f"must be a whole number of at least {smallest}, got {text!r}")
        return _limited(value)

    return parse


def natural(text: str) -> int:
    """A whole number of at least 0.

    >>> natural("0")
    0
    """
    return at_least(0)(text)


def fraction(*, zero: bool = False) -> Callable[[str], float]:
    """The type of numbers between 0 and 1, without 1.

    :param zero: 0 is one of them.

    >>> fraction()("0.1")
    0.1
    """

    def parse(text: str) -> float:
        value = _number(text, float)
        if value is None or not (0 <= value < 1 if zero else 0 < value < 1):
            least = "of at least 0" if zero else "greater than 0"
            raise ArgumentTypeError(f"must be a fraction {least} and less than 1, got {text!r}")
        return value

    return parse


def seed(text: str) -> int:
    """A seed that torch and numpy take.

    >>> seed("0")
    0
    """
    return natural(text)


def seeds(text: str) -> list[int]:
    """Whole numbers and ranges of them.

    >>> seeds("7,0-2")
    [7, 0, 1, 2]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentTypeError(f"must be seeds such as 0,1,5 or 0-9, got {text!r}")
        found += range(seed(first), seed(last or first) + 1)
    if len(set(found)) < len(found) or not found:
        raise ArgumentTypeError(f"must be seeds that differ, got {text!r}")
    return found


def signature(text: str) -> str:
    """The signature of a space, as :func:`pyro_hyperbolic.geometry.from_signature` takes it.

    >>> signature("h2,s2,e2")
    'h2,s2,e2'
    """
    try:
        return ",".join(f"{letter}{dim}" for letter, dim in parse_signature(text))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def device(text: str) -> str:
    """A device that is there: ``cpu``, ``cuda`` or ``cuda:1``.

    >>> device("cpu")
    'cpu'
    """
    try:
        wanted = torch.device(text)
    except RuntimeError:
        wanted = torch.device("meta")
    if wanted.type not in ("cpu", "cuda"):
        raise ArgumentTypeError(f"must be cpu, cuda or a device such as cuda:1, got {text!r}")
    if wanted.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise ArgumentTypeError(f"torch finds no CUDA device for {text!r}; use cpu")
        if wanted.index is not None and wanted.index >= count:
            raise ArgumentTypeError(f"there is no {text}, of {count} CUDA devices the last is cuda:{count - 1}")
    return text


def folder(text: str) -> Path:
    """A folder that can be written to, or one that can be made: the folder above it has to be there."""
    path = Path(text).expanduser()
    if path.is_dir():
        _require_writable(path)
    elif path.exists():
        raise ArgumentTypeError(f"{path} is a file; give a folder")
    else:
        _require_parent(path)
    return path


def data_folder(text: str) -> Path:
    """A folder to read from, writable or not; or one that can be made, for a download."""
    path = Path(text).expanduser()
    return path if path.is_dir() else folder(text)


def picture_file(text: str) -> Path:
    """A picture that can be written, in a folder that is there."""
    from matplotlib.backend_bases import FigureCanvasBase  # slow to import

    path = Path(text).expanduser()
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give a file")
    formats = sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise ArgumentTypeError(f"must end in one of {', '.join(formats)}, got {text!r}; for example figure.pdf")
    _require_parent(path)
    return path


def input_file(text: str) -> Path:
    """A file that can be read and is not empty."""
    path = Path(text).expanduser()
    if not path.exists():
        raise ArgumentTypeError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give a file")
    if not os.access(path, os.R_OK):
        raise ArgumentTypeError(f"{path} cannot be read; check its permissions")
    if path.stat().st_size == 0:
        raise ArgumentTypeError(f"{path} is empty; give another file")
    return path


def _number(text: str, kind: type[Number]) -> Number | None:
    """The number, if it is one and finite."""
    try:
        value = kind(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _limited(value: Number) -> Number:
    if isinstance(value, int) and value >= _MOST:
        raise ArgumentTypeError(f"must be less than {_MOST}, got {value}")
    return value


def _require_parent(path: Path) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        # The first that is missing is where the typing error is.
        missing = next(p for p in (*reversed(parent.parents), parent) if not p.is_dir())
        if missing.exists():
            raise ArgumentTypeError(f"{missing} is a file, so {path} cannot be made in it; choose another place")
        raise ArgumentTypeError(f"there is no folder {missing} to make {path} in; make it first, or check the path")
    _require_writable(parent)


def _require_writable(path: Path) -> None:
    try:  # permissions do not tell: an administrator has all, and some file systems take no files
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ArgumentTypeError(
            f"{path} cannot be written to; choose another folder, or change its permissions"
        ) from error
