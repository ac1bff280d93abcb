"""Single cells: splits, models and scores."""

from __future__ import annotations

import math
from pathlib import Path

import pyro
import pytest
import torch

from experiments import Cells, Job, RunStore
from experiments.cells import (
    KnownCells,
    branching_cells,
    build_count_vae,
    coverage_scores,
    embedding_scores,
    paul15_cells,
)
from experiments.report.cells import _gain, cells
from experiments.report.results import Results
from pyro_hyperbolic import Euclidean, PoincareBall


def test_split() -> None:
    known = paul15_cells()
    parts = known.split(seed=3)
    assert [len(part) for part in parts] == [1862, 266, 532]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(2660))
    assert torch.equal(parts[0], known.split(seed=3)[0])
    assert not torch.equal(parts[0], known.split(seed=4)[0])


@pytest.mark.parametrize(("curvature", "manifold"), [(0.0, Euclidean()), (0.25, PoincareBall(0.25))])
def test_scores_need_what_they_are_about(curvature: float, manifold: object) -> None:
    whole = branching_cells(seed=0, cells=200, genes=20)
    train, _, test = whole.split(0)
    pyro.set_rng_seed(0)
    vae = build_count_vae(curvature, 2, whole, hidden_dim=4)
    assert vae.manifold == manifold
    scores = embedding_scores(vae, whole, train, test)
    assert scores.keys() == {"knn_accuracy", "correlation", "rank_correlation", "batch_mixing"}
    assert all(map(math.isfinite, scores.values()))
    bare = KnownCells(whole.counts)
    assert embedding_scores(build_count_vae(curvature, 2, bare, 4), bare, train, test) == {}


@pytest.mark.slow
def test_exact_regions_hold_the_truth() -> None:
    whole = branching_cells(seed=0, cells=200, genes=10)
    pyro.set_rng_seed(0)
    vae = build_count_vae(1.0, 2, whole, hidden_dim=4)
    vae.encoder.scale.bias.data -= 2  # too sure of itself
    scores = coverage_scores(vae, whole, torch.arange(100))
    assert scores["coverage"] < 0.7
    assert 0.8 < scores["exact_coverage"] < 0.98


def test_differences_are_those_of_the_same_seed(tmp_path: Path) -> None:
    experiment, store = Cells(seeds=3), RunStore(tmp_path)
    values = {0.0: [1.0, 2.0, 3.0], 1e-4: [9.0, 9.0, 9.0], 1.0: [1.5, 2.5, 3.5]}
    machine = {"device": "d", "pyro_hyperbolic": "0", "torch": "2", "pyro": "1", "matmul_precision": "high"}
    for cell in experiment.cells():
        if cell.data == "branching":
            for seed, value in enumerate(values[cell.curvature]):
                metrics = {"negative_iwae": value, "correlation": value}
                store.append(Job(experiment, cell, seed), metrics=metrics, seconds=1.0, machine=machine)
    results = Results(experiment, store)
    assert _gain(results, "branching", "correlation", 0.0) == pytest.approx((0.5, 0.0))
    assert _gain(results, "paul15", "correlation", 0.0) is None
    text, _ = cells(results)
    (row,) = [line for line in text.splitlines() if line.startswith("| simulated lineage | correlation")]
    assert "0.500" in row
    assert "batch mixing" not in "".join(line for line in text.splitlines() if "simulated" in line)
