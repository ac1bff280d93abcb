"""The command lines of examples, experiments and benchmarks: checked options, errors of one line, runs that go on.

A program is a docstring, a function ``run(args)`` and its options::

    def parser():
        p = Parser(__doc__, __file__)
        p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data")
        p.add_output_dir(checkpoint="checkpoint.pt")
        return p

    main = command(parser, run)

``main(["--num-epochs", "3"])`` returns what ``run`` returns. A ``ValueError``, ``ImportError`` or ``OSError`` ends the
program with one line and exit code 2 (``python -X dev`` shows the traceback), Ctrl-C with one line and exit code 130.
Programs in this folder import this file as ``command``, others as ``examples.command``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import pyro
import torch

from pyro_hyperbolic import __version__, geometry
from pyro_hyperbolic.infer import load_checkpoint, save_checkpoint

FREE = {"output_dir", "resume", "data_dir", "device", "threads"}  # options that may change when a run goes on
MOST = 2**31  # of sizes, counts and seeds: numpy takes seeds below 2**32, and programs add to theirs


def command(parser: Callable[[], Parser], run: Callable[[Namespace], Any]) -> Callable[..., Any]:
    """The ``main`` of a program: a function of the arguments, by default those of the command line."""

    def main(arguments: list[str] | None = None) -> Any:
        p = parser()
        try:
            args = p.parse_args(arguments)
            if getattr(args, "threads", None):
                torch.set_num_threads(args.threads)
            return run(args)
        except KeyboardInterrupt:
            p.exit(130, f"\n{p.prog}: interrupted; {p.how_to_go_on()}\n")
        except (ValueError, ImportError, OSError) as error:
            if sys.flags.dev_mode:
                raise
            p.exit(2, f"{p.prog}: error: {one_line(error)}\n")

    return main


def one_line(error: Exception) -> str:
    """What an error says; torch and Pyro go on with tensors and with shapes, which are left out."""
    text = str(error).partition("\ntensor(")[0].partition("Trace Shapes:")[0]
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        text = f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror}"
    return " ".join(text.split()).rstrip(".:") or type(error).__name__


class Parser(ArgumentParser):
    """An argument parser whose help shows every default, and whose errors are one line.

    :param documentation: its first paragraph is the description; indented lines that call ``python`` or ``torchrun``
        are the examples at the end of the help.
    :param program: its file, ``__file__``, or how else it is called.
    :param go_on: what to do after an interruption, where there is no ``--resume``.
    """

    checkpoint: str | None = None
    begun: Path | None = None  # the folder of the results

    def __init__(
        self, documentation: str | None, program: str, go_on: str = "nothing is saved yet; start again"
    ) -> None:
        text = documentation or ""  # there is none under python -OO
        calls = [line for line in text.splitlines() if line.strip().startswith(("python ", "torchrun "))]
        options: Any = {"description": text.strip().partition("\n\n")[0], "epilog": "\n".join(["examples:", *calls])}
        super().__init__(prog=Path(program).name, formatter_class=_Help, allow_abbrev=False, **options)
        self.go_on = go_on

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")

    def add_seed(self) -> None:
        self.add_argument("--seed", type=natural, default=0, help="random seed")

    def add_device(self) -> None:
        default = "cuda" if torch.cuda.is_available() else "cpu"
        self.add_argument("--device", type=device, default=default, help="where to compute: cpu, cuda or cuda:1")

    def add_threads(self) -> None:
        self.add_argument("--threads", type=positive(int), help="CPU threads (default: torch's choice)")

    def add_data_dir(self, what: str) -> None:
        text = f"folder of {what} (default: PYRO_HYPERBOLIC_DATA, then a per-user cache)"
        self.add_argument("--data-dir", type=data_folder, help=text)

    def add_space(self, default: str) -> None:
        text = "latent space by its signature, such as h2,s2,e2: h hyperboloid, p ball, s sphere, e flat, u either sign"
        self.add_argument("--space", type=signature, default=default, metavar="SIGNATURE", help=text)

    def add_output_dir(self, checkpoint: str | None = None, *, required: bool = False) -> None:
        """``--output-dir``, and ``--resume`` where a run leaves checkpoints: files of this name or pattern.

        :param required: there is no default, for programs of several processes that have to share a folder.
        """
        text = "folder for the results, created if necessary"
        text += "" if required else f" (default: a new one, {Path('outputs', Path(self.prog).stem)}-DATE)"
        self.add_argument("--output-dir", type=folder, required=required, help=text)
        if checkpoint is not None:
            self.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
        self.checkpoint = checkpoint

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """The options; ``output_dir`` is settled, and fits ``--resume``."""
        options = super().parse_args(args, namespace)
        if not hasattr(options, "output_dir"):
            return options
        resume = getattr(options, "resume", False)
        if options.output_dir is None:
            if resume:
                self.error("--resume needs --output-dir, the folder of the run to continue")
            options.output_dir = Path("outputs", f"{Path(self.prog).stem}-{datetime.now():%Y%m%d-%H%M%S}")
        self.begun = options.output_dir
        found = self.checkpoints()
        if resume and not found:
            self.error(
                f"--resume: there is no run to continue in {self.begun} (no {self.checkpoint}); check --output-dir, or"
                " leave out --resume to start a new run"
            )
        if found and not resume:
            self.error(f"{found[0]} exists; continue that run with --resume, or choose another --output-dir")
        return options

    def checkpoints(self) -> list[Path]:
        return [] if self.begun is None or self.checkpoint is None else sorted(self.begun.glob(self.checkpoint))

    def how_to_go_on(self) -> str:
        """What to do after an interruption."""
        if self.checkpoint is None:
            return self.go_on
        again = f"go on with the same options and --resume --output-dir {self.begun}"
        return again if self.checkpoints() else "there is no checkpoint yet; start again"


class _Help(RawDescriptionHelpFormatter):
    """Help that ends with the default, where the text itself does not name it."""

    def _get_help_string(self, action: Action) -> str:
        text, value = action.help or "", action.default
        if value == SUPPRESS or action.required or "(default" in text:
            return text
        if isinstance(value, bool):
            value = "on" if value else "off"
        shown = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return f"{text} (default: {shown.replace('%', '%%')})"


# Types of options: each raises what argparse prints after the name of the option.


def _number(kind: Any, wanted: str, accepts: Callable[[Any], bool]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not (abs(value) < math.inf and accepts(value)):
            raise ArgumentTypeError(f"must be a {wanted}, got {text!r}")
        if isinstance(value, int) and value >= MOST:
            raise ArgumentTypeError(f"must be less than {MOST}, got {value}")
        return value

    return parse


def positive(kind: type) -> Callable[[str], Any]:
    return _number(kind, f"positive {'whole ' if kind is int else ''}number", lambda value: value > 0)


def at_least(smallest: int) -> Callable[[str], int]:
    return _number(int, f"whole number of at least {smallest}", lambda value: value >= smallest)


natural = at_least(0)


def fraction(*, zero: bool = False) -> Callable[[str], float]:
    wanted = f"fraction {'of at least 0' if zero else 'greater than 0'} and less than 1"
    return _number(float, wanted, lambda value: (value >= 0 if zero else value > 0) and value < 1)


def seeds(text: str) -> list[int]:
    """Whole numbers and ranges of them: ``7,0-2``."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentTypeError(f"must be seeds such as 0,1,5 or 0-9, got {text!r}")
        found += range(natural(first), natural(last or first) + 1)
    if len(set(found)) < len(found) or not found:
        raise ArgumentTypeError(f"must be seeds that differ, got {text!r}")
    return found


