"""Compiled code for a CPU as loops that follow one another, without Python between them.

What the compiler writes for a CPU is a function of Python that takes memory for every result, calls the loops and lets
the memory go. Where the loops take a tenth of a millisecond, this takes as long again, on one core. Here the loops are
noted once, with the places that they read and write, which stay, and with what else is called between them. From then
on one call of a few lines of C++ runs all loops that follow one another, without Python, and for other rows on other
cores at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler.loops import PLACES, in_turn
from pyro_hyperbolic.ops.nested import flatten
from pyro_hyperbolic.private import is_on

_PREFIX = "cpp_"  # of the names that loops have in compiled code
_SOURCE = r"""
#include <atomic>
#include <cstdint>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("tree-loop-vectorize")  // which torch switches off for its own loops
#endif

struct Loop { void (*run)(void**); void** at; };

// Rows that move together: the loops that find their gradients, and what is moved.
struct Part { int64_t count; const Loop* loops; int64_t rows; void *x, *p; const void *gradient, *length; };

static bool evaluate(const Part& part) {
    try {
        for (int64_t k = 0; k < part.count; ++k) part.loops[k].run(part.loops[k].at);
    } catch (...) {
        return false;  // the function of Python says what is wrong
    }
    return true;
}

// y += length * matrix^T v for every row y with its own v; a vector in the place of the matrix is a diagonal.
template <typename T>
static void add(const Part& part, int64_t size, void* moved, const void* by, const T* matrix, bool is_dense, T sign) {
    const T* length = static_cast<const T*>(part.length);
    for (int64_t j = 0; j < (is_dense ? size : 1); j += 4)
        for (int64_t n = 0; n < part.rows; ++n) {
            T* __restrict y = static_cast<T*>(moved) + n * size;
            const T *v = static_cast<const T*>(by) + n * size, *a = matrix + j * size;
            const T step = sign * length[n];
            if (!is_dense) {
                for (int64_t i = 0; i < size; ++i) y[i] += step * v[i] * a[i];
            } else if (j + 4 <= size) {  // four at a time, so that y is read and written less often
                const T *b = a + size, *c = b + size, *d = c + size;
                const T v0 = step * v[j], v1 = step * v[j + 1], v2 = step * v[j + 2], v3 = step * v[j + 3];
                for (int64_t i = 0; i < size; ++i) y[i] += v0 * a[i] + v1 * b[i] + v2 * c[i] + v3 * d[i];
            } else {
                for (int64_t k = j; k < size; ++k)
                    for (int64_t i = 0; i < size; ++i) y[i] += step * v[k] * matrix[k * size + i];
            }
        }
}

template <typename T>
static int64_t leap(
    const Part* parts, int64_t count, int64_t size, int64_t steps, const T* root, const T* transposed, bool is_dense) {
    std::atomic<int64_t> good{1};
    #pragma omp parallel for num_threads(count) schedule(static, 1)
    for (int64_t k = 0; k < count; ++k)
        for (int64_t step = 0; step < steps; ++step) {
            add(parts[k], size, parts[k].x, parts[k].p, transposed, is_dense, T(1));
            if (!evaluate(parts[k])) { good = 0; break; }
            add(parts[k], size, parts[k].p, parts[k].gradient, root, is_dense, T(-1));
        }
    return good;
}

extern "C" int64_t evaluate_all(const Part* parts, int64_t count) {
    std::atomic<int64_t> good{1};
    #pragma omp parallel for num_threads(count) schedule(static, 1)
    for (int64_t k = 0; k < count; ++k)
        if (!evaluate(parts[k])) good = 0;
    return good;
}

extern "C" int64_t leap_float64(
    const Part* parts, int64_t count, int64_t size, int64_t steps, const double* root, const double* transposed,
    int64_t is_dense) {
    return leap(parts, count, size, steps, root, transposed, is_dense != 0);
}

