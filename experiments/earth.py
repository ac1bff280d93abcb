"""Densities on the globe: volcanoes, earthquakes, floods and fires."""

from __future__ import annotations

import copy
import csv
import math
import time
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from pyro_hyperbolic.distributions import HypersphericalUniform, ManifoldFlow, continuous_flow, manifold_flow
from pyro_hyperbolic.infer import EnsembleSVI, load_checkpoint, save_checkpoint
from pyro_hyperbolic.infer.matching import matched
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.ops.special import squared_norm, unit

FILES = {"volcano": "volerup.csv", "earthquake": "quakes_all.csv", "flood": "flood.csv", "fire": "fire.csv"}
NEIGHBOURS = (2, 4, 8, 16)
FACTORS = (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5)
UNIFORM = (0.003, 0.01, 0.03, 0.1)
WEIGHTS = tuple(i / 20 for i in range(21))
NOISES = (0.0, 0.5, 1.0)
LEAST_WIDTH = 1e-3  # of a kernel, 6 km: below, it rewards rows that are in a file twice
SPHERE = Sphere(1.0)
_FINE = 128  # steps of the solver for the densities that are reported
_ROWS = 500  # of a matrix of distances that exist at a time
_NEVER = 1 << 60


@dataclass(frozen=True)
class EarthCell(Cell):
    """One data set."""

    data: str

    @property
    def name(self) -> str:
        return self.data


@dataclass(frozen=True)
class MatchedCell(Cell):
    """One data set, and a continuous flow."""

    data: str
    method: str = "matching"

    @property
    def name(self) -> str:
        return f"{self.data}, continuous"


class FlowDensity(NamedModel):
    """A flow of the uniform distribution on the sphere."""

    def __init__(self, flow: ManifoldFlow) -> None:
        super().__init__()
        self.flow = flow

    def distribution(self, like: Tensor) -> Any:
        """The density, for points such as ``like``."""
        uniform = HypersphericalUniform(3, like.dtype, like.device, validate_args=False)
        return dist.TransformedDistribution(uniform, [self.flow], validate_args=False)

    def model(self, x: Tensor, weights: Tensor) -> None:
        """Points given, with the weighted sum of their densities as a loss."""
        self._register()
        with poutine.scale(scale=weights), pyro.plate("data", len(x)):
            pyro.sample("x", self.distribution(x), obs=x)

    def guide(self, x: Tensor, weights: Tensor, *others: Tensor) -> None:
        """Nothing is latent."""


class MatchedDensity(FlowDensity):
    """A continuous flow of it, whose program has the loss of flow matching where velocities are given."""

    def model(self, x: Tensor, weights: Tensor, velocities: Tensor | None = None, time: Tensor | None = None) -> None:
        """As above, or points on geodesics with their velocities and times."""
        if velocities is None:
            super().model(x, weights)
            return
        self._register()
        field: Any = self.flow.layers
        losses = field.mismatch(SPHERE, x, velocities, time, x.new_zeros(0))
        pyro.factor("mismatch", -(weights * losses).sum())


