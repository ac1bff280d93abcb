"""Functions of many rows, which the cores of a CPU share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler.replay import Leaps, Parts, Recording
from pyro_hyperbolic.accelerate.programs.compiled import CompiledGraph, Uncompiled, compile_function
from pyro_hyperbolic.ops.nested import unflatten


class CompiledRows:
    """A function of rows and of tensors that all of them share, compiled.

    On a CPU it is compiled for some of the rows, and the loops of each core compute its own, without Python. They do so
    in memory of their own, so that one thread at a time may call it, and no gradients flow through it.

    :param function: of tensors with ``P`` rows and of the shared ones, to results that have ``P`` rows too.
    :param rows: such tensors, which always have as many.
    :param shared: the other arguments, which may change in place.

    :ivar numbers: how many it computes in all its operations together.
    """

    def __init__(self, function: Callable[..., Any], rows: Sequence[Tensor], *shared: Any) -> None:
        self._shared, self._count = shared, len(rows[0])
        self._recordings: list[Recording] = []
        self._split: list[tuple[Tensor, ...]] = []
        self._leaps: Leaps | None = None
        is_cpu = rows[0].device.type == "cpu"
        size = math.ceil(self._count / torch.get_num_threads()) if is_cpu else self._count
        compiled: Any = None
        if is_cpu:
            # The last row again and again, where the cores together have more.
            at = torch.arange(math.ceil(self._count / size) * size, device="cpu").clamp(max=self._count - 1)
            self._rows = [row.detach()[at] for row in rows]
            self._split = [*zip(*(row.split(size) for row in self._rows), strict=True)]
            compiled = compile_function(function, *self._split[0], *shared, one_core=True)
            self._recordings = self._recorded(compiled)
        if self._recordings:
            self._parts, self._compiled = Parts(self._recordings), compiled
        else:
            if not isinstance(compiled, Uncompiled) and (compiled is None or size < self._count):
                compiled = compile_function(function, *rows, *shared)
            self._call = compiled.fixed(*rows, *shared)
        self.numbers = compiled.numbers * max(1, len(self._recordings))

    def _recorded(self, compiled: CompiledGraph | Uncompiled) -> list[Recording]:
        """For every core; none if there can be none."""
        recordings: list[Recording] = []
        if isinstance(compiled, Uncompiled):
            return recordings
        for own in self._split:
            recording = compiled.record((*own, *self._shared), [*own])
            if recording is None:
                return []
            recordings.append(recording)
        return recordings

    @torch.no_grad()
    def __call__(self, *rows: Tensor) -> Any:
        """The results for other rows."""
        if not self._recordings:
            return self._call(*rows, *self._shared)
        for own, given in zip(self._rows, rows, strict=True):
            self._take(own, given)
        return self._results(self._parts())

    def _take(self, own: Tensor, given: Tensor) -> None:
        """Put rows where they are read; what there is room for beside them is the last one again."""
        if len(given) != self._count:
            raise ValueError(f"rows must be {self._count}, as those that were compiled, got {len(given)}.")
        own[: self._count].copy_(given)
        if len(own) > self._count:
            own[self._count :] = given[-1]

    @property
    def can_leap(self) -> bool:
        """Whether :meth:`leap` takes its steps without Python."""
        pairs = zip(self._recordings, self._split, strict=False)  # there may be no recordings
        return bool(self._recordings) and all(recording.gives_gradients(own[0]) for recording, own in pairs)

    @torch.no_grad()
    def leap(self, x: Tensor, p: Tensor, length: Tensor, root: Tensor, steps: int) -> tuple[Tensor, Tensor, Any]:
        """Steps of Hamiltonian dynamics by gradients that are the first result: places, momenta and the last results.

        Places and momenta are moved in turns, ``x + length * root p`` and ``p - length * root^T gradient``.

        :param length: of the steps of each row ``(P, 1)``, or one for all.
        :param root: of the inverse mass matrix, ``(D, D)``, or ``(D,)`` with its diagonal.
        """
        (own,) = self._rows
        if self._leaps is None:
            self._p, self._length = torch.zeros_like(own), own.new_zeros(len(own), 1)
            self._leaps = Leaps(self._recordings, own, self._p, self._length)
        for mine, given in ((own, x), (self._p, p), (self._length, length.expand(self._count, 1))):
            self._take(mine, given)
        results = self._results(self._leaps(root, steps))
        return own[: self._count].clone(), self._p[: self._count].clone(), results

    def _results(self, is_good: bool) -> Any:
        if not is_good:
            for own in self._split:
                self._compiled(*own, *self._shared)  # says what is wrong
            raise RuntimeError("a compiled loop failed, and does not when it is called from Python.")
        outputs = [recording.outputs for recording in self._recordings]
        joined = [torch.cat(parts)[: self._count] for parts in zip(*outputs, strict=True)]
        return unflatten(joined, self._compiled.out_spec)


class CompiledLater:
    """A function of rows that is compiled on a CPU once it was called often, when that pays.

    Tensors that it uses beside its arguments may change in place.

    :param calls: after how many.
    """

    def __init__(self, function: Callable[..., Any], calls: float) -> None:
        self._function, self._left = function, calls

    def __call__(self, *rows: Tensor) -> Any:
        rows = tuple(row.contiguous() for row in rows)
        self._left -= 1
        if self._left == 0 and rows[0].device.type == "cpu":
            self._function = CompiledRows(self._function, rows)
        return self._function(*rows)
