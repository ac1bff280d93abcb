"""Simple undirected graphs as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class Graph:
    """A simple undirected graph on the nodes ``0, ..., num_nodes - 1``.

    Attributes:
        name: the name or path that it was loaded by.
        num_nodes: the number of nodes; each node of an edge list is in one of its lines.
        edges: int64 ``(E, 2)``, each edge once, the smaller node first, sorted.
        node_ids: int64 ``(num_nodes,)``, the identifier that each node has in the file.
        num_self_loops: self-loops that were dropped.
        num_duplicates: repeated edges, in either direction, that were dropped.
    """

    name: str
    num_nodes: int
    edges: Tensor
    node_ids: Tensor
    num_self_loops: int = 0
    num_duplicates: int = 0

    @property
    def num_edges(self) -> int:
        """The number of edges."""
        return len(self.edges)

    def adjacency(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The adjacency matrix: dense, symmetric, zero diagonal, ``(num_nodes, num_nodes)``."""
        matrix = torch.zeros(self.num_nodes, self.num_nodes, dtype=dtype)
        first, second = self.edges.unbind(-1)
        matrix[first, second] = 1
        matrix[second, first] = 1
        return matrix

    def sparse_adjacency(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same matrix as a coalesced sparse COO tensor."""
        indices = torch.cat([self.edges, self.edges.flip(-1)]).T
        size = (self.num_nodes, self.num_nodes)
        ones = torch.ones(indices.shape[1], dtype=dtype)
        return torch.sparse_coo_tensor(indices, ones, size, check_invariants=True).coalesce()

    def to_networkx(self) -> networkx.Graph:
        """The graph for networkx, with the attribute ``id``, of ``node_ids``, on each node."""
        import networkx

        result = networkx.Graph(name=self.name)
        for node, identifier in enumerate(self.node_ids.tolist()):
            result.add_node(node, id=identifier)
        result.add_edges_from(self.edges.tolist())
        return result


def simple_graph(name: str, pairs: Tensor, *, origin: str) -> Graph:
    """Make a graph of any pairs of identifiers.

    The nodes are numbered in the order of their identifiers; directions, repetitions and
    self-loops are dropped.

    Args:
        name: the name of the graph.
        pairs: int64 ``(M, 2)``.
        origin: where the pairs are from, for the message of an error.

    Raises:
        ValueError: if there is no edge between two different nodes.

    Example:
        >>> pairs = torch.tensor([[7, 5], [5, 7], [7, 9], [9, 9]])
        >>> path = simple_graph("path", pairs, origin="here")
        >>> path.edges.tolist(), path.node_ids.tolist()
        ([[0, 1], [1, 2]], [5, 7, 9])
        >>> path.num_self_loops, path.num_duplicates
        (1, 1)
    """
    node_ids, nodes = torch.unique(pairs, return_inverse=True)
    proper = nodes[nodes[:, 0] != nodes[:, 1]].sort(dim=-1).values
    if len(proper) == 0:
        raise ValueError(f"{origin}: nothing but self-loops; give a list with edges between nodes")
    edges = torch.unique(proper, dim=0)
    return Graph(
        name=name,
        num_nodes=len(node_ids),
        edges=edges,
        node_ids=node_ids,
        num_self_loops=len(pairs) - len(proper),
        num_duplicates=len(proper) - len(edges),
    )