@dataclass(frozen=True)
class Densities(Experiment):
    """Density estimation on sets of places by flows of one kind, beside kernels; see :class:`Earth`.

    :param epochs: of training; the learning rate falls to a hundredth.
    :param steps: of an epoch.
    :param batch_size: points per step.
    :param learning_rate: of Adam at first.
    :param hidden_dim: size of the hidden layers of the flow.
    """

    worth_compiling = True

    seeds: int = 5
    epochs: int = 30
    steps: int = 500
    batch_size: int = 512
    learning_rate: float = 3e-3
    hidden_dim: int = 128

    @abstractmethod
    def density(self) -> FlowDensity:
        """A flow to train."""

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        splits = [Split.of(job, session.device) for job in jobs]
        flows = self._trained(jobs, splits, session)
        metrics = []
        for own, found in zip(splits, flows, strict=True):
            noise, epoch, member = min(found, key=lambda trained: trained.loss)[1:]
            held_out = [own.validation, own.test]
            flow = [log_density(member, x) for x in held_out]
            weight = min(WEIGHTS, key=lambda w: -mixed(flow[0], own.kernels[0], w).mean().item())
            both = [mixed(a, b, weight) for a, b in zip(flow, own.kernels, strict=True)]
            new = ~is_repeated(own.test, own.train)
            values: dict[str, Any] = {"epoch": epoch, "noise": noise, "weight": weight, **own.setting}
            values["repeated"] = 1 - new.double().mean().item()
            for name, densities in (("flow", flow), ("kernels", own.kernels), ("both", both)):
                values |= {f"{name} validation": -densities[0].mean().item(), name: -densities[1].mean().item()}
                values[f"{name} new"] = -densities[1][new].mean().item()
            metrics.append(values)
        return metrics

    def _trained(self, jobs: Sequence[Job], splits: list[Split], session: Session) -> list[list[Trained]]:
        """Flows of each run, one for each of ``NOISES``, after the epoch that is best on its validation data."""
        members = []
        for job in jobs:
            for _ in NOISES:
                pyro.set_rng_seed(job.seed)
                members.append(self.density().to(session.device))
        pyro.clear_param_store()
        rates = {"optim_args": {"lr": self.learning_rate}, "gamma": 0.01 ** (1 / self.epochs)}
        # Clipped by a norm, which a CUDA graph can capture.
        optim = pyro.optim.ExponentialLR({"optimizer": torch.optim.Adam, **rates}, {"clip_norm": 1.0})
        pairs = [(member.model, member.guide) for member in members]
        svi = EnsembleSVI(pairs, optim, Trace_ELBO(), compile=session.compile, validate_every=_NEVER)
        each = [own for own in splits for _ in NOISES]
        held_out = padded([own.validation.float() for own in each])
        path = session.store.checkpoint_path(jobs)
        best: dict[str, Any] = {}
        done = 0
        if path.exists():
            state = load_checkpoint(path, map_location=session.device)
            svi.load_state_dict(state["ensemble"])
            done, best = state["epoch"], state["best"]
        label = describe(jobs)
        session.progress.advance(done * len(jobs), label)
        saved = time.monotonic()
        for epoch in range(done + 1, self.epochs + 1):
            judged = self.train(svi, self.batches(splits, jobs[0].number + epoch))
            optim.step()
            own = {name: value.detach().clone() for name, value in svi.parameters.items()}
            load(svi, judged)
            best = kept(best, svi.evaluate_loss(*held_out), epoch, svi.parameters)
            load(svi, own)
            session.progress.advance(len(jobs), label)
            if time.monotonic() - saved >= session.checkpoint_seconds:
                save_checkpoint({"ensemble": svi.state_dict(), "epoch": epoch, "best": best}, path)
                saved = time.monotonic()
        if done == self.epochs:
            svi.evaluate_loss(*held_out)  # which sets the ensemble up
        load(svi, best["parameters"])
        losses, epochs = best["loss"].tolist(), best["epoch"].tolist()
        found = [
            Trained(loss, noise, epoch, member)
            for loss, noise, epoch, member in zip(losses, NOISES * len(jobs), epochs, members, strict=True)
        ]
        return [found[i : i + len(NOISES)] for i in range(0, len(found), len(NOISES))]

    def train(self, svi: EnsembleSVI, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        """Train for an epoch; the parameters that are to be judged by the validation data."""
        svi.run(batches)
        return svi.parameters

    def batches(self, splits: list[Split], seed: int) -> Iterator[tuple[Tensor, ...]]:
        """Batches of an epoch, ``(members, batch_size, 3)``, and the weights of their points."""
        device = splits[0].train.device
        generator = torch.Generator(device).manual_seed(seed % (1 << 31))
        points, _ = padded([own.train.float() for own in splits for _ in NOISES])
        widths, _ = padded([(noise * own.widths).float() for own in splits for noise in NOISES])
        sizes = torch.tensor([len(own.train) for own in splits for _ in NOISES], device=device).unsqueeze(-1)
        member = torch.arange(len(points), device=device).unsqueeze(-1)
        weights = torch.full((len(points), self.batch_size), 1 / self.batch_size, device=device)
        for _ in range(self.steps):
            share = torch.rand(weights.shape, generator=generator, device=device)
            row = (share * sizes).long()
            yield moved(points[member, row], widths[member, row], generator), weights


@dataclass(frozen=True)
class Matched(Densities):
    """Continuous flows, trained by flow matching along geodesics from the uniform distribution.

    Their parameters are averaged over the steps of each epoch before they are judged.

    :param group: points whose ends are averaged over, a divisor of ``batch_size``.
    :param waves: of the field, like ``resolution``.
    :param solver_steps: of the solver, where validation data are judged; reported densities have 128.
    """

    command = "earth"

    epochs: int = 24
    steps: int = 1000
    learning_rate: float = 2e-3
    group: int = 256
    hidden_dim: int = 256
    waves: int = 128
    resolution: float = 0.02
    solver_steps: int = 32

    def cells(self) -> Sequence[MatchedCell]:
        return [MatchedCell(name) for name in FILES]

    def shape(self, cell: MatchedCell) -> Hashable:
        return cell.method

    def density(self) -> FlowDensity:
        options: dict[str, Any] = {"waves": self.waves, "resolution": self.resolution, "steps": self.solver_steps}
        return MatchedDensity(continuous_flow(SPHERE, 2, hidden_dims=(self.hidden_dim,) * 3, **options))

    def train(self, svi: EnsembleSVI, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}

        def watched() -> Iterator[tuple[Tensor, ...]]:
            for batch in batches:
                yield batch
                for name, value in svi.parameters.items():
                    sums[name] = sums[name].add_(value.detach()) if name in sums else value.detach().clone()

        svi.run(watched())
        return {name: value / self.steps for name, value in sums.items()}

    @torch.no_grad()
    def batches(self, splits: list[Split], seed: int) -> Iterator[tuple[Tensor, ...]]:
        pyro.set_rng_seed(seed % (1 << 31))
        uniform = HypersphericalUniform(3, device=splits[0].train.device, validate_args=False)
        for x1, weights in super().batches(splits, seed):
            groups = x1.unflatten(-2, (-1, self.group))
            parts = [part.flatten(-3, -2) for part in matched(SPHERE, 2, uniform, groups, average=True)]
            yield parts[0], weights, *parts[1:]


@dataclass(frozen=True)
class Earth(Densities):
    """Density estimation on four sets of places, with random splits into 80%, 10% and 10%, one for each seed.

    Each run has three estimates, whose settings its validation data choose:

    * kernels: a mixture of spherical Cauchy distributions at the training points, each of which is the image of the
      uniform distribution under a conformal map. Widths are multiples of the distance to a near neighbour, and a share
      of the mass is uniform;
    * a flow of the uniform distribution, after the epoch that is best on the validation data. Its training points are
      moved at random at each step, by draws of the kernels with all widths multiplied by one of ``NOISES``;
    * a mixture of the two.

    The flow is one of couplings, and in runs of their own (``--cells '*, continuous'``) a continuous one.

    :param epochs: of training; the learning rate falls to a hundredth.
    :param steps: of an epoch.
    :param batch_size: points per step.
    :param learning_rate: of Adam at first.
    :param layers: of the flow, like ``hidden_dim`` and ``bins``.
    :param matched: all of this for the continuous flows.
    """

    command = "earth"

    layers: int = 5
    bins: int = 24
    matched: Matched = field(default_factory=Matched)

    def cells(self) -> Sequence[Cell]:
        return [*(EarthCell(name) for name in FILES), *self.matched.cells()]

    def part(self, cell: Cell) -> Experiment:
        return self.matched if isinstance(cell, MatchedCell) else self

    def shape(self, cell: Cell) -> Hashable:
        return self.matched.shape(cell) if isinstance(cell, MatchedCell) else None

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items() if name != "matched"}

    def density(self) -> FlowDensity:
        hidden_dims = (self.hidden_dim, self.hidden_dim)
        return FlowDensity(manifold_flow(SPHERE, 2, layers=self.layers, hidden_dims=hidden_dims, bins=self.bins))


