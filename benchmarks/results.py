"""The option ``--json`` of the benchmarks: results that are written row by row, gone on with, and read again."""

from __future__ import annotations

import argparse
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from examples.command import folder, input_file

Result = dict[str, Any]
# What reading something else than a result raises.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


GO_ON = "with --json, what was measured is kept: go on with the same options and --resume"


def add_results(p: argparse.ArgumentParser) -> None:
    """The options of a program that writes its results row by row, and goes on after the last one."""
    p.add_argument("--json", type=_path, metavar="FILE", help="where to write the results (default: nowhere)")
    p.add_argument("--resume", action="store_true", help="go on with what --json holds")


def earlier(args: argparse.Namespace, read: Callable[[Any], Result]) -> Result | None:
    """What ``--json`` holds, where it is to be gone on with or to be printed (``--rst``).

    :param read: from what JSON holds to a result; it raises an error where that is something else.
    """
    path, reads = args.json, next((f"--{name}" for name in ("rst", "resume") if getattr(args, name, False)), None)
    if path is None:
        if reads is not None:
            raise ValueError(f"{reads} needs --json, the file with the results")
        return None
    try:
        if reads != "--rst":
            output_file(str(path))
        if reads is not None:
            return results(read)(str(path))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"argument --json: {error}") from error
    if path.exists():
        raise ValueError(f"--json {path} exists; go on with --resume, or name another file")
    return None


def output_file(text: str) -> Path:
    """A file that can be written, in a folder that is there."""
    path = _path(text)
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        raise ArgumentTypeError(f"must be a file that can be written, got {text!r}")
    folder(str(path.parent if path.exists() else path))  # the folder of the file has to be there
    return path


def results(read: Callable[[Any], Result]) -> Callable[[str], Result]:
    """The type of files that hold results.

    :param read: as for :func:`earlier`.
    """

    def parse(text: str) -> Result:
        path = input_file(text)
        try:
            return read(json.loads(path.read_text("utf-8")))
        except _DAMAGE as error:
            raise ArgumentTypeError(
                f"{path} is damaged, or is not a result of this program; name another, or delete it"
            ) from error

    return parse


def one_of(names: Iterable[str]) -> Callable[[str], str]:
    """The type of names of a list; unlike the choices of argparse, it may be left out where there can be several."""
    known = list(names)

    def parse(text: str) -> str:
        if text not in known:
            raise ArgumentTypeError(f"must be one of {', '.join(known)}, got {text!r}")
        return text

    return parse


def require(condition: bool) -> None:
    """Refuse what is read."""
    if not condition:
        raise ValueError


def _path(text: str) -> Path:
    return Path(text).expanduser()
