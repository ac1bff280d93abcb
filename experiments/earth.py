"""Densities on the globe: volcanoes, earthquakes, floods and fires."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session, describe
from pyro_hyperbolic import Sphere
from pyro_hyperbolic.datasets.paths import data_root
from pyro_hyperbolic.distributions import HypersphericalUniform, manifold_flow
from pyro_hyperbolic.infer import EnsembleSVI, load_checkpoint, save_checkpoint
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.ops.special import unit

FILES = {"volcano": "volerup.csv", "earthquake": "quakes_all.csv", "flood": "flood.csv", "fire": "fire.csv"}
NEIGHBOURS = (2, 4, 8, 16)
FACTORS = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
UNIFORM = (0.003, 0.01, 0.03, 0.1)
WEIGHTS = tuple(i / 20 for i in range(21))
LEAST_WIDTH = 1e-3  # of a kernel, 6 km: below, it rewards rows that are in a file twice
_ROWS = 500  # of a matrix of distances that exist at a time
_NEVER = 1 << 60


@dataclass(frozen=True)
class EarthCell(Cell):
    """One data set."""

    data: str

    @property
    def name(self) -> str:
        return self.data


class FlowDensity(NamedModel):
    """A flow of the uniform distribution on the sphere."""

    def __init__(self, layers: int, hidden_dim: int, bins: int) -> None:
        super().__init__()
        self.flow = manifold_flow(Sphere(1.0), 2, layers=layers, hidden_dims=(hidden_dim, hidden_dim), bins=bins)

    def distribution(self, like: Tensor) -> Any:
        """The density, for points such as ``like``."""
        uniform = HypersphericalUniform(3, like.dtype, like.device, validate_args=False)
        return dist.TransformedDistribution(uniform, [self.flow], validate_args=False)

    def model(self, x: Tensor) -> None:
        """Points given, with the mean of their densities as a loss."""
        self._register()
        with poutine.scale(scale=1 / len(x)), pyro.plate("data", len(x)):
            pyro.sample("x", self.distribution(x), obs=x)

    def guide(self, x: Tensor) -> None:
        """Nothing is latent."""


@dataclass(frozen=True)
class Earth(Experiment):
    """Density estimation on four sets of places, with random splits into 80%, 10% and 10%, one for each seed.

    Each run has three estimates, whose settings its validation data choose:

    * a flow of the uniform distribution, after the epoch that is best there;
    * kernels: a mixture of spherical Cauchy distributions at the training points, each of which is the image of the
      uniform distribution under a conformal map. Widths are multiples of the distance to a near neighbour, and a share
      of the mass is uniform;
    * a mixture of the two.

    :param epochs: of training.
    :param steps: of an epoch.
    :param batch_size: points per step.
    :param learning_rate: of Adam at the start; at the end it is a hundredth of that.
    :param layers: of the flow, like ``hidden_dim`` and ``bins``.
    """

    command = "earth"

    seeds: int = 5
    epochs: int = 40
    steps: int = 300
    batch_size: int = 512
    learning_rate: float = 3e-3
    layers: int = 8
    hidden_dim: int = 64
    bins: int = 24

    def cells(self) -> Sequence[EarthCell]:
        return [EarthCell(name) for name in FILES]

    def shape(self, cell: EarthCell) -> Hashable:
        return None

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        parts = [split(places(job.cell.data), job.seed, session.device) for job in jobs]
        members = []
        for job in jobs:
            pyro.set_rng_seed(job.seed)
            members.append(FlowDensity(self.layers, self.hidden_dim, self.bins).to(session.device))
        best = self._trained(jobs, members, parts, session)
        metrics = []
        for member, state, (train, validation, test) in zip(members, best, parts, strict=True):
            member.load_state_dict(state["parameters"])
            held_out = [validation, test]
            flow = [log_density(member, x) for x in held_out]
            kernels, setting = kernel_densities(train, held_out)
            weight = min(WEIGHTS, key=lambda w: -mixed(flow[0], kernels[0], w).mean().item())
            both = [mixed(a, b, weight) for a, b in zip(flow, kernels, strict=True)]
            values = {"epoch": state["epoch"], "weight": weight, **setting}
            for name, densities in (("flow", flow), ("kernels", kernels), ("both", both)):
                values |= {f"{name} validation": -densities[0].mean().item(), name: -densities[1].mean().item()}
            metrics.append(values)
        return metrics

    def _trained(
        self, jobs: Sequence[Job], members: list[FlowDensity], parts: list[list[Tensor]], session: Session
    ) -> list[dict[str, Any]]:
        """The parameters of every member after the epoch that is best on its validation data."""
        pyro.clear_param_store()
        decay = 0.01 ** (1 / (self.epochs * self.steps))
        optim = pyro.optim.ClippedAdam({"lr": self.learning_rate, "lrd": decay, "clip_norm": 1.0})
        pairs = [(member.model, member.guide) for member in members]
        svi = EnsembleSVI(pairs, optim, Trace_ELBO(), compile=session.compile, validate_every=_NEVER)
        path = session.store.checkpoint_path(jobs)
        best: list[dict[str, Any]] = [{"loss": math.inf} for _ in jobs]
        done = 0
        if path.exists():
            state = load_checkpoint(path, map_location=session.device)
            svi.load_state_dict(state["ensemble"])
            done, best = state["epoch"], state["best"]
        label = describe(jobs)
        session.progress.advance(done * len(jobs), label)
        saved = time.monotonic()
        for epoch in range(done + 1, self.epochs + 1):
            svi.run(self._batches([part[0] for part in parts], jobs[0].number + epoch))
            for member, (_, validation, _), kept in zip(members, parts, best, strict=True):
                loss = -log_density(member, validation).mean().item()
                if loss < kept["loss"] or not kept.get("parameters"):
                    parameters = {name: value.detach().clone() for name, value in member.state_dict().items()}
                    kept.update(loss=loss, epoch=epoch, parameters=parameters)
            session.progress.advance(len(jobs), label)
            if time.monotonic() - saved >= session.checkpoint_seconds:
                save_checkpoint({"ensemble": svi.state_dict(), "epoch": epoch, "best": best}, path)
                saved = time.monotonic()
        return best

    def _batches(self, points: list[Tensor], seed: int) -> Iterator[Tensor]:
        """Batches of an epoch, ``(members, batch_size, 3)``, each member's from its own points."""
        device = points[0].device
        generator = torch.Generator(device).manual_seed(seed % (1 << 31))
        padded = torch.nn.utils.rnn.pad_sequence(points, batch_first=True).float()
        sizes = torch.tensor([len(x) for x in points], device=device).unsqueeze(-1)
        member = torch.arange(len(points), device=device).unsqueeze(-1)
        for _ in range(self.steps):
            share = torch.rand((len(points), self.batch_size), generator=generator, device=device)
            yield padded[member, (share * sizes).long()]


