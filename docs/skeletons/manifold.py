"""The flat torus: a skeleton to copy for a space that is no chart of a hyperbolic space or a sphere.

docs/extending.rst shows it, and a test runs it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ScaledManifold
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer
from pyro_hyperbolic.ops.tolerances import sphere_tolerance


class FlatTorus(ScaledManifold):
    r"""The product of ``d`` circles of radius :math:`R = 1/\sqrt c`.

    Points are angles ``(..., d)`` from :math:`-\pi` to :math:`\pi`: torsion angles of a molecule, say, or phases
    of oscillators. The space is flat, but its geodesics close, so it is no
    :class:`~pyro_hyperbolic.geometry.ConstantCurvature`, whose formulae would take it for Euclidean space. A wrapped
    normal with a full covariance is a sum over :math:`15^d` preimages.

    :param c: one over the squared radius, a float or a floating tensor of any shape, ``c > 0``.

    >>> torus = FlatTorus(1.0)
    >>> torus.dist(torch.tensor([3.0, 0.0]), torch.tensor([-3.0, 0.0]))
    tensor(0.2832)
    """

    geodesics_close = True

    def _is_valid(self, c: Any) -> Any:
        return c > 0

    def _refuse(self, c: float) -> None:
        raise ValueError(f"c must be positive and finite, got {c}; the radius of the circles is 1/sqrt(c).")

    def intrinsic_dim(self, size: int) -> int:
        return size

    def ambient_dim(self, dim: int) -> int:
        return dim

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        return torch.zeros(checked_integer("dim", dim, least=1), dtype=dtype, device=device)

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        return math.inf

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        angle = self._root(v, x) * v
        return _wrapped(angle if x is None else x + angle)

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        root = self._root(y, x)
        return _wrapped(y if x is None else y - x) / root

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        return (self._root(x, v) * v).expand(torch.broadcast_shapes(x.shape, v.shape))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        return (u / self._root(x, u)).expand(torch.broadcast_shapes(x.shape, u.shape))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        check_sizes(x, y, v)
        return v.expand(torch.broadcast_shapes(x.shape, y.shape, v.shape))

    def projx(self, x: Tensor) -> Tensor:
        return _wrapped(x)

    def contains(self, x: Tensor) -> Tensor:
        return (x.abs() <= math.pi * (1 + sphere_tolerance(x.dtype))).all(-1)

    def log_volume_element(self, x: Tensor) -> Tensor:
        return -x.shape[-1] * (self._root(x) + torch.zeros_like(x[..., :1])).log().squeeze(-1)

    def log_det_exp(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v[..., 0])

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        return weights.sum(-2, keepdim=True) * torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)

    def conditioning(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[..., 0])

    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        check_sizes(m, v, dm)
        return dm.expand(torch.broadcast_shapes(dm.shape, v.shape))

    # Geodesics close, in each dimension by itself.

    def parts(self, dim: int) -> list[int]:
        return [1] * dim

    def period(self, x: Tensor) -> float | Tensor:
        return 2 * math.pi / self._root(x)

    # No map from all vectors onto a circle is one-to-one: this one leaves out the angle pi.

    def from_unconstrained(self, v: Tensor) -> Tensor:
        return 2 * torch.atan(self._root(v) * v / 2)

    def to_unconstrained(self, x: Tensor) -> Tensor:
        return 2 * torch.tan(x / 2) / self._root(x)

    def log_det_unconstrained(self, v: Tensor) -> Tensor:
        return -torch.log1p((self._root(v) * v).square() / 4).sum(-1)

    # An angle jumps at pi, its cosine and sine do not.

    def num_features(self, dim: int) -> int:
        return 2 * dim

    def features(self, x: Tensor) -> Tensor:
        return torch.cat([x.cos(), x.sin()], -1)

    def _root(self, x: Tensor, *others: Tensor | None) -> float | Tensor:
        return self.aligned_c(x, *others) ** 0.5


def _wrapped(angle: Tensor) -> Tensor:
    """The same angle between -pi and pi."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))
