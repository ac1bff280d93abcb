"""Networks for models of edges."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_hyperbolic.datasets.edgelist import read_weighted_edge_list
from pyro_hyperbolic.datasets.paths import checked_path
from pyro_hyperbolic.datasets.simple_graph import Graph
from pyro_hyperbolic.models.network import Network, networkx_edges

if TYPE_CHECKING:
    import networkx

_GRAPHML = ".graphml"


def network(
    source: str | os.PathLike[str] | Graph | networkx.Graph, weight: str | None = None, *, directed: bool = False
) -> Network:
    """Load a network for :class:`~pyro_hyperbolic.models.LatentSpaceNetwork`.

    ======================  ============================================================  =====  =====
    source                  network                                                       nodes  edges
    ======================  ============================================================  =====  =====
    ``"karate"``            friends in a karate club (Zachary, 1977)                         34     78
    ``"les_miserables"``    characters in one chapter of the novel (Knuth, 1993)             77    254
    ``"florentine"``        marriages of families of Florence (Padgett and Ansell, 1993)     15     20
    ``"davis"``             women and the events that they attended (Davis et al., 1941)     32     89
    a path                  GraphML if it ends so, or an edge list of integers
    a graph                 of networkx, directed or not, or :class:`Graph`
    ======================  ============================================================  =====  =====

    The first four are networkx's own, so no file is needed. In the fourth, pairs of two women and of two events are
    missing, as they cannot be edges. Pairs that a file or a graph repeats are joined, and their weights are added.
    Self loops are dropped. Nodes without edges, of which edge lists know nothing, stay.

    :param source: a name of the table, a path or a graph.
    :param weight: the attribute of edges to take as their values; any word for the third column of an edge list. Edges
        have the value 1 by default.
    :param directed: whether the lines of an edge list have a direction. Graphs and GraphML know it themselves.

    >>> club = network("karate", weight="weight")
    >>> club.num_nodes, club.num_edges, club.values.sum().item()
    (34, 78, 231.0)
    """
    if isinstance(source, Graph):
        return Network(source.num_nodes, source.edges, names=tuple(map(str, source.node_ids.tolist())))
    if isinstance(source, str) and source in _BUILT_IN:
        return _BUILT_IN[source](weight)
    if hasattr(source, "is_multigraph"):
        return _from_networkx(source, weight)
    path = checked_path("source", source, "karate").expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"source: {os.fspath(path)!r} is neither a known network ({', '.join(_BUILT_IN)}) nor a file."
        )
    if path.suffix.lower() == _GRAPHML:
        return _from_networkx(_read_graphml(path), weight)
    pairs, values = read_weighted_edge_list(path)
    if bool((pairs[:, 0] == pairs[:, 1]).all()):
        raise ValueError(f"{path}: nothing but self loops; give a list with edges between nodes.")
    identifiers, nodes = torch.unique(pairs, return_inverse=True)
    names = tuple(map(str, identifiers.tolist()))
    return _joined(nodes, values if weight is not None else None, names, directed)


def _from_networkx(graph: Any, weight: str | None) -> Network:
    pairs, values, names = networkx_edges(graph, weight)
    return _joined(pairs, values, names, graph.is_directed())


def _joined(pairs: Tensor, values: Tensor | None, names: tuple[str, ...], directed: bool) -> Network:
    """A network of any pairs of nodes: without self loops, and repeated pairs once, with the sum of their values."""
    proper = pairs[:, 0] != pairs[:, 1]
    pairs = pairs[proper] if directed else pairs[proper].sort(-1).values
    edges, place = torch.unique(pairs, dim=0, return_inverse=True)
    if values is not None:
        values = values.new_zeros(len(edges)).index_add(0, place, values[proper])
    return Network(len(names), edges, values, directed=directed, names=names)


def _read_graphml(path: Path) -> Any:
    import networkx

    try:
        return networkx.read_graphml(path)
    except Exception as error:  # of the parser, of its own classes
        raise ValueError(f"{path}: not a GraphML file ({error}); give an edge list another ending.") from error


def _named(name: str) -> Callable[[str | None], Network]:
    def load(weight: str | None) -> Network:
        import networkx

        return _from_networkx(getattr(networkx, name)(), weight)

    return load


def _davis(weight: str | None) -> Network:
    import networkx

    graph = networkx.davis_southern_women_graph()
    found = _from_networkx(graph, weight)
    events = torch.tensor([graph.nodes[node]["bipartite"] for node in graph])
    i, j = torch.triu_indices(found.num_nodes, found.num_nodes, 1)
    missing = torch.stack([i, j], -1)[events[i] == events[j]]
    return Network(found.num_nodes, found.edges, found.values, missing, names=found.names)


_BUILT_IN: dict[str, Callable[[str | None], Network]] = {
    "karate": _named("karate_club_graph"),
    "les_miserables": _named("les_miserables_graph"),
    "florentine": _named("florentine_families_graph"),
    "davis": _davis,
}
