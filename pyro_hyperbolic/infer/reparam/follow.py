"""Which latents a tensor was computed from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_hyperbolic.ops.nested import flatten


class Follow(TorchFunctionMode):
    """Follows values through every operation of torch while it is open.

    Indices, comparisons, ``detach`` and operations without gradients are followed too; a number that Python has taken
    out of a tensor (``item``) is not.

    >>> with Follow() as follow:
    ...     x = follow.mark(torch.tensor(1), "x")
    ...     y = torch.tensor([1.0, 2.0])[x]
    >>> follow.sources(y)
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

    def sources(self, tensor: Tensor) -> frozenset[str]:
        """The names that ``tensor`` was computed from."""
        return self._known[id(tensor)][1] if id(tensor) in self._known else frozenset()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sources: frozenset[str] = frozenset().union(*[self.sources(t) for t in _tensors((args, kwargs))])
        if sources:
            for tensor in _tensors(args[0] if func is torch.Tensor.__setitem__ else out):
                self._add(tensor, sources)
        return out

    def _add(self, tensor: Tensor, sources: frozenset[str]) -> None:
        self._known[id(tensor)] = tensor, self.sources(tensor) | sources


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(tree)[0] if isinstance(leaf, Tensor)]
