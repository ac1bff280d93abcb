"""Networks: which space explains the edges. Not an experiment of the paper."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session
from pyro_hyperbolic import datasets, infer
from pyro_hyperbolic.models import LatentSpaceNetwork, Network, roc_auc

NETWORKS = ("florentine", "davis", "karate", "les_miserables")
MODELS = (("e2", False), ("h2", False), ("s2", False), ("h3", False), ("e2", True), ("h2", True))
"""Spaces, and whether nodes have effects of their own."""
HELD_OUT, EVIDENCE = "held out", "evidence"
_SHARE = 0.1  # of the pairs, that is held out


@dataclass(frozen=True)
class NetworkCell(Cell):
    """A model of a network, and what is asked of it.

    :param data: the network.
    :param space: its signature; curvatures are drawn.
    :param degrees: whether nodes have effects of their own.
    :param task: ``"held out"`` or ``"evidence"``.
    """

    data: str
    space: str
    degrees: bool
    task: str

    @property
    def model(self) -> str:
        """The name of the model."""
        return f"{self.space} with degrees" if self.degrees else self.space

    @property
    def name(self) -> str:
        return f"{self.data}, {self.model}, {self.task}"


@dataclass(frozen=True)
class Networks(Experiment):
    """Latent space models of small networks, on flat, hyperbolic and spherical spaces.

    For prediction, a tenth of the edges and a tenth of the other pairs are missing from the data of a run, and are
    predicted by the draws of the posterior. All models see the same splits. The evidence is that of the whole network.

    :param epochs: draws of each chain.
    :param chains: how many.
    :param warmup: of each chain.
    """

    command = "networks"

    seeds: int = 3
    epochs: int = 1000
    chains: int = 16
    warmup: int = 500

    def cells(self) -> Sequence[NetworkCell]:
        tasks = (HELD_OUT, EVIDENCE)
        return [NetworkCell(data, *model, task) for task in tasks for data in NETWORKS for model in MODELS]

    def shape(self, cell: Any) -> Hashable:
        return object()  # every run is finished by itself, and stored before the next one begins

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        tasks: dict[str, Callable[[Job, Session], dict[str, Any]]] = {HELD_OUT: self._predict, EVIDENCE: self._evidence}
        return [tasks[job.cell.task](job, session) for job in jobs]

    def _build(self, job: Job, session: Session) -> tuple[LatentSpaceNetwork, Network]:
        network = datasets.network(job.cell.data).to(session.device)
        net = LatentSpaceNetwork(job.cell.space, network.num_nodes, degrees=job.cell.degrees)
        return net.double().to(session.device), network

    def _options(self, job: Job) -> dict[str, Any]:
        options = {"num_chains": self.chains, "num_samples": self.epochs, "warmup": self.warmup}
        return options | {"seed": job.seed, "progress": False}

    def _evidence(self, job: Job, session: Session) -> dict[str, Any]:
        net, network = self._build(job, session)
        with torch.device(session.device):
            found = infer.log_evidence(net.model, network, **self._options(job))
        session.progress.advance(self.epochs, job.cell.name)
        return {"log_evidence": found.value, "standard_error": found.standard_error, **described(found.posterior)}

    def _predict(self, job: Job, session: Session) -> dict[str, Any]:
        net, network = self._build(job, session)
        train, pairs, edge = held_out(network, job.seed)
        path = session.store.checkpoint_path([job])
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.device(session.device):
            posterior = infer.sample_posterior(net.model, train, checkpoint=path, **self._options(job))
        session.progress.advance(self.epochs, job.cell.name)
        p = net.predict(posterior.samples, pairs).mean.cpu()
        edge = edge.cpu()
        # What an edge between any two nodes has for a probability.
        usual = torch.full_like(p, train.num_edges / num_known(train))
        scores = {"log_score": log_score(p, edge), "gain": log_score(p, edge) - log_score(usual, edge)}
        scores["auc"] = roc_auc(p[edge], p[~edge])
        return scores | described(posterior) | {"p": p.tolist(), "edge": edge.long().tolist()}


def held_out(network: Network, seed: int) -> tuple[Network, Tensor, Tensor]:
    """The network without a tenth of its pairs, these pairs ``(P, 2)``, and which of them are edges."""
    i, j = torch.triu_indices(network.num_nodes, network.num_nodes, 1, device=network.edges.device)
    pairs = torch.stack([i, j], -1)
    others = pairs[~network.is_listed(pairs)]
    generator = torch.Generator().manual_seed(seed)
    kept, held = [], []
    for some in (network.edges, others):
        order = torch.randperm(len(some), generator=generator).to(some.device)
        count = max(1, round(_SHARE * len(some)))
        held.append(some[order[:count]])
        kept.append(some[order[count:]])
    missing = torch.cat(held if network.missing is None else [*held, network.missing])
    edge = torch.arange(len(held[0]) + len(held[1]), device=pairs.device) < len(held[0])
    return Network(network.num_nodes, kept[0], missing=missing), torch.cat(held), edge


def num_known(network: Network) -> int:
    """How many pairs are not missing."""
    count = network.num_nodes * (network.num_nodes - 1) // 2
    return count if network.missing is None else count - len(network.missing)


def log_score(p: Tensor, edge: Tensor) -> float:
    """The mean logarithm of the probability of what happened."""
    return torch.where(edge, p.log(), torch.log1p(-p)).mean().item()


def described(posterior: infer.Posterior) -> dict[str, Any]:
    """Whether the draws are to be believed, and the curvature."""
    found = posterior.diagnostics().values()
    out: dict[str, Any] = {
        "r_hat": max(diagnosis.r_hat for diagnosis in found),
        "ess": min(min(diagnosis.ess_bulk, diagnosis.ess_tail) for diagnosis in found),
        "converged": posterior.converged,
    }
    if "c" in posterior.samples:
        ends = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
        out["curvature"] = posterior.samples["c"].flatten().double().cpu().quantile(ends).tolist()
    return out
