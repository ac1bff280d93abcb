"""What the figures are drawn from: trained models and finished runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experiments.ablation import Ablation
from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.mnist import MnistCell
from experiments.report.results import Results
from experiments.session import load_model
from experiments.store import RunStore
from experiments.sweep import Settings, sweep
from experiments.table1 import BranchingCell, Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from pyro_hyperbolic import datasets
from pyro_hyperbolic.models import VAE


@dataclass(frozen=True)
class Source:
    """Models of seed 0, and the runs of all seeds.

    :param store: of the results.
    :param settings: how a model is trained that the store does not hold.
    :param table1: the training of the branching diffusion's models.
    :param table2: the training of the MNIST models.
    :param table3: the classifiers.
    :param ablation: the decoders.
    """

    store: RunStore
    settings: Settings = field(default_factory=Settings)
    table1: Table1 = field(default_factory=Table1)
    table2: Table2 = field(default_factory=Table2)
    table3: Table3 = field(default_factory=Table3)
    ablation: Ablation = field(default_factory=Ablation)

    def branching_data(self) -> datasets.BranchingDiffusion:
        """The data that the models of Table 1 were trained on."""
        return datasets.branching_diffusion(seed=0)

    def branching_models(self, cells: Sequence[BranchingCell]) -> list[VAE]:
        """Models of Table 1, on the CPU."""
        dim = self.branching_data().train.shape[1]
        return self._trained(self.table1, cells, lambda cell: self.table1.build(cell, dim))

    def mnist_models(self, cells: Sequence[MnistCell]) -> list[VAE]:
        """Models of Table 2, on the CPU."""
        return self._trained(self.table2, cells, self.table2.build)

    def metrics(self, experiment: Experiment, cell: Cell) -> dict[int, dict[str, Any]]:
        """The metrics of the finished runs of a cell, by seed; a cell without a run is an error."""
        runs = Results(experiment, self.store).runs[cell]
        if not runs:
            raise ValueError(
                f"{self.store.folder} has no finished run of {experiment.command}, {cell.name}, with these settings;"
                f" run `python -m experiments {experiment.command} --results {self.store.folder}`."
            )
        return {seed: record["metrics"] for seed, record in runs.items()}

    def _trained(self, experiment: Experiment, cells: Sequence[Any], build: Callable[[Any], VAE]) -> list[VAE]:
        jobs = [Job(experiment, cell, 0) for cell in cells]
        missing = [job.cell.name for job in jobs if not self.store.model_path(job).exists()]
        if missing:
            # One process draws, so that one process trains.
            alone = replace(self.settings, rank=0, world=1)
            sweep(replace(experiment, seeds=1), self.store, alone, missing)
        models = []
        for job in jobs:
            vae = build(job.cell)
            load_model(self.store, job, vae, torch.device("cpu"))
            models.append(vae.eval())
        return models
