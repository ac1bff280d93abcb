"""A network as models of edges take it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.nn.graph import check_pairs
from pyro_hyperbolic.ops.checks import checked_integer

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class Network:
    """A network by the list of its edges, for those whose matrix would be too large.

    A pair of nodes that is not in the list has the value 0, unless it is missing.

    :param num_nodes: number ``N`` of nodes, ``0`` to ``N - 1``.
    :param edges: integers ``(E, 2)``, each pair once. In a directed network an edge goes from the first to the second.
    :param values: of the edges, ``(E,)``; 1 by default. Counts, weights or signs.
    :param missing: pairs ``(M, 2)`` of which nobody knows whether they are edges.
    :param directed: whether edges have a direction.
    :param names: of the nodes, in their order.

    >>> path = Network(3, torch.tensor([[0, 1], [2, 1]]))
    >>> path.adjacency()
    tensor([[0., 1., 0.],
            [1., 0., 1.],
            [0., 1., 0.]])
    """

    num_nodes: int
    edges: Tensor
    values: Tensor | None = None
    missing: Tensor | None = None
    directed: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_integer("num_nodes", self.num_nodes, least=2)
        for name in ("edges", "missing"):
            pairs = getattr(self, name)
            if pairs is not None:
                check_pairs(name, pairs, self.num_nodes)
                object.__setattr__(self, name, pairs.long())  # products of numbers of nodes overflow in others
        self._check_pairs("edges", self.edges)
        if self.values is not None:
            if not isinstance(self.values, Tensor) or self.values.shape != self.edges.shape[:1]:
                got = tuple(self.values.shape) if isinstance(self.values, Tensor) else type(self.values).__name__
                raise ValueError(f"values must be a tensor with one number for each of the edges, got {got}.")
            if not bool(self.values.isfinite().all()):
                raise ValueError("values must be finite; put pairs whose value is not known into missing.")
        if self.missing is not None:
            self._check_pairs("missing", self.missing)
            if bool(torch.isin(self._codes(self.missing), self._codes(self.edges)).any()):
                raise ValueError("missing must not hold pairs that are among the edges; drop them from one of the two.")
        if self.names and len(self.names) != self.num_nodes:
            raise ValueError(f"names must hold one name for each of {self.num_nodes} nodes, got {len(self.names)}.")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"names must be different, got {twice!r} for several nodes; 1 and '1' have the same name.")

    def _check_pairs(self, name: str, pairs: Tensor) -> None:
        if bool((pairs[:, 0] == pairs[:, 1]).any()):
            raise ValueError(
                f"{name} must join different nodes, got self loops; drop them: {name}[{name}[:, 0] != {name}[:, 1]]."
            )
        if len(self._codes(pairs).unique()) < len(pairs):
            either = "" if self.directed else ", in one of the two directions"
            raise ValueError(f"{name} must hold each pair once{either}; drop the repeated ones, or add their values.")

    def _codes(self, pairs: Tensor) -> Tensor:
        """One number for each pair, the same in both directions unless edges have one."""
        pairs = pairs.long()
        if not self.directed:
            pairs = pairs.sort(-1).values
        return pairs[:, 0] * self.num_nodes + pairs[:, 1]

    @property
    def num_edges(self) -> int:
        """How many edges are listed."""
        return len(self.edges)

    @cached_property
    def listed(self) -> Tensor:
        """Codes of the edges and of the missing pairs, sorted."""
        pairs = self.edges if self.missing is None else torch.cat([self.edges, self.missing])
        return self._codes(pairs).sort().values

    def is_listed(self, pairs: Tensor) -> Tensor:
        """Which of the pairs ``(P, 2)`` are edges, or missing."""
        codes = self._codes(pairs)
        if not len(self.listed):
            return torch.zeros_like(codes, dtype=torch.bool)
        place = torch.searchsorted(self.listed, codes).clamp(max=len(self.listed) - 1)
        return self.listed[place] == codes

    def edge_values(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values of the edges ``(E,)`` as floating numbers."""
        dtype = dtype or torch.get_default_dtype()
        if self.values is None:
            return torch.ones(len(self.edges), dtype=dtype, device=self.edges.device)
        return self.values.to(dtype)

    def adjacency(self, dtype: torch.dtype | None = None) -> Tensor:
        """All values as a matrix ``(N, N)``, with ``nan`` for missing pairs."""
        values = self.edge_values(dtype)
        matrix = values.new_zeros(self.num_nodes, self.num_nodes)
        for pairs, value in ((self.edges, values), (self.missing, values.new_tensor(float("nan")))):
            if pairs is not None:
                matrix[pairs[:, 0], pairs[:, 1]] = value
                if not self.directed:
                    matrix[pairs[:, 1], pairs[:, 0]] = value
        return matrix

    def to(self, device: Any) -> Network:
        """The same network on another device."""
        values, missing = (t if t is None else t.to(device) for t in (self.values, self.missing))
        return Network(self.num_nodes, self.edges.to(device), values, missing, self.directed, self.names)

    @classmethod
    def from_networkx(cls, graph: networkx.Graph, weight: str | None = None) -> Self:
        """The nodes and edges of a graph of networkx, in their order.

        :param graph: a ``Graph`` or ``DiGraph``; names are those of its nodes.
        :param weight: the attribute of edges that holds their values; 1 by default, and where an edge has none.

        >>> import networkx
        >>> Network.from_networkx(networkx.karate_club_graph()).num_edges
        78
        """
        if not hasattr(graph, "is_multigraph") or graph.is_multigraph():
            raise ValueError(
                f"graph must be a networkx.Graph or DiGraph, got {type(graph).__name__}; datasets.network(graph) joins"
                " parallel edges."
            )
        edges, values, names = networkx_edges(graph, weight)
        return cls(len(names), edges, values, directed=graph.is_directed(), names=names)


def networkx_edges(graph: Any, weight: str | None) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
    """All edges of a graph of networkx ``(E, 2)``, their values if there is an attribute for them, and all names."""
    number = {node: i for i, node in enumerate(graph)}
    edges = torch.tensor([(number[a], number[b]) for a, b in graph.edges()], dtype=torch.int64).reshape(-1, 2)
    names = tuple(map(str, number))
    if weight is None:
        return edges, None, names
    known = sorted({str(key) for _, _, data in graph.edges(data=True) for key in data})
    if len(edges) and weight not in known:
        raise ValueError(f"weight must be an attribute of edges of the graph, one of {known}, got {weight!r}.")
    found = [value for _, _, value in graph.edges(data=weight, default=1.0)]
    try:
        values = torch.tensor([float(value) for value in found], dtype=torch.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"weight must be an attribute that is a number, which {weight!r} is not: {error}.") from error
    return edges, values, names
