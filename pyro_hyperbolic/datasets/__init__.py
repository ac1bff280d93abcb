"""Data sets: seeded generators and loaders.

==============================  ============================================================
:func:`branching_diffusion`     the synthetic tree-structured diffusion of Mathieu et al. (2019)
:func:`branching_cells`         simulated counts of single cells along a lineage tree, in batches
:func:`paul15`                  counts of 2,660 myeloid progenitors of the mouse, bundled
:func:`storms`                  days of tropical storms of the North Atlantic, bundled
:func:`mnist`                   handwritten digits: from disk, downloaded, or a bundled subset
:func:`graph`                   the three networks of the paper, any edge list, built-in graphs
:func:`network`                 networks for models of edges: built-in ones, edge lists, GraphML, networkx
:func:`split_edges`             a link-prediction split of a graph
:func:`graph_distances`         lengths of the shortest paths of a graph
:func:`from_anndata`            counts of single cells in an ``AnnData``; :func:`to_anndata` writes results into one
==============================  ============================================================

Everything random is seeded with a generator of its own, so the global random state is left alone.
Importing this package costs no more than importing torch.
"""

from __future__ import annotations

from pyro_hyperbolic.datasets.annotated import AnnotatedCells, from_anndata, to_anndata
from pyro_hyperbolic.datasets.branching import BranchingDiffusion, branching_diffusion
from pyro_hyperbolic.datasets.distances import graph_distances
from pyro_hyperbolic.datasets.graphs import graph
from pyro_hyperbolic.datasets.lineages import BranchingCells, branching_cells
from pyro_hyperbolic.datasets.mnist import BundledDataWarning, Digits, mnist
from pyro_hyperbolic.datasets.networks import network
from pyro_hyperbolic.datasets.paul15 import CellCounts, paul15
from pyro_hyperbolic.datasets.simple_graph import Graph
from pyro_hyperbolic.datasets.splits import EdgeSplit, split_edges
from pyro_hyperbolic.datasets.storms import StormDays, storms

__all__ = [
    "AnnotatedCells",
    "BranchingCells",
    "BranchingDiffusion",
    "BundledDataWarning",
    "CellCounts",
    "Digits",
    "EdgeSplit",
    "Graph",
    "StormDays",
    "branching_cells",
    "branching_diffusion",
    "from_anndata",
    "graph",
    "graph_distances",
    "mnist",
    "network",
    "paul15",
    "split_edges",
    "storms",
    "to_anndata",
]