extern "C" int64_t leap_float32(
    const Part* parts, int64_t count, int64_t size, int64_t steps, const float* root, const float* transposed,
    int64_t is_dense) {
    return leap(parts, count, size, steps, root, transposed, is_dense != 0);
}
"""


class _Loop(ctypes.Structure):
    _fields_ = [("run", ctypes.c_void_p), ("at", ctypes.c_void_p)]


class _Part(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("loops", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("p", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("length", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class _Call:
    """A loop at an address, or an operation of torch, with what it was given and what it has made.

    What a loop makes is among its arguments.
    """

    called: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    made: Any = None

    @property
    def is_loop(self) -> bool:
        return isinstance(self.called, int)

    def again(self) -> None:
        """Call an operation again, and put what it makes where it was."""
        made = flatten(self.called(*self.args, **self.kwargs))[0]
        for known, new in zip(flatten(self.made)[0], made, strict=True):
            if isinstance(known, Tensor) and known.data_ptr() != new.data_ptr():
                known.copy_(new)


class _Loops:
    """Loops that follow one another."""

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._places = [(ctypes.c_void_p * len(call.args))(*(x.data_ptr() for x in call.args)) for call in calls]
        rows = [_Loop(call.called, ctypes.addressof(at)) for call, at in zip(calls, self._places, strict=True)]
        self._loops = (_Loop * len(rows))(*rows)

    def part(self) -> _Part:
        return _Part(len(self._loops), ctypes.addressof(self._loops))


class Recording:
    """What one graph calls, in its order, with the tensors that it reads and writes.

    :ivar outputs: what the graph gives, where it is written.
    :ivar parts: loops that follow one another, and operations between them.
    """

    def __init__(self, calls: list[_Call], outputs: list[Any]) -> None:
        self.outputs, self._calls = outputs, calls
        self.parts: list[_Loops | _Call] = []
        for is_loop, some in itertools.groupby(calls, lambda call: call.is_loop):
            group = [*some]
            self.parts += [_Loops(group)] if is_loop else group

    def moving(self, x: Tensor, p: Tensor, length: Tensor) -> _Part:
        """Its loops, and what is moved by the gradient that is their first result."""
        (loops,) = self.parts
        assert isinstance(loops, _Loops)
        part = loops.part()
        part.rows, part.x, part.p = len(x), x.data_ptr(), p.data_ptr()
        part.gradient, part.length = self.outputs[0].data_ptr(), length.data_ptr()
        return part

    def gives_gradients(self, x: Tensor) -> bool:
        """Whether it consists of loops, whose first result may be a gradient for rows like these."""
        first, part = self.outputs[0], self.parts[0]
        is_alike = (first.shape, first.dtype) == (x.shape, x.dtype) and first.is_contiguous()
        return len(self.parts) == 1 and isinstance(part, _Loops) and is_alike


class Parts:
    """Recordings of the same code for different rows, whose loops run each on a core of its own."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self._all: list[Any] = []
        for parts in zip(*(recording.parts for recording in recordings), strict=True):
            loops = [part.part() for part in parts if isinstance(part, _Loops)]
            self._all.append((_Part * len(loops))(*loops) if loops else parts)

    def __call__(self) -> bool:
        """Compute their outputs, and tell whether nothing went wrong."""
        for parts in self._all:
            if isinstance(parts, tuple):
                for call in parts:
                    call.again()
            elif not _on_cores(library().evaluate_all, parts):
                return False
        return True


class Leaps:
    """Steps of Hamiltonian dynamics in memory of their own.

    :param recordings: those that give gradients, each of the next few rows of ``x``.
    :param x: places ``(P, D)``, which the recordings read. They change in place, as do momenta ``p``.
    :param length: of a step of each row ``(P, 1)``.
    """

    def __init__(self, recordings: Sequence[Recording], x: Tensor, p: Tensor, length: Tensor) -> None:
        count = len(recordings)
        rows = zip(recordings, x.chunk(count), p.chunk(count), length.chunk(count), strict=True)
        self._parts = (_Part * count)(*(recording.moving(*own) for recording, *own in rows))
        self._size, self._kept = x.shape[-1], (recordings, x, p, length)
        self._function = f"leap_{str(x.dtype).removeprefix('torch.')}"

    def __call__(self, root: Tensor, steps: int) -> bool:
        """Take steps with this root of the inverse mass matrix, and tell whether nothing went wrong."""
        is_dense = root.dim() == 2
        both = root.contiguous(), root.mT.contiguous() if is_dense else root.contiguous()
        at = (matrix.data_ptr() for matrix in both)
        return _on_cores(getattr(library(), self._function), self._parts, self._size, steps, *at, is_dense)


