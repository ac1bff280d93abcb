"""Auto-encoders of MNIST whose posteriors and priors are flows, beside wrapped normals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from torch import Tensor

from experiments.job import Cell, Job
from experiments.mnist import MnistExperiment
from experiments.session import Session
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.analysis import posterior_coverage
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.infer import Minibatches
from pyro_hyperbolic.models import HyperbolicVAE
from pyro_hyperbolic.nn import ManifoldModule

BINARY, GREY = "binary", "grey"
FAMILIES = ("flow", "wrapped")
BINARY_DIMENSIONS = (2, 4, 6)
CURVED, FLAT = 1.0, 0.0
RATES = (1e-3, 2e-3)
"""Learning rates of the binarised digits, of which held-out images choose."""
GREY_CURVATURES = {2: 1.4, 5: 0.7, 10: 0.2, 20: 0.1}
"""Those of Table 2 that are nearest to what its models learn, by the dimension."""
GREY_RATE = 1e-3  # what held-out images choose on the page of the choices
_DRAWS = 39  # of a posterior; with the truth they are 40, of which 36 are within a 90% region


@dataclass(frozen=True)
class FlowCell(Cell):
    """One auto-encoder.

    :param task: ``"binary"`` or ``"grey"`` digits.
    :param latent_dim: dimension of the latent space.
    :param curvature: ``c``; 0 is flat space, with the same layers and as many parameters.
    :param family: ``"flow"`` or ``"wrapped"``: the posterior, and with binary digits the prior too.
    :param learning_rate: of Adam.
    """

    task: str
    latent_dim: int
    curvature: float
    family: str
    learning_rate: float

    @property
    def name(self) -> str:
        end = f"c={self.curvature:g}, lr={self.learning_rate:g}"
        return f"{self.task}, d={self.latent_dim}, {self.family}, {end}"


@dataclass(frozen=True)
class Flows(MnistExperiment):
    """Flows in the auto-encoders of MNIST. Not in the paper.

    *Binary* digits: posterior and prior are flows, or wrapped normals with a diagonal posterior. The images to train on
    are drawn anew from the grey levels in each epoch (dynamic binarisation), and those to validate and to test once.
    The last of the training images are held out to choose the learning rate. *Grey* digits are those of Table 2, where
    the posterior alone is a flow.

    Runs of one seed begin from the same encoder and decoder and see the images in the same order.

    :param layers: of each flow, like ``flow_dim``, the size of the one hidden layer of its networks, and ``bins``.
    :param held_out: how many training images choose the learning rate.
    :param drawn: how many images are drawn from a model to count the coverage of posteriors.
    """

    command = "flows"

    seeds: int = 4
    epochs: int = 40
    iwae_samples: int = 500
    layers: int = 2
    flow_dim: int = 64
    bins: int = 8
    held_out: int = 10_000
    drawn: int = 500

    def cells(self) -> Sequence[Any]:
        cells = [
            FlowCell(BINARY, d, c, family, rate)
            for d in BINARY_DIMENSIONS
            for family in FAMILIES
            for c in (CURVED, FLAT)
            for rate in RATES
        ]
        cells += [FlowCell(GREY, d, c, family, GREY_RATE) for d, c in GREY_CURVATURES.items() for family in FAMILIES]
        return cells

    def shape(self, cell: Any) -> Hashable:
        return cell.task, cell.latent_dim, cell.family

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if key != "learning_rate"}

    def build(self, cell: Any) -> HyperbolicVAE:
        is_binary = cell.task == BINARY
        options: dict[str, Any] = {"prior": cell.family if is_binary else "wrapped", "posterior": cell.family}
        if cell.family == "flow":
            options["flow"] = {"layers": self.layers, "hidden_dims": (self.flow_dim,), "bins": self.bins}
        return HyperbolicVAE(
            ManifoldModule(PoincareBall(cell.curvature)),
            cell.latent_dim,
            (28, 28),
            self.hidden_dim,
            prior_scale=self.prior_scale,
            posterior_scale="diagonal" if is_binary else "isotropic",
            **options,
        )

    def start(self, job: Job) -> HyperbolicVAE:
        """The model of a run, with the encoder and the decoder that all models of its seed begin from."""
        pyro.set_rng_seed(job.seed)
        plain = self.build(replace(job.cell, family="wrapped"))
        member = self.build(job.cell)
        member.load_state_dict(plain.state_dict(), strict=False)
        return member

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        is_binary = jobs[0].cell.task == BINARY
        train, test = self.images(session.device)
        validation = train[-self.held_out :] if is_binary else train[:0]
        if is_binary:
            train = train[: -self.held_out]
            validation, test = (_binarised(x, seed) for seed, x in enumerate((validation, test)))
        members = []
        for job in jobs:
            member = self.start(job).to(session.device)
            member.init_output_bias(train)
            members.append(member)
        epoch = self._epochs(train, len(jobs), is_binary)
        svi = session.train(jobs, members, epoch, self.epochs, [job.cell.learning_rate for job in jobs])
        # So few samples take less time than the compiler would.
        session = replace(session, compile=False)
        metrics = session.negative_iwae(svi, test, self.iwae_samples, shared=True)
        if is_binary:
            scores = session.negative_iwae(svi, validation, self.iwae_samples, shared=True)
            for values, score in zip(metrics, scores, strict=True):
                values["validation_negative_iwae"] = score["negative_iwae"]
        for job, member, values in zip(jobs, members, metrics, strict=True):
            values["parameters"] = sum(p.numel() for p in member.parameters())
            if is_binary:
                with isolated():
                    pyro.set_rng_seed(job.seed)
                    is_shown = job.seed == 0 and job.cell.learning_rate == RATES[0]
                    values |= coverage(member, self.drawn, exact=is_shown)
        return metrics

    def _epochs(self, train: Tensor, members: int, is_binary: bool) -> Callable[[int], Iterable[Any]]:
        """Batches by the number of the epoch."""
        images = train.clone() if is_binary else train
        # Not a seed of the cell's own: models of one seed are compared.
        batches = Minibatches(images, self.batch_size, seed=0, members=members, drop_last=True)

        def epoch(number: int) -> Iterable[Any]:
            if is_binary:
                # In place, where the graphs of the steps read them.
                images.copy_(_binarised(train, number))
            return batches.epoch(number)

        return epoch


def _binarised(x: Tensor, seed: int) -> Tensor:
    """Images of zeros and ones whose means are the grey levels."""
    return torch.bernoulli(x, generator=torch.Generator(x.device).manual_seed(seed))


@torch.no_grad()
def coverage(vae: HyperbolicVAE, images: int, exact: bool) -> dict[str, float]:
    """How often 90% regions hold the truth: those of draws from the encoder, and of draws from exact posteriors.

    The images are the model's own: latents of its prior, and what is drawn from them.

    :param images: how many.
    :param exact: whether to draw from exact posteriors too, which takes longer.
    """
    truth = vae.prior().sample((images,))
    x = vae.decode(truth).sample()
    draws = {"coverage": vae.encode(x).sample((_DRAWS,))}
    if exact:
        draws["exact_coverage"] = vae.posterior(x, num_samples=_DRAWS).samples
    return {name: posterior_coverage(z, truth, manifold=vae.manifold) for name, z in draws.items()}
