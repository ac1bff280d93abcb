"""The command line of the experiments."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from pyro_hyperbolic.experiments.ablation import Ablation
from pyro_hyperbolic.experiments.cells import Cells
from pyro_hyperbolic.experiments.choices import Choices
from pyro_hyperbolic.experiments.experiment import Experiment
from pyro_hyperbolic.experiments.figures import FIGURES, draw
from pyro_hyperbolic.experiments.mixed import Mixed
from pyro_hyperbolic.experiments.report import write_report
from pyro_hyperbolic.experiments.store import RunStore
from pyro_hyperbolic.experiments.sweep import Settings, sweep
from pyro_hyperbolic.experiments.table1 import Table1
from pyro_hyperbolic.experiments.table2 import Table2
from pyro_hyperbolic.experiments.table3 import Table3
from pyro_hyperbolic.experiments.table4 import Table4

T = TypeVar("T", bound=Experiment)

TABLES = (Table1, Table2, Table3, Table4, Ablation, Mixed, Cells, Choices)
EXPERIMENTS: dict[str, Any] = {table.command: table for table in TABLES}

DESCRIPTION = """Reproduce the tables and figures of the paper.

A table trains what the results folder does not hold yet and writes a report beside it; a sweep that was interrupted
goes on where it was. `report` makes the reports anew from what is there, `figures` draws, `all` does everything.

examples:
  python -m pyro_hyperbolic.experiments table1 --seeds 2
  python -m pyro_hyperbolic.experiments table2 --cells 'wrapped c=1.4, d=2' --device cuda
  torchrun --nproc-per-node 4 -m pyro_hyperbolic.experiments table2
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    options = parse(arguments)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    try:
        settings = _settings(options, rank, world)
        store = RunStore(options.results, rank)
        problems = []
        for name in EXPERIMENTS if options.command in ("all", "report") else [options.command]:
            if name in EXPERIMENTS:
                experiment = configured(EXPERIMENTS[name], options.seeds, options.epochs, options.samples)
                try:
                    if options.command != "report":
                        sweep(experiment, store, settings, options.cells)
                    if rank == 0:
                        write_report(experiment, store, options.results)
                except (ValueError, OSError) as error:
                    # The other tables are made all the same.
                    problems.append(str(error))
        if options.command in ("all", "figures") and rank == 0:
            own = (options.seeds, options.epochs, options.samples)
            experiments = {name: configured(kind, *own) for name, kind in EXPERIMENTS.items()}
            alone = replace(settings, rank=0, world=1)
            draw(options.figures or list(FIGURES), store, options.results, alone, experiments)
        if problems:
            raise ValueError("; ".join(problems))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is in the results folder, run the same command to go on", file=sys.stderr)
        return 130
    return 0


def configured(
    kind: Callable[[], T], seeds: int | None = None, epochs: int | None = None, samples: int | None = None
) -> T:
    """An experiment with the settings of the paper but for those given."""
    experiment = kind()
    if isinstance(experiment, Table3):
        # The options are those of the auto-encoders, each of which has several classifiers.
        source = configured(Table2, seeds, epochs, samples)
        return replace(experiment, embedding=source, seeds=experiment.trainings * source.seeds)
    wanted = {"seeds": seeds, "epochs": epochs, "iwae_samples": samples}
    known = {name: value for name, value in wanted.items() if value is not None and hasattr(experiment, name)}
    return replace(experiment, **known)


def _settings(options: argparse.Namespace, rank: int, world: int) -> Settings:
    try:
        device = torch.device(options.device)
    except RuntimeError as error:
        raise ValueError(f"--device {options.device}: {error}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, got {options.device}.")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("--device cuda: torch finds no CUDA device; use --device cpu.")
        if device.index is None:
            local = int(os.environ.get("LOCAL_RANK", rank))
            device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # TensorFloat-32 matrix products; latents of the hyperboloid are float64 and not concerned.
        torch.set_float32_matmul_precision("high")
    return Settings(str(device), options.compile, options.max_members, rank, world)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(
        prog="python -m pyro_hyperbolic.experiments",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("command", choices=[*EXPERIMENTS, "figures", "report", "all"], help="what to make")
    p.add_argument("--results", type=Path, default=Path("results"), help="folder of the results (default: results)")
    p.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only cells of these names; * stands for anything (default: all)",
    )
    p.add_argument("--seeds", type=positive, default=None, help="runs of every cell (default: as in the paper)")
    p.add_argument("--epochs", type=positive, default=None, help="of training (default: as in the paper)")
    p.add_argument("--samples", type=positive, default=None, help="of the IWAE estimate (default: 5000)")
    p.add_argument(
        "--figures", nargs="+", choices=sorted(FIGURES), default=[], help="with `figures`: which (default: all)"
    )
    p.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to compute (default: a GPU)"
    )
    p.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile the training steps (default: on a GPU, where training takes long enough)",
    )
    p.add_argument("--max-members", type=positive, default=100, help="most runs trained as one ensemble (default: 100)")
    return p


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, if they belong together."""
    p = parser()
    options = p.parse_args(arguments)
    if options.cells and options.command not in EXPERIMENTS:
        p.error(f"--cells belongs to one table, not to {options.command}")
    if options.figures and options.command != "figures":
        p.error(f"--figures belongs to the command figures, not to {options.command}")
    return options


def positive(text: str) -> int:
    """A positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)
