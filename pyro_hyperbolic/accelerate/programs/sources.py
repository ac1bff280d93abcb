"""Which latents a tensor was computed from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NONE: frozenset[str] = frozenset()


class Sources(TorchFunctionMode):
    """Follows values through every operation of torch while it is open.

    Indices, comparisons, ``detach`` and operations without gradients are followed too; a number that Python has taken
    out of a tensor (``item``) is not.

    >>> with Sources() as sources:
    ...     x = sources.mark(torch.tensor(1), "x")
    ...     y = torch.tensor([1.0, 2.0])[x]
    >>> sources.of(y)
    frozenset({'x'})
    """

    def __init__(self) -> None:
        super().__init__()
        # The tensors are kept, so that no other gets the identity of one that is gone.
        self._known: dict[int, tuple[Tensor, frozenset[str]]] = {}

    def mark(self, value: Any, name: str) -> Any:
        """``value``, which comes from ``name``."""
        for tensor in _tensors(value):
            self._add(tensor, frozenset([name]))
        return value

    def of(self, tensor: Tensor) -> frozenset[str]:
        """The names that ``tensor`` was computed from."""
        known = self._known.get(id(tensor))
        return _NONE if known is None else known[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.broadcast_tensors:  # each result is one of the arguments, and has nothing of the others
            for given, tensor in zip(_tensors(args), out, strict=True):
                if sources := self.of(given):
                    self._add(tensor, sources)
        elif self._known and (sources := self._all_of(args) | (self._all_of(kwargs) if kwargs else _NONE)):
            for tensor in _tensors(args[0] if func is torch.Tensor.__setitem__ else out):
                self._add(tensor, sources)
        return out

    def _all_of(self, tree: Any) -> frozenset[str]:
        """The names that the tensors in tuples, lists and dictionaries were computed from."""
        if isinstance(tree, dict):
            tree = tree.values()
        elif not isinstance(tree, (tuple, list)):
            return self.of(tree)
        sources = _NONE
        for part in tree:
            if id(part) in self._known or isinstance(part, (tuple, list, dict)):
                sources |= self._all_of(part)
        return sources

    def _add(self, tensor: Tensor, sources: frozenset[str]) -> None:
        self._known[id(tensor)] = tensor, self.of(tensor) | sources


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists and dictionaries."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


class Latents(Messenger):
    """Tells :class:`Sources` where the values of latents come from."""

    def __init__(self, sources: Sources) -> None:
        super().__init__()
        self.sources = sources
        self._observed: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        # Asked before a handler outside of the model, such as that of HMC, gives the value.
        if msg["is_observed"]:
            self._observed.add(msg["name"])

    def _pyro_post_sample(self, msg: Any) -> None:
        # A parameter becomes a latent on the way, if ``poutine.lift`` makes it one.
        if msg["name"] not in self._observed and not site_is_subsample(msg):
            self.sources.mark(msg["value"], msg["name"])