@dataclass(frozen=True)
class Split:
    """The places of a run, and the kernels at its training points.

    :param kernels: log-densities at the validation and the test points.
    :param setting: of the kernels, by validation.
    :param widths: those of the kernels.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    kernels: list[Tensor]
    setting: dict[str, float]
    widths: Tensor

    @classmethod
    def of(cls, job: Job, device: torch.device) -> Split:
        train, validation, test = split(places(job.cell.data), job.seed, device)
        kernels, setting, widths = kernel_densities(train, [validation, test])
        return cls(train, validation, test, kernels, setting, widths)


class Trained(NamedTuple):
    """A flow, with its loss on validation data, the noise that it was trained with and the epoch."""

    loss: float
    noise: float
    epoch: int
    member: FlowDensity


@torch.no_grad()
def load(svi: EnsembleSVI, values: dict[str, Tensor]) -> None:
    """Give the members of an ensemble other parameters."""
    for name, value in svi.parameters.items():
        value.copy_(values[name])


@torch.no_grad()
def kept(best: dict[str, Any], losses: Tensor, epoch: int, parameters: dict[str, Tensor]) -> dict[str, Any]:
    """The best losses so far, their epochs and the parameters then, all with a first dimension over members."""
    losses = losses.nan_to_num(nan=math.inf)
    if not best:
        now = {name: value.detach().clone() for name, value in parameters.items()}
        return {"loss": losses, "epoch": torch.full_like(losses, epoch, dtype=torch.long), "parameters": now}
    better = losses < best["loss"]
    for name, value in parameters.items():
        best["parameters"][name][better] = value.detach()[better]
    return best | {"loss": losses.minimum(best["loss"]), "epoch": torch.where(better, epoch, best["epoch"])}


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of several lengths as one tensor, each padded by its first one, and weights: next to none of the padding."""
    longest = max(map(len, rows))
    points = torch.stack([torch.cat([x, x[:1].expand(longest - len(x), *x.shape[1:])]) for x in rows])
    sizes = torch.tensor([len(x) for x in rows], device=points.device).unsqueeze(-1)
    is_real = torch.arange(longest, device=points.device) < sizes
    return points, torch.where(is_real, 1 / sizes, torch.finfo(points.dtype).tiny)


