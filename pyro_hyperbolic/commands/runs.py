"""What a run was given, and checkpoints that know it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyro
import torch

from pyro_hyperbolic._version import __version__
from pyro_hyperbolic.accelerate.checkpoint import load_checkpoint, save_checkpoint

FREE = {"output_dir", "resume", "data_dir", "device", "threads"}
"""Options that may change between the parts of one run, whatever the program."""


def record(args: argparse.Namespace) -> dict[str, Any]:
    """The options, the versions and the revision that a result depends on, as JSON holds them."""
    return {
        "options": _options(args),
        "versions": {"pyro_hyperbolic": __version__, "torch": str(torch.__version__), "pyro": str(pyro.__version__)},
        "revision": _revision(),
        "python": sys.version.split()[0],
    }


def save_run(state: dict[str, Any], path: Path, args: argparse.Namespace, **facts: Any) -> None:
    """Write a checkpoint that knows its options, atomically, with the state of the random generators.

    :param state: as :func:`~pyro_hyperbolic.accelerate.save_checkpoint` takes it.
    :param args: the options of the run.
    :param facts: about the data, such as their number, which must be the same when the run goes on.
    """
    save_checkpoint({"state": state, "options": _options(args), "facts": facts}, path)


def load_run(
    path: Path, args: argparse.Namespace, free: Collection[str] = (), *, map_location: Any = "cpu", **facts: Any
) -> dict[str, Any] | None:
    """The state of the run to continue, if there is one, and the random generators as they were.

    Without ``--resume`` there is none: what an earlier run has left behind will be overwritten.

    :param free: names of options that may be other ones now, beside those in :data:`FREE`.
    :param facts: as for :func:`save_run`.
    """
    if not path.exists() or not getattr(args, "resume", True):
        return None
    payload = load_checkpoint(path, map_location=map_location)
    try:
        state, then, known = payload["state"], payload["options"], payload["facts"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint of this program; choose another --output-dir.") from error
    require_same(path, then, args, free)
    for name, now in facts.items():
        if known.get(name) != now:
            raise ValueError(
                f"{path} belongs to other data: {name.replace('_', ' ')} was {known.get(name)}, is {now}. Give the same"
                " data, or another --output-dir."
            )
    return state


def require_same(
    path: Path,
    then: dict[str, Any],
    args: argparse.Namespace,
    free: Collection[str] = (),
    place: str = "--output-dir",
) -> None:
    """Refuse to continue a run with other options than it was begun with.

    :param place: the option that says where the run is.
    """
    now = _options(args)
    changed = [name for name in then if name not in FREE | set(free) and now.get(name) != then[name]]
    if changed:
        names = ", ".join(f"--{name.replace('_', '-')} (was {then[name]}, is {now.get(name)})" for name in changed)
        raise ValueError(f"{path} belongs to other options: {names}. Use the same, or another {place}.")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}


def _revision() -> str | None:
    """Of the repository that the program lies in, if it does in one."""
    program = Path(sys.argv[0]).resolve().parent
    git = ["git", "-C", str(program), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
