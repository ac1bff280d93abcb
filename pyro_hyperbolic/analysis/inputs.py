"""What the functions of this sub-package accept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.checks import check_precision


def checked_space(name: str, manifold: Any) -> Manifold:
    """A manifold with one curvature; of a product, one for each factor."""
    if isinstance(manifold, torch.nn.Module):
        raise ValueError(
            f"{name} must be a Manifold, got a module, {type(manifold).__name__}; of a ManifoldModule call it:"
            " module(), of a model take model.manifold."
        )
    if not isinstance(manifold, Manifold):
        raise ValueError(f"{name} must be a Manifold, got {manifold!r}; pass for example PoincareBall(c=1.0).")
    if manifold.batch_shape.numel() != 1:
        raise ValueError(
            f"{name} must have one curvature, got {manifold!r}; for the element i of a batch pass"
            " manifold.with_curvatures([c[i] for c in manifold.curvatures])."
        )
    return manifold


def checked_open_space(name: str, manifold: Any) -> ConstantCurvature:
    """As :func:`checked_space`, for what is possible in hyperbolic and Euclidean space only."""
    space = checked_space(name, manifold)
    if not isinstance(space, ConstantCurvature) or bool(torch.as_tensor(space.opposite(torch.zeros(1))) < 0):
        raise ValueError(
            f"{name} must be hyperbolic or flat, and no product, got {space!r}; pass for example PoincareBall(c=1.0)."
        )
    return space


def checked_points(caller: str, points: Tensor, manifold: Manifold, fewest: int = 1) -> tuple[Tensor, Manifold]:
    """At least so many points ``(N, D)`` in float64, and their space with one curvature that is not differentiated."""
    checked_space(f"{caller}: manifold", manifold)
    if not isinstance(points, Tensor) or points.dim() != 2 or not points.is_floating_point():
        raise ValueError(
            f"{caller}: points must be a floating tensor of shape (N, D), got {_kind(points)}; make one with"
            " torch.as_tensor(points)."
        )
    check_precision(points, f"{caller}: points")
    if manifold.intrinsic_dim(points.shape[-1]) < 1 or len(points) < fewest:
        raise ValueError(f"{caller}: points must be at least {fewest}, with coordinates, got {tuple(points.shape)}.")
    space = manifold.detach()
    space = space.with_curvatures([c.reshape(()) if isinstance(c, Tensor) else c for c in space.curvatures])
    points = points.detach()
    outside = ~space.contains(points)
    if bool(outside.any()):
        raise ValueError(
            f"{caller}: points must lie on {manifold!r}, got {int(outside.sum())} of {len(points)} that do not, the"
            f" first in row {int(outside.nonzero()[0])}; project them with manifold.projx(points)."
        )
    # Those of float32 are on the manifold to its rounding only.
    return space.projx(points.double()), space


def checked_labels(caller: str, name: str, labels: Tensor, count: int) -> Tensor:
    """One integer for each of ``count`` points."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.shape != (count,):
        raise ValueError(
            f"{caller}: {name} must be a tensor of {count} integers, one for each point, got {_kind(labels)}; number"
            " the classes with numpy.unique(names, return_inverse=True), and pass torch.as_tensor(numbers)."
        )
    return labels


def _kind(value: Any) -> str:
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
