"""Graphs as maps of their distances: stress and curvature beside other methods of scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session, describe
from pyro_hyperbolic import datasets
from pyro_hyperbolic.accelerate.programs.compiled import compile_function
from pyro_hyperbolic.accelerate.trainers.graphs import Captured
from pyro_hyperbolic.infer import Posterior, sample_posterior
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.models import DistanceEmbedding

GRAPHS = {"karate": 1.0, "phylogenetic": 0.14, "csphd": 0.55}
"""The graphs, and the curvature that Liu et al. (2022) chose for each from a grid."""
METHODS = ("mode", "draws")
_LAYOUTS = ("tree", "scaling")
_NOISE = 0.1  # of points that are fitted in three dimensions first, as a share of the spread
_PRESSURES = 0.0, 0.01, 0.1, 1.0, 10.0, 100.0  # on these, in units of one nat for each pair at a usual distance
_FEWER = {"num_chains": 4, "num_samples": 200, "warmup": 200}  # of the largest graph
# In the identity of a mode, which does not depend on it.
_OF_CHAINS = {"num_chains": 8, "num_samples": 500, "warmup": 300}
_MEMORY = 20  # steps that L-BFGS remembers


@dataclass(frozen=True)
class DistanceCell(Cell):
    """One map of one graph.

    :param graph: a name that :func:`pyro_hyperbolic.datasets.graph` knows.
    :param curvature: ``c``, 0 for the flat plane, or ``None`` if it is drawn.
    :param method: ``"mode"`` for the point of greatest posterior density, or ``"draws"`` for chains.
    """

    graph: str
    curvature: float | None
    method: str

    @property
    def row(self) -> str:
        """The name without the graph."""
        space = "flat" if self.curvature == 0 else "c drawn" if self.curvature is None else f"c={self.curvature:g}"
        return f"{space}, {self.method}"

    @property
    def name(self) -> str:
        return f"{self.graph}, {self.row}"


@dataclass(frozen=True)
class Distances(Experiment):
    """Points of a plane whose distances are those in a graph. Modes of different seeds have different starts.

    Not in the paper. :class:`~pyro_hyperbolic.models.DistanceEmbedding` with its default priors and the normal
    likelihood, in float64. The larger graphs are for a GPU. With ``--max-members 1`` each run is
    stored as soon as it is finished. The largest graph has 4 chains of 200 draws.

    :param epochs: steps of L-BFGS to the mode.
    :param num_chains: chains of a run.
    :param num_samples: draws of each chain.
    :param warmup: trajectories of each chain before that.
    """

    command = "distances"
    worth_compiling = True

    seeds: int = 4
    epochs: int = 1000
    num_chains: int = 8
    num_samples: int = 1500
    warmup: int = 300

    def cells(self) -> Sequence[DistanceCell]:
        return [
            DistanceCell(graph, curvature, method)
            for graph, theirs in GRAPHS.items()
            for method in METHODS
            for curvature in (None, theirs, 0.0)
            if method == "mode" or curvature is None
        ]

    def part(self, cell: DistanceCell) -> Distances:
        """With fewer and shorter chains where there are half a million pairs."""
        if cell.method == "mode":
            return replace(self, **_OF_CHAINS)
        if cell.graph != "csphd":
            return self
        return replace(self, **{name: min(most, getattr(self, name)) for name, most in _FEWER.items()})

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        d = datasets.graph_distances(datasets.graph(jobs[0].cell.graph)).to(session.device)
        metrics = []
        for job in jobs:
            embedding = self.build(job.cell, len(d)).to(session.device)
            if job.cell.method == "mode":
                _, found = self.fit(embedding, d, job, session.compile)
            else:
                found = summary(embedding, d, self.draw(embedding, d, job, session))
            metrics.append(found)
            session.progress.advance(self.epochs, describe(jobs))
        return metrics

    def draw(self, embedding: DistanceEmbedding, d: Tensor, job: Job, session: Session) -> Posterior:
        """The chains of a seed, which find their own start; on the largest graph they begin at the mode of the seed."""
        start = self.fit(embedding, d, job, session.compile)[0] if job.cell.graph == "csphd" else None
        options: dict[str, Any] = {"num_samples": self.num_samples, "warmup": self.warmup, "seed": job.seed}
        path = session.store.checkpoint_path([job])
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.device(session.device):
            return sample_posterior(
                embedding.model,
                d,
                num_chains=self.num_chains,
                start=start,
                progress=False,
                checkpoint=path,
                **options,
            )

    def build(self, cell: DistanceCell, num_points: int, dim: int = 2) -> DistanceEmbedding:
        """The model of a cell."""
        if cell.curvature == 0:
            return DistanceEmbedding(f"e{dim}", num_points)
        curvature = "drawn" if cell.curvature is None else cell.curvature
        return DistanceEmbedding(f"p{dim}", num_points, curvature=curvature)

    def fit(
        self, embedding: DistanceEmbedding, d: Tensor, job: Job, compile: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The mode that is reached from the start of a seed, as values by site, and what is reported of it.

        Starts are by a spanning tree and by scaling in turns. From the third seed on, points are fitted in three
        dimensions first, where they can pass each other, and are pressed into the plane little by little.
        """
        layout, lifted = _LAYOUTS[job.seed % len(_LAYOUTS)], job.seed >= len(_LAYOUTS)
        start = embedding.start(d, layout=layout)
        if lifted:
            higher = self.build(job.cell, len(d), dim=3).to(d.device)
            first = higher.start(d, layout=layout)
            generator = torch.Generator().manual_seed(job.number)
            coords = _coords(higher, first)
            noise = torch.randn(coords.shape, generator=generator, dtype=d.dtype).to(d.device)
            first = _at(higher, first, coords + _NOISE * first["spread"] * noise)
            unit = len(d) / d.square().mean().item()
            steps = max(1, self.epochs // len(_PRESSURES))
            pressures = [unit * pressure for pressure in _PRESSURES]
            found, _ = descend(higher, d, first, steps, pressures, compile=compile)
            start = _at(embedding, found, _flattened(_coords(higher, found)))
        values, energy = descend(embedding, d, start, self.epochs, compile=compile)
        stress, distortion = scores(embedding.distances(values), d)
        report = {"layout": layout, "lifted": lifted, "energy": energy}
        report |= {"stress": stress.item(), "distortion": distortion.item()}
        return values, report | {name: values[name].item() for name in ("c", "spread", "noise") if name in values}


def descend(
    embedding: DistanceEmbedding,
    d: Tensor,
    start: dict[str, Tensor],
    steps: int,
    pressures: Sequence[float] = (0.0,),
    *,
    compile: bool = False,
) -> tuple[dict[str, Tensor], float]:
    """A mode of the posterior by L-BFGS, as values by site, and its energy.

    :param pressures: weights of the squares of coordinates beyond the second one that are added to the energy, one
        after the other, for so many steps each.
    :param compile: compile the gradient.
    """
    energy = Energy(embedding.model, (d,), {})
    name = next(name for name, site in energy.sites.items() if site.point == "z")
    depth = energy.columns(name)[:, 2:].flatten()

    def pressed(x: Tensor, pressure: Tensor) -> Tensor:
        return energy(x)[0] + pressure * x[depth].square().sum()

    x = energy.vector_of(start)
    gradient: Callable[..., Any] = torch.func.grad_and_value(pressed)
    if compile:
        gradient = Captured(compile_function(gradient, x, x.new_zeros(())))
    for pressure in pressures:
        weight = x.new_full((), pressure)
        optimiser = torch.optim.LBFGS([x], max_iter=steps, history_size=_MEMORY, line_search_fn="strong_wolfe")

        def closure(weight: Tensor = weight) -> Tensor:
            x.grad, loss = gradient(x, weight)
            return loss

        optimiser.step(closure)
    with torch.no_grad():
        return energy.values(x), energy(x)[0].item()


def _space(embedding: DistanceEmbedding, values: dict[str, Tensor]) -> Any:
    return embedding.positions.manifold({name: value.unsqueeze(0) for name, value in values.items()})


def _coords(embedding: DistanceEmbedding, values: dict[str, Tensor]) -> Tensor:
    """Normal coordinates of the points."""
    return _space(embedding, values).to_normal_coords(None, values["z"].unsqueeze(0))[0]


def _at(embedding: DistanceEmbedding, values: dict[str, Tensor], coords: Tensor) -> dict[str, Tensor]:
    """The values with points at other normal coordinates."""
    return {**values, "z": _space(embedding, values).from_normal_coords(None, coords.unsqueeze(0))[0]}


def _flattened(coords: Tensor) -> Tensor:
    """The plane of the largest variance ``(N, 2)``, at the same distances from the origin."""
    plane = coords @ torch.linalg.svd(coords, full_matrices=False).Vh[:2].mT
    return plane * (coords.norm(dim=-1) / plane.norm(dim=-1)).unsqueeze(-1)


def scores(found: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    r"""Stress and distortion of distances ``(..., N, N)``, as Liu et al. count them.

    .. math:: \sqrt{\frac{\sum_{i<j} (\delta_{ij} - d_{ij})^2}{\sum_{i<j} d_{ij}^2}}, \qquad
              \frac{2}{N(N - 1)} \sum_{i \ne j} \frac{|\delta_{ij} - d_{ij}|}{d_{ij}}

    The distortion sums both orders of a pair, and divides by the number of pairs.
    """
    i, j = torch.triu_indices(len(d), len(d), 1, device=d.device)
    away, true = found[..., i, j] - d[i, j], d[i, j]
    return (away.square().sum(-1) / true.square().sum()).sqrt(), 2 * (away.abs() / true).mean(-1)


def summary(embedding: DistanceEmbedding, d: Tensor, posterior: Posterior) -> dict[str, Any]:
    """What is kept of draws: the best one, means and 90% intervals, and diagnostics."""
    rows = []
    for chain in range(posterior.num_chains):
        for draws in torch.arange(posterior.num_draws).split(50):
            part = {name: value[chain, draws.to(value.device)] for name, value in posterior.samples.items()}
            rows.append(torch.stack(scores(embedding.distances(part), d)))
    stress, distortion = torch.cat(rows, -1)
    best = stress.argmin()
    ends = torch.tensor([0.05, 0.5, 0.95], dtype=d.dtype, device=d.device)
    out: dict[str, Any] = {"stress": stress[best].item(), "distortion": distortion[best].item()}
    out |= {"stress_quantiles": stress.quantile(ends).tolist(), "converged": posterior.converged}
    out["divergences"] = posterior.divergences.double().mean().item()
    for name, found in posterior.diagnostics().items():
        out[name] = {"r_hat": found.r_hat, "ess": found.ess_bulk}
        if name in ("c", "spread", "noise"):
            out[name]["quantiles"] = posterior.samples[name].flatten().to(d).quantile(ends).tolist()
    return out
