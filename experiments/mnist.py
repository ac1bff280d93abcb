"""Auto-encoders of MNIST: what Table 2, Table 3 and the ablation of the decoder share."""

from __future__ import annotations

import functools
import warnings
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
from pyro_hyperbolic.geometry import Lorentz, PoincareBall
from pyro_hyperbolic.infer import Minibatches
from pyro_hyperbolic.models import VAE, EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import ManifoldModule


@dataclass(frozen=True)
class MnistCell(Cell):
    """One auto-encoder.

    :param latent_dim: dimension of the latent space.
    :param distribution: prior and posterior: ``"euclidean"``, ``"wrapped"`` or ``"riemannian"``.
    :param curvature: ``c``; 0 for the Euclidean model, the initial one where it is learned.
    :param posterior_scale: ``"isotropic"`` (the paper's) or ``"diagonal"``.
    :param learn_curvature: learn ``c``.
    :param chart: ``"ball"`` (the paper's), or ``"hyperboloid"`` with latents in float64, which reaches farther.
    :param decoder: its first layer.
    """

    latent_dim: int
    distribution: str
    curvature: float
    posterior_scale: str = "isotropic"
    learn_curvature: bool = False
    chart: str = "ball"
    decoder: str = "gyroplane"

    @property
    def row(self) -> str:
        """The name without the dimension: the row of Table 2."""
        name = self.distribution
        if self.learn_curvature:
            name += " c learned"
        elif self.distribution != "euclidean":
            name += f" c={self.curvature:g}"
        return name if self.posterior_scale == "isotropic" else f"{name}, {self.posterior_scale}"

    @property
    def name(self) -> str:
        decoder = "" if self.decoder == "gyroplane" else f", {self.decoder}"
        return f"{self.row}{decoder}, d={self.latent_dim}"


@dataclass(frozen=True)
class MnistExperiment(Experiment):
    """Training and evaluation as in the paper's Section 5.2 and its appendix.

    :param epochs: of training.
    :param batch_size: images per step; the last, smaller batch of an epoch is left out.
    :param learning_rate: of Adam.
    :param hidden_dim: width of the hidden layers.
    :param prior_scale: of all priors.
    :param iwae_samples: per image of the test set.
    :param data_limit: use only so many training and test images; all by default.
    """

    seeds: int = 10
    epochs: int = 80
    batch_size: int = 128
    learning_rate: float = 5e-4
    hidden_dim: int = 600
    prior_scale: float = 1.0
    iwae_samples: int = 5000
    data_limit: int | None = None

    worth_compiling = True

    def shape(self, cell: MnistCell) -> Hashable:
        return cell.latent_dim, cell.distribution, cell.posterior_scale, cell.learn_curvature, cell.chart, cell.decoder

    def keeps(self, cell: MnistCell) -> bool:
        """Whether the parameters of the trained models are needed again."""
        return False

    def extras(self, cell: MnistCell, member: HyperbolicVAE) -> dict[str, Any]:
        return {"curvature": member.latent.manifold.c.item()} if cell.learn_curvature else {}

    def rate(self, cell: Any) -> float:
        """The learning rate of Adam; cells of one shape have the same."""
        return self.learning_rate

    def build(self, cell: MnistCell) -> VAE:
        """The model of a cell, untrained."""
        options: dict[str, Any] = {"hidden_dim": self.hidden_dim, "prior_scale": self.prior_scale}
        options["posterior_scale"] = cell.posterior_scale
        if cell.distribution == "euclidean":
            return EuclideanVAE(cell.latent_dim, (28, 28), **options)
        on_ball = cell.chart == "ball"
        manifold = PoincareBall(cell.curvature) if on_ball else Lorentz(cell.curvature)
        return HyperbolicVAE(
            ManifoldModule(manifold, learnable=cell.learn_curvature),
            cell.latent_dim,
            (28, 28),
            prior=cell.distribution,
            posterior=cell.distribution,
            decoder=cell.decoder,
            latent_dtype=torch.float32 if on_ball else torch.float64,
            **options,
        )

    def images(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Training and test images."""
        if self.data_limit is None and not _whole():
            raise ValueError(
                "this table needs the whole of MNIST, which is not on this machine; put its files into the folder"
                " that the environment variable PYRO_HYPERBOLIC_DATA names, or connect to the network."
            )
        train, test = digits(True).images[: self.data_limit], digits(False).images[: self.data_limit]
        return train.to(device), test.to(device)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        train, test = self.images(session.device)
        members = []
        for job in jobs:
            pyro.set_rng_seed(job.seed)
            member = self.build(job.cell).to(session.device)
            member.init_output_bias(train)
            members.append(member)
        batches = Minibatches(train, self.batch_size, seed=jobs[0].number, members=len(jobs), drop_last=True)
        svi = session.train(jobs, members, batches.epoch, self.epochs, self.rate(jobs[0].cell))
        metrics = session.negative_iwae(svi, test, self.iwae_samples, shared=True)
        for job, member, values in zip(jobs, members, metrics, strict=True):
            values |= self.extras(job.cell, member)
            if self.keeps(job.cell):
                session.save_model(job, member)
        return metrics


def _whole() -> bool:
    """Whether all digits are there. The loader's notice that it uses a part of them would not be true here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", datasets.BundledDataWarning)
        return digits(True).source != "bundled subset"


@functools.lru_cache(maxsize=2)
def digits(train: bool) -> datasets.Digits:
    """The digits, read once."""
    return datasets.mnist(train=train)
