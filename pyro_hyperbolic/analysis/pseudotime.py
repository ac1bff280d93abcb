"""How far cells have come along their lineage."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_points
from pyro_hyperbolic.geometry import Manifold, frechet_mean


@torch.no_grad()
def pseudotime(points: Tensor, roots: Tensor, manifold: Manifold) -> Tensor:
    """Distances of points from a root, the candidate that is nearest to the Fréchet mean of all candidates.

    :param points: ``(N, D)`` points of ``manifold``, for example posterior means of cells.
    :param roots: indices of the candidates, integers ``(R,)``, for example all cells of the earliest type.
    :param manifold: the space, with one curvature.

    Returns ``(N,)`` distances, 0 for the root.

    >>> from pyro_hyperbolic import Euclidean
    >>> points = torch.tensor([[0.0], [1.0], [2.5], [7.0]])
    >>> pseudotime(points, torch.tensor([0, 1, 2]), Euclidean()).tolist()
    [1.0, 0.0, 1.5, 6.0]
    """
    x, space = checked_points("pseudotime", points, manifold)
    is_index = isinstance(roots, Tensor) and not roots.is_floating_point() and roots.dtype != torch.bool
    if not is_index or roots.dim() != 1 or not len(roots):
        got = f"{roots.dtype} of shape {tuple(roots.shape)}" if isinstance(roots, Tensor) else repr(roots)
        raise ValueError(
            f"pseudotime: roots must be at least one index of a point, integers (R,), got {got}; of a mask pass"
            " mask.nonzero().squeeze(-1)."
        )
    if not 0 <= int(roots.min()) <= int(roots.max()) < len(x):
        raise ValueError(
            f"pseudotime: roots must be indices of the {len(x)} points, got {int(roots.min())} to {int(roots.max())}."
        )
    candidates = x[roots.long()]  # torch takes bytes for a mask
    root = candidates[space.dist(candidates, frechet_mean(space, candidates)).argmin()]
    return space.dist(x, root).to(points.dtype)
