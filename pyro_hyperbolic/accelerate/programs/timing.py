"""How the compiler times kernels between which it can choose."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

_CALLS = 20  # at most, in a row
_ROW = 1.0  # milliseconds that a row is to last
_AHEAD = 4_000_000  # cycles of the device, about two milliseconds, in which the host can queue a row
_ROWS = 3


@contextlib.contextmanager
def back_to_back() -> Iterator[None]:
    """Let kernels be timed as a captured step runs them: one after another, with what they read in the cache.

    The compiler empties the cache before every launch, and counts what the host needs for one. Of kernels that take a
    few microseconds this says little about which is the fastest.
    """
    from torch._inductor.runtime.benchmarking import benchmarker  # slow to import

    if not torch.cuda.is_available() or not hasattr(benchmarker, "benchmark_gpu"):
        yield
        return
    vars(benchmarker)["benchmark_gpu"] = _milliseconds  # hides the method of the class
    try:
        yield
    finally:
        del vars(benchmarker)["benchmark_gpu"]


def _milliseconds(call: Callable[[], Any], *_: Any, **__: Any) -> float:
    """Of one call in a row of them; the least of a few rows."""
    try:
        call()
    except RuntimeError as error:
        if "invalid configuration" in str(error).lower():
            return float("inf")  # such a kernel is left out
        raise
    count = max(1, min(_CALLS, int(_ROW / max(_row(call, 1)[0], 1e-3))))
    while count > 1 and not _row(call, count)[1]:
        count //= 2
    return min(_row(call, count)[0] for _ in range(_ROWS)) / count


def _row(call: Callable[[], Any], count: int) -> tuple[float, bool]:
    """Milliseconds of some calls, and whether the host was ahead of the device all along."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(_AHEAD)
    start.record()
    for _ in range(count):
        call()
    end.record()
    is_ahead = not start.query()
    end.synchronize()
    return float(start.elapsed_time(end)), is_ahead
