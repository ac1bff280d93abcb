"""Table 4: link prediction in three networks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session
from pyro_hyperbolic import datasets
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.models import VGAE, EuclideanVGAE, HyperbolicVGAE

GRAPHS = ("phylogenetic", "csphd", "diseases")
CURVATURES = (0.3, 1.0, 2.0)


@dataclass(frozen=True)
class GraphCell(Cell):
    """One auto-encoder of one graph.

    :param graph: a name that :func:`pyro_hyperbolic.datasets.graph` knows.
    :param curvature: ``c``; 0 for the Euclidean model.
    """

    graph: str
    curvature: float

    @property
    def row(self) -> str:
        """The name without the graph."""
        return f"hyperbolic c={self.curvature:g}" if self.curvature else "euclidean"

    @property
    def name(self) -> str:
        return f"{self.graph}, {self.row}"


@dataclass(frozen=True)
class Table4(Experiment):
    """Link prediction. Each seed has a split of the edges of its own, which all models share.

    The paper does not give its curvature. Each graph has several here, and the report also chooses one for every split,
    by the validation edges of that split.

    :param latent_dim: dimension of the latent space.
    :param hidden_dim: width of the first graph convolution.
    :param epochs: full-batch steps.
    :param learning_rate: of Adam.
    :param prior_scale: scale of all priors.
    :param posterior_scale: ``"diagonal"`` or ``"isotropic"``.
    :param test: fraction of the edges for the test.
    :param validation: fraction of the edges for validation.
    """

    command = "table4"

    seeds: int = 40
    latent_dim: int = 5
    hidden_dim: int = 32
    epochs: int = 800
    learning_rate: float = 1e-2
    prior_scale: float = 1.0
    posterior_scale: str = "diagonal"
    test: float = 0.1
    validation: float = 0.05

    def cells(self) -> Sequence[GraphCell]:
        return [GraphCell(graph, c) for graph in GRAPHS for c in (0.0, *CURVATURES)]

    def shape(self, cell: GraphCell) -> Hashable:
        return cell.graph, cell.curvature > 0

    def graph(self, cell: GraphCell) -> str:
        """The name of the graph of a cell."""
        return cell.graph

    def build(self, cell: GraphCell, num_nodes: int, edges: Tensor) -> VGAE:
        """The model of a cell, untrained."""
        options: dict[str, Any] = {"latent_dim": self.latent_dim, "hidden_dim": self.hidden_dim}
        options |= {"prior_scale": self.prior_scale, "posterior_scale": self.posterior_scale}
        if cell.curvature == 0:
            return EuclideanVGAE(num_nodes, edges, **options)
        return HyperbolicVGAE(PoincareBall(cell.curvature), num_nodes, edges, **options)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        graph = datasets.graph(self.graph(jobs[0].cell))
        splits, members = [], []
        for job in jobs:
            split = datasets.split_edges(graph, test=self.test, validation=self.validation, seed=job.seed)
            pyro.set_rng_seed(job.seed)
            members.append(self.build(job.cell, graph.num_nodes, split.train).to(session.device))
            splits.append(split)
        session.train(jobs, members, lambda number: [()], self.epochs, self.learning_rate)
        metrics = []
        for job, member, split in zip(jobs, members, splits, strict=True):
            values: dict[str, Any] = _scores(member, split.test, split.test_negatives)
            validation = _scores(member, split.validation, split.validation_negatives)
            values |= {f"validation_{name}": value for name, value in validation.items()}
            metrics.append(values | self.extras(job.cell, member))
        return metrics


def _scores(vgae: VGAE, edges: Tensor, others: Tensor) -> dict[str, float]:
    """Scores of a model, which are not numbers if it has diverged."""
    if not all(bool(parameter.isfinite().all()) for parameter in vgae.parameters()):
        return {"auc": math.nan, "ap": math.nan}
    return vgae.link_scores(edges, others)
