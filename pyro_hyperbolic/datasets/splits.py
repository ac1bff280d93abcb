"""Link prediction: hold out edges of a graph, and non-edges to tell them from."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from pyro_hyperbolic.datasets.simple_graph import Graph
from pyro_hyperbolic.ops.checks import checked_integer, is_number

#: Up to this many pairs of nodes the non-edges are listed (64 MB); beyond, they are sampled.
_LIST_ALL_PAIRS = 2**22


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Disjoint sets of pairs, each int64 ``(n, 2)`` with the smaller node first.

    Attributes:
        train: edges to learn from.
        validation: held-out edges.
        validation_negatives: as many pairs without an edge of the whole graph.
        test: other held-out edges.
        test_negatives: as many other pairs without an edge.
    """

    train: Tensor
    validation: Tensor
    validation_negatives: Tensor
    test: Tensor
    test_negatives: Tensor


def split_edges(graph: Graph, test: float = 0.10, validation: float = 0.05, seed: int = 0) -> EdgeSplit:
    """Split the edges of a graph for link prediction.

    ``floor(test * E)`` and ``floor(validation * E)`` of the ``E`` edges are drawn without
    replacement and held out, and as many pairs of different nodes that no edge of the whole graph
    joins are drawn for each, uniformly and without replacement. ``dataclasses.replace(graph,
    edges=split.train)`` is the graph to learn from; it keeps all nodes.

    Args:
        graph: the graph.
        test: fraction of the edges for testing, in [0, 1).
        validation: fraction of the edges for validation, in [0, 1).
        seed: the split is a function of the arguments; the global random state is not touched.

    Raises:
        ValueError: if a fraction is out of range or too small to hold out an edge, or if the graph
            has fewer non-edges than are needed.

    References:
        T. N. Kipf, M. Welling: Variational graph auto-encoders. NeurIPS workshop 2016.

    Example:
        >>> from pyro_hyperbolic.datasets import graph
        >>> split = split_edges(graph("karate"))
        >>> [len(pairs) for pairs in (split.train, split.validation, split.test)]
        [68, 3, 7]
    """
    if not isinstance(graph, Graph):
        raise ValueError(f"graph must be a Graph, got {graph!r:.60}; load one, as in datasets.graph('karate').")
    num_edges = graph.num_edges
    num_test = _held_out("test", test, num_edges)
    num_validation = _held_out("validation", validation, num_edges)
    held_out = num_test + num_validation
    if held_out >= num_edges:
        raise ValueError(
            f"test={test} and validation={validation} leave none of {num_edges} edges for "
            "training; their sum must be smaller"
        )
    generator = torch.Generator().manual_seed(checked_integer("seed", seed))
    order = torch.randperm(num_edges, generator=generator)
    chosen = [
        graph.edges[part.sort().values]
        for part in order.tensor_split([num_test, held_out])  # test, validation, train
    ]
    negatives = _non_edges(graph, held_out, generator)
    return EdgeSplit(
        train=chosen[2],
        validation=chosen[1],
        validation_negatives=negatives[num_test:],
        test=chosen[0],
        test_negatives=negatives[:num_test],
    )


def _held_out(name: str, fraction: float, num_edges: int) -> int:
    if not (is_number(fraction) and 0 <= fraction < 1):
        raise ValueError(f"{name} must be a fraction in [0, 1), got {fraction!r}")
    # The decimal that was meant, not its binary neighbour: 0.29 of 100 edges are 29, not 28.
    count = int(Fraction(str(fraction)) * num_edges)
    if fraction > 0 and count == 0:
        raise ValueError(
            f"{name}={fraction} of {num_edges} edges holds out none; "
            f"give at least {1 / num_edges:.3g}, or 0 for no such set"
        )
    return count


def _non_edges(graph: Graph, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` different pairs ``i < j`` without an edge, uniformly, in random order."""
    nodes = graph.num_nodes
    pairs = nodes * (nodes - 1) // 2
    if count > pairs - graph.num_edges:
        raise ValueError(
            f"the graph {graph.name!r} has {pairs - graph.num_edges} pairs of nodes without an "
            f"edge, but {count} are needed, one for each held-out edge; hold out fewer edges"
        )
    edges = _encode(graph.edges, nodes).sort().values
    if pairs <= max(_LIST_ALL_PAIRS, 4 * graph.num_edges):
        candidates = _encode(torch.triu_indices(nodes, nodes, offset=1).T, nodes)
        pool = _without(candidates, edges)
    else:
        # At least three of four pairs are no edges here, so a few rounds do. The set that comes
        # out treats all non-edges alike, and so does a random part of it.
        pool = edges.new_empty(0)
        while len(pool) < count:
            size = (2 * (count - len(pool)) + 16, 2)
            drawn = torch.randint(nodes, size, generator=generator).sort(dim=-1).values
            drawn = drawn[drawn[:, 0] < drawn[:, 1]]
            pool = torch.unique(torch.cat([pool, _without(_encode(drawn, nodes), edges)]))
    codes = pool[torch.randperm(len(pool), generator=generator)[:count]]
    return torch.stack([codes // nodes, codes % nodes], dim=-1)


def _encode(pairs: Tensor, nodes: int) -> Tensor:
    """One integer for each pair, so that sets of pairs are sets of integers."""
    return pairs[:, 0] * nodes + pairs[:, 1]


def _without(codes: Tensor, removed: Tensor) -> Tensor:
    """Those of ``codes`` that are not in the sorted ``removed``."""
    if len(removed) == 0:
        return codes
    nearest = torch.searchsorted(removed, codes).clamp(max=len(removed) - 1)
    return codes[removed[nearest] != codes]
