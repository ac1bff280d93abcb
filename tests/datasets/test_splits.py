from __future__ import annotations

import dataclasses
import importlib
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_hyperbolic.datasets import EdgeSplit, Graph, graph, split_edges

splits_module = importlib.import_module("pyro_hyperbolic.datasets.splits")


def make(num_nodes: int, edges: list[tuple[int, int]] | Tensor) -> Graph:
    return Graph(
        name="made",
        num_nodes=num_nodes,
        edges=torch.as_tensor(edges, dtype=torch.int64).view(-1, 2),
        node_ids=torch.arange(num_nodes),
    )


def pairs(tensor: Tensor) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in tensor.tolist()]


def check(whole: Graph, split: EdgeSplit, num_test: int, num_validation: int) -> None:
    edges = set(pairs(whole.edges))
    positives = pairs(split.train) + pairs(split.validation) + pairs(split.test)
    assert len(positives) == len(edges)
    assert set(positives) == edges
    negatives = pairs(split.validation_negatives) + pairs(split.test_negatives)
    assert len(set(negatives)) == len(negatives)
    assert not set(negatives) & edges
    assert all(0 <= i < j < whole.num_nodes for i, j in negatives)
    assert len(split.test) == len(split.test_negatives) == num_test
    assert len(split.validation) == len(split.validation_negatives) == num_validation
    for field in dataclasses.fields(split):
        value = getattr(split, field.name)
        assert value.dtype == torch.int64
        assert value.shape == (len(value), 2)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    num_nodes = draw(st.integers(3, 9))
    possible = list(combinations(range(num_nodes), 2))
    edges = draw(st.lists(st.sampled_from(possible), min_size=2, unique=True))
    return make(num_nodes, sorted(edges))


@settings(max_examples=100, deadline=None)
@given(
    whole=graphs(),
    num_test=st.integers(0, 5),
    num_validation=st.integers(0, 5),
    seed=st.integers(0, 100),
    listing=st.booleans(),
)
def test_no_leak(whole: Graph, num_test: int, num_validation: int, seed: int, listing: bool) -> None:
    total = whole.num_nodes * (whole.num_nodes - 1) // 2
    assume(num_test + num_validation < whole.num_edges)
    assume(num_test + num_validation <= total - whole.num_edges)
    with pytest.MonkeyPatch.context() as patch:
        # Without the listing, graphs that are not dense go through the sampling.
        patch.setattr(splits_module, "_LIST_ALL_PAIRS", 2**22 if listing else 0)
        # Half an edge more: the fraction is rounded down.
        test, validation = ((number + 0.5) / whole.num_edges if number else 0 for number in (num_test, num_validation))
        split = split_edges(whole, test, validation, seed)
    check(whole, split, num_test, num_validation)


def test_sizes_of_kipf_and_welling() -> None:
    club = graph("karate")
    check(club, split_edges(club), 7, 3)


def test_fractions_are_decimal() -> None:
    path = make(101, [(i, i + 1) for i in range(100)])
    check(path, split_edges(path, test=0.29, validation=0.57), 29, 57)


def test_function_of_the_seed_alone() -> None:
    club = graph("karate")
    before = torch.get_rng_state()
    first, again, other = split_edges(club), split_edges(club), split_edges(club, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    for field in dataclasses.fields(EdgeSplit):
        assert torch.equal(getattr(first, field.name), getattr(again, field.name))
    assert pairs(first.test) != pairs(other.test)
    assert pairs(first.test_negatives) != pairs(other.test_negatives)


@pytest.mark.parametrize("listing", [True, False])
def test_non_edges_are_uniform(listing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits_module, "_LIST_ALL_PAIRS", 2**22 if listing else 0)
    # 9 edges among 66 pairs, so 57 non-edges; one is drawn for the test set of each seed.
    path = make(12, [(i, i + 1) for i in range(9)])
    draws = 1140
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(draws):
        (pair,) = pairs(split_edges(path, test=0.12, validation=0, seed=seed).test_negatives)
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 57
    expected = draws / 57
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 113  # 56 degrees of freedom: exceeded with a probability of 1e-5


def test_nearly_complete_graph() -> None:
    # Six non-edges, all of which are needed.
    possible = list(combinations(range(12), 2))
    whole = make(12, possible[:30] + possible[36:])
    split = split_edges(whole, test=3 / 60, validation=3 / 60)
    check(whole, split, 3, 3)
    negatives = torch.cat([split.validation_negatives, split.test_negatives])
    assert set(pairs(negatives)) == set(possible[30:36])


def test_too_few_non_edges() -> None:
    complete = make(6, list(combinations(range(6), 2)))
    with pytest.raises(ValueError, match=r"'made' has 0 pairs .* but 3 are needed.*fewer"):
        split_edges(complete, test=0.2, validation=0)


def test_large_sparse_graph_needs_no_square() -> None:
    # Listing all pairs of these nodes would need 80 GB.
    nodes = 10**5
    path = make(nodes, torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)], dim=-1))
    check(path, split_edges(path), 9999, 4999)


@pytest.mark.parametrize("name", ["test", "validation"])
@pytest.mark.parametrize("value", [-0.1, 1.0, 2, float("nan"), "0.1"])
def test_fraction_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be a fraction in \[0, 1\), got"):
        split_edges(graph("karate"), **{name: value})


def test_name_of_a_graph() -> None:
    with pytest.raises(ValueError, match=r"graph must be a Graph, got 'karate'; load one, as in datasets.graph\("):
        split_edges("karate")  # type: ignore[arg-type]


def test_fraction_too_small_for_the_graph() -> None:
    with pytest.raises(ValueError, match=r"validation=0\.05 of 3 edges holds out none.*0\.333"):
        split_edges(make(9, [(0, 1), (1, 2), (2, 3)]), test=0.5)


def test_nothing_left_for_training() -> None:
    with pytest.raises(ValueError, match="leave none of 78 edges"):
        split_edges(graph("karate"), test=0.5, validation=0.5)
