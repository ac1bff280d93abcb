"""Points whose distances are nearly those given, as a start of fits and chains."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold
from pyro_hyperbolic.ops.spanning import spanning_tree

_NEAR, _PARTED = 0.01, 0.05  # shares of the mean distance: points nearer than the one are moved by the other


def scaled(d: Tensor, space: Manifold, dim: int) -> Tensor | None:
    """Normal coordinates by classical scaling, or nothing if the points are too far for their dtype."""
    from pyro_hyperbolic.analysis import hyperbolic_mds  # loaded when it is needed

    is_open = isinstance(space, ConstantCurvature) and bool(torch.as_tensor(space.opposite(torch.zeros(1))) >= 0)
    try:
        points = hyperbolic_mds(d, dim, space if is_open else Euclidean())
    except (ValueError, torch.linalg.LinAlgError):
        return None
    return space.to_normal_coords(None, points) if is_open else points


def radial(d: Tensor, space: Manifold, dim: int) -> Tensor | None:
    """Normal coordinates by the minimum spanning tree, or nothing if the points are too far for their dtype.

    The point of the least squared distances is the origin. The others keep their distances from it, and each has a
    sector for itself and what hangs on it in the tree, as wide as these are many.
    """
    root = int(d.square().sum(0).argmin())
    order, parents = spanning_tree(d, root)
    sizes = [1] * len(d)
    for node in reversed(order[1:]):
        sizes[parents[node]] += sizes[node]
    begin, width = [0.0] * len(d), [2 * math.pi] * len(d)
    taken, angles = [0.0] * len(d), [0.0] * len(d)
    for node in order[1:]:
        parent = parents[node]
        width[node] = width[parent] * sizes[node] / (sizes[parent] - 1)
        begin[node] = begin[parent] + taken[parent]
        taken[parent] += width[node]
        angles[node] = begin[node] + 0.5 * width[node]
    angle = torch.tensor(angles, dtype=d.dtype, device=d.device)
    across, up = angle.cos(), angle.sin()
    directions = torch.stack([across, up] if dim > 1 else [torch.ones_like(across).copysign(across)], -1)
    coords = torch.nn.functional.pad(d[root].unsqueeze(-1) * directions, (0, max(0, dim - 2)))
    reach = torch.as_tensor(space.reach(d.dtype))
    return coords if bool(d[root].max() <= reach.min()) else None


LAYOUTS: dict[str, Callable[[Tensor, Manifold, int], Tensor | None]] = {"scaling": scaled, "tree": radial}
"""Starts by name."""


def parted(z: Tensor, space: Manifold) -> Tensor:
    """Points of which none is at the place of another, where their distance has no gradient."""
    d = space.pairwise_dist(z, z)
    near = d + torch.diag(torch.full_like(z[:, 0], torch.inf)) < _NEAR * d.mean()
    v = space.to_normal_coords(None, z)
    noise = torch.randn(v.shape, generator=torch.Generator().manual_seed(0), dtype=v.dtype).to(v.device)
    moved = space.from_normal_coords(None, v + _PARTED * d.mean() * noise)
    return torch.where(near.any(-1, keepdim=True), moved, z)


def completed(pairs: tuple[Tensor, Tensor], total: Tensor, count: Tensor, num_points: int) -> Tensor:
    """The matrix of mean distances of pairs ``(M,)``, by sums and counts, with shortest paths where there are none."""
    first, second = pairs
    full = total.new_full((num_points, num_points), torch.inf)
    sums, counts = torch.zeros_like(full), torch.zeros_like(full)
    for i, j in ((first, second), (second, first)):
        sums.index_put_((i, j), total, accumulate=True)
        counts.index_put_((i, j), count.to(total), accumulate=True)
    full = torch.where(counts > 0, sums / counts.clamp(min=1), full).fill_diagonal_(0.0)
    if bool(full.isinf().any()):
        paths = full
        for k in range(num_points):
            paths = torch.minimum(paths, paths[:, k : k + 1] + paths[k : k + 1])
        full = torch.where(full.isinf(), paths, full)
    if bool(full.isinf().any()):
        one, other = full.isinf().nonzero()[0].tolist()
        raise ValueError(
            f"distances must connect all points, got no path of measured pairs from point {one} to point {other}; leave"
            " such points out, or begin the chains without a start."
        )
    return full