def signature(text: str) -> str:
    """The signature of a space, as :func:`pyro_hyperbolic.geometry.space` takes it."""
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
    count = torch.cuda.device_count()
    if kind == "cuda" and count == 0:
        raise ArgumentTypeError(f"torch finds no CUDA device for {text!r}; use cpu")
    if kind == "cuda" and int(index or 0) >= count:
        raise ArgumentTypeError(f"there is no {text}, of {count} CUDA devices the last is cuda:{count - 1}")
    return text


def folder(text: str) -> Path:
    """A folder that can be written to, or one that can be made: the folder above it has to be there."""
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ArgumentTypeError(f"{path} is a file; give a folder")
    home = path if path.is_dir() else path.absolute().parent
    if not home.is_dir():  # the first that is missing is where the typing error is
        missing = next(p for p in (*reversed(home.parents), home) if not p.is_dir())
        if missing.exists():
            raise ArgumentTypeError(f"{missing} is a file, so {path} cannot be made in it; choose another place")
        raise ArgumentTypeError(f"there is no folder {missing} to make {path} in; make it first, or check the path")
    try:  # permissions do not tell: an administrator has all, and some file systems take no files
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        text = f"{home} cannot be written to; choose another folder, or change its permissions"
        raise ArgumentTypeError(text) from error
    return path


