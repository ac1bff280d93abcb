"""Measure and print the ratios; the exit status is 1 if one is over its bound."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.charts import charts
from benchmarks.distributions import distributions
from benchmarks.spaces import spaces
from benchmarks.timing import Ratio, Settings
from benchmarks.training import training

GROUPS: dict[str, Callable[[Settings], Iterable[Ratio]]] = {
    "distributions": distributions,
    "training": training,
    "charts": charts,
    "spaces": spaces,
}


def main(arguments: list[str] | None = None) -> int:
    args = _parse(arguments)
    settings = Settings(seconds=args.seconds, tiny=args.tiny)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s), {platform.machine()}", flush=True)
    print(HEADER, flush=True)
    results = []
    for name in args.names or GROUPS:
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
    """Write all results, or leave the file as it was: whoever reads it never sees half of one."""
    document = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "results": [{"group": group, **asdict(result), "ok": result.ok} for group, result in results],
    }
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"groups to run, of {', '.join(GROUPS)}; all if none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="time per comparison (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to test the benchmarks themselves")
    args = parser.parse_args(arguments)
    # Mistakes are found before the measuring, not after a minute of it.
    for name in args.names:
        if name not in GROUPS:
            parser.error(f"no group {name!r}; there are {', '.join(GROUPS)}")
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: the folder {args.json.parent} does not exist")
    return args


if __name__ == "__main__":
    raise SystemExit(main())
