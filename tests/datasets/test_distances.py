"""Distances in a graph, against those of networkx."""

from __future__ import annotations

import networkx
import pytest
import torch

from pyro_hyperbolic.datasets import graph, graph_distances


@pytest.mark.parametrize(
    "made",
    [
        networkx.cycle_graph(7),
        networkx.karate_club_graph(),
        networkx.star_graph(["hub", "a", "b"]),
        networkx.Graph({1: []}),
    ],
    ids=["cycle", "karate", "names", "node"],
)
def test_shortest_paths_without_weights(made: networkx.Graph) -> None:
    found = graph_distances(made)
    expected = networkx.floyd_warshall_numpy(made, weight=None)
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.from_numpy(expected).double())


def test_graph_of_this_package() -> None:
    club = graph("karate")
    assert torch.equal(graph_distances(club), graph_distances(club.to_networkx()))


def test_several_components() -> None:
    made = networkx.disjoint_union_all([networkx.path_graph(2), networkx.cycle_graph(5), networkx.path_graph(3)])
    # Names of nodes, out of order, so that rows cannot be told from their numbers.
    made = networkx.relabel_nodes(made, dict(enumerate("jihgfedcba")))
    with pytest.raises(ValueError, match=r"3 components, the largest with 5 of 10 nodes; pass largest_component=True"):
        graph_distances(made)
    found = graph_distances(made, largest_component=True)
    assert torch.equal(found, graph_distances(networkx.cycle_graph(5)))


def test_of_equal_components_the_first() -> None:
    made = networkx.disjoint_union(networkx.path_graph(4), networkx.star_graph(3))
    found = graph_distances(made, largest_component=True)
    assert torch.equal(found, graph_distances(networkx.path_graph(4)))


def test_whole_graph_is_its_largest_component() -> None:
    made = networkx.cycle_graph(6)
    assert torch.equal(graph_distances(made, largest_component=True), graph_distances(made))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (networkx.DiGraph([(0, 1)]), r"undirected networkx\.Graph, got DiGraph; .* use graph\.to_undirected\(\)"),
        (networkx.Graph(), "must have nodes, got an empty graph"),
        ([(0, 1)], "undirected networkx.Graph, got list"),
    ],
    ids=["directed", "empty", "list"],
)
def test_mistakes(made: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph_distances(made)  # type: ignore[arg-type]
