"""Train all that is missing."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import pyro
import torch

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.progress import Progress
from experiments.session import Session, describe
from experiments.store import RunStore
from pyro_hyperbolic import __version__

_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """How a sweep is carried out. None of this changes a result by more than noise.

    :param device: where to compute.
    :param compile: compile the steps; by default on a CUDA device, for experiments that take long enough.
    :param max_members: the most runs that are trained as one ensemble.
    :param rank: which of ``world`` processes this one is; each takes its share of the groups.
    :param world: how many processes work on the sweep.
    :param checkpoint_seconds: between two checkpoints of an ensemble in training.
    """

    device: str = "cpu"
    compile: bool | None = None
    max_members: int = 100
    rank: int = 0
    world: int = 1
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        if self.max_members < 1:
            raise ValueError(f"max_members must be a positive integer, got {self.max_members}.")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be from 0 to world - 1, got rank {self.rank} of world {self.world}.")


def select(experiment: Experiment, patterns: Sequence[str] = ()) -> list[Cell]:
    """The cells whose name matches one of the patterns (``*`` for anything); all without a pattern."""
    cells = list(experiment.cells())
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in cells):
            names = ", ".join(repr(cell.name) for cell in cells)
            raise ValueError(f"no cell of {experiment.command} is called {pattern!r}; there are {names}.")
    return [cell for cell in cells if not patterns or any(fnmatchcase(cell.name, p) for p in patterns)]


def sweep(
    experiment: Experiment, store: RunStore, settings: Settings | None = None, patterns: Sequence[str] = ()
) -> None:
    """Train and evaluate every run of the cells that the store does not hold.

    Runs of one shape are trained together, as a group. Results go to the store as soon as a group is finished; the
    group in training has checkpoints of its own. One of several processes returns when all have finished their shares.
    """
    settings = settings or Settings()
    cells = select(experiment, patterns)
    before = experiment.required(cells)
    if before is not None:
        source, names = before
        sweep(source, store, settings, [cell.name for cell in names])
    jobs = [Job(experiment, cell, seed) for cell in cells for seed in range(experiment.seeds)]
    # The shares do not depend on what is finished: another process may finish something between two looks.
    own = share(group(jobs, settings.max_members), settings.rank, settings.world)
    groups = [missing for same in own if (missing := store.missing(same))]
    title = experiment.command if settings.world == 1 else f"{experiment.command}, rank {settings.rank}"
    parts = [experiment.part(same[0].cell) for same in groups]
    progress = Progress(sum(part.epochs * len(same) for part, same in zip(parts, groups, strict=True)), title)
    device = torch.device(settings.device)
    try:
        for part, members in zip(parts, groups, strict=True):
            start = time.perf_counter()
            compile = device.type == "cuda" and part.worth_compiling if settings.compile is None else settings.compile
            session = Session(store, device, compile, progress, settings.checkpoint_seconds)
            metrics = part.run(members, session)
            seconds = time.perf_counter() - start
            for job, values in zip(members, metrics, strict=True):
                store.append(job, metrics=values, seconds=seconds / len(members), machine=machine(device))
            store.checkpoint_path(members).unlink(missing_ok=True)
            progress.say(f"{title}: finished {describe(members)} in {seconds:.1f} s")
    finally:
        progress.close()
    if settings.world > 1:
        wait_for_others(store, jobs)


def wait_for_others(store: RunStore, jobs: Sequence[Job]) -> None:
    """Come back when all jobs are finished; if a process dies meanwhile, its launcher ends this one too."""
    while store.missing(jobs):
        time.sleep(_POLL_SECONDS)


def group(jobs: Sequence[Job], max_members: int) -> list[list[Job]]:
    """Jobs that are trained together: of one shape, and at most ``max_members``."""
    shapes: dict[Any, list[Job]] = {}
    for job in jobs:
        shapes.setdefault(job.experiment.shape(job.cell), []).append(job)
    return [same[i : i + max_members] for same in shapes.values() for i in range(0, len(same), max_members)]


def share(groups: list[list[Job]], rank: int, world: int) -> list[list[Job]]:
    """The groups of one of several processes: the largest first, each to the process with the least work so far."""
    loads = [0] * world
    own = []
    for jobs in sorted(groups, key=len, reverse=True):
        least = loads.index(min(loads))
        loads[least] += len(jobs)
        if least == rank:
            own.append(jobs)
    return own


def machine(device: torch.device) -> dict[str, str]:
    """What a time and the last digits of a result depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    versions = {"torch": str(torch.__version__), "pyro": pyro.__version__, "pyro_hyperbolic": __version__}
    return {"device": name, "matmul_precision": torch.get_float32_matmul_precision(), **versions}
