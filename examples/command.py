"""What command lines share: a parser of argparse, types of options, and errors of one line.

    def parser():
        p = make_parser(__doc__, __file__)
        p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the data")
        add_common(p, "--seed", "--output-dir", "--resume")
        return p

    main = command(parser, run, checkpoint="checkpoint.pt")

``main(["--num-epochs", "3"])`` returns what ``run`` returns. A ``ValueError``, ``ImportError`` or ``OSError`` ends the
program with one line and exit code 2 (``python -X dev`` shows the traceback), Ctrl-C with one line and exit code 130.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from pyro_hyperbolic import geometry

MOST = 2**31  # of sizes, counts and seeds: numpy takes seeds below 2**32, and programs add to theirs


def make_parser(documentation: str | None, program: str) -> ArgumentParser:
    """A parser whose help is the first paragraph, the options with their defaults, and the calls of a docstring.

    :param program: its file, ``__file__``, or how else it is called.
    """
    text = documentation or ""  # there is none under python -OO
    calls = [line for line in text.splitlines() if line.strip().startswith(("python ", "torchrun "))]
    parts: Any = {"description": text.strip().partition("\n\n")[0], "epilog": "\n".join(["examples:", *calls])}
    # Without the usage, which the calls show, an error is one line.
    return ArgumentParser(Path(program).name, argparse.SUPPRESS, formatter_class=_Help, allow_abbrev=False, **parts)


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help that ends with the default, where the text itself does not name it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        named = action.required or "(default" in (action.help or "")
        return action.help if named else super()._get_help_string(action)


def command(
    parser: Callable[[], ArgumentParser],
    run: Callable[[Namespace], Any],
    *,
    checkpoint: str | None = None,
    go_on: str = "nothing is saved yet; start again",
) -> Callable[..., Any]:
    """The ``main`` of a program: a function of the arguments, by default those of the command line.

    :param checkpoint: the name, or a pattern, of what a run leaves in ``--output-dir`` and ``--resume`` needs.
    :param go_on: what to do after an interruption before there is one.
    """

    def main(arguments: list[str] | None = None) -> Any:
        p = parser()
        args = p.parse_args(arguments)
        try:
            if hasattr(args, "output_dir"):
                settle_output_dir(args, p.prog.removesuffix(".py"), checkpoint)
            if getattr(args, "threads", None):
                torch.set_num_threads(args.threads)
            return run(args)
        except KeyboardInterrupt:
            begun = checkpoint is not None and any(args.output_dir.glob(checkpoint))
            again = f"go on with the same options and --resume --output-dir {args.output_dir}" if begun else go_on
            p.exit(130, f"\n{p.prog}: interrupted; {again}\n")
        except (ValueError, ImportError, OSError) as error:
            if sys.flags.dev_mode:
                raise
            p.exit(2, f"{p.prog}: error: {one_line(error)}\n")

    return main


def settle_output_dir(args: Namespace, program: str, checkpoint: str | None) -> None:
    """Give ``--output-dir`` its default, and see that it fits ``--resume``."""
    resume = getattr(args, "resume", False)
    if args.output_dir is None:
        if resume:
            raise ValueError("--resume needs --output-dir, the folder of the run to continue")
        args.output_dir = Path("outputs", f"{program}-{datetime.now():%Y%m%d-%H%M%S}")
    found = [] if checkpoint is None else sorted(args.output_dir.glob(checkpoint))
    if resume and not found:
        raise ValueError(
            f"--resume: there is no run to continue in {args.output_dir} (no {checkpoint}); check --output-dir, or"
            " leave out --resume to start a new run"
        )
    if found and not resume:
        raise ValueError(f"{found[0]} exists; continue that run with --resume, or choose another --output-dir")


def one_line(error: Exception) -> str:
    """What an error says; torch and Pyro go on with tensors and with shapes, which are left out."""
    text = str(error).partition("\ntensor(")[0].partition("Trace Shapes:")[0]
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        text = f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror}"
    return " ".join(text.split()).rstrip(".:") or type(error).__name__


# Types of options: each raises what argparse prints after the name of the option.


def _number(kind: Any, wanted: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (abs(value) < math.inf and accepts(value)):
            raise ArgumentTypeError(f"must be a {wanted}, got {text!r}")
        if kind is int and value >= MOST:
            raise ArgumentTypeError(f"must be less than {MOST}, got {value}")
        return value

    return parse


def at_least(smallest: int) -> Callable[[str], int]:
    return _number(int, f"whole number of at least {smallest}", lambda value: value >= smallest)


def positive(kind: type) -> Callable[[str], Any]:
    return _number(kind, f"positive {'whole ' if kind is int else ''}number", lambda value: value > 0)


natural = at_least(0)
fraction = _number(float, "fraction of at least 0 and less than 1", lambda value: 0 <= value < 1)


def seeds(text: str) -> list[int]:
    """Whole numbers and ranges of them: ``7,0-2``."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise ArgumentTypeError(f"must be seeds such as 0,1,5 or 0-9, got {text!r}")
    ends = [[natural(end) for end in part.split("-")] for part in text.split(",")]
    found = [seed for end in ends for seed in range(end[0], end[-1] + 1)]
    if len(set(found)) < len(found) or not found:
        raise ArgumentTypeError(f"must be seeds that differ, got {text!r}")
    return found


