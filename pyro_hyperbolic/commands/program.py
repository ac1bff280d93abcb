"""A program: its options, what it does, and how it ends."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from pyro_hyperbolic.commands.errors import explained
from pyro_hyperbolic.commands.parser import Parser

T = TypeVar("T", covariant=True)

WRONG_INPUT, INTERRUPTED = 2, 130


class Main(Protocol[T]):
    """What :func:`command` makes."""

    def __call__(self, arguments: Sequence[str] | None = None) -> T: ...


def command(parser: Callable[[], Parser], run: Callable[[argparse.Namespace], T]) -> Main[T]:
    """The ``main`` of a program: parse the arguments, run, and end with one line where the user got something wrong.

    Python's development mode (``python -X dev``) shows the traceback of these errors too.

    :param parser: makes the parser.
    :param run: does the work; what it returns, ``main`` returns.
    :returns: a function of the arguments, by default those of the command line.
    """

    def main(arguments: Sequence[str] | None = None) -> T:
        p = parser()
        try:
            args = p.parse_args(arguments)
            if getattr(args, "threads", None):
                torch.set_num_threads(args.threads)
            return run(args)
        except KeyboardInterrupt:
            p.exit(INTERRUPTED, f"\n{p.prog}: interrupted; {p.how_to_go_on()}\n")
        except Exception as error:
            file = getattr(run, "__globals__", {}).get("__file__")  # none in a notebook
            line = explained(error, run.__module__, Path(file).resolve().parent if file else None)
            if line is None or sys.flags.dev_mode:
                raise
            p.exit(WRONG_INPUT, f"{p.prog}: error: {line}\n")

    return main
