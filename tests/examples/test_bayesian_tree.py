"""``examples/bayesian_tree.py`` with tiny settings: its data, its posterior and its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch
from taxonomy import FIRST

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import load_checkpoint
from tests.helpers import same

TINY = "--chains 2 --warmup 20 --num-samples 8"
BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def _double() -> None:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("bayesian_tree")


def test_runs(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main([*TINY.split(), "--seed", "3", "--output-dir", str(tmp_path)])
    files = ["embedding.png", "metrics.json", "posterior.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 500 for name in files)
    assert json.loads((tmp_path / "metrics.json").read_text())["length"] == result["length"]
    found = load_checkpoint(tmp_path / "posterior.pt")["state"]
    assert found["points"].shape == (16, 14, 2)
    assert found["points"][:, 0].abs().max() == 0
    assert found["length"].mean().item() == pytest.approx(result["length"][0])
    # The chains begin around a good fit: no arrangement of fourteen nodes by chance explains the distances so well.
    assert result["noise"][0] < 0.6
    printed = capsys.readouterr().out
    assert "z: 13 points of PoincareBall, orientation free" in printed
    assert "c, deterministic" in printed


def test_taxonomy(example: ModuleType) -> None:
    tree = example.taxonomy(noise=1e-9)
    assert len(tree.names) == len(set(tree.names)) == 41
    graph = networkx.Graph([(i, p) for i, p in enumerate(tree.parents.tolist()) if p >= 0])
    assert networkx.is_tree(graph)
    hops = torch.from_numpy(networkx.floyd_warshall_numpy(graph, nodelist=range(41)))
    assert (tree.y - hops).abs().max() < 1e-7
    assert [tree.names[i] for i in range(3)] == FIRST
    assert {i for i in graph if graph.degree[i] == 1} == set(range(tree.inner, 41))
    at = tree.names.index
    assert hops[at("wolf"), at("cat")] == 2
    assert hops[at("wolf"), at("squid")] == 6
    noisy = example.taxonomy(noise=0.3).y
    assert torch.equal(noisy, noisy.mT)
    first, second = torch.triu_indices(41, 41, 1)
    assert 0.27 < (noisy - hops)[first, second].std() < 0.33


def test_density_counts_every_pair_once(example: ModuleType) -> None:
    trace = pyro.poutine.trace(example.model).get_trace(5)
    points, y = (trace.nodes[name]["value"] for name in ("_RETURN", "y"))
    assert points[0].abs().max() == 0
    length, noise, z = (trace.nodes[name]["value"] for name in ("length", "noise", "z"))
    same(points[1:], z, 0)
    first, second = torch.triu_indices(5, 5, 1)
    pairs = dist.Normal(length * BALL.pairwise_dist(points, points), noise).log_prob(
        torch.zeros(5, 5).index_put((first, second), y)
    )
    trace.compute_log_prob()
    same(trace.nodes["y"]["log_prob"], pairs[first, second], 1e-9)