def signature(text: str) -> str:
    """The signature of a space, as :func:`pyro_hyperbolic.geometry.from_signature` takes it."""
    try:
        geometry.from_signature(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error
    return text.replace(" ", "")


def device(text: str) -> str:
    """A device that is there."""
    kind, _, index = text.partition(":")
    if kind not in ("cpu", "cuda") or (":" in text and not index.isdecimal()):
        raise ArgumentTypeError(f"must be cpu, cuda or a device such as cuda:1, got {text!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ArgumentTypeError(f"torch finds {torch.cuda.device_count()} CUDA devices, so none is {text}; use cpu")
    return text


def folder(text: str) -> Path:
    """A folder that can be written to, or one that can be made: the folder above it has to be there."""
    path = Path(text).expanduser()
    home = path if path.exists() else path.absolute().parent
    if not home.is_dir():
        raise ArgumentTypeError(f"{home} is not a folder; make it first, or check the path")
    try:  # permissions do not tell: an administrator has all, and some file systems take no files
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        raise ArgumentTypeError(f"{home} cannot be written to; choose another folder") from error
    return path


def data_folder(text: str) -> Path:
    """A folder to read from, writable or not; or one that can be made, for a download."""
    return Path(text).expanduser() if Path(text).expanduser().is_dir() else folder(text)


def picture_file(text: str) -> Path:
    """A picture that can be written, in a folder that is there."""
    from matplotlib.backend_bases import FigureCanvasBase  # slow to import

    path, formats = Path(text).expanduser(), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise ArgumentTypeError(f"must end in one of {', '.join(formats)}, got {text!r}; for example figure.pdf")
    folder(str(path.parent if path.exists() else path))  # the folder of the file has to be there
    return path


def input_file(text: str) -> Path:
    """A file that can be read and is not empty."""
    path = Path(text).expanduser()
    if not (path.is_file() and os.access(path, os.R_OK) and path.stat().st_size):
        raise ArgumentTypeError(f"must be a file that can be read and is not empty, got {text!r}")
    return path


# Options that many programs have.
COMMON: dict[str, Any] = {
    "--seed": {"type": natural, "default": 0, "help": "random seed"},
    "--threads": {"type": positive(int), "help": "CPU threads (default: torch's choice)"},
    "--device": {"type": device, "help": "where to compute: cpu, cuda or cuda:1"},
    "--data-dir": {"type": data_folder, "help": "of the data (default: PYRO_HYPERBOLIC_DATA, then a per-user cache)"},
    "--output-dir": {"type": folder, "help": "for the results, made if necessary (default: a new one in outputs/)"},
    "--resume": {"action": "store_true", "help": "continue the run in --output-dir"},
    "--space": {"type": signature, "default": "p2", "metavar": "SIGNATURE"},
}
COMMON["--device"]["default"] = "cuda" if torch.cuda.is_available() else "cpu"
COMMON["--space"]["help"] = "such as h2,s2,e2: h hyperboloid, p ball, s sphere, e flat, u either sign of the curvature"


def add_common(p: ArgumentParser, *names: str) -> None:
    """Add options of :data:`COMMON`."""
    for name in names:
        p.add_argument(name, **COMMON[name])
