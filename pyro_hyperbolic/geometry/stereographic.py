"""The stereographic chart of either sign as an object."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.geometry.curvature import checked_type, describe
from pyro_hyperbolic.ops.special import squared_norm


class Stereographic(StereographicChart):
    r"""The space of curvature ``k``, of either sign: the metric :math:`4\,dx^2/(1 + k|x|^2)^2`.

    For ``k < 0`` it is ``PoincareBall(-k)``; for ``k > 0`` the sphere of radius :math:`1/\sqrt k`, projected from the
    antipode of the origin, which has no coordinates; for ``k = 0`` the Euclidean space with metric :math:`4\,dx^2`.
    Everything is smooth in ``k`` through 0, with exact derivatives, so that a learned curvature may change its sign.
    Points and tangent vectors are ``(..., d)``. At antipodes the conventions are those of :class:`Sphere`.

    For ``k > 0`` coordinates grow without bound towards the antipode of the origin and end before it: a point that is
    made within :math:`1.9 \cdot 10^{-6}/\sqrt k` of it in float32 (:math:`3.6 \cdot 10^{-15}/\sqrt k` in float64) is
    moved to that distance, a few units of rounding. Everything is finite up to there, gradients included.

    :param k: the curvature, a finite float or a floating tensor of any shape (see :class:`Manifold`).

    >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5])
    >>> Stereographic(torch.tensor([-1.0, 0.0, 1.0])).dist(x, y)
    tensor([1.6807, 1.4142, 1.2025])
    """

    def __init__(self, k: float | Tensor = -1.0) -> None:
        self.k = checked_type(k, "k", "k (the curvature)")
        super().__init__(-self.k)
        self.sign = _sign_of(self.k)

    @property
    def c(self) -> float | Tensor:
        """Minus the curvature."""
        return -self.k

    @c.setter
    def c(self, value: Any) -> None:
        # The base class checks it and hands it back; k is what is kept.
        pass

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        return (self.k,)

    @property
    def signed_curvatures(self) -> tuple[bool, ...]:
        return (True,)

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        (k,) = values
        new = copy.copy(self)
        new.k, new.sign = k, _sign_of(k)
        return new

    def opposite(self, x: Tensor, *others: Tensor) -> float | Tensor:
        return self.aligned_c(x, *others)

    def _is_valid(self, c: Any) -> Any:
        return c > -math.inf

    def _refuse(self, c: float) -> None:
        raise ValueError(f"k must be finite, got {-c}; pass a float or a tensor, the curvature.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(k={describe(self.k)})"

    def period(self, x: Tensor) -> float | Tensor | None:
        c = self.aligned_c(x)
        if not isinstance(c, Tensor):
            return 2 * math.pi / math.sqrt(-c) if c < 0 else None
        closed = c < 0
        return torch.where(closed, 2 * math.pi / torch.where(closed, -c, 1.0).sqrt(), math.inf).to(x.dtype)

    def contains(self, x: Tensor) -> Tensor:
        """Which points are finite and, for ``k < 0``, strictly inside the ball."""
        return super().contains(x) & x.isfinite().all(-1)

    def conditioning(self, x: Tensor) -> Tensor:
        return self.lambda_x(x).clamp(min=2) / 2

    def from_unconstrained(self, v: Tensor) -> Tensor:
        """The exponential map for ``k <= 0``, half of ``v`` itself for ``k > 0``."""
        return torch.where(self._closed(v), v / 2, self.from_normal_coords(None, v))

    def to_unconstrained(self, x: Tensor) -> Tensor:
        return torch.where(self._closed(x), 2 * x, self.to_normal_coords(None, x))

    def log_det_unconstrained(self, v: Tensor) -> Tensor:
        square, closed = squared_norm(v), self._closed(v)
        # Each branch on arguments of its own: the sine has zeros.
        plane = torch.log1p(torch.where(closed, -self.opposite(v) * square / 4, 0.0)).squeeze(-1)
        inside = torch.where(closed, 0.0, v.expand(torch.broadcast_shapes(v.shape, closed.shape)))
        return torch.where(closed.squeeze(-1), -v.shape[-1] * plane, self.log_det_exp(inside))

    def _closed(self, x: Tensor) -> Tensor:
        """Whether the curvature is positive, ``(..., 1)``."""
        return (self.opposite(x) + torch.zeros_like(x[..., :1])) < 0


def _sign_of(k: float | Tensor) -> int:
    """What is known of the sign of minus the curvature without a look at a tensor."""
    return 0 if isinstance(k, Tensor) else -1 if k > 0 else 1
