"""Coordinates of the nodes of a network from the numbers of steps between them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

_LANDMARKS = 200  # nodes that distances are counted from, in networks with more than _ALL nodes
_ALL = 500
_JITTER = 0.1  # in steps: nodes with the same neighbours must not coincide, as they would never part


@torch.no_grad()
def hops(edges: Tensor, num_nodes: int, sources: Tensor) -> Tensor:
    """Steps from each source to every node, ``(N, k)``, along edges ``(E, 2)`` in either direction.

    A node that cannot be reached is one step farther away than all that can.

    >>> hops(torch.tensor([[0, 1], [1, 2]]), 4, torch.tensor([0]))[:, 0].tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    first, second = torch.cat([edges, edges.flip(-1)]).T
    first, order = first.sort()
    neighbours = second[order]
    # Those of node n begin at starts[n]. A sparse matrix would hold the same, but torch 2.11 warns of any that is made.
    starts = torch.searchsorted(first, torch.arange(num_nodes, device=edges.device))
    columns = torch.arange(len(sources), device=edges.device)
    front = torch.zeros(num_nodes, len(sources), device=edges.device)
    front[sources, columns] = 1.0
    found = torch.where(front > 0, 0.0, torch.inf)
    step = 0
    while bool(front.any()):
        step += 1
        new = (embedding_bag(neighbours, front, starts, mode="sum") > 0) & found.isinf()
        found = found.masked_fill(new, float(step))
        front = new.to(front.dtype)
    return found.masked_fill(found.isinf(), float(step))


@torch.no_grad()
def scaled_hops(edges: Tensor, num_nodes: int, dim: int) -> Tensor:
    """Points ``(N, dim)`` of flat space whose distances are about those in :func:`hops`, with their mean at 0.

    This is classical scaling of 200 landmarks, with the other nodes placed by their distances to them (de Silva and
    Tenenbaum, 2004); in networks of at most 500 nodes all are landmarks.
    """
    count = num_nodes if num_nodes <= _ALL else _LANDMARKS
    sources = torch.linspace(0, num_nodes - 1, count, device=edges.device).round().long()
    squares = hops(edges, num_nodes, sources).double().square()  # (N, k)
    centred = squares - squares[sources].mean(0)
    gram = -0.5 * (centred[sources] - centred[sources].mean(-1, keepdim=True))
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values[-dim:].flip(-1), vectors[:, -dim:].flip(-1)
    root = torch.where(values > len(values) * torch.finfo(values.dtype).eps * values.max(), values, torch.inf).sqrt()
    points = -0.5 * centred @ (vectors / root)
    if points.shape[-1] < dim:
        points = torch.cat([points, points.new_zeros(num_nodes, dim - points.shape[-1])], -1)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(points.shape, generator=generator, dtype=points.dtype, device="cpu")
    points = points + _JITTER * noise.to(points.device)
    return points - points.mean(0)
