"""Single cells: what curvature brings to auto-encoders of counts. Not an experiment of the paper."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session
from experiments.table1 import NEARLY_FLAT
from pyro_hyperbolic import datasets
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.analysis import batch_mixing, knn_accuracy, lineage_correlation, posterior_coverage
from pyro_hyperbolic.geometry import Euclidean, PoincareBall
from pyro_hyperbolic.infer import Minibatches
from pyro_hyperbolic.models import CountVAE
from pyro_hyperbolic.ops.nested import map_tensors

CURVATURES = (0.0, NEARLY_FLAT, 1.0)
NEIGHBOURS = 15
_TRAIN, _VALIDATION = 7, 1  # tenths of the cells; the others are for the test
_TARGET_SUM = 1000.0
_DRAWS = 39  # of a posterior; with the truth they are 40, of which 36 are within a 90% region


@dataclass(frozen=True, eq=False)
class KnownCells:
    """Counts of cells, and what is known of them.

    :param counts: ``(N, G)``.
    :param labels: a type or lineage of each, integers ``(N,)``; ``None`` if unknown, as the others.
    :param batches: integers ``(N,)``.
    :param distances: the lineage distances ``(K, K)`` of some cells, given by their numbers ``(K,)``.
    """

    counts: Tensor
    labels: Tensor | None = None
    batches: Tensor | None = None
    distances: Callable[[Tensor], Tensor] | None = None

    @property
    def num_batches(self) -> int | None:
        """How many batches a model has to know; ``None`` without."""
        return None if self.batches is None else int(self.batches.max()) + 1

    def inputs(self, cells: Tensor) -> dict[str, Any]:
        """What the programs of a :class:`~pyro_hyperbolic.models.CountVAE` are called with for some cells."""
        inputs: dict[str, Any] = {"x": self.counts[cells]}
        if self.batches is not None:
            inputs["covariates"] = {"batch": self.batches[cells]}
        return inputs

    def split(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of the cells for training, validation and test: 70, 10 and 20 per cent."""
        order = torch.randperm(len(self.counts), generator=torch.Generator().manual_seed(seed))
        train, validation = len(order) * _TRAIN // 10, len(order) * (_TRAIN + _VALIDATION) // 10
        first, second, third = order.tensor_split([train, validation])
        return first, second, third


@functools.cache
def _paul15() -> datasets.CellCounts:
    return datasets.paul15()


def paul15_cells(seed: int = 0) -> KnownCells:
    """Those of Paul et al.; the seed of a run decides the split only."""
    cells = _paul15()
    return KnownCells(cells.counts, cells.types)


def branching_cells(seed: int = 0, **options: Any) -> KnownCells:
    """A simulated lineage, with the edges of its tree as labels."""
    cells = datasets.branching_cells(seed=seed, **options)
    return KnownCells(cells.counts, cells.nodes, cells.batches, cells.distances)


DATA: dict[str, Callable[[int], KnownCells]] = {"paul15": paul15_cells, "branching": branching_cells}
"""Cells by the name of the data, from a seed."""


def build_count_vae(curvature: float, latent_dim: int, cells: KnownCells, hidden_dim: int) -> CountVAE:
    """The model of a curvature ``c``; 0 is the Euclidean one, with a linear layer in the place of gyroplanes."""
    space, decoder = (PoincareBall(curvature), "gyroplane") if curvature > 0 else (Euclidean(), "mlp")
    return CountVAE(
        space,
        latent_dim,
        cells.counts.shape[1],
        hidden_dim,
        batches=cells.num_batches,
        target_sum=_TARGET_SUM,
        decoder=decoder,
    )


@torch.no_grad()
def embedding_scores(vae: CountVAE, cells: KnownCells, train: Tensor, test: Tensor) -> dict[str, float]:
    """Scores of the posterior means of the test cells: those for which enough is known, see :mod:`.analysis`.

    Neighbours of a test cell are training cells for its label and test cells for its batch.
    """
    manifold = vae.manifold
    z = vae.encode(**cells.inputs(test)).mean
    scores = {}
    if cells.labels is not None:
        known = vae.encode(**cells.inputs(train)).mean, cells.labels[train]
        scores["knn_accuracy"] = knn_accuracy(z, cells.labels[test], manifold, k=NEIGHBOURS, reference=known)
    if cells.distances is not None:
        lineage = cells.distances(test)
        scores["correlation"] = lineage_correlation(z, lineage, manifold)
        scores["rank_correlation"] = lineage_correlation(z, lineage, manifold, method="spearman")
    if cells.batches is not None:
        scores["batch_mixing"] = batch_mixing(z, cells.batches[test], manifold, k=NEIGHBOURS)
    return scores


