"""The option ``--json`` of the benchmarks: results that are written row by row, gone on with, and read again."""

from __future__ import annotations

import argparse
import json
import os
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from examples.command import Parser, folder, input_file

Result = dict[str, Any]
# What reading something else than a result raises.
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class ResultsParser(Parser):
    """The parser of a program that writes its results row by row, and goes on after the last one.

    ``options.earlier`` is what ``--json`` holds, where it is to be gone on with or to be printed (``--rst``).

    :param read: from what JSON holds to a result; it raises an error where that is something else.
    """

    def __init__(self, documentation: str | None, program: str, read: Callable[[Any], Result]) -> None:
        super().__init__(documentation, program)
        self._read = read
        self._file: Path | None = None
        text = "where to write the results (default: nowhere)"
        self.add_argument("--json", type=_path, metavar="FILE", help=text)
        self.add_argument("--resume", action="store_true", help="go on with what --json holds")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        options = super().parse_args(args, namespace)
        self._file = options.json
        reads = next((f"--{name}" for name in ("rst", "resume") if getattr(options, name, False)), None)
        try:
            options.earlier = self._earlier(options.json, reads)
        except ArgumentTypeError as error:
            self.error(f"argument --json: {error}")
        return options

    def _earlier(self, path: Path | None, reads: str | None) -> Result | None:
        if path is None:
            if reads is not None:
                self.error(f"{reads} needs --json, the file with the results")
            return None
        if reads == "--resume" and not path.exists():
            self.error(f"--resume: there is no {path} to go on with; check --json, or leave out --resume to start anew")
        if reads != "--rst":
            output_file(str(path))
        if reads is None:
            if path.exists():
                self.error(f"--json {path} exists; go on with --resume, or name another file")
            return None
        return results(self._read)(str(path))

    def how_to_go_on(self) -> str:
        """What to do after an interruption."""
        if self._file is None or not self._file.exists():
            return "nothing is saved yet; start again"
        return f"go on with the same options and --resume --json {self._file}"


def output_file(text: str) -> Path:
    """A file that can be written, in a folder that is there."""
    path = _path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give a file")
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        raise ArgumentTypeError(f"{path} cannot be written to; name another file")
    # A folder could be made where the file is to be, and files could be made where it is.
    folder(str(path.parent if path.exists() else path))
    return path


def results(read: Callable[[Any], Result]) -> Callable[[str], Result]:
    """The type of files that hold results.

    :param read: as for :class:`ResultsParser`.
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