_is_forked = False


def _note_fork() -> None:
    """In a process that was forked OpenMP waits for threads that it does not have."""
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):  # which Windows does not have
    os.register_at_fork(after_in_child=_note_fork)


def _on_cores(function: Any, parts: Any, *args: Any) -> bool:
    """Call a function of the library for all parts at once, or for one after another."""
    if not _is_forked:
        return bool(function(parts, len(parts), *args))
    places = (ctypes.byref(parts, k * ctypes.sizeof(_Part)) for k in range(len(parts)))
    return all(function(place, 1, *args) for place in places)


@functools.cache
def begin() -> None:
    """Let the C++ compiler have the lines above while others work."""
    in_turn(library)


@functools.cache
def library() -> Any:
    """The lines of C++ above, compiled."""
    from torch._inductor.codecache import CppCodeCache

    library = CppCodeCache.load(_SOURCE)
    library.evaluate_all.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    for leap in (library.leap_float64, library.leap_float32):
        leap.argtypes = [ctypes.c_void_p, *[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 2, ctypes.c_int64]
    for function in (library.evaluate_all, library.leap_float64, library.leap_float32):
        function.restype = ctypes.c_int64
    return library


def record(run: Callable[..., Any], leaves: Sequence[Any], own: Sequence[Tensor]) -> Recording | None:
    """What compiled code calls that reads these tensors; ``None`` where that cannot be called again.

    It is compared with the code itself for other numbers, to the last digit.

    :param own: the tensors among them that may be changed meanwhile.
    """
    code = getattr(run, "compiled_code", None)
    if not is_on() or code is None or not all(isinstance(x, Tensor) and not x.is_cuda for x in leaves):
        return None
    try:
        calls, outputs = _recorded(code.current_callable, leaves)
        if not calls or not all(isinstance(x, Tensor) for x in outputs):
            return None
        recording = Recording(calls, outputs)
        return recording if _is_the_same(recording, run, leaves, own) else None
    except (AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ctypes.ArgumentError):
        return None  # another version of the compiler, or numbers of the trial for which an operation is an error


def _recorded(call: Any, leaves: Sequence[Tensor]) -> tuple[list[_Call], list[Any]]:
    """What compiled code calls, and its results; no calls if there is a loop without an address."""
    names = call.__globals__
    loops = {name: loop for name, loop in names.items() if name.startswith(_PREFIX)}
    calls: list[_Call] = []
    if not all(_has_place(loop) for loop in loops.values()):
        return calls, []  # they would be called now and never again

    def noting(loop: Any) -> Callable[..., None]:
        place = getattr(loop.__self__, PLACES)()[int(loop.__name__.rpartition("_")[2])]

        def note(*args: Any) -> None:
            calls.append(_Call(place, args))
            loop(*args)

        return note

    names.update({name: noting(loop) for name, loop in loops.items()})
    try:
        with _noting()(calls), torch.no_grad():
            outputs = list(call([*leaves]))
    finally:
        names.update(loops)
    return calls if all(call.called for call in calls) else [], outputs


@functools.cache
def _noting() -> Any:
    """A mode that notes the operations of torch that are called."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):
        def __init__(self, calls: list[_Call]) -> None:
            super().__init__()
            self._calls = calls

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            self._calls.append(_Call(func, tuple(args), kwargs or {}, made))
            return made

    return Noting


def _has_place(loop: Any) -> bool:
    return isinstance(loop, BuiltinFunctionType) and hasattr(loop.__self__, PLACES)


def _is_the_same(
    recording: Recording, run: Callable[..., Any], leaves: Sequence[Tensor], own: Sequence[Tensor]
) -> bool:
    kept = [x.clone() for x in own]
    try:
        for x in own:
            if x.is_floating_point():
                x.mul_(1.0 + 2.0**-10)
        if not Parts([recording])():
            return False
        pairs = zip(recording.outputs, run(*leaves), strict=True)
        return all(torch.allclose(a, b, 0.0, 0.0, equal_nan=True) for a, b in pairs)
    finally:
        for x, value in zip(own, kept, strict=True):
            x.copy_(value)
