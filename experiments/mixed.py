"""Spheres, products and curvatures of either sign beside one hyperbolic space: Tables 1, 2 and 4 on other spaces."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.mnist import MnistExperiment
from experiments.session import Session
from experiments.table1 import NEARLY_FLAT, Table1
from experiments.table4 import CURVATURES, GRAPHS, Table4
from pyro_hyperbolic.geometry import from_signature, signature_dim
from pyro_hyperbolic.models import VAE, VGAE, ManifoldVAE, ManifoldVGAE
from pyro_hyperbolic.nn import ManifoldModule

FLAT, CONTROL = "e6", "h6"
"""The flat space, and the space that also has next to no curvature: the same layers, initial values and factors."""

# Curvatures of the factors that have one, as they are fixed, and as they are learned from.
AUTOENCODERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "h6": ((1.0,), (1.0,)),
    "s6": ((1.0,), (1.0,)),
    "h2,s2,e2": ((1.0, 1.0), (1.0, 1.0)),
    # One factor of each sign where they are fixed; learned ones start flat, and the data choose the sign.
    "u2,u2,u2": ((-1.0, 0.0, 1.0), (0.0, 0.0, 0.0)),
    "h2,h2,h2": ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0)),
}
GRAPH_SPACES: dict[str, tuple[list[tuple[float, ...]], tuple[float, ...]]] = {
    "h2,h2": ([(c, c) for c in CURVATURES], (1.0, 1.0)),
    "h3,e2": ([(c,) for c in CURVATURES], (1.0,)),
    # With k = 0 the same layers without curvature.
    "u5": ([(-1.0,), (0.0,), (1.0,)], (0.0,)),
}


@dataclass(frozen=True)
class SpaceCell(Cell):
    """One model on one space.

    :param task: ``"mnist"``, ``"branching"``, or a name that :func:`pyro_hyperbolic.datasets.graph` knows.
    :param space: the signature of the latent space.
    :param curvatures: of the factors that have one: ``c`` of ``h`` and ``s``, ``k`` of ``u``.
    :param learn_curvature: learn each of them, from these values.
    """

    task: str
    space: str
    curvatures: tuple[float, ...] = ()
    learn_curvature: bool = False

    @property
    def row(self) -> str:
        """The name without the task."""
        letter = "k" if self.space.startswith("u") else "c"
        if not self.curvatures:
            return self.space
        values = dict.fromkeys(f"{value:g}" for value in self.curvatures)
        return f"{self.space} {letter} learned" if self.learn_curvature else f"{self.space} {letter}={','.join(values)}"

    @property
    def name(self) -> str:
        return f"{self.task}, {self.row}"


def autoencoder_cells(task: str) -> list[SpaceCell]:
    """The flat space, every other one with fixed and with learned curvature, and the control."""
    cells = [SpaceCell(task, FLAT)]
    for signature, (fixed, start) in AUTOENCODERS.items():
        cells += [SpaceCell(task, signature, fixed), SpaceCell(task, signature, start, learn_curvature=True)]
    return [*cells, control(task)]


def control(task: str) -> SpaceCell:
    """The cell with the layers of the curved spaces and next to no curvature."""
    return SpaceCell(task, CONTROL, (NEARLY_FLAT,))


class OnSpaces:
    """What the three parts share: cells, shapes and curvatures."""

    def shape(self, cell: Any) -> Hashable:
        return cell.task, cell.space, cell.learn_curvature

    def extras(self, cell: Any, member: Any) -> dict[str, Any]:
        if not cell.learn_curvature:
            return {}
        return {"curvatures": [torch.as_tensor(value).item() for value in member.manifold.curvatures]}

    def manifold(self, cell: SpaceCell) -> ManifoldModule:
        """The latent space of a cell."""
        return ManifoldModule(from_signature(cell.space).with_curvatures(cell.curvatures), cell.learn_curvature)


@dataclass(frozen=True)
class MixedDigits(OnSpaces, MnistExperiment):
    """MNIST with the settings of Table 2."""

    command = "mixed"

    def cells(self) -> Sequence[Any]:
        return autoencoder_cells("mnist")

    def build(self, cell: Any) -> VAE:
        options: dict[str, Any] = {"hidden_dim": self.hidden_dim, "prior_scale": self.prior_scale}
        return ManifoldVAE(self.manifold(cell), signature_dim(cell.space), (28, 28), **options)


@dataclass(frozen=True)
class MixedBranching(OnSpaces, Table1):
    """The branching diffusion with the settings of Table 1.

    :param prior_scale: of all priors.
    """

    command = "mixed"

    seeds: int = 10
    prior_scale: float = 1.0

    def cells(self) -> Sequence[Any]:
        return autoencoder_cells("branching")

    def keeps(self, job: Job) -> bool:
        return False

    def build(self, cell: Any, data_dim: int) -> VAE:
        options: dict[str, Any] = {"hidden_dim": self.hidden_dim, "prior_scale": self.prior_scale}
        return ManifoldVAE(self.manifold(cell), signature_dim(cell.space), data_dim, likelihood="normal", **options)


@dataclass(frozen=True)
class MixedLinks(OnSpaces, Table4):
    """The paper's graphs with the settings of Table 4; the dimension is that of the space."""

    command = "mixed"

    seeds: int = 10

    def cells(self) -> Sequence[Any]:
        cells = []
        for graph in GRAPHS:
            for signature, (fixed, start) in GRAPH_SPACES.items():
                cells += [SpaceCell(graph, signature, values) for values in fixed]
                cells.append(SpaceCell(graph, signature, start, learn_curvature=True))
        return cells

    def settings(self) -> dict[str, Any]:
        return {key: value for key, value in super().settings().items() if key != "latent_dim"}

    def graph(self, cell: Any) -> str:
        return cell.task

    def build(self, cell: Any, num_nodes: int, edges: Tensor) -> VGAE:
        options: dict[str, Any] = {"latent_dim": signature_dim(cell.space), "hidden_dim": self.hidden_dim}
        options |= {"prior_scale": self.prior_scale, "posterior_scale": self.posterior_scale}
        return ManifoldVGAE(self.manifold(cell), num_nodes, edges, **options)


