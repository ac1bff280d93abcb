"""The command line of the experiments."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from examples.command import add_common, command, folder, make_parser, one_line, positive
from experiments.ablation import Ablation
from experiments.cells import Cells
from experiments.choices import Choices
from experiments.distances import Distances
from experiments.earth import Earth
from experiments.experiment import Experiment
from experiments.figures import FIGURES, draw
from experiments.flows import Flows
from experiments.mixed import Mixed
from experiments.networks import Networks
from experiments.report import NoRunsError, write_report
from experiments.store import RunStore
from experiments.sweep import Settings, sweep
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from experiments.table4 import Table4

T = TypeVar("T", bound=Experiment)

TABLES = (Table1, Table2, Table3, Table4, Ablation, Mixed, Cells, Choices, Earth, Flows, Distances, Networks)
EXPERIMENTS: dict[str, Any] = {table.command: table for table in TABLES}

DESCRIPTION = """Reproduce the tables and figures of the paper.
A table trains the runs that are missing in the results folder and writes a report there. After an interruption, the
same command goes on where it was. `report` writes the reports again from the runs that are there, `figures` draws the
figures, `all` does everything.

  python -m experiments table1 --seeds 2
  python -m experiments table2 --cells 'wrapped c=1.4, d=2' --device cuda
  torchrun --nproc-per-node 4 -m experiments table2
"""


def run(options: argparse.Namespace) -> None:
    """Make what the options ask for. A new folder that nothing was written to goes again."""
    new = not options.results.exists()
    try:
        _make(options)
    finally:
        if new:
            with contextlib.suppress(OSError):  # it is not empty, or was never made
                options.results.rmdir()


def _make(options: argparse.Namespace) -> None:
    if options.cells and options.command not in EXPERIMENTS:
        raise ValueError(f"--cells belongs to one table, not to {options.command}")
    if options.figures and options.command != "figures":
        raise ValueError(f"--figures belongs to the command figures, not to {options.command}")
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    settings = _settings(options, rank, world)
    if options.command != "report":
        options.results.mkdir(parents=True, exist_ok=True)  # before the training, so that no work is lost
    store = RunStore(options.results, rank)
    problems, without_runs, written = [], [], False
    for name in EXPERIMENTS if options.command in ("all", "report") else [options.command]:
        if name in EXPERIMENTS:
            experiment = configured(EXPERIMENTS[name], **sizes(options))
            try:
                if options.command != "report":
                    sweep(experiment, store, settings, options.cells)
                if rank == 0:
                    write_report(experiment, store, options.results)
                    written = True
            except NoRunsError:
                without_runs.append(name)
            except (ValueError, OSError) as error:
                problems.append(one_line(error))  # the other tables are made all the same
    if options.command in ("all", "figures") and rank == 0:
        experiments = {name: configured(kind, **sizes(options)) for name, kind in EXPERIMENTS.items()}
        alone = replace(settings, rank=0, world=1)
        draw(options.figures or list(FIGURES), store, options.results, alone, experiments)
    if without_runs:
        said = str(NoRunsError(without_runs, options.results))
        if written:
            print(said, file=sys.stderr)  # nothing is wrong with a folder of some tables
        else:
            problems.append(said)
    if problems:
        raise ValueError("; ".join(problems))


SIZES = {
    "seeds": ("seeds",),
    "epochs": ("epochs",),
    "samples": ("iwae_samples", "num_samples"),
    "chains": ("chains", "num_chains"),
    "warmup": ("warmup",),
}
"""Options that make runs smaller or larger, and what they set in an experiment that has it."""


def sizes(options: argparse.Namespace) -> dict[str, int | None]:
    """Those of the command line."""
    return {name: getattr(options, name) for name in SIZES}


def configured(kind: Callable[[], T], **sizes: int | None) -> T:
    """An experiment with the settings of the paper but for those given, by the names of :data:`SIZES`."""
    experiment = kind()
    if isinstance(experiment, Table3):
        # The options are those of the auto-encoders, each of which has several classifiers.
        source = configured(Table2, **sizes)
        return replace(experiment, embedding=source, seeds=experiment.trainings * source.seeds)
    wanted = {field: value for name, value in sizes.items() if value is not None for field in SIZES[name]}
    known = {field: value for field, value in wanted.items() if hasattr(experiment, field)}
    return replace(experiment, **known)


def _settings(options: argparse.Namespace, rank: int, world: int) -> Settings:
    device = torch.device(options.device)
    if device.type == "cuda":
        if device.index is None:
            local = int(os.environ.get("LOCAL_RANK", rank))
            device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # TensorFloat-32 matrix products; latents of the hyperboloid are float64 and not concerned.
        torch.set_float32_matmul_precision("high")
    return Settings(str(device), options.compile, options.max_members, rank, world)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = make_parser(DESCRIPTION, "python -m experiments")
    p.add_argument("command", choices=[*EXPERIMENTS, "figures", "report", "all"], help="what to make")
    p.add_argument("--results", type=folder, default=Path("results"), help="folder of the results")
    p.add_argument(
        "--cells",
        nargs="+",
        default=[],
        metavar="NAME",
        help="only cells of these names; * stands for anything (default: all)",
    )
    p.add_argument("--seeds", type=positive(int), help="runs of every cell (default: as in the paper)")
    p.add_argument("--epochs", type=positive(int), help="epochs of training (default: as in the paper)")
    p.add_argument(
        "--samples", type=positive(int), help="samples of the IWAE estimate (default: 5000), or draws of a chain"
    )
    p.add_argument("--chains", type=positive(int), help="chains of a posterior, where there are some")
    p.add_argument("--warmup", type=positive(int), help="trajectories of each chain before its draws")
    p.add_argument(
        "--figures",
        nargs="+",
        choices=sorted(FIGURES),
        default=[],
        metavar="NAME",
        help=f"with `figures`: which of {', '.join(sorted(FIGURES))} (default: all)",
    )
    add_common(p, "--device")
    p.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile the training steps (default: on a GPU, where training takes long enough)",
    )
    p.add_argument("--max-members", type=positive(int), default=100, help="most runs trained as one ensemble")
    return p


main = command(parser, run, go_on="what was finished is in the results folder; run the same command to go on")
