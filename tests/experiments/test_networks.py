"""Networks: splits, scores and the report."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pyro
import pytest
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO

from experiments import Job, Networks, RunStore
from experiments.drawn_network import drawn_network
from experiments.networks import BINS, EVIDENCE, HELD_OUT, MODELS, NetworkCell, binned, held_out, log_score, num_known
from experiments.report.network_scores import gain
from experiments.report.networks import networks
from experiments.report.results import Results
from pyro_hyperbolic import datasets, infer
from pyro_hyperbolic.models import LatentSpaceNetwork, Network

MACHINE = {"device": "d", "pyro_hyperbolic": "0", "torch": "2", "pyro": "1", "matmul_precision": "high"}


def test_split_holds_out_edges_and_others() -> None:
    whole = datasets.network("davis")
    train, pairs, edge = held_out(whole, seed=1)
    assert (int(edge.sum()), len(edge)) == (9, 9 + 16)
    assert whole.missing is not None
    assert num_known(whole) == 18 * 14 == num_known(train) + len(pairs)
    known = whole.adjacency()[pairs[:, 0], pairs[:, 1]]
    assert torch.equal(known == 1, edge)
    assert train.adjacency()[pairs[:, 0], pairs[:, 1]].isnan().all()
    again, other = held_out(whole, seed=1), held_out(whole, seed=2)
    assert torch.equal(again[1], pairs)
    assert not torch.equal(other[1], pairs)


def test_scores() -> None:
    assert log_score(torch.tensor([0.25, 0.5]), torch.tensor([True, False])) == pytest.approx(-1.5 * math.log(2))
    rows = binned(torch.tensor([0.5, 0.001, 0.55, 1.0], dtype=torch.float64), torch.tensor([True, False, False, True]))
    assert len(rows) == len(BINS) + 1
    assert [row for row in rows if row[0]] == [[1, 0.001, 0], [2, 1.05, 1], [1, 1, 1]]


def test_drawn_networks_are_sparse_and_the_same_each_time() -> None:
    found = drawn_network("h2", 200, seed=1)
    assert 200 * 3 < found.num_edges < 200 * 8
    assert torch.equal(found.edges, drawn_network("h2", 200, seed=1).edges)
    assert not torch.equal(found.edges, drawn_network("e2", 200, seed=1).edges)


def test_report_says_where_the_flat_model_wins(tmp_path: Path) -> None:
    experiment, store = Networks(seeds=3), RunStore(tmp_path)
    common = {"r_hat": 1.0, "ess": 900.0, "converged": True}
    bins = binned(torch.tensor([0.1, 0.9]), torch.tensor([False, True]))
    # Of the karate club the flat model predicts better; its evidence is less there, and more for the families.
    for data, best in (("karate", "h2"), ("florentine", "e2")):
        for space, degrees in MODELS:
            for seed in range(3):
                flat = space == "e2" and not degrees
                scores = {"auc": 0.8, "log_score": -0.3 - (0 if flat else 0.1) + 0.01 * seed, "gain": 0.1}
                cell = NetworkCell(data, space, degrees, HELD_OUT)
                metrics = {**common, **scores, "bins": bins}
                store.append(Job(experiment, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
                cell = NetworkCell(data, space, degrees, EVIDENCE)
                value = -100.0 if space == best and not degrees else -110.0
                metrics = {**common, "log_evidence": value + 0.1 * seed, "standard_error": 0.05}
                if space != "e2":
                    metrics["curvature"] = [0.5, 1.0, 2.0]
                store.append(Job(experiment, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
    # A difference that rounds to nothing is none, however sure it is.
    for space in ("e2", "h2"):
        for seed in range(3):
            cell = NetworkCell("phylogenetic", space, False, HELD_OUT)
            scores = {"auc": 0.6, "log_score": -0.035 + 2e-5 * (space == "h2"), "gain": 0.0}
            metrics = {**scores, "loss": 1.0, "bins": bins}
            store.append(Job(experiment, cell, seed), metrics=metrics, seconds=1.0, machine=MACHINE)
    results = Results(experiment, store)
    text, figure = networks(results)
    plt.close(figure)
    assert gain(results, "karate", ("h2", False)) == pytest.approx((-0.1, 0.0))
    names = ("karate", "Florentine", "phylogenetic")
    karate, families, tree = (next(x for x in text.splitlines() if x.startswith(f"* {name}")) for name in names)
    assert "e2 has a better one than h2, s2, h3, e2 with degrees and h2 with degrees: the flat model wins" in karate
    assert "the evidence prefers h2, and rules out all others" in karate
    assert "the evidence prefers e2, and rules out all others at 20 to 1: the flat model wins" in families
    assert "no other model has a better log score than flat e2; no model is better than the density" in tree
    assert "Missing runs of held-out pairs: Les Misérables (all);" in text
    assert "phylogenetic tree (all but e2 and h2)" in text
    assert "Missing runs of evidence: Les Misérables (all).\n" in text
    assert "| Les" not in text
    assert "| karate club | h2 | -99.9" in text
    assert "1 (0.5 to 2)" in text


def _tree() -> Network:
    nodes = torch.arange(1, 40)
    return Network(40, torch.stack([nodes, nodes // 2], -1))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "low", "high"), [(_tree, -0.02, 0.01), (lambda: drawn_network("e2", 40), 0.1, 1.0)])
def test_guide_gains_where_chains_do(make: Callable[[], Network], low: float, high: float) -> None:
    """An edge of a tree is the only one between two parts of it, so the others do not predict it."""
    train, pairs, edge = held_out(make(), seed=100)
    net = LatentSpaceNetwork("e2", 40).double()
    options = {"num_chains": 4, "num_samples": 400, "warmup": 300, "progress": False}
    found = {"chains": infer.sample_posterior(net.model, train, **options).samples}
    pyro.set_rng_seed(0)
    net.begin(net.start(train))
    svi = SVI(net.model, net.guide, pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.998}), Trace_ELBO())
    for _ in range(1500):
        svi.step(train)
    found["guide"] = Predictive(net.guide, num_samples=200)(train)
    usual = torch.full((len(pairs),), train.num_edges / num_known(train), dtype=torch.float64)
    gains = {name: log_score(net.predict(draws, pairs).mean, edge) for name, draws in found.items()}
    gains = {name: score - log_score(usual, edge) for name, score in gains.items()}
    assert all(low < gain < high for gain in gains.values()), gains
    # Far above the scale of the positions nothing is near; in a network that is drawn it is 0.05.
    temperatures = {name: draws["temperature"].median().item() for name, draws in found.items()}
    assert all((t > 0.5) == (low < 0) for t in temperatures.values()), temperatures