LINKS = "links"
PARTS: dict[str, Callable[[], Experiment]] = {"mnist": MixedDigits, "branching": MixedBranching, LINKS: MixedLinks}
"""The parts by what they are about; that of a cell is its task, or ``LINKS`` if that is a graph."""


@dataclass(frozen=True)
class Mixed(Experiment):
    """Auto-encoders of MNIST and of the branching diffusion on six-dimensional spaces, and links on products.

    Not in the paper. Settings that are ``None`` are those of Table 2 for MNIST, Table 1 for the branching diffusion and
    Table 4 for the graphs; the run of a seed has the data of that seed there. Latents are float32 throughout, also on
    hyperboloids.

    :param epochs: of training.
    :param hidden_dim: width of the hidden layers.
    :param iwae_samples: per datum of the test set.
    :param data_limit: use only so many training and test images of MNIST.
    """

    command = "mixed"

    seeds: int = 10
    epochs: int | None = None  # type: ignore[assignment]
    hidden_dim: int | None = None
    iwae_samples: int = 5000
    data_limit: int | None = None

    def cells(self) -> Sequence[SpaceCell]:
        return [cell for name in PARTS for cell in self.configured(name).cells()]  # type: ignore[misc]

    def part(self, cell: SpaceCell) -> Experiment:
        return self.configured(LINKS if cell.task in GRAPHS else cell.task)

    def configured(self, name: str) -> Experiment:
        """The part of that name with those of its settings that were given here."""
        part = PARTS[name]()
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        changes = {name: value for name, value in given.items() if value is not None and hasattr(part, name)}
        return replace(part, **changes)

    def shape(self, cell: SpaceCell) -> Hashable:
        return self.part(cell).shape(cell)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        return self.part(jobs[0].cell).run(jobs, session)

    def settings(self) -> dict[str, Any]:
        return {name: self.configured(name).settings() for name in PARTS}
