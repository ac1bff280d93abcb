"""Measure and print the ratios; the exit status is 1 if one is over its bound.

python -m benchmarks.run
python -m benchmarks.run charts --seconds 20 --json ratios.json
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.charts import charts
from benchmarks.distributions import distributions
from benchmarks.results import one_of, output_file
from benchmarks.spaces import spaces
from benchmarks.timing import Ratio, Settings
from benchmarks.training import training
from examples.command import command, make_parser, positive
from examples.runs import save_json

GROUPS: dict[str, Callable[[Settings], Iterable[Ratio]]] = {
    "distributions": distributions,
    "training": training,
    "charts": charts,
    "spaces": spaces,
}


def run(args: argparse.Namespace) -> int:
    settings = Settings(seconds=args.seconds, tiny=args.tiny)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}", flush=True)
    print(HEADER, flush=True)
    results = []
    for name in args.groups:
        for result in GROUPS[name](settings):
            print(format_row(name, result), flush=True)
            results.append((name, result))
    if args.json is not None:
        write_json(args.json, results)
    over = [result for _, result in results if not result.ok]
    print(f"{len(results) - len(over)} of {len(results)} within their bounds")
    return 1 if over else 0


HEADER = f"{'group':<14} {'ratio of':<58} {'value':>7} {'bound':>7}       measured"


def format_row(group: str, result: Ratio) -> str:
    verdict = "ok" if result.ok else "over"
    return f"{group:<14} {result.name:<58} {result.ratio:7.2f} {result.bound:7.2f}  {verdict:<4} {result.detail}"


def write_json(path: Path, results: list[tuple[str, Ratio]]) -> None:
    document = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "results": [{"group": group, **asdict(result), "ok": result.ok} for group, result in results],
    }
    save_json(document, path)


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.run")
    text = "what to measure"
    p.add_argument("groups", nargs="*", type=one_of(GROUPS), default=list(GROUPS), metavar="group", help=text)
    text = "where to write the results (default: nowhere)"
    p.add_argument("--json", type=output_file, metavar="FILE", help=text)
    text = "time per comparison, beyond its fewest repeats"
    p.add_argument("--seconds", type=positive(float), default=Settings.seconds, help=text)
    p.add_argument("--tiny", action="store_true", help="tiny sizes, to test the benchmarks themselves")
    return p


main = command(parser, run)


if __name__ == "__main__":
    raise SystemExit(main())
