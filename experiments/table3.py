"""Table 3: digits told from their two-dimensional embeddings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.mnist import MnistCell, digits
from experiments.session import Session
from experiments.table2 import KEPT, Table2
from pyro_hyperbolic.infer import Minibatches
from pyro_hyperbolic.models import VAE, EmbeddingClassifier


@dataclass(frozen=True)
class ClassifierCell(Cell):
    """Classifiers on the embeddings of one auto-encoder.

    :param row: the auto-encoder, a row of Table 2 at ``d = 2``.
    """

    row: str

    @property
    def name(self) -> str:
        return self.row


@dataclass(frozen=True)
class Table3(Experiment):
    """Classifiers on two-dimensional embeddings of MNIST.

    Run ``i`` of a cell is training ``i % trainings`` of a classifier on embedding ``i // trainings``.

    :param trainings: classifiers on each set of embeddings.
    :param epochs: of a classifier.
    :param batch_size: embeddings per step; the last, smaller batch of an epoch is left out.
    :param learning_rate: of Adam.
    :param embedding: the training of the auto-encoders.
    """

    command = "table3"

    seeds: int = 50
    trainings: int = 5
    epochs: int = 5
    batch_size: int = 64
    learning_rate: float = 1e-3
    embedding: Table2 = field(default_factory=Table2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds != self.trainings * self.embedding.seeds:
            raise ValueError(
                f"seeds must be trainings * embedding.seeds = {self.trainings} * {self.embedding.seeds},"
                f" got {self.seeds}."
            )

    def cells(self) -> Sequence[ClassifierCell]:
        return [ClassifierCell(row) for row in KEPT]

    def shape(self, cell: ClassifierCell) -> Hashable:
        return cell.row.split(" ")[0] == "euclidean"

    def required(self, cells: Sequence[ClassifierCell]) -> tuple[Experiment, list[Cell]]:
        return self.embedding, [self.source(cell) for cell in cells]

    def source(self, cell: ClassifierCell) -> MnistCell:
        """The auto-encoder of a cell."""
        return next(c for c in self.embedding.cells() if c.latent_dim == 2 and c.row == cell.row)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"embedding": self.embedding.settings()}

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        train, test = self.embedding.images(session.device)
        labels, test_labels = (
            digits(part).labels[: len(images)].to(session.device) for part, images in ((True, train), (False, test))
        )
        embeddings: dict[tuple[str, int], tuple[VAE, Tensor, Tensor]] = {}
        members = []
        for job in jobs:
            source = Job(self.embedding, self.source(job.cell), job.seed // self.trainings)
            key = job.cell.row, source.seed
            if key not in embeddings:
                vae = self.embedding.build(source.cell).to(session.device)
                session.load_model(source, vae)
                embeddings[key] = vae, _means(vae, train), _means(vae, test)
            pyro.set_rng_seed(job.seed)
            members.append(EmbeddingClassifier(embeddings[key][0].decoder).to(session.device))
        keys = [(job.cell.row, job.seed // self.trainings) for job in jobs]
        z = torch.stack([embeddings[key][1] for key in keys])
        own = z, labels.expand(len(jobs), -1)
        batches = Minibatches(
            own, self.batch_size, seed=jobs[0].number, members=len(jobs), own_data=True, drop_last=True
        )
        session.train(jobs, members, batches.epoch, self.epochs, self.learning_rate)
        metrics = []
        for member, key in zip(members, keys, strict=True):
            confusion = member.confusion(embeddings[key][2], test_labels).double()
            if not all(bool(parameter.isfinite().all()) for parameter in member.parameters()):
                confusion = torch.full_like(confusion, torch.nan)  # it has diverged: its classes mean nothing
            metrics.append({"confusion": confusion.tolist(), "accuracy": _accuracy(confusion)})
        return metrics


def _means(vae: VAE, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([vae.encode(x).mean for x in images.split(10_000)])


def _accuracy(confusion: Tensor) -> float:
    return (confusion.diagonal().sum() / confusion.sum()).item()
