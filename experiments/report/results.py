"""The runs of an experiment, cell by cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from examples.intervals import mean_interval
from experiments.experiment import Experiment
from experiments.job import Job
from experiments.progress import duration
from experiments.store import RunStore

TITLES = {
    "table1": "Table 1: branching diffusion, negative test IWAE",
    "table2": "Table 2: MNIST, negative test IWAE",
    "table3": "Table 3: accuracy of a classifier on 2-d embeddings",
    "table4": "Table 4: link prediction",
    "ablation": "Ablation of the decoder, negative test IWAE",
    "mixed": "Mixed curvature: spheres, products and curvatures of either sign",
    "choices": "Choices: initial values of gyroplanes and learning rates, on held-out training images",
    "distances": "Distances: graphs as maps, beside other methods of scaling",
    "earth": "Densities on the globe: negative test log-likelihood",
    "flows": "Flows in auto-encoders of MNIST, negative test IWAE",
    "cells": "Single cells: Euclidean and hyperbolic auto-encoders of counts",
    "networks": "Networks: which space explains the edges",
}


_OPTIONS = (
    ("seeds", "seeds"),
    ("epochs", "epochs"),
    ("samples", "iwae_samples"),
    ("samples", "num_samples"),
    ("chains", "chains"),
    ("chains", "num_chains"),
    ("warmup", "warmup"),
)
NOT_RUN = "not run"
GREY_LEVELS = (
    "As in the paper, the likelihood of an image is the cross entropy of its grey levels. This is not a normalised"
    " density, so the losses cannot be compared with those on binarised MNIST."
)
NARROW = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


class Results:
    """What the store holds of an experiment.

    :param experiment: the experiment; runs with other settings are left out.
    :param store: the store.
    """

    def __init__(self, experiment: Experiment, store: RunStore) -> None:
        self.experiment: Any = experiment
        self.store = store
        self.title = TITLES[experiment.command]
        self.cells: list[Any] = list(experiment.cells())
        found = store.records(experiment.command)
        self.runs: dict[Any, dict[int, dict[str, Any]]] = {}
        for cell in self.cells:
            jobs = (Job(experiment, cell, seed) for seed in range(experiment.seeds))
            self.runs[cell] = {job.seed: found[job.key] for job in jobs if job.key in found}
        self.finished = [record for runs in self.runs.values() for record in runs.values()]

    def values(self, cell: Any, metric: str | Callable[[dict[str, Any]], float]) -> dict[int, float]:
        """A metric of every finished run of a cell, by seed."""
        pick = (lambda metrics: metrics[metric]) if isinstance(metric, str) else metric
        return {seed: pick(record["metrics"]) for seed, record in self.runs.get(cell, {}).items()}

    def summary(self, cell: Any, metric: str | Callable[[dict[str, Any]], float]) -> tuple[float, float | None] | None:
        """Mean and interval over the runs; ``None`` without a run, ``nan`` if one of them is not finite."""
        values = list(self.values(cell, metric).values())
        if not values:
            return None
        return mean_interval(values) if all(map(math.isfinite, values)) else (math.nan, None)

    def shown(self, cell: Any, metric: str) -> tuple[float, float] | None:
        """What a picture shows of a cell: mean and interval if there are any and they are finite."""
        return interval(self.values(cell, metric).values())

    def complete(self, cell: Any, metric: str) -> float | None:
        """The mean of a cell of which every run is finished and finite."""
        shown = self.shown(cell, metric)
        return None if shown is None or len(self.runs[cell]) < self.experiment.seeds else shown[0]

    def text(self, cell: Any, metric: str, factor: float = 1.0, digits: int = 1) -> str:
        """A cell of a Markdown table."""
        summary = self.summary(cell, metric)
        if summary is None:
            return NOT_RUN
        text = number(summary, factor, digits)
        finite = sum(map(math.isfinite, self.values(cell, metric).values()))
        total = len(self.runs[cell])
        if finite < total:
            text = f"{finite} of {total} finite"
        return text if total == self.experiment.seeds else f"{text} ({total} runs)"

    def provenance(self) -> str:
        """Settings, machine and time, for the end of a report."""
        settings = ", ".join(f"{key} {value}" for key, value in _flat(self.experiment.settings()))
        machines = Counter(_machine(record) for record in self.finished)
        seconds = sum(record["seconds"] for record in self.finished)
        wanted = len(self.cells) * self.experiment.seeds
        lines = [
            f"* Runs: {len(self.finished)} of {wanted} ({self.experiment.seeds} per cell).",
            f"* Settings: {settings}.",
            *(f"* {count} run{'s' * (count > 1)} on {machine}." for machine, count in machines.items()),
            f"* Total time of all processes: {duration(seconds)}. Processes that share a device slow each other down.",
            f"* Command: `python -m experiments {' '.join(self._arguments())}`.",
        ]
        return "\n".join(lines) + "\n"

    def _arguments(self) -> list[str]:
        """The command line of these settings."""
        experiment = getattr(self.experiment, "embedding", self.experiment)  # whose options those of Table 3 are
        usual = type(experiment)()
        arguments = [self.experiment.command]
        for option, name in _OPTIONS:
            value = getattr(experiment, name, None)
            if value != getattr(usual, name, None):
                arguments += [f"--{option}", str(value)]
        return arguments


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{key} ")
        elif value is not None:
            yield f"{prefix}{key}", value


def number(value: tuple[float, float | None] | Sequence[float], factor: float = 1.0, digits: int = 1) -> str:
    """A mean with its interval."""
    mean, half = value
    text = f"{round(factor * mean, digits) + 0.0:.{digits}f}"  # no -0.0
    return text if half is None else f"{text} ± {factor * half:.{digits}f}"


def interval(values: Iterable[float]) -> tuple[float, float] | None:
    """Mean and interval if there are values and all are finite; the interval of a single one is 0."""
    values = list(values)
    if not values or not all(map(math.isfinite, values)):
        return None
    mean, half = mean_interval(values)
    return mean, half or 0.0


def exceeds(difference: tuple[float, float | None], factor: float = 1.0, digits: int = 1) -> bool:
    """Whether a difference is greater than its interval at the digits that :func:`number` shows.

    That of a single run is not known to be: it has no interval.
    """
    mean, half = difference
    return half is not None and round(factor * mean, digits) > round(factor * half, digits)


def compared(gain: tuple[float, float | None], digits: int = 2) -> str:
    """How much less a loss is than another one, in nats: "0.12 ± 0.05 nats better", or worse."""
    mean, half = gain
    return f"{number((abs(mean), half), digits=digits)} nats {'worse' if mean < 0 else 'better'}"


def gains(values: Iterable[tuple[float, float | None]], digits: int = 2) -> str:
    """Several means with their intervals in a sentence."""
    return listed([number(value, digits=digits) for value in values])


def apart(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """How much greater the first of two independent means is, with its interval."""
    return one[0] - other[0], math.hypot(one[1], other[1])


def listed(texts: Sequence[str]) -> str:
    """Texts as a list in a sentence: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def within(ours: tuple[float, float | None], paper: Sequence[float]) -> bool:
    """Whether ours is at or below the paper's value, within both intervals."""
    return ours[0] <= paper[0] + math.hypot(ours[1] or 0.0, paper[1])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first to the right."""
    lines = [head, [":--"] + ["--:"] * (len(head) - 1), *rows]
    # No line break between a mean and its interval.
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace(" ± ", NARROW) + "\n"


def _machine(record: dict[str, Any]) -> str:
    machine = record["machine"]
    precision = {"high": "TF32", "highest": "float32", "medium": "bfloat16"}[machine["matmul_precision"]]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("pyro_hyperbolic", "torch", "pyro"))
    return f"{machine['device']}, {versions}, {precision} products"
