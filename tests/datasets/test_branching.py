from __future__ import annotations

from typing import Any

import networkx
import pytest
import torch

from pyro_hyperbolic.datasets import branching_cells, branching_diffusion, graph, split_edges


def test_sizes_of_the_paper() -> None:
    data = branching_diffusion()
    assert data.nodes.shape == (127, 50)
    assert data.train.shape == (444, 50)  # 0.7 of 127 * 5 = 635, rounded down
    assert data.test.shape == (191, 50)
    assert {data.train.dtype, data.test.dtype, data.nodes.dtype} == {torch.float32}
    assert {data.train_nodes.dtype, data.parents.dtype, data.depths.dtype} == {torch.int64}


@pytest.mark.parametrize(("depth", "branching"), [(1, 1), (4, 1), (3, 2), (2, 5)])
def test_tree_is_complete(depth: int, branching: int) -> None:
    data = branching_diffusion(depth=depth, branching=branching, dim=2, observations=2)
    tree = data.tree
    assert networkx.is_arborescence(tree)
    assert data.depths.bincount().tolist() == [branching**level for level in range(depth + 1)]
    distances = networkx.shortest_path_length(tree, source=0)
    assert [distances[node] for node in range(len(data.depths))] == data.depths.tolist()
    assert [tree.nodes[node]["depth"] for node in tree] == data.depths.tolist()
    expected = {branching if level < depth else 0 for level in data.depths.tolist()}
    assert {degree for _, degree in tree.out_degree()} == expected
    assert data.parents[0] == -1
    assert all(data.parents[child] == parent for parent, child in tree.edges())


def test_each_observation_is_in_one_set() -> None:
    data = branching_diffusion(depth=3, dim=4, observations=6)
    nodes = torch.cat([data.train_nodes, data.test_nodes])
    assert nodes.bincount().tolist() == [6] * 15
    rows = torch.cat([data.train, data.test])
    assert len(torch.unique(rows, dim=0)) == 90


def test_split_is_random() -> None:
    data = branching_diffusion()
    # A split without a shuffle would put the nodes 0 to 88 into the training set.
    assert data.train_nodes.max() == 126
    assert data.test_nodes.min() < 20


def test_features_are_centred_with_unit_variance() -> None:
    data = branching_diffusion(seed=3)
    rows = torch.cat([data.train, data.test]).double()
    torch.testing.assert_close(rows.mean(0), torch.zeros(50).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(rows.std(0, correction=0), torch.ones(50).double(), rtol=1e-6, atol=0)


def test_distribution_of_steps_and_noise() -> None:
    data = branching_diffusion(depth=8, dim=200, seed=1)
    steps = (data.nodes[1:] - data.nodes[data.parents[1:]]).double()
    rows, nodes = torch.cat([data.train, data.test]), torch.cat([data.train_nodes, data.test_nodes])
    noise = (rows - data.nodes[nodes]).double()
    # Normalising scales steps and noise of a feature alike: the ratio of their variances stays 5,
    # and the steps of a feature, divided by their standard deviation, are standard normal.
    ratio = (steps.var(0) / noise.var(0)).mean().item()
    assert ratio == pytest.approx(5, rel=0.02)
    standard = steps / steps.std(0)
    assert standard.pow(4).mean().item() == pytest.approx(3, rel=0.03)
    # Positions add up independent steps: a node of depth k is sqrt(k) steps away from the root.
    away = ((data.nodes - data.nodes[0]) / steps.std(0)).pow(2).mean(-1)
    for depth in range(1, 9):
        assert away[data.depths == depth].mean().item() == pytest.approx(depth, rel=0.2)


def test_observations_are_close_to_their_own_node() -> None:
    data = branching_diffusion()
    nearest = torch.cdist(data.train, data.nodes).argmin(-1)
    assert torch.equal(nearest, data.train_nodes)


def test_function_of_the_seed_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = branching_diffusion(seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    second, other = branching_diffusion(seed=7), branching_diffusion(seed=8)
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.test_nodes, second.test_nodes)
    assert not torch.equal(first.train, other.train)


@pytest.mark.parametrize("name", ["depth", "branching", "dim", "observations"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_wrong_arguments(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got"):
        branching_diffusion(**{name: value})


@pytest.mark.parametrize("value", [1.5, "a", None, True])
@pytest.mark.parametrize(
    "make", [branching_diffusion, branching_cells, lambda seed: split_edges(graph("karate"), seed=seed)]
)
def test_wrong_seeds(make: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="seed must be an integer, got"):
        make(seed=value)


def test_result_is_frozen() -> None:
    data = branching_diffusion(depth=1, dim=1)
    with pytest.raises(AttributeError):
        data.train = data.test  # type: ignore[misc]
