"""The numbers that a site of points is judged by: those that do not change with the coordinates or the orientation."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.posterior.diagnostics import Diagnosis, block_size, diagnose

_MOST = 2000  # pairs


def distances(points: Tensor, space: Manifold) -> Diagnosis:
    """Of the distances of all pairs of points ``(chains, draws, N, D)``; of as many as 2,000 where there are more."""
    count = points.shape[-2]
    total = count * (count - 1) // 2
    ends = torch.arange(count - 1, 0, -1).cumsum(0)  # of the pairs (0, .), (1, .), ...
    chosen = _spread(total)
    first = torch.searchsorted(ends, chosen, right=True)
    second = chosen - ends[first] + count
    blocks = (space.dist(points[:, :, i], points[:, :, j]) for i, j in _parts(points, first, second))
    return diagnose(blocks, total)


def radii(points: Tensor, space: Manifold) -> Diagnosis:
    """Of the distances to the origin."""
    size = block_size(points, points.shape[-1]) if is_shared(space) else points.shape[-2]
    blocks = (space.dist0(part) for part in points.split(size, -2))
    return diagnose(blocks, points.shape[-2])


def inner_products(v: Tensor, w: Tensor) -> Diagnosis:
    """Of the products of two sets of normal coordinates at the origin, ``(chains, draws, N, d)``.

    They tell how the sets are turned against each other.
    """
    total = v.shape[-2] * w.shape[-2]
    chosen = _spread(total)
    parts = _parts(v, chosen // w.shape[-2], chosen % w.shape[-2])
    return diagnose(((v[:, :, i] * w[:, :, j]).sum(-1) for i, j in parts), total)


def is_shared(space: Manifold) -> bool:
    """Whether the points of a set ``(..., N, D)`` lie in one space, and have distances."""
    return space.batch_shape[-1:] in (torch.Size(), torch.Size([1]))


def _spread(total: int) -> Tensor:
    """Numbers below ``total``: all of them, or 2,000 at equal steps."""
    return torch.arange(total) if total <= _MOST else torch.arange(_MOST) * total // _MOST


def _parts(x: Tensor, first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]]:
    size = block_size(x, x.shape[-1])
    return list(zip(first.to(x.device).split(size), second.to(x.device).split(size), strict=True))