def moved(x: Tensor, widths: Tensor, generator: torch.Generator) -> Tensor:
    """Draws of kernels at points: the conformal map that concentrates there, of uniform draws."""
    uniform = unit(torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype))
    centre = _rho(widths).unsqueeze(-1) * x
    step = uniform + centre
    return unit((1 - _rho(widths).square()).unsqueeze(-1) / squared_norm(step) * step + centre)


def is_repeated(x: Tensor, train: Tensor) -> Tensor:
    """Which places are those of training points too, to the last digit."""
    known = set(map(tuple, train.tolist()))
    return torch.tensor([tuple(place) in known for place in x.tolist()], device=x.device)


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
    """Log-densities of the flow with its parameters in float64, where products are not rounded."""
    exact = copy.deepcopy(member).double()
    if isinstance(exact, MatchedDensity):
        field: Any = exact.flow.layers
        field.steps = _FINE
    return exact.distribution(x).log_prob(unit(x))


def mixed(one: Tensor, other: Tensor, weight: float) -> Tensor:
    """Log-densities of a mixture, ``weight`` that of the second."""
    if weight in (0.0, 1.0):
        return other if weight else one
    return torch.logaddexp(one + math.log1p(-weight), other + math.log(weight))


def kernel_densities(train: Tensor, held_out: list[Tensor]) -> tuple[list[Tensor], dict[str, float], Tensor]:
    """Log-densities of kernels at points held out, with the settings that are best for the first, and their widths."""
    uniform = torch.tensor(-math.log(4 * math.pi), dtype=torch.float64, device=train.device)
    found = []
    for neighbours in NEIGHBOURS:
        near = _neighbour_distances(train, neighbours).clamp(min=LEAST_WIDTH)
        for factor in FACTORS:
            density = log_kernels(held_out[0], train, factor * near)
            for share in UNIFORM:
                loss = -mixed(density, uniform, share).mean().item()
                found.append((loss, neighbours, factor, share))
    _, neighbours, factor, share = min(found)
    widths = factor * _neighbour_distances(train, neighbours).clamp(min=LEAST_WIDTH)
    densities = [mixed(log_kernels(x, train, widths), uniform, share) for x in held_out]
    return densities, {"neighbours": neighbours, "factor": factor, "uniform": share}, widths


def _neighbour_distances(x: Tensor, number: int) -> Tensor:
    """Chords to the neighbour of that number, from differences: products of matrices would lose the near ones."""
    kept = [
        torch.cdist(rows, x, compute_mode="donot_use_mm_for_euclid_dist").kthvalue(number + 1, -1).values
        for rows in x.split(_ROWS)
    ]
    return torch.cat(kept)


def log_kernels(x: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
    r"""Log-density of a mixture of equal weights: :math:`\frac{1}{4\pi}\big((1-\rho^2)/|x - \rho m|^2\big)^2` each."""
    rho = _rho(widths)
    out = []
    for rows in x.split(_ROWS):
        chord = torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
        factor = (1 - rho.square()) / ((1 - rho).square() + rho * chord)
        out.append((2 * factor.log()).logsumexp(-1))
    return torch.cat(out) - math.log(4 * math.pi * len(centres))


def _rho(widths: Tensor) -> Tensor:
    """How far the map that makes a kernel of some width is from the identity: 1 for a width of 0."""
    return (2 - widths) / (2 + widths)
