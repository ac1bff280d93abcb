"""Compiled code for a CPU as loops that follow one another, without Python between them.

What the compiler writes for a CPU is a function of Python that takes memory for every result, calls the loops and lets
the memory go. Where the loops take a tenth of a millisecond, this takes as long again, on one core. Here the loops are
noted once with the places that they read and write, which stay. From then on one call of a few lines of C++ runs all of
them, without Python, and for other rows on other cores at the same time.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler.loops import PLACES, in_turn
from pyro_hyperbolic.private import is_on

_SOURCE = r"""
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
    int64_t good = 1;
    #pragma omp parallel for num_threads(count) schedule(static, 1) reduction(min : good)
    for (int64_t k = 0; k < count; ++k)
        for (int64_t step = 0; step < steps; ++step) {
            add(parts[k], size, parts[k].x, parts[k].p, transposed, is_dense, T(1));
            if (!evaluate(parts[k])) { good = 0; break; }
            add(parts[k], size, parts[k].p, parts[k].gradient, root, is_dense, T(-1));
        }
    return good;
}

extern "C" int64_t evaluate_all(const Part* parts, int64_t count) {
    int64_t good = 1;
    #pragma omp parallel for num_threads(count) schedule(static, 1) reduction(min : good)
    for (int64_t k = 0; k < count; ++k) good = evaluate(parts[k]) ? good : 0;
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


class Recording:
    """The loops of one graph in their order.

    :ivar outputs: what the graph gives, where the loops write it.
    """

    def __init__(self, calls: list[tuple[int, tuple[Tensor, ...]]], outputs: list[Any]) -> None:
        self.outputs = outputs
        self._calls = calls  # with the tensors that are read and written
        places = [(ctypes.c_void_p * len(args))(*(arg.data_ptr() for arg in args)) for _, args in calls]
        rows = [_Loop(run, ctypes.addressof(at)) for (run, _), at in zip(calls, places, strict=True)]
        self._loops, self._places = (_Loop * len(rows))(*rows), places

    def part(self, x: Tensor | None = None, p: Tensor | None = None, length: Tensor | None = None) -> _Part:
        """These loops, and what is moved by the gradient that is their first result."""
        part = _Part(len(self._loops), ctypes.addressof(self._loops))
        if x is not None and p is not None and length is not None:
            part.rows, part.x, part.p = len(x), x.data_ptr(), p.data_ptr()
            part.gradient, part.length = self.outputs[0].data_ptr(), length.data_ptr()
        return part


class Parts:
    """Recordings of the same code for different rows, each on a core of its own."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = recordings
        self._parts = (_Part * len(recordings))(*(recording.part() for recording in recordings))

    def __call__(self) -> bool:
        """Compute their outputs, and tell whether nothing went wrong."""
        return bool(library().evaluate_all(self._parts, len(self._parts)))


class Leaps:
    """Steps of Hamiltonian dynamics in memory of their own.

    :param recordings: of functions that give gradients first, each of the next few rows of ``x``.
    :param x: places ``(P, D)``, which the recordings read. They change in place, as do momenta ``p``.
    :param length: of a step of each row ``(P, 1)``.
    """

    def __init__(self, recordings: Sequence[Recording], x: Tensor, p: Tensor, length: Tensor) -> None:
        count = len(recordings)
        rows = zip(recordings, x.chunk(count), p.chunk(count), length.chunk(count), strict=True)
        self._parts = (_Part * count)(*(recording.part(*own) for recording, *own in rows))
        self._size, self._kept = x.shape[-1], (recordings, x, p, length)
        self._function = f"leap_{str(x.dtype).removeprefix('torch.')}"

    def __call__(self, root: Tensor, steps: int) -> bool:
        """Take steps with this root of the inverse mass matrix, and tell whether nothing went wrong."""
        is_dense = root.dim() == 2
        both = root.contiguous(), root.mT.contiguous() if is_dense else root.contiguous()
        at = (matrix.data_ptr() for matrix in both)
        leap = getattr(library(), self._function)
        return bool(leap(self._parts, len(self._parts), self._size, steps, *at, is_dense))


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


@functools.cache
def _operations() -> Any:
    """A mode that notes whether something else than a loop was called."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):
        is_met = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.is_met = True
            return func(*args, **(kwargs or {}))

    return Operations


def record(run: Callable[..., Any], leaves: Sequence[Any], own: Sequence[Tensor]) -> Recording | None:
    """The loops of compiled code that read these tensors, or ``None`` where there is more than loops.

    It is compared with the code itself for other numbers, to the last digit.

    :param own: the tensors among them that may be changed meanwhile.
    """
    code = getattr(run, "compiled_code", None)
    if not is_on() or code is None or not all(isinstance(x, Tensor) and not x.is_cuda for x in leaves):
        return None
    try:
        calls, outputs, only_loops = _recorded(code.current_callable, leaves)
        if not only_loops or not all(isinstance(x, Tensor) for x in outputs):
            return None
        recording = Recording(calls, outputs)
        return recording if _is_the_same(recording, run, leaves, own) else None
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ctypes.ArgumentError):
        return None  # another version of the compiler


def _recorded(call: Any, leaves: Sequence[Tensor]) -> tuple[list[tuple[int, tuple[Tensor, ...]]], list[Any], bool]:
    """What compiled code calls: addresses of loops with their arguments; its results; whether this is all it does."""
    names = call.__globals__
    loops = {name: loop for name, loop in names.items() if isinstance(loop, BuiltinFunctionType) and _has_place(loop)}
    calls: list[tuple[int, tuple[Tensor, ...]]] = []

    def noting(loop: Any) -> Callable[..., None]:
        place = getattr(loop.__self__, PLACES)()[int(loop.__name__.rpartition("_")[2])]

        def note(*args: Tensor) -> None:
            calls.append((place, args))
            loop(*args)

        return note

    names.update({name: noting(loop) for name, loop in loops.items()})
    try:
        with _operations()() as operations, torch.no_grad():
            outputs = list(call([*leaves]))
    finally:
        names.update(loops)
    is_all = not operations.is_met and all(place and all(map(torch.is_tensor, args)) for place, args in calls)
    return calls, outputs, bool(calls) and is_all


def _has_place(loop: Any) -> bool:
    return hasattr(loop.__self__, PLACES)


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