def places(name: str) -> Tensor:
    """The places of a data set as unit vectors in float64, from the folder ``earth`` of the data."""
    path = data_root() / "earth" / FILES[name]
    if not path.exists():
        raise ValueError(
            f"{path} is missing; put the four files {', '.join(FILES.values())} of the earth sciences' collection of"
            " Mathieu and Nickel (2020) there, and set PYRO_HYPERBOLIC_DATA to the folder above."
        )
    rows = []
    for row in csv.reader(line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")):
        try:
            rows.append([float(row[0]), float(row[1])])
        except ValueError:  # names of columns
            continue
    latitude, longitude = torch.tensor(rows, dtype=torch.float64).deg2rad().unbind(-1)
    side = latitude.cos()
    return torch.stack([side * longitude.cos(), side * longitude.sin(), latitude.sin()], -1)


def split(x: Tensor, seed: int, device: torch.device) -> list[Tensor]:
    """Points to train, to validate and to test: 80%, 10% and 10%, at random."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    ends = [int(0.8 * len(x)), int(0.9 * len(x))]
    return [x[part].to(device) for part in order.tensor_split(ends)]


@torch.no_grad()
def log_density(member: FlowDensity, x: Tensor) -> Tensor:
    """Log-densities of the flow, in float64."""
    member.flow.clear_cache()
    points = unit(x).float()
    return member.distribution(points).log_prob(points).double()


def mixed(one: Tensor, other: Tensor, weight: float) -> Tensor:
    """Log-densities of a mixture, ``weight`` that of the second."""
    if weight in (0.0, 1.0):
        return other if weight else one
    return torch.logaddexp(one + math.log1p(-weight), other + math.log(weight))


def kernel_densities(train: Tensor, held_out: list[Tensor]) -> tuple[list[Tensor], dict[str, float]]:
    """Log-densities of kernels at points held out, with the settings that are best for the first of them."""
    uniform = torch.tensor(-math.log(4 * math.pi), dtype=torch.float64, device=train.device)
    found = []
    for neighbours in NEIGHBOURS:
        near = _neighbour_distances(train, neighbours).clamp(min=LEAST_WIDTH)
        for factor in FACTORS:
            density = _cauchy_mixture(held_out[0], train, factor * near)
            for share in UNIFORM:
                loss = -mixed(density, uniform, share).mean().item()
                found.append((loss, neighbours, factor, share))
    _, neighbours, factor, share = min(found)
    widths = factor * _neighbour_distances(train, neighbours).clamp(min=LEAST_WIDTH)
    densities = [mixed(_cauchy_mixture(x, train, widths), uniform, share) for x in held_out]
    return densities, {"neighbours": neighbours, "factor": factor, "uniform": share}


def _neighbour_distances(x: Tensor, number: int) -> Tensor:
    """Chords to the neighbour of that number, from differences: products of matrices would lose the near ones."""
    kept = [
        torch.cdist(rows, x, compute_mode="donot_use_mm_for_euclid_dist").kthvalue(number + 1, -1).values
        for rows in x.split(_ROWS)
    ]
    return torch.cat(kept)


def _cauchy_mixture(x: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
    r"""Log-density of a mixture of equal weights: :math:`\frac{1}{4\pi}\big((1-\rho^2)/|x - \rho m|^2\big)^2` each."""
    rho = (2 - widths) / (2 + widths)
    out = []
    for rows in x.split(_ROWS):
        chord = torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
        factor = (1 - rho.square()) / ((1 - rho).square() + rho * chord)
        out.append((2 * factor.log()).logsumexp(-1))
    return torch.cat(out) - math.log(4 * math.pi * len(centres))
