"""A taxonomy of animals with noisy distances: the data of ``bayesian_tree.py`` and ``leaf_regions.py``."""

from __future__ import annotations

from typing import NamedTuple

import networkx
import torch
from torch import Tensor

TAXONOMY = """
animal: vertebrate arthropod mollusc
vertebrate: mammal bird reptile fish
mammal: carnivore rodent cetacean
arthropod: insect arachnid crustacean
mollusc: snail mussel squid
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
FIRST = ["animal", "carnivore", "insect"]  # the root, and two nodes far from it and from each other


class Tree(NamedTuple):
    """Names and parents ``(N,)`` of all nodes, inner ones first, and their noisy distances ``(N, N)``."""

    names: list[str]
    parents: Tensor
    inner: int
    y: Tensor

    @property
    def edges(self) -> Tensor:
        return torch.stack([self.parents[1:], torch.arange(1, len(self.parents))], 1)


def taxonomy(noise: float) -> Tree:
    """The animals above, with distances along the tree and Gaussian noise."""
    rows = [line.split(": ") for line in TAXONOMY.strip().splitlines()]
    parent = {child: above for above, children in rows for child in children.split()}
    inner = FIRST + [name for name, _ in rows if name not in FIRST]
    names = inner + [name for name in parent if name not in inner]
    parents = torch.tensor([names.index(parent[name]) if name in parent else -1 for name in names])
    edges = torch.from_numpy(networkx.floyd_warshall_numpy(networkx.Graph(parent.items()), nodelist=names))
    error = noise * torch.randn(edges.shape).triu(1)
    return Tree(names, parents, len(inner), edges + error + error.mT)
