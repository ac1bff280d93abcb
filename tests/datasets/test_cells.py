"""Counts of single cells: those that come with the package, and simulated ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import networkx
import pytest
import torch

from pyro_hyperbolic.datasets import branching_cells, graph_distances, paul15


def test_paul15_is_what_was_published() -> None:
    cells = paul15()
    assert cells.counts.shape == (2660, 240)
    assert cells.counts.dtype == torch.float32
    assert torch.equal(cells.counts, cells.counts.round())
    assert cells.counts.min() == 0
    assert (cells.counts.sum(0) > 0).all()
    assert cells.counts.sum(1).min() == 88
    # Paul et al. have so many cells in the clusters 1-6 (erythrocytes), 7 (progenitors), 8, 9-10, 12-13, 14-15, 16-17.
    sizes = dict(zip(cells.type_names, cells.types.bincount().tolist(), strict=True))
    assert sizes["Erythrocyte"] == 1095
    assert sizes["Multipotent progenitors"] == 167
    assert sizes["Monocytes"] == 373 + 186
    assert list(cells.type_names) == sorted(cells.type_names)


@pytest.mark.parametrize(("levels", "branching"), [(1, 1), (3, 1), (2, 3), (5, 2)])
def test_distances_are_those_of_the_tree(levels: int, branching: int) -> None:
    data = branching_cells(levels, branching, cells=40, genes=2, seed=1)
    # Each cell as a node of its own on its edge.
    tree = networkx.Graph(data.tree.to_undirected())
    for node in range(1, len(data.parents)):
        on_edge = sorted((data.nodes == node).nonzero().flatten().tolist(), key=lambda i: data.times[i].item())
        stops = [data.parents[node].item(), *(f"cell {i}" for i in on_edge), node]
        heights = [data.depths[node].item() - 1, *(data.times[i].item() for i in on_edge), data.depths[node].item()]
        tree.remove_edge(stops[0], node)
        for (a, low), (b, high) in itertools.pairwise(zip(stops, heights, strict=True)):
            tree.add_edge(a, b, weight=high - low)
    lengths = dict(networkx.all_pairs_dijkstra_path_length(tree))
    expected = torch.tensor([[lengths[f"cell {i}"][f"cell {j}"] for j in range(40)] for i in range(40)])
    torch.testing.assert_close(data.distances(), expected, rtol=0, atol=1e-5)
    some = torch.tensor([5, 0, 17])
    torch.testing.assert_close(data.distances(some), expected[some][:, some], rtol=0, atol=1e-5)
    ways = torch.tensor([lengths[f"cell {i}"][0] for i in range(40)])
    torch.testing.assert_close(data.times, ways, rtol=0, atol=1e-5)
    assert set(data.lineages(1).tolist()) <= set(range(1, branching + 1))
    assert torch.equal(data.lineages(levels), data.nodes)
    for level in range(1, levels + 1):
        for cell, node in enumerate(data.lineages(level).tolist()):
            own = int(data.nodes[cell])
            assert node == own if data.depths[own] < level else node in {own, *networkx.ancestors(data.tree, own)}
            assert data.depths[node] == min(level, data.depths[own])


def test_the_tree_is_complete() -> None:
    data = branching_cells(levels=4, branching=3, cells=5, genes=2)
    assert networkx.is_arborescence(data.tree)
    assert data.depths.bincount().tolist() == [1, 3, 9, 27, 81]
    lengths = graph_distances(data.tree.to_undirected())
    assert torch.equal(lengths[0].long(), data.depths)


@pytest.mark.parametrize("dispersion", [0.0, 0.5])
def test_mean_and_variance_of_counts(dispersion: float) -> None:
    # Without steps, batches and size factors all cells are alike.
    alike = {"step": 0.0, "size_spread": 0.0, "batch_spread": 0.0, "batches": 1}
    data = branching_cells(cells=20000, genes=5, total=50.0, dispersion=dispersion, **alike)
    assert torch.equal(data.counts, data.counts.round())
    mean, variance = data.counts.double().mean(0), data.counts.double().var(0)
    torch.testing.assert_close(variance, mean + dispersion * mean.square(), rtol=0.08, atol=0)
    assert mean.sum().item() == pytest.approx(50, rel=0.02)


def test_size_factors_and_batches() -> None:
    data = branching_cells(cells=20000, genes=20, dispersion=0.0, step=0.0, size_spread=0.5, batches=3)
    totals = data.counts.sum(1)
    assert data.size_factors.mean().item() == pytest.approx(1, rel=0.02)
    assert data.size_factors.log().std().item() == pytest.approx(0.5, rel=0.03)
    # Poisson: the total has the mean 1000 s and as much variance.
    score = (totals - 1000 * data.size_factors) / (1000 * data.size_factors).sqrt()
    assert score.mean().abs().item() < 0.03
    assert score.std().item() == pytest.approx(1, rel=0.03)
    shares = torch.stack([data.counts[data.batches == b].sum(0) / totals[data.batches == b].sum() for b in range(3)])
    effects = shares.log() - shares.log().mean(0)
    assert 0.15 < effects.std().item() < 0.4
    assert data.batches.bincount().min() > 6300


@pytest.mark.parametrize("level", [0, 6, 1.5])
def test_levels_of_lineages(level: Any) -> None:
    with pytest.raises(ValueError, match="level must be an integer from 1 to 5, got"):
        branching_cells(cells=5, genes=2).lineages(level)


def test_expression_diffuses() -> None:
    data = branching_cells(cells=4000, genes=400, total=1e6, dispersion=0.0, batches=1, size_spread=0.0)
    level = data.counts.clamp(min=1).log()
    level = level - level.mean(1, keepdim=True)
    distance = data.distances(torch.arange(400))
    square = torch.cdist(level[:400], level[:400]).square() / 400
    # Between cells at opposite ends of the tree the variance of 0.5^2 of a step adds up along the way.
    far = (distance > 7).triu(1)
    ratio = square[far].mean() / distance[far].mean()
    # A place within an edge is nearer to its ends than a diffusion would be, which costs a third of two edges.
    assert 0.8 * 0.25 < ratio < 0.25


def test_function_of_the_seed_alone() -> None:
    before = torch.get_rng_state()
    first = branching_cells(cells=50, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    second, other = branching_cells(cells=50, seed=3), branching_cells(cells=50, seed=4)
    assert torch.equal(first.counts, second.counts)
    assert not torch.equal(first.counts, other.counts)


@pytest.mark.parametrize("name", ["levels", "branching", "cells", "genes", "batches"])
@pytest.mark.parametrize("value", [0, 1.5, None])
def test_wrong_sizes(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a positive integer, got"):
        branching_cells(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"genes": 1}, "genes must be at least 2, got 1"),
        ({"total": 0.0}, "total must be a finite number, positive, got 0.0"),
        ({"step": -1.0}, "step must be a finite number, not negative, got -1.0"),
        ({"dispersion": math.nan}, "dispersion must be a finite number, not negative, got nan"),
        ({"size_spread": "1"}, "size_spread must be a finite number, not negative, got '1'"),
        ({"batch_spread": math.inf}, "batch_spread must be a finite number, not negative, got inf"),
    ],
)
def test_wrong_numbers(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        branching_cells(**arguments)
