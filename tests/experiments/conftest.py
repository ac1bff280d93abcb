"""What the tests of the experiments share: tiny settings and an experiment without training."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pytest

from experiments import (
    Ablation,
    Cell,
    Cells,
    Choices,
    Distances,
    Earth,
    Experiment,
    Flows,
    Job,
    Mixed,
    Networks,
    Table1,
    Table2,
    Table3,
    Table4,
    mnist,
)
from experiments.earth import Matched
from pyro_hyperbolic import datasets
from tests.examples.conftest import _one_thread_and_dtype, digits, load_example, refusal  # noqa: F401

matplotlib.use("agg")


@dataclass(frozen=True)
class ToyCell(Cell):
    size: int

    @property
    def name(self) -> str:
        return f"size {self.size}"


@dataclass(frozen=True)
class Toy(Experiment):
    """Runs without training; ``log`` keeps the groups that were run."""

    command = "toy"

    seeds: int = 3
    epochs: int = 2
    log: Any = None

    def cells(self) -> Sequence[ToyCell]:
        return [ToyCell(1), ToyCell(2), ToyCell(3)]

    def shape(self, cell: ToyCell) -> Hashable:
        return cell.size > 1

    def settings(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def run(self, jobs: Sequence[Job], session: Any) -> list[dict[str, Any]]:
        self.log.append([(job.cell.size, job.seed) for job in jobs])
        session.progress.advance(self.epochs * len(jobs), "toy")
        return [{"value": float(job.cell.size * 10 + job.seed)} for job in jobs]


@pytest.fixture
def toy() -> Toy:
    return Toy(log=[])


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The digits that come with the package, whatever is on the disk."""
    original = datasets.mnist
    monkeypatch.setattr(datasets, "mnist", lambda train: original(train=train, bundled=True))
    mnist.digits.cache_clear()
    yield
    mnist.digits.cache_clear()


MNIST = {"seeds": 1, "epochs": 1, "hidden_dim": 8, "iwae_samples": 2, "data_limit": 256}
TINY: dict[str, Any] = {
    "table1": Table1(seeds=2, epochs=2, hidden_dim=8, iwae_samples=3),
    "table2": Table2(**MNIST),
    "table3": Table3(embedding=Table2(**MNIST), seeds=2, trainings=2, epochs=1),
    "table4": Table4(seeds=2, epochs=2, hidden_dim=4, latent_dim=2),
    "ablation": Ablation(**MNIST),
    "mixed": Mixed(**MNIST),
    "choices": Choices(**MNIST, held_out=64),
    "distances": Distances(seeds=2, epochs=20, num_chains=2, num_samples=4, warmup=20),
    "earth": Earth(
        seeds=2,
        epochs=1,
        steps=2,
        batch_size=8,
        layers=1,
        hidden_dim=4,
        bins=3,
        matched=Matched(epochs=1, steps=3, batch_size=8, group=4, hidden_dim=4, waves=2, solver_steps=2),
    ),
    "flows": Flows(**MNIST, held_out=64, layers=1, flow_dim=4, bins=3, drawn=4),
    "cells": Cells(seeds=2, epochs=1, hidden_dim=8, iwae_samples=2, num_cells=300),
    "networks": Networks(seeds=2, epochs=10, chains=4, warmup=20, steps=30),
}
