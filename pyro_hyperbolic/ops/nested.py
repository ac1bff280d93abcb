"""Tensors in tuples, lists and dictionaries, and in containers of these."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor

Structure = Any  # of containers, without what is in them; it can be compared and hashed


def flatten(value: Any) -> tuple[list[Any], Structure]:
    """What is in the containers, in their order, and their structure.

    Containers are tuples, named ones too, lists and dictionaries; all else is a leaf.

    >>> leaves, structure = flatten({"x": 1, "y": (2, [3])})
    >>> leaves
    [1, 2, 3]
    >>> unflatten([4, 5, 6], structure)
    {'x': 4, 'y': (5, [6])}
    """
    leaves: list[Any] = []
    return leaves, _structure(value, leaves)


def unflatten(leaves: Iterable[Any], structure: Structure) -> Any:
    """The way back from :func:`flatten`, with other leaves."""
    return _filled(structure, iter(leaves))


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """The same containers, with ``function`` of every tensor in its place.

    >>> import torch
    >>> map_tensors(lambda t: t.tolist(), {"x": torch.zeros(2), "n": 5})
    {'x': [0.0, 0.0], 'n': 5}
    """
    leaves, structure = flatten(value)
    return unflatten([function(x) if isinstance(x, Tensor) else x for x in leaves], structure)


def _structure(value: Any, leaves: list[Any]) -> Structure:
    kind = type(value)
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind, None, tuple([_structure(x, leaves) for x in value])
    if kind in (dict, OrderedDict, defaultdict):
        more = value.default_factory if isinstance(value, defaultdict) else None
        return kind, more, tuple([(key, _structure(x, leaves)) for key, x in value.items()])
    leaves.append(value)
    return None


def _filled(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, more, parts = structure
    if kind in (tuple, list):
        return kind([_filled(part, leaves) for part in parts])
    if kind in (dict, OrderedDict, defaultdict):
        filled = {key: _filled(part, leaves) for key, part in parts}
        return defaultdict(more, filled) if kind is defaultdict else kind(filled)
    return kind(*[_filled(part, leaves) for part in parts])
