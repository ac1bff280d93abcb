"""Networks: which space explains the edges. Not an experiment of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyro
import torch
from pyro.infer import Predictive, Trace_ELBO
from torch import Tensor

from experiments.drawn_network import drawn_network
from experiments.experiment import Experiment
from experiments.job import Cell, Job
from experiments.session import Session
from pyro_hyperbolic import datasets, infer
from pyro_hyperbolic.models import LatentSpaceNetwork, Network, roc_auc

SAMPLED = ("florentine", "karate", "les_miserables")
"""Networks whose posterior is drawn by chains."""
TRAINED = ("phylogenetic", "csphd", "diseases", "drawn e2", "drawn h2")
"""Larger ones, whose guide is trained by SVI on all edges and a sample of the other pairs."""
NETWORKS = SAMPLED + TRAINED
MODELS = (("e2", False), ("h2", False), ("s2", False), ("h3", False), ("e2", True), ("h2", True))
"""Spaces, and whether nodes have effects of their own."""
HELD_OUT, EVIDENCE = "held out", "evidence"
BINS = 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8
"""Between which predicted probabilities are compared with frequencies."""
_SHARE, _SMALL_SHARE = 0.1, 0.01  # of the pairs, that are held out: the second of networks with more than _MANY
_MANY = 1_000_000
_OTHERS = 20  # pairs without an edge in a step of the training, for each edge
_DRAWS = 200  # of a guide
_OF_CHAINS = {"epochs": 1000, "chains": 16, "warmup": 500}  # in the identity of a guide, which does not depend on it
_TOLERANCE = 0.3  # standard error of an evidence, in nats, where odds of 20 to 1 are 3
_DECAY, _PHASES = 0.05, 30  # of the learning rate by the end, and in how many steps


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
    """Latent space models of networks, on flat, hyperbolic and spherical spaces.

    For prediction, a tenth of the edges and a tenth of the other pairs are missing from the data of a run (a hundredth
    in networks of more than a million pairs), and are predicted by the draws of the posterior. All models see the same
    splits. The evidence is that of the whole network, of networks whose posterior is drawn by chains. The guides of the
    larger ones are trained by SVI.

    :param epochs: draws of each chain.
    :param chains: how many.
    :param warmup: of each chain.
    :param steps: of SVI.
    :param learning_rate: of Adam at its first step, and a twentieth of it at the last.
    """

    command = "networks"

    seeds: int = 3
    epochs: int = 1500
    chains: int = 8
    warmup: int = 300
    steps: int = 3000
    learning_rate: float = 0.05

    def cells(self) -> Sequence[NetworkCell]:
        tasks = {HELD_OUT: NETWORKS, EVIDENCE: SAMPLED}
        return [NetworkCell(data, *model, task) for task, some in tasks.items() for data in some for model in MODELS]

    def part(self, cell: NetworkCell) -> Networks:
        """Guides do not depend on the settings of chains: theirs are always the same."""
        if cell.data in SAMPLED:
            return self
        return replace(self, **_OF_CHAINS)

    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        tasks: dict[str, Callable[[Job, Session], dict[str, Any]]] = {HELD_OUT: self._predict, EVIDENCE: self._evidence}
        return [tasks[job.cell.task](job, session) for job in jobs]

    def _build(self, job: Job, session: Session) -> tuple[LatentSpaceNetwork, Network]:
        network = load(job.cell.data).to(session.device)
        net = LatentSpaceNetwork(job.cell.space, network.num_nodes, degrees=job.cell.degrees)
        return net.double().to(session.device), network

    def _options(self, job: Job) -> dict[str, Any]:
        options = {"num_chains": self.chains, "num_samples": self.epochs, "warmup": self.warmup}
        return options | {"seed": job.seed, "progress": False}

    def _evidence(self, job: Job, session: Session) -> dict[str, Any]:
        net, network = self._build(job, session)
        with torch.device(session.device):
            found = infer.log_evidence(net.model, network, tolerance=_TOLERANCE, **self._options(job))
        session.progress.advance(self.epochs, job.cell.name)
        report = {"log_evidence": found.value, "standard_error": found.standard_error}
        return {**report, **described(found.posterior), **curvature(found.posterior.samples)}

    def _predict(self, job: Job, session: Session) -> dict[str, Any]:
        net, network = self._build(job, session)
        train, pairs, edge = held_out(network, job.seed)
        sampled = job.cell.data in SAMPLED
        samples, report = (self._sample if sampled else self._train)(net, train, job, session)
        session.progress.advance(self.epochs, job.cell.name)
        p = net.predict(samples, pairs).mean
        # What an edge between any two nodes has for a probability.
        usual = torch.full_like(p, train.num_edges / num_known(train))
        scores = {"log_score": log_score(p, edge), "gain": log_score(p, edge) - log_score(usual, edge)}
        scores["auc"] = roc_auc(p[edge], p[~edge])
        return {**scores, **report, **curvature(samples), "bins": binned(p, edge)}

    def _sample(
        self, net: LatentSpaceNetwork, train: Network, job: Job, session: Session
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Draws of chains."""
        path = session.store.checkpoint_path([job])
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.device(session.device):
            posterior = infer.sample_posterior(net.model, train, checkpoint=path, **self._options(job))
        return posterior.samples, described(posterior)

    def _train(
        self, net: LatentSpaceNetwork, train: Network, job: Job, session: Session
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Draws of a guide that was trained."""
        pyro.clear_param_store()
        pyro.set_rng_seed(job.number)
        net.begin(net.start(train))
        count = _OTHERS * train.num_edges
        # No clipping: pairs without an edge that are near each other are rare, and what pushes them apart is large.
        args = {"optimizer": torch.optim.Adam, "optim_args": {"lr": self.learning_rate}}
        optim = pyro.optim.ExponentialLR({**args, "gamma": _DECAY ** (1 / _PHASES)})
        model, guide = (lambda: net.model(train, count)), (lambda: net.guide(train, count))
        svi = infer.FastSVI(model, guide, optim, Trace_ELBO(), compile=session.compile)
        for _ in range(_PHASES):
            losses = [svi.step() for _ in range(max(1, self.steps // _PHASES))]
            optim.step()
        last = torch.stack(losses).mean().item()
        with torch.no_grad():
            samples = Predictive(net.guide, num_samples=_DRAWS)(train)
        return samples, {"loss": last}


def load(name: str) -> Network:
    """A network by its name: one of the package, a graph of the paper, or one that is drawn."""
    if name in SAMPLED:
        return datasets.network(name)
    kind, _, space = name.partition(" ")
    return drawn_network(space) if kind == "drawn" else datasets.network(datasets.graph(name))


def held_out(network: Network, seed: int) -> tuple[Network, Tensor, Tensor]:
    """The network without some of its pairs, these pairs ``(P, 2)``, and which of them are edges."""
    i, j = torch.triu_indices(network.num_nodes, network.num_nodes, 1, device=network.edges.device)
    pairs = torch.stack([i, j], -1)
    others = pairs[~network.is_listed(pairs)]
    generator = torch.Generator().manual_seed(seed)
    share = _SHARE if len(pairs) <= _MANY else _SMALL_SHARE
    kept, held = [], []
    for some in (network.edges, others):
        order = torch.randperm(len(some), generator=generator).to(some.device)
        count = max(1, round(share * len(some)))
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


def binned(p: Tensor, edge: Tensor) -> list[list[float]]:
    """Of pairs in each of the bins of their probability: how many they are, the sum of these, and how many edges."""
    place = torch.bucketize(p, torch.tensor(BINS, dtype=p.dtype, device=p.device), right=True)
    rows = torch.stack([torch.ones_like(p), p, edge.to(p)], -1)
    return rows.new_zeros(len(BINS) + 1, 3).index_add(0, place, rows).tolist()


def described(posterior: infer.Posterior) -> dict[str, Any]:
    """Whether the draws are to be believed."""
    found = posterior.diagnostics().values()
    return {
        "r_hat": max(diagnosis.r_hat for diagnosis in found),
        "ess": min(min(diagnosis.ess_bulk, diagnosis.ess_tail) for diagnosis in found),
        "converged": posterior.converged,
    }


def curvature(samples: Mapping[str, Tensor]) -> dict[str, Any]:
    """The median and the 90% interval of the curvature, if there is one."""
    if "c" not in samples:
        return {}
    ends = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    return {"curvature": samples["c"].flatten().double().cpu().quantile(ends).tolist()}
