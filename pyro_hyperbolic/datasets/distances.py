"""Distances in a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_hyperbolic.datasets.simple_graph import Graph

if TYPE_CHECKING:
    import networkx


def graph_distances(graph: Graph | networkx.Graph, *, largest_component: bool = False) -> Tensor:
    """Number of edges on the shortest path between any two nodes.

    A search from every node, in O(N (N + E)) time. Weights of edges are ignored.

    Args:
        graph: a graph of this package or an undirected one of networkx.
        largest_component: of a graph that is not connected take the largest component (of several that are equally
            large the one with the first node). Without it such a graph is an error: there is no path from one
            component to another.

    Returns:
        float64 ``(N, N)``, symmetric, in the order of the nodes.

    Raises:
        ValueError: if the graph is directed, has no node, or is not connected.

    Example:
        >>> import networkx
        >>> graph_distances(networkx.path_graph(3)).tolist()
        [[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]
    """
    import networkx

    made = graph.to_networkx() if isinstance(graph, Graph) else graph
    if not isinstance(made, networkx.Graph) or made.is_directed():
        raise ValueError(
            f"graph must be a Graph of this package or an undirected networkx.Graph, got {type(graph).__name__}; for a"
            " directed graph use graph.to_undirected()."
        )
    if len(made) == 0:
        raise ValueError("graph must have nodes, got an empty graph.")
    components = list(networkx.connected_components(made))
    kept = max(components, key=len)
    if len(components) > 1 and not largest_component:
        raise ValueError(
            f"graph must be connected, got {len(components)} components, the largest with {len(kept)} of {len(made)}"
            " nodes; pass largest_component=True to go on with that one."
        )
    row = {node: i for i, node in enumerate(node for node in made if node in kept)}
    distances = torch.zeros(len(row), len(row), dtype=torch.float64)
    for node, i in row.items():
        lengths = networkx.single_source_shortest_path_length(made, node)
        distances[i, [row[other] for other in lengths]] = torch.tensor(list(lengths.values()), dtype=torch.float64)
    return distances
