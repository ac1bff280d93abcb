"""Trees in the hyperbolic plane, without a search."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_open_space
from pyro_hyperbolic.analysis.widening import plain
from pyro_hyperbolic.geometry import Manifold

# The relative error that the length of an edge may have.
EDGE_PRECISION = 1e-5


@torch.no_grad()
def sarkar_embedding(parents: Tensor, manifold: Manifold, *, length: float) -> Tensor:
    r"""Place a tree in the hyperbolic plane with edges of one length, level by level.

    The root lies at the origin. The children of a node lie at distance ``length`` from it, in directions that are
    equally spread together with the direction of its parent. At a node of degree :math:`q`, the angle between two
    children is at least :math:`2\pi/q`. The longer the edges, the nearer the distance between any two nodes is to
    ``length`` times the number of edges between them. The relative error is of the order of :math:`1/(\sqrt c\,l)`.

    R. Sarkar, *Low distortion Delaunay embedding of trees in hyperbolic plane* (2011). Coordinates are float64, whose
    rounding grows with the distance from the origin. Every edge has its length to a relative error of
    :math:`10^{-5}`, or the tree is refused: it may reach a distance of about :math:`25/\sqrt c` on
    :class:`~pyro_hyperbolic.PoincareBall` and :math:`32/\sqrt c` on :class:`~pyro_hyperbolic.Lorentz`.

    :param parents: the parent of each node, integers ``(N,)``; -1 for the root.
    :param manifold: a hyperbolic plane or, at ``c = 0``, the Euclidean one, with one curvature.
    :param length: length of all edges. The deeper the tree, the shorter it has to be.

    Returns ``(N, D)`` points of ``manifold``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> points = sarkar_embedding(torch.tensor([-1, 0, 0, 0, 1, 1]), ball, length=3.0)
    >>> [round(d, 9) for d in ball.dist(points[[1, 4]], points[[0, 1]]).tolist()]  # two edges
    [3.0, 3.0]
    >>> round(ball.dist(points[4], points[2]).item(), 1)  # a path of three edges
    8.5
    """
    levels = _levels(parents)
    space = plain(checked_open_space("sarkar_embedding: manifold", manifold))
    if not 0 < length < math.inf:
        raise ValueError(f"sarkar_embedding: length must be positive and finite, got {length!r}; for example 2.0.")
    parents = parents.to("cpu", torch.int64)
    children = torch.bincount(parents + 1, minlength=len(parents) + 1)[1:]
    root = space.from_normal_coords(None, torch.zeros(2, dtype=torch.float64))
    points = root.repeat(len(parents), 1)
    for depth, level in enumerate(levels[1:], 1):
        parent = parents[level]
        # The number of a node among its siblings, from 1 on: in ``level`` these stand together.
        first = torch.cat([torch.tensor([True]), parent[1:] != parent[:-1]])
        rank = torch.arange(len(level)) - first.nonzero().squeeze(-1)[first.cumsum(0) - 1] + 1
        inner = parents[parent] >= 0
        back = space.to_normal_coords(points[parent], points[torch.where(inner, parents[parent], parent)])
        angle = torch.atan2(back[:, 1], back[:, 0]) + 2 * math.pi * rank / (children[parent] + inner)
        step = length * torch.stack([angle.cos(), angle.sin()], -1)
        points[level] = space.from_normal_coords(points[parent], step)
        error = (space.dist(points[parent], points[level]) / length - 1).abs().max().item()
        if not error <= EDGE_PRECISION:
            raise ValueError(
                f"sarkar_embedding: length = {length:.6g} is too long for float64 coordinates of {manifold!r}: the"
                f" edges down to level {depth} of {len(levels) - 1} would be wrong by {100 * error:.2g}%; take shorter"
                " edges or fewer levels, or Lorentz in the place of a ball, which reaches farther."
            )
    return points


def _levels(parents: Tensor) -> list[Tensor]:
    """The nodes by their distance from the root, siblings together."""
    if not isinstance(parents, Tensor) or parents.dim() != 1 or parents.is_floating_point() or not len(parents):
        got = f"{parents.dtype} of shape {tuple(parents.shape)}" if isinstance(parents, Tensor) else repr(parents)
        raise ValueError(f"sarkar_embedding: parents must be integers of shape (N,), -1 for the root, got {got}.")
    parents = parents.to("cpu", torch.int64)
    levels = [(parents == -1).nonzero().squeeze(-1)]
    if len(levels[0]) != 1 or int(parents.min()) < -1 or int(parents.max()) >= len(parents):
        raise ValueError(
            f"sarkar_embedding: parents must be indices of the {len(parents)} nodes, and -1 for one of them, the root;"
            f" got values from {int(parents.min())} to {int(parents.max())} with {len(levels[0])} roots."
        )
    order = parents.argsort(stable=True)
    while len(level := order[torch.isin(parents[order], levels[-1])]):
        levels.append(level)
    if sum(map(len, levels)) < len(parents):
        raise ValueError(
            "sarkar_embedding: parents must lead from every node to the root, got some that go in circles."
        )
    return levels
