"""Single cells along a lineage tree: counts, library sizes and batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import checked_integer

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False)
class BranchingCells:
    """What :func:`branching_cells` returns: ``N`` cells, ``G`` genes, a tree of ``M`` nodes.

    Attributes:
        counts: float32 ``(N, G)``, whole numbers.
        nodes: the node at the lower end of the edge that each cell lies on, int64 ``(N,)``: its lineage.
        times: distance of each cell from the root, float32 ``(N,)``; an edge has length 1. This is the true pseudotime.
        batches: the batch of each cell, int64 ``(N,)``.
        size_factors: float32 ``(N,)``: the expected number of counts of a cell in units of that of all cells.
        depths: the depth of each node, int64 ``(M,)``; 0 for the root, which is node 0 and has no edge of its own.
        parents: the parent of each node, int64 ``(M,)``; -1 for the root.
    """

    counts: Tensor
    nodes: Tensor
    times: Tensor
    batches: Tensor
    size_factors: Tensor
    depths: Tensor
    parents: Tensor

    def lineages(self, level: int) -> Tensor:
        """The node of a level that each cell descends from, int64 ``(N,)``; of cells above it, the node below them.

        Args:
            level: from 1, the children of the root, to the depth of the tree, where it is ``nodes``.
        """
        levels = int(self.depths.max())
        if level not in range(1, levels + 1):
            raise ValueError(f"level must be an integer from 1 to {levels}, got {level!r}.")
        way = _ancestors(self.parents, self.depths)[self.nodes]
        return torch.where(way[:, level] < 0, self.nodes, way[:, level])

    def distances(self, cells: Tensor | None = None) -> Tensor:
        r"""Lengths of the paths along the tree between cells, float32 ``(K, K)``.

        .. math:: d(a, b) = t_a + t_b - 2 \min(t_a, t_b, \mathrm{depth}(\mathrm{lca}(a, b)))

        with the last common node of the ways from the root.

        Args:
            cells: which cells, int64 ``(K,)``; all by default.
        """
        cells = torch.arange(len(self.nodes)) if cells is None else cells
        ancestors = _ancestors(self.parents, self.depths)
        # The ways agree from the root on; -1, of levels below a node, never does.
        agree = (ancestors.unsqueeze(1) == ancestors) & (ancestors >= 0)
        common = agree.sum(-1) - 1
        nodes, times = self.nodes[cells], self.times[cells]
        meet = torch.minimum(torch.minimum(times.unsqueeze(1), times), common[nodes][:, nodes])
        return times.unsqueeze(1) + times - 2 * meet

    @property
    def tree(self) -> networkx.DiGraph:
        """The tree, with edges from parent to child."""
        import networkx

        tree = networkx.DiGraph()
        tree.add_nodes_from(range(len(self.depths)))
        tree.add_edges_from((p, i) for i, p in enumerate(self.parents.tolist()) if p >= 0)
        return tree


def branching_cells(
    levels: int = 5,
    branching: int = 2,
    cells: int = 3000,
    genes: int = 200,
    batches: int = 3,
    *,
    step: float = 0.5,
    dispersion: float = 0.2,
    total: float = 1000.0,
    size_spread: float = 0.4,
    batch_spread: float = 0.3,
    seed: int = 0,
) -> BranchingCells:
    r"""Simulate single cells that differentiate along a tree.

    The logarithm of the expression of a gene diffuses along the edges of a complete tree; a cell ``i`` lies at a
    uniform place of an edge drawn at random, between the node :math:`v` and its parent, and has the expression between
    theirs. With the batch :math:`b_i` and the size factor :math:`s_i`, the counts are negative binomial:

    .. math::
        y_0 \sim \mathcal N(0, I), \quad y_v \sim \mathcal N(y_{\pi(v)}, \mathrm{step}^2 I), \quad
        e_i = (1 - u_i)\, y_{\pi(v)} + u_i\, y_v, \\
        \rho_i = \mathrm{softmax}(e_i + \beta_{b_i}), \quad \beta_b \sim \mathcal N(0, \mathrm{batch\_spread}^2 I), \\
        x_{ig} \sim \mathrm{NB}(\text{mean } \mu = \mathrm{total}\, s_i\, \rho_{ig},\
        \text{variance } \mu + \mathrm{dispersion}\, \mu^2) .

    Args:
        levels: generations below the root, at least 1.
        branching: children of each node that is not a leaf.
        cells: number of cells; each edge is as likely as any other.
        genes: number of genes, at least 2.
        batches: number of batches; cells are assigned at random.
        step: standard deviation of the change of the logarithm of an expression along an edge.
        dispersion: of the counts; 0 is Poisson.
        total: counts of a cell with size factor 1, on average.
        size_spread: standard deviation of the logarithm of the size factors, whose mean is 1.
        batch_spread: standard deviation of the effect of a batch on the logarithm of an expression.
        seed: the data set is a function of the arguments; the global random state is not touched.

    Example:
        >>> data = branching_cells(cells=500)
        >>> data.counts.shape, data.batches.unique().tolist(), len(data.parents)
        (torch.Size([500, 200]), [0, 1, 2], 63)
        >>> data.distances().shape
        torch.Size([500, 500])
    """
    levels, branching = checked_integer("levels", levels, least=1), checked_integer("branching", branching, least=1)
    cells, batches = checked_integer("cells", cells, least=1), checked_integer("batches", batches, least=1)
    if checked_integer("genes", genes, least=1) == 1:
        raise ValueError("genes must be at least 2, got 1: the shares of one gene say nothing.")
    _check_number("total", total, positive=True)
    for name, value in (
        ("step", step),
        ("dispersion", dispersion),
        ("size_spread", size_spread),
        ("batch_spread", batch_spread),
    ):
        _check_number(name, value, positive=False)
    generator = torch.Generator().manual_seed(checked_integer("seed", seed))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    depths = torch.cat([torch.full((branching**level,), level) for level in range(levels + 1)])
    parents = (torch.arange(len(depths)) - 1).div(branching, rounding_mode="floor")  # -1 for the root
    expression = step * normal(len(depths), genes)
    expression[0] = normal(genes)
    for level in range(1, levels + 1):  # changes become values, one generation after another
        expression[depths == level] += expression[parents[depths == level]]

    nodes = torch.randint(1, len(depths), (cells,), generator=generator)
    along = torch.rand(cells, dtype=torch.float64, generator=generator)
    batch = torch.randint(batches, (cells,), generator=generator)
    effects = batch_spread * normal(batches, genes)
    sizes = (size_spread * normal(cells) - size_spread**2 / 2).exp()

    between = torch.lerp(expression[parents[nodes]], expression[nodes], along.unsqueeze(-1))
    mean = total * sizes.unsqueeze(-1) * (between + effects[batch]).softmax(-1)
    if dispersion > 0:
        shape = torch.full_like(mean, 1 / dispersion)
        mean = mean * _standard_gamma(shape, generator) * dispersion
    return BranchingCells(
        counts=torch.poisson(mean, generator=generator).float(),
        nodes=nodes,
        times=(depths[parents[nodes]] + along).float(),
        batches=batch,
        size_factors=sizes.float(),
        depths=depths,
        parents=parents,
    )


def _ancestors(parents: Tensor, depths: Tensor) -> Tensor:
    """The nodes on the way from the root to each node, by level, int64 ``(M, levels + 1)``; -1 below the node."""
    levels = int(depths.max())
    way = torch.full((len(parents), levels + 1), -1)
    current = torch.arange(len(parents))
    for _ in range(levels + 1):
        there = current >= 0
        way[there.nonzero().squeeze(-1), depths[current[there]]] = current[there]
        current = torch.where(there, parents[current], -1)
    return way


def _check_number(name: str, value: float, positive: bool) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (positive and value == 0):
        raise ValueError(
            f"{name} must be a finite number, {'positive' if positive else 'not negative'}, got {value!r}."
        )


def _standard_gamma(shape: Tensor, generator: torch.Generator) -> Tensor:
    """Gamma variates of a generator of their own, for which torch has no public argument."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        variates = torch.distributions.Gamma(shape, torch.ones_like(shape)).sample()
        generator.set_state(torch.get_rng_state())
    return variates
