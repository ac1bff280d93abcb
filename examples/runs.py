"""What a run keeps: its options and versions, checkpoints that know them, and JSON that is whole or not there."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyro
import torch

from pyro_hyperbolic import __version__
from pyro_hyperbolic.infer import load_checkpoint, save_checkpoint

FREE = {"output_dir", "resume", "data_dir", "device", "threads"}  # options that may change when a run goes on


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


def label_places(nodes: torch.Tensor, side: float) -> list[tuple[float, float]]:
    """Places of names to the right of nodes ``(N, 2)``, moved up where they would lie on others."""
    places: dict[int, tuple[float, float]] = {}
    for node in nodes[:, 1].argsort().tolist():
        x, y = nodes[node, 0].item() + 0.03 * side, nodes[node, 1].item()
        for other_x, other_y in sorted(places.values(), key=lambda place: place[1]):
            if abs(x - other_x) < 0.2 * side and abs(y - other_y) < 0.04 * side:
                y = other_y + 0.04 * side
        places[node] = x, y
    return [places[node] for node in range(len(nodes))]
