"""Checkpoints of long jobs: files that are complete or not there."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

# What reading a truncated file, or one that is something else, raises.
_DAMAGE = (
    *(OSError, RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError),
    *(pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
)
_Parsed = TypeVar("_Parsed")


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write ``state`` together with the state of torch's random generators, atomically.

    :param state: tensors, numbers, strings and containers of them: what ``torch.load(weights_only=True)`` reads.
    :param path: where to; a checkpoint that is there already is replaced once the new one is on the disk.
    """
    rng = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []}
    write_file({"state": state, "rng": rng}, path)


def load_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint and set torch's random generators to where they were.

    :returns: the ``state`` that was saved.
    """
    state, cpu, cuda = read_file(path, map_location, "a checkpoint", _parts)
    torch.set_rng_state(cpu)
    if cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(cuda)
    return state


def write_file(payload: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write what ``torch.load(weights_only=True)`` reads, atomically."""

    def write(partial: Path) -> None:
        torch.save(payload, partial)
        # What read_file could not read is to be reported now, not when the run is lost.
        others = torch.serialization.get_unsafe_globals_in_checkpoint(str(partial))
        if others:
            raise ValueError(
                f"state must hold tensors, numbers, strings and containers of them only, got {', '.join(others)}; save"
                " the state_dict() of a module, and .item() or .tolist() of what belongs to numpy."
            )

    _write(Path(path), write)


def read_file(path: str | os.PathLike[str], map_location: Any, what: str, parse: Callable[[Any], _Parsed]) -> _Parsed:
    """Read what :func:`write_file` has written.

    :param what: what the file should be, for the error if it is not.
    :param parse: what to make of the payload; it may raise any error of a payload that is something else.
    """
    try:
        _require_whole(path)
        return parse(torch.load(path, map_location=map_location, weights_only=True))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except _DAMAGE as error:
        reason = str(error).partition(". ")[0] or "the file ends too early"  # an EOFError says nothing
        if str(map_location) != "cpu" and _is_readable(path, parse):
            raise ValueError(
                f"{path} cannot be loaded to {map_location} ({reason}); use map_location='cpu'."
            ) from error
        raise ValueError(
            f"{path} is not {what} of this package, or is damaged ({reason}); check the path, or delete it."
        ) from error


def _parts(payload: Any) -> tuple[dict[str, Any], Tensor, list[Tensor]]:
    rng = payload["rng"]
    return payload["state"], rng["cpu"].cpu(), [t.cpu() for t in rng["cuda"]]


def _require_whole(path: str | os.PathLike[str]) -> None:
    """Compare what the file holds with its checksums, which torch does not do."""
    with zipfile.ZipFile(path) as file:
        wrong = file.testzip()
    if wrong is not None:
        raise ValueError(f"the checksum of {wrong} is wrong")


def _is_readable(path: str | os.PathLike[str], parse: Callable[[Any], Any]) -> bool:
    """Whether a file is one and whole, whatever devices there are."""
    try:
        parse(torch.load(path, map_location="cpu", weights_only=True))
    except _DAMAGE:
        return False
    return True


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the renaming is one step of the file system; under one name, so that what a killed
    # process left is overwritten.
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        with partial.open("r+b") as file:  # for writing too: Windows flushes no other
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
