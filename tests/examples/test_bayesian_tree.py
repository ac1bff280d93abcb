"""``examples/bayesian_tree.py``: its data and its posterior; ``test_leaf_regions`` runs it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch
from taxonomy import FIRST

from pyro_hyperbolic import PoincareBall
from tests.helpers import same

BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def _double() -> None:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("bayesian_tree")


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
