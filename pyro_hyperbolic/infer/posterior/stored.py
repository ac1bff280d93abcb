"""Posteriors in files."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from pyro_hyperbolic.accelerate.checkpoint import read_file, write_file
from pyro_hyperbolic.geometry import Manifold, from_signature
from pyro_hyperbolic.geometry.signature import LETTERS
from pyro_hyperbolic.infer.posterior.record import Record

_FORMAT = "posterior 1"


def write_record(record: Record, path: str | os.PathLike[str]) -> None:
    """Write a record, atomically."""
    state = {field.name: getattr(record, field.name) for field in fields(Record)}
    spaces = {name: _described(space, record.samples[name].shape[-1]) for name, space in record.manifolds.items()}
    plain = {
        "manifolds": spaces,
        "samples": dict(record.samples),
        "deterministic": sorted(record.deterministic),
        "failed": dict(record.failed),
        "gauges": [list(gauge) for gauge in record.gauges],
        "seconds": dict(record.seconds),
        "settings": dict(record.settings),
        "modes": None if record.modes is None else [dict(mode) for mode in record.modes],
    }
    write_file({"format": _FORMAT, "record": state | plain}, path)


def read_fields(path: str | os.PathLike[str], map_location: Any) -> dict[str, Any]:
    """What :func:`write_record` has written, as arguments of a :class:`Record`."""
    return read_file(path, map_location, "a posterior", _fields)


def _fields(payload: dict[str, Any]) -> dict[str, Any]:
    if payload["format"] != _FORMAT:
        raise ValueError(f"it has the format {payload['format']!r}")
    state = payload["record"]
    spaces = {
        name: from_signature(signature).with_curvatures(curvatures)
        for name, (signature, curvatures) in state["manifolds"].items()
    }
    return state | {"manifolds": spaces, "deterministic": set(state["deterministic"])}


def _described(space: Manifold, size: int) -> tuple[str, list[Any]]:
    """A space by its signature and its curvatures."""
    letters = {kind.space: letter for letter, kind in LETTERS.items()}
    leaves = space.leaves(space.intrinsic_dim(size))
    if unknown := [leaf for leaf, _ in leaves if type(leaf) not in letters]:
        raise ValueError(
            f"a posterior is saved with spaces of this package, got {unknown[0]!r}; save its samples with torch.save."
        )
    return ",".join(f"{letters[type(leaf)]}{dim}" for leaf, dim in leaves), list(space.curvatures)
