"""Two-dimensional spaces of constant curvature, as what draws them asks for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_space
from pyro_hyperbolic.analysis.widening import plain
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.tolerances import agreement_tolerance

# A point to put in the middle: itself, the index of one of the points, or the Fréchet mean of all.
Center = Tensor | int | str


@dataclass(frozen=True)
class Surface:
    """A space with one curvature, a plain number.

    Attributes:
        manifold: the space.
        curvature: its curvature, of either sign.
    """

    manifold: Manifold
    curvature: float

    @property
    def sign(self) -> int:
        """Of the curvature."""
        return (self.curvature > 0) - (self.curvature < 0)

    @property
    def unit(self) -> float:
        """The radius of curvature; 1 if there is none."""
        return 1 / math.sqrt(abs(self.curvature)) if self.curvature else 1.0


def surface(manifold: Manifold) -> Surface:
    """The space, detached, with its curvature as a plain number."""
    space = checked_space("manifold", manifold)
    if not isinstance(space, ConstantCurvature):
        raise ValueError(
            f"manifold must be of constant curvature, got {manifold!r}; of a product draw one factor at a time, with"
            " manifold.split(points)."
        )
    space = plain(space)
    return Surface(space, curvature_of(space))


def curvature_of(space: ConstantCurvature) -> float:
    """The curvature of a space that has one, of either sign, as a plain number."""
    opposite = space.opposite(torch.zeros(1, dtype=torch.float64))
    return -float(torch.as_tensor(opposite, dtype=torch.float64).detach()) + 0.0


def same_space(first: Manifold, second: Manifold) -> bool:
    """Whether these are charts of one space: their curvatures are the same number, but for rounding to float32."""
    if not (isinstance(first, ConstantCurvature) and isinstance(second, ConstantCurvature)):
        return False
    if first.batch_shape.numel() != 1 or second.batch_shape.numel() != 1:
        return False
    return math.isclose(curvature_of(first), curvature_of(second), rel_tol=agreement_tolerance(torch.float32))


def checked_points(name: str, value: Any, manifold: Manifold) -> Tensor:
    """``value`` as float64 points ``(..., D)`` of the space on the host."""
    x = torch.as_tensor(value).detach().to("cpu", torch.float64)
    if x.dim() == 0:
        raise ValueError(f"{name} must have shape (..., D), got {tuple(x.shape)}.")
    if not bool(x.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {int((~x.isfinite()).any(-1).sum())} points that are not; drop them."
        )
    single = torch.as_tensor(value).to("cpu") if isinstance(value, Tensor) else x
    inside = manifold.contains(single.detach())  # in their own precision, whose rounding decides
    if not bool(inside.all()):
        raise ValueError(
            f"{name} must be points of {manifold!r}, got {int((~inside).sum())} that are not; use the manifold that"
            f" made the points, or manifold.projx({name})."
        )
    return x if bool(manifold.contains(x).all()) else manifold.projx(x)


def checked_center(center: Center | None, points: Tensor, manifold: Manifold) -> Tensor | None:
    """The point to put in the middle, or ``None`` for the origin."""
    if center is None:
        return None
    if isinstance(center, str):
        if center != "mean":
            raise ValueError(f"center must be a point, an index or 'mean', got {center!r}.")
        return manifold.frechet_mean(points.reshape(-1, points.shape[-1]))
    if isinstance(center, int) and not isinstance(center, bool):
        flat = points.reshape(-1, points.shape[-1])
        if not -len(flat) <= center < len(flat):
            raise ValueError(f"center must be an index of the {len(flat)} points, got {center}.")
        return flat[center]
    point = checked_points("center", center, manifold)
    if point.shape != points.shape[-1:]:
        raise ValueError(f"center must be one point {tuple(points.shape[-1:])}, got shape {tuple(point.shape)}.")
    return point
