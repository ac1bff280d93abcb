"""Types of command-line arguments; each raises what argparse prints."""

from __future__ import annotations

import argparse
from typing import Any


def curvature(text: str) -> float | str:
    """A number >= 0 or ``learn``."""
    if text == "learn":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number >= 0 or 'learn', got {text!r}")
    return value


def positive(kind: type) -> Any:
    """A parser of positive numbers."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a positive {kind.__name__}, got {text!r}")
        return value

    return parse


def natural(text: str) -> int:
    """An integer >= 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer >= 0, got {text!r}")
    return int(text)


def seeds(text: str) -> list[int]:
    """Integers and ranges of them, such as ``0,1,5`` or ``0-9``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"must be seeds such as 0,1,5 or 0-9, got {text!r}")
        found += range(int(first), int(last or first) + 1)
    if len(set(found)) < len(found) or not found:
        raise argparse.ArgumentTypeError(f"must be seeds that differ, got {text!r}")
    return found
