"""Noisy distances in trees, with nodes held out."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import networkx
import torch
from torch import Tensor

from pyro_hyperbolic import PoincareBall

BALL = PoincareBall(1.0)
DOUBLE: Any = {"dtype": torch.float64}
# The edges of a tree where the embedding starts.
EDGE = 2.0
TAXONOMY = """
animal: vertebrate arthropod mollusc
vertebrate: mammal bird reptile fish
arthropod: insect arachnid crustacean
mollusc: snail mussel squid
mammal: carnivore rodent cetacean
bird: owl goose penguin
reptile: snake turtle lizard
fish: shark salmon eel
insect: beetle ant butterfly
arachnid: spider scorpion
crustacean: crab lobster
carnivore: wolf cat bear
rodent: mouse squirrel beaver
cetacean: dolphin orca
"""


@dataclass
class Data:
    """Noisy distances between the same nodes in several folds, and what of them is observed.

    The first three reference nodes fix the gauge: one at the origin, one on the axis, one above it.

    :ivar y: distances ``(F, N, N)``.
    :ivar reference: nodes of which all distances to each other are observed, ``(F, R)``.
    :ivar held_out: the other ones, ``(F, H)``.
    :ivar seen: to which of the ``R`` reference nodes the distance of a held-out one is observed, ``(F, H, K)``.
    :ivar start: positions of the reference nodes to start from, ``(F, R, 2)``.
    :ivar edges: of the tree, ``(E, 2)``; none if there is no tree.
    :ivar truth: positions ``(F, N, 2)`` that the distances were drawn from, if there are any.
    """

    y: Tensor
    reference: Tensor
    held_out: Tensor
    seen: Tensor
    start: Tensor
    names: list[str]
    edges: Tensor
    truth: Tensor | None = None

    def among_reference(self) -> Tensor:
        """Distances ``(F, R, R)`` of the reference nodes."""
        return _pairs(self.y, self.reference, self.reference)

    def of_held_out(self) -> Tensor:
        """Distances ``(F, H, R)`` of held-out to reference nodes."""
        return _pairs(self.y, self.held_out, self.reference)


def taxonomy(args: argparse.Namespace) -> Data:
    """The animals above."""
    graph, names = networkx.Graph(), ["animal"]
    for line in TAXONOMY.strip().splitlines():
        parent, children = line.split(": ")
        for child in children.split():
            graph.add_edge(names.index(parent), len(names))
            names.append(child)
    return tree_data(graph, names, args)


def balanced(args: argparse.Namespace) -> Data:
    """A balanced tree."""
    graph = networkx.balanced_tree(args.branching, args.height)
    return tree_data(graph, [str(node) for node in graph], args)


def tree_data(graph: networkx.Graph, names: list[str], args: argparse.Namespace) -> Data:
    """Noisy distances in a tree with root 0, of which as many leaves as the folds can share are held out."""
    hops = torch.from_numpy(networkx.floyd_warshall_numpy(graph, nodelist=range(len(names))))
    inner = torch.tensor([node for node in range(1, len(names)) if graph.degree[node] > 1])
    # Nodes far from the root and from each other fix the gauge well.
    axis = int(inner[hops[0, inner].argmax()])
    above = int(inner[hops[axis, inner].argmax()])
    order = [0, axis, above] + [node for node in range(1, len(names)) if node not in (axis, above)]
    graph = networkx.relabel_nodes(graph, {node: i for i, node in enumerate(order)})
    leaves = torch.tensor([node for node in range(3, len(order)) if graph.degree[node] == 1])
    folds = len(leaves) // args.held_out
    if not folds:
        raise ValueError(f"--held-out {args.held_out} is more than the {len(leaves)} leaves that there are.")
    held_out = leaves[torch.randperm(len(leaves))[: folds * args.held_out]].reshape(folds, args.held_out)
    noise = args.noise * torch.randn(folds, len(order), len(order), **DOUBLE).triu(1)
    y = hops[order][:, order] + noise + noise.mT
    start = torch.stack([spread_tree(graph, set(nodes.tolist())) for nodes in held_out])
    names = [names[node] for node in order]
    return split(y, held_out, start, names, torch.tensor(list(graph.edges)), args.observed)


def spread_tree(graph: networkx.Graph, without: set[int]) -> Tensor:
    """The tree in the disc, edges of one length equally spread around each node (R. Sarkar, 2011), ``(N, 2)``."""
    points = torch.zeros(len(graph), 2, **DOUBLE)
    parents = dict(networkx.bfs_predecessors(graph, 0))
    for node in [0, *parents]:
        children = [child for child in sorted(graph[node]) if child != parents.get(node) and child not in without]
        back = BALL.to_normal_coords(points[node], points[parents.get(node, 0)])
        for i, child in enumerate(children, 1):
            angle = torch.atan2(back[1], back[0]) + 2 * math.pi * i / (len(children) + (node > 0))
            points[child] = BALL.from_normal_coords(points[node], EDGE * torch.stack([angle.cos(), angle.sin()]))
    cosine, sine = points[1] / points[1].norm()
    return reflected(points @ torch.stack([torch.stack([cosine, -sine]), torch.stack([sine, cosine])]))


def reflected(points: Tensor) -> Tensor:
    """Points ``(..., N, 2)``, or their mirror image, so that the third one lies above the axis."""
    sign = torch.where(points[..., 2, 1] < 0, -1.0, 1.0)
    return torch.stack([points[..., 0], sign[..., None] * points[..., 1]], -1)


def split(
    y: Tensor,
    held_out: Tensor,
    start: Tensor,
    names: list[str],
    edges: Tensor,
    observed: int,
    truth: Tensor | None = None,
) -> Data:
    """Observe all distances of the nodes that are not held out, and a few random ones of those that are."""
    folds, number = y.shape[:2]
    kept = torch.ones(folds, number, dtype=torch.bool).scatter(1, held_out, False)
    reference = kept.nonzero()[:, 1].reshape(folds, -1)
    if observed > reference.shape[1]:
        raise ValueError(f"--observed {observed} is more than the {reference.shape[1]} reference nodes that there are.")
    seen = torch.rand(*held_out.shape, reference.shape[1]).argsort(-1)[..., :observed]
    start = start[torch.arange(folds)[:, None], reference]
    return Data(y, reference, held_out, seen, start, names, edges, truth)


def _pairs(y: Tensor, first: Tensor, second: Tensor) -> Tensor:
    folds = torch.arange(len(y))[:, None, None]
    return y[folds, first[:, :, None], second[:, None, :]]
