"""From other dimensions to the disc."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from pyro_hyperbolic.analysis import HoroPCA, Projection, TangentPCA
from pyro_hyperbolic.geometry import Manifold

PROJECTIONS: dict[str, type[Projection]] = {"horo": HoroPCA, "tangent": TangentPCA}


def check_projection(projection: str | Projection) -> None:
    """Also where there is nothing to project."""
    if isinstance(projection, Projection):
        if projection.dim != 2:
            raise ValueError(f"projection must have dim = 2, got {projection.dim}.")
    elif not isinstance(projection, str) or projection not in PROJECTIONS:
        raise ValueError(
            f"projection must be one of {', '.join(PROJECTIONS)}, or a TangentPCA or HoroPCA, got {projection!r:.60}."
        )


def flattened(
    projection: str | Projection, points: Tensor, manifold: Manifold
) -> tuple[Callable[[Tensor], Tensor], str]:
    """The map of points ``(..., D)`` to the surface, and a sentence on what it keeps."""
    dim = manifold.intrinsic_dim(points.shape[-1])
    if dim == 1:
        # A line is a geodesic of the surface: nothing is lost.
        return lambda x: manifold.from_normal_coords(
            None, F.pad(manifold.to_normal_coords(None, x.double()), (0, 1))
        ), ""
    pca = _fitted(projection, points, manifold)
    share = f"{100 * pca.explained_variance_ratio:.0f}%"

    def flat(x: Tensor) -> Tensor:
        x = x.detach().cpu().double()
        return pca.transform(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], manifold.ambient_dim(2))

    return flat, f"{dim} dimensions are projected to two, which keep {share} of the squared distances."


def _fitted(projection: str | Projection, points: Tensor, manifold: Manifold) -> Projection:
    if isinstance(projection, str):
        return PROJECTIONS[projection](2).fit(points, manifold)
    return projection if projection.is_fitted else projection.fit(points, manifold)
