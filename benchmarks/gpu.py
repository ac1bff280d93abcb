"""Training and evaluation on one CUDA device.

    python -m benchmarks.gpu --json results.json
    python -m benchmarks.gpu --json results.json --resume

Model: encoder 784-600-(d, 1), gyroplane decoder d-600-784, Bernoulli likelihood, batch 128, Adam, one particle,
TF32 matrix products. Every row is measured in this one process: repeats after a warm-up, the device synchronised around
each repeat; the median, the least and the greatest are kept. Results are written after every row, and ``--resume`` goes
on after the last one. ``python -m benchmarks.growth`` draws them.

Compiling takes most of the time. With ``--jobs`` so many processes compile beforehand, at the same time, and leave
their work in torch's cache on the disk, from which the measuring process takes it.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.gpu_rows import BOUNDS, GROUPS, RATIOS, UNITS, Row, prepare, read, rows
from benchmarks.results import GO_ON, add_results, earlier, one_of
from examples.command import command, device, make_parser, positive
from examples.runs import save_json

REPEATS = 5
REPEAT_SECONDS = 0.1  # a repeat is as many steps as last about this long
COMPILE_SECONDS = 180.0  # longer than this the measuring does not wait for the processes that compile
# A result goes on only on what it was begun on.
SETTING = ("device", "torch", "tiny")


def run(args: argparse.Namespace) -> int:
    end = time.perf_counter() + args.time_limit
    torch.set_float32_matmul_precision("high")
    result = _start(args)
    todo = [row for row in rows(args.groups) if row.name not in _measured(result)]
    print(f"{result['device']}, torch {result['torch']}: {len(todo)} rows", flush=True)
    if args.jobs > 1:
        _compile_beforehand([row for row in todo if row.kind == "compiled"], args, end)
    for number, row in enumerate(todo):
        if time.perf_counter() > end:
            print(f"time is up with {len(todo) - number} rows left; go on with --resume", flush=True)
            break
        entry = _measure(row, args.device, args.tiny, args.repeats)
        print(_line(entry), flush=True)
        result["rows"] = [known for known in result["rows"] if known["name"] != row.name] + [entry]
        result["ratios"] = _ratios(result)
        if args.json is not None:
            save_json(result, args.json)
    for ratio in _ratios(result):
        print(_line(ratio), flush=True)
    return int(any(entry["over"] for entry in result["rows"] + _ratios(result)))


def _start(args: argparse.Namespace) -> dict[str, Any]:
    """An empty result, or the one that the file holds."""
    on_gpu = args.device.startswith("cuda")
    fresh: dict[str, Any] = {
        "device": torch.cuda.get_device_name(args.device) if on_gpu else platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "tiny": args.tiny,
        "rows": [],
        "ratios": [],
    }
    begun = earlier(args, read)
    if begun is None:
        return fresh
    for key in SETTING:
        then, now = begun[key], fresh[key]
        if then != now:
            raise ValueError(f"--resume: {args.json} has the {key} {then}, here it is {now}; name another file")
    return begun


def _measured(result: dict[str, Any]) -> dict[str, float]:
    return {entry["name"]: entry["median"] for entry in result["rows"] if entry["median"] is not None}


def _measure(row: Row, device: str, tiny: bool, repeats: int) -> dict[str, Any]:
    """Time a row; one that fails must not lose the others."""
    unit, factor = UNITS[row.subject]
    bound = BOUNDS.get(row)
    entry: dict[str, Any] = {"name": row.name, **asdict(row), "unit": unit, "bound": bound}
    entry |= {"median": None, "min": None, "max": None, "repeats": repeats, "steps": None, "error": None}
    start = time.perf_counter()
    try:
        work = prepare(row, device, tiny)
        work.warm_up()
        once = _seconds(work.run, 1, device)
        steps = max(1, min(work.longest, round(REPEAT_SECONDS / once)))
        times = [factor * _seconds(work.run, steps, device) / work.share for _ in range(repeats)]
        entry |= {"median": statistics.median(times), "min": min(times), "max": max(times), "steps": steps}
        del work
    except Exception as error:
        entry["error"] = f"{type(error).__name__}: {error}"[:500]
    entry["over"] = bound is not None and not (entry["median"] is not None and entry["median"] <= bound)
    entry["wall_seconds"] = time.perf_counter() - start
    if device.startswith("cuda"):
        # Trainers and their programs refer to each other; what a captured graph holds is freed with them.
        gc.collect()
        torch.cuda.empty_cache()
    return entry


def _seconds(function: Callable[[], Any], steps: int, device: str) -> float:
    """Time of one of so many runs in a row."""
    _synchronise(device)
    start = time.perf_counter()
    for _ in range(steps):
        function()
    _synchronise(device)
    return (time.perf_counter() - start) / steps


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _ratios(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The ratios of rows that are both there."""
    medians = _measured(result)
    return [
        {"name": name, "unit": "", "median": (value := medians[a.name] / medians[b.name]), "bound": bound}
        | {"min": value, "max": value, "error": None, "over": not value <= bound}
        for name, a, b, bound in RATIOS
        if a.name in medians and b.name in medians
    ]


def _line(entry: dict[str, Any]) -> str:
    if entry["median"] is None:
        text = f"failed: {entry['error']}"
    elif entry["unit"]:
        text = f"{entry['median']:10.3f} {entry['unit']:14s} ({entry['min']:.3f} to {entry['max']:.3f})"
    else:
        text = f"{entry['median']:10.3f}"
    verdict = "" if entry["bound"] is None else f"  at most {entry['bound']:g}: {'over' if entry['over'] else 'ok'}"
    return f"{entry['name']:58s} {text}{verdict}"


def _compile_beforehand(compiled: list[Row], args: argparse.Namespace, end: float) -> None:
    """Fill torch's cache with these rows; whatever goes wrong here, the measuring itself compiles and reports."""
    if not compiled or args.tiny:
        return
    start = time.perf_counter()
    patience = min(COMPILE_SECONDS, end - start)
    with multiprocessing.get_context("spawn").Pool(args.jobs, maxtasksperchild=1) as pool:
        tasks = [pool.apply_async(_compile, (row, args.device)) for row in compiled]
        done = 0
        for task in tasks:
            task.wait(max(0.0, start + patience - time.perf_counter()))
            done += task.ready() and task.successful()
    print(f"compiled {done} of {len(compiled)} rows in {time.perf_counter() - start:.0f} s", flush=True)


def _compile(row: Row, device: str) -> None:
    torch.set_float32_matmul_precision("high")  # as in the process that measures: it is part of the cache's key
    prepare(row, device, tiny=False).warm_up()


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.gpu")
    add_results(p)
    text = "what to measure"
    p.add_argument("groups", nargs="*", type=one_of(GROUPS), default=list(GROUPS), metavar="group", help=text)
    text = "seconds after which no row is begun (default: none)"
    p.add_argument("--time-limit", type=positive(float), default=math.inf, metavar="S", help=text)
    p.add_argument("--jobs", type=positive(int), default=1, help="processes that compile beforehand; 1 is none")
    p.add_argument("--repeats", type=positive(int), default=REPEATS, help="of every row")
    text = "where to compute; with cpu, where nothing is captured, --tiny tests this program"
    p.add_argument("--device", type=device, default="cuda", help=text)
    p.add_argument("--tiny", action="store_true", help="tiny sizes, nothing compiled: to test this program")
    return p


main = command(parser, run, go_on=GO_ON)


if __name__ == "__main__":
    raise SystemExit(main())
