"""Table 1: marginal likelihood of a branching diffusion."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session
from pyro_hyperbolic import datasets
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.infer import Minibatches
from pyro_hyperbolic.models import VAE, EuclideanVAE, HyperbolicVAE

CURVATURES = (0.1, 0.3, 0.8, 1.0, 1.2)
PRIOR_SCALES = (1.0, 1.7)
# Not in the paper: the hyperbolic model with next to no curvature tells what its first layer is worth by itself.
NEARLY_FLAT = 1e-4


@dataclass(frozen=True)
class BranchingCell(Cell):
    """One auto-encoder.

    :param curvature: ``c``; 0 for the Euclidean model.
    :param prior_scale: scale of the prior.
    """

    curvature: float
    prior_scale: float

    @property
    def column(self) -> str:
        """The column of the table."""
        if self.curvature == 0:
            return "euclidean"
        return f"c={self.curvature:.1f}" if self.curvature in CURVATURES else f"c={self.curvature:g}"

    @property
    def name(self) -> str:
        return f"{self.column}, sigma0={self.prior_scale:.1f}"


@dataclass(frozen=True)
class Table1(Experiment):
    """The branching diffusion. Each seed has a data set of its own, which all cells share.

    :param epochs: of training.
    :param batch_size: observations per step.
    :param learning_rate: of Adam.
    :param hidden_dim: width of the hidden layers.
    :param iwae_samples: per observation of the test set.
    """

    command = "table1"

    seeds: int = 20
    epochs: int = 1000
    batch_size: int = 64
    learning_rate: float = 1e-3
    hidden_dim: int = 200
    iwae_samples: int = 5000

    def cells(self) -> Sequence[BranchingCell]:
        return [BranchingCell(c, scale) for scale in PRIOR_SCALES for c in (0.0, *CURVATURES, NEARLY_FLAT)]

    def shape(self, cell: BranchingCell) -> Hashable:
        return cell.curvature > 0

    def keeps(self, job: Job) -> bool:
        """Whether the parameters of a trained model are needed again."""
        return job.seed == 0

    def build(self, cell: BranchingCell, data_dim: int) -> VAE:
        """The model of a cell, untrained."""
        options: dict[str, Any] = {"hidden_dim": self.hidden_dim, "prior_scale": cell.prior_scale}
        if cell.curvature == 0:
            return EuclideanVAE(2, data_dim, likelihood="normal", **options)
        return HyperbolicVAE(PoincareBall(cell.curvature), 2, data_dim, likelihood="normal", **options)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        data = {seed: datasets.branching_diffusion(seed=seed) for seed in {job.seed for job in jobs}}
        members = []
        for job in jobs:
            pyro.set_rng_seed(job.seed)
            members.append(self.build(job.cell, data[job.seed].train.shape[1]).to(session.device))

        def stacked(name: str) -> Tensor:
            return torch.stack([getattr(data[job.seed], name) for job in jobs]).to(session.device)

        batches = Minibatches(stacked("train"), self.batch_size, seed=jobs[0].number, members=len(jobs), own_data=True)
        svi = session.train(jobs, members, batches.epoch, self.epochs, self.learning_rate)
        metrics = session.negative_iwae(svi, stacked("test"), self.iwae_samples, shared=False)
        for job, member, values in zip(jobs, members, metrics, strict=True):
            values |= self.extras(job.cell, member)
            if self.keeps(job):
                session.save_model(job, member)
        return metrics
