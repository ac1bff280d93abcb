"""The measuring: times of two functions side by side, and peak memory."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.autograd.profiler import profile

_WARM_UP = 2
_MIN_PAIRS = 5


@dataclass(frozen=True)
class Settings:
    """How much to measure.

    :param seconds: time that one comparison may take, beyond its fewest repeats.
    :param tiny: sizes for a test of the benchmarks themselves; the ratios then mean nothing.
    """

    seconds: float = 5.0
    tiny: bool = False


@dataclass(frozen=True)
class Ratio:
    """One row of the table.

    :param name: what is compared with what.
    :param ratio: the result.
    :param bound: the largest value that is accepted.
    :param detail: the two quantities behind the ratio, with their units.
    """

    name: str
    ratio: float
    bound: float
    detail: str

    @property
    def ok(self) -> bool:
        # Written so that nan is not ok.
        return self.ratio <= self.bound


def compare(
    name: str, measured: Callable[[], object], reference: Callable[[], object], bound: float, settings: Settings
) -> Ratio:
    """Ratio of the times of two functions.

    The two run in turns, so that a machine that slows down or is busy with something else does so for both, and the
    result is the median of the ratios of neighbours. The order within a pair alternates: neither is
    always the one that finds the caches cold.
    """
    for _ in range(_WARM_UP):
        measured()
        reference()
    pairs: list[tuple[float, float]] = []
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()  # as timeit does: a collection would be charged to whoever happens to trigger it
    try:
        end = time.perf_counter() + settings.seconds
        while len(pairs) < _MIN_PAIRS or time.perf_counter() < end:
            if len(pairs) % 2 == 0:
                first = _seconds(measured)
                pairs.append((first, _seconds(reference)))
            else:
                first = _seconds(reference)
                pairs.append((_seconds(measured), first))
    finally:
        if collecting:
            gc.enable()
    ratio = statistics.median(a / b for a, b in pairs)
    a, b = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    return Ratio(name, ratio, bound, f"{a:.2f} ms / {b:.2f} ms, {len(pairs)} pairs")


def compare_memory(name: str, function: Callable[[], Any], bound: float) -> Ratio:
    """Ratio of the peak memory of a function to the size of the tensor it returns."""
    output = function()  # also the warm-up: what is made once and kept is not counted
    size = output.untyped_storage().nbytes()
    del output
    peak = peak_memory(function)
    return Ratio(name, peak / size, bound, f"{peak / 2**20:.1f} MiB / {size / 2**20:.1f} MiB")


def peak_memory(function: Callable[[], object]) -> int:
    """Most bytes that torch's CPU allocator held at a time during a call, beyond those before it.

    The sum of the profiler's allocation events, which is exact and the same on every run. The resident size of the
    process is neither: it counts what the C library keeps for reuse, and has no record of a peak below an earlier one.
    """
    # Read when the profiler is first used; without it the start and stop of each are written to stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(profile_memory=True) as prof:
        output = function()
    del output
    results = prof.kineto_results
    if results is None:
        raise RuntimeError("peak_memory: this build of torch has no profiler; use an official one.")
    events = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for _, nbytes in sorted(events, key=lambda event: event[0]):
        held += nbytes
        peak = max(peak, held)
    return peak


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