def data_folder(text: str) -> Path:
    """A folder to read from, writable or not; or one that can be made, for a download."""
    path = Path(text).expanduser()
    return path if path.is_dir() else folder(text)


def picture_file(text: str) -> Path:
    """A picture that can be written, in a folder that is there."""
    from matplotlib.backend_bases import FigureCanvasBase  # slow to import

    path, formats = Path(text).expanduser(), sorted(FigureCanvasBase.get_supported_filetypes())
    if path.is_dir():
        raise ArgumentTypeError(f"{path} is a folder; give a file")
    if path.suffix[1:].lower() not in formats:
        raise ArgumentTypeError(f"must end in one of {', '.join(formats)}, got {text!r}; for example figure.pdf")
    folder(str(path.parent if path.exists() else path))
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


# What a run was given, and checkpoints that know it.


def record(args: Namespace) -> dict[str, Any]:
    """The options, the versions and the revision that a result depends on, as JSON holds them."""
    git = ["git", "-C", str(Path(sys.argv[0]).resolve().parent), "describe", "--always", "--dirty"]
    try:
        revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    versions = {"pyro_hyperbolic": __version__, "torch": str(torch.__version__), "pyro": str(pyro.__version__)}
    versions["python"] = sys.version.split()[0]
    return {"options": options_of(args), "versions": versions, "revision": revision}


def options_of(args: Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def save_run(state: dict[str, Any], path: Path, args: Namespace, **facts: Any) -> None:
    """Write a checkpoint that knows its options, atomically, with the state of the random generators.

    :param facts: about the data, such as their number, which must be the same when the run goes on.
    """
    save_checkpoint({"state": state, "options": options_of(args), "facts": facts}, path)


def load_run(
    path: Path, args: Namespace, free: Collection[str] = (), *, map_location: Any = "cpu", **facts: Any
) -> dict[str, Any] | None:
    """The state of the run to continue, if there is one, and the random generators as they were.

    :param free: names of options that may be other ones now, beside those in :data:`FREE`.
    :param facts: as for :func:`save_run`.
    """
    if not path.exists() or not getattr(args, "resume", True):
        return None
    payload = load_checkpoint(path, map_location=map_location)
    if not isinstance(payload, dict) or not payload.keys() >= {"state", "options", "facts"}:
        raise ValueError(f"{path} is not a checkpoint of this program; choose another --output-dir.")
    require_same(path, payload["options"], args, free)
    for name, now in facts.items():
        if payload["facts"].get(name) != now:
            was = f"{name.replace('_', ' ')} was {payload['facts'].get(name)}, is {now}"
            raise ValueError(f"{path} belongs to other data: {was}. Give the same data, or another --output-dir.")
    return payload["state"]


def require_same(
    path: Path, then: dict[str, Any], args: Namespace, free: Collection[str] = (), place: str = "--output-dir"
) -> None:
    """Refuse to continue a run with other options than it was begun with; ``place`` is the option that names it."""
    now = options_of(args)
    changed = [name for name in then if name not in FREE | set(free) and now.get(name) != then[name]]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')} (was {then[name]}, is {now.get(name)})" for name in changed)
        raise ValueError(f"{path} belongs to other options: {names}. Use the same, or another {place}.")


def save_text(text: str, path: Path) -> None:
    """Write a text, atomically: a file is complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")  # one name: what a killed process left is overwritten
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def save_json(value: Any, path: Path) -> None:
    """Write a value as JSON, atomically; a number that is not finite, which JSON lacks, as null."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [finite(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    save_text(json.dumps(finite(value), indent=2, allow_nan=False) + "\n", path)