@torch.no_grad()
def coverage_scores(vae: CountVAE, cells: KnownCells, test: Tensor) -> dict[str, float]:
    """How often 90% regions hold the truth: those of the encoder, and those of draws from exact posteriors.

    The data are the model's own: a latent of the prior for each of the test cells, and counts that are drawn with the
    size and the batch of that cell.
    """
    device = vae.latent.log_scale.device
    inputs = map_tensors(lambda t: t.to(device), cells.inputs(test))
    inputs["size_factors"] = vae.size_factors(inputs.pop("x"))
    truth = vae.prior().sample((len(test),))
    inputs["x"] = vae.decode(truth, **inputs).sample()
    draws = vae.posterior(**inputs, num_samples=_DRAWS).samples
    return {
        "coverage": posterior_coverage(vae.encode(**inputs), truth),
        "exact_coverage": posterior_coverage(draws, truth, manifold=vae.manifold),
    }


@dataclass(frozen=True)
class CellsCell(Cell):
    """One auto-encoder on one data set.

    :param data: a name in :data:`DATA`.
    :param curvature: ``c``; 0 for the Euclidean model.
    """

    data: str
    curvature: float

    @property
    def name(self) -> str:
        return f"{self.data}, {'euclidean' if self.curvature == 0 else f'c={self.curvature:g}'}"


@dataclass(frozen=True)
class Cells(Experiment):
    """Auto-encoders of counts, on the cells of Paul et al. and on simulated lineages of five levels in three batches.

    Each seed has a split, and a simulated lineage, of its own, which all models share.

    :param epochs: of training.
    :param batch_size: cells per step; the last, smaller batch of an epoch is left out.
    :param learning_rate: of Adam.
    :param hidden_dim: width of the hidden layers.
    :param latent_dim: dimension of the latent space.
    :param iwae_samples: per cell of the test and validation sets.
    :param num_cells: of a simulated lineage.
    """

    command = "cells"

    seeds: int = 10
    epochs: int = 200
    batch_size: int = 128
    learning_rate: float = 5e-3
    hidden_dim: int = 128
    latent_dim: int = 2
    iwae_samples: int = 1000
    num_cells: int = 3000

    def cells(self) -> Sequence[CellsCell]:
        return [CellsCell(data, c) for data in DATA for c in CURVATURES]

    def shape(self, cell: CellsCell) -> Hashable:
        return cell.data, cell.curvature > 0

    def known(self, cell: CellsCell, seed: int) -> KnownCells:
        """The cells of a run."""
        return branching_cells(seed, cells=self.num_cells) if cell.data == "branching" else DATA[cell.data](seed)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        seeds = {job.seed for job in jobs}
        data = {seed: self.known(jobs[0].cell, seed) for seed in seeds}
        splits = {seed: data[seed].split(seed) for seed in seeds}
        members = []
        for job in jobs:
            pyro.set_rng_seed(job.seed)
            member = build_count_vae(job.cell.curvature, self.latent_dim, data[job.seed], self.hidden_dim)
            member.init_output_bias(data[job.seed].counts[splits[job.seed][0]])
            members.append(member.to(session.device))

        def stacked(part: int) -> dict[str, Any]:
            rows = [data[job.seed].inputs(splits[job.seed][part]) for job in jobs]
            return _stacked(rows, session.device)

        batches = Minibatches(
            stacked(0), self.batch_size, seed=jobs[0].number, members=len(jobs), own_data=True, drop_last=True
        )
        svi = session.train(jobs, members, batches.epoch, self.epochs, self.learning_rate)
        metrics = session.negative_iwae(svi, stacked(2), self.iwae_samples, shared=False)
        validation = session.negative_iwae(svi, stacked(1), self.iwae_samples, shared=False)
        for job, member, values, other in zip(jobs, members, metrics, validation, strict=True):
            values["validation_negative_iwae"] = other["negative_iwae"]
            train, _, test = splits[job.seed]
            with isolated():
                pyro.set_rng_seed(job.seed)
                values |= coverage_scores(member, data[job.seed], test)
                values |= embedding_scores(member.cpu(), data[job.seed], train, test)
            if job.seed == 0:
                session.save_model(job, member)
        return metrics


def _stacked(rows: Sequence[Any], device: torch.device) -> Any:
    """Tensors of all members along a new first dimension, also those in dictionaries."""
    if isinstance(rows[0], dict):
        return {name: _stacked([row[name] for row in rows], device) for name in rows[0]}
    return torch.stack(list(rows)).to(device)
