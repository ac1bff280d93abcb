"""The sphere as an object."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import sphere_math as sm
from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer
from pyro_hyperbolic.ops.special import squared_norm, unit
from pyro_hyperbolic.ops.tolerances import sphere_tolerance


class Sphere(ConstantCurvature):
    r"""The sphere :math:`|x|^2 = 1/c` of curvature :math:`+c` and radius :math:`R = 1/\sqrt c`.

    Points and tangent vectors are ``(..., d + 1)``, the origin is :math:`(R, 0, \ldots, 0)`: the spherical twin of
    :class:`Lorentz`. The exponential map is onto, but not one-to-one, since geodesics close after :math:`2\pi R`
    (:meth:`period`); the logarithm has length :math:`\pi R` at most. At the antipode of ``x``, where every direction
    leads, :meth:`to_normal_coords` takes the first one, and :meth:`transp` carries a vector unchanged; gradients are
    finite there.

    :param c: the curvature, a float or a floating tensor of any shape (see :class:`Manifold`), ``c > 0``.

    >>> sphere = Sphere(c=1.0)
    >>> x, y = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    >>> sphere.dist(x, y)
    tensor(1.5708)
    >>> sphere.logmap(x, y)
    tensor([0.0000, 0.0000, 1.5708])
    """

    sign = -1

    def _is_valid(self, c: Any) -> Any:
        return c > 0

    def _refuse(self, c: float) -> None:
        if c == 0:
            raise ValueError("c must be positive, got 0: a sphere has no flat limit; use Euclidean().")
        raise ValueError(f"c must be positive and finite, got {c}; the curvature of a sphere is +c.")

    def intrinsic_dim(self, size: int) -> int:
        return size - 1

    def ambient_dim(self, dim: int) -> int:
        return dim + 1

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """``(d + 1,)``; for a batch of curvatures ``c.shape + (d + 1,)``."""
        dim = checked_integer("dim", dim, least=1)
        zero = torch.zeros(self.batch_shape + (dim + 1,), dtype=dtype, device=device)
        return sm.origin_of(zero, self.aligned_c(zero))

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        return math.inf

    def period(self, x: Tensor) -> float | Tensor:
        return 2 * math.pi / sm.root(self.aligned_c(x), x)

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        return sm.frame(x, v, self.aligned_c(x, coords=v))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        return sm.coframe(x, u, self.aligned_c(x, u))

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        if x is None:
            return sm.from_normal_coords0(v, self.aligned_c(v))
        return sm.from_normal_coords(x, v, self.aligned_c(x, coords=v))

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        c = self.aligned_c(y, x)
        return sm.to_normal_coords0(y, c) if x is None else sm.to_normal_coords(x, y, c)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivatives at ``x = y`` and at antipodes are taken as 0."""
        return sm.dist(x, y, self.aligned_c(x, y))

    def dist0(self, x: Tensor) -> Tensor:
        return sm.dist0(x, self.aligned_c(x))

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        return sm.pairwise_dist(x, y, self.c_of_sets(x, y))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        check_sizes(x, y, v)
        return sm.transp(x, y, v)

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r"""Distance to the great sphere :math:`\{\langle x, a\rangle = 0\}`, ``a`` a tangent vector at ``p``.

        For many planes at once give ``x`` as ``(N, 1, d + 1)`` and the planes as ``(M, d + 1)``: the result ``(N, M)``
        comes from one matrix product.
        """
        return sm.dist2plane(x, p, a, self.aligned_c(x, p, a), signed)

    def projx(self, x: Tensor) -> Tensor:
        """The nearest point of the sphere; for the centre, which has none, the centre itself."""
        return unit(x) / sm.root(self.aligned_c(x), x)

    def contains(self, x: Tensor) -> Tensor:
        """Which points satisfy the equation of the sphere to rounding; ``False`` for ``nan`` and ``inf``."""
        error = (self.aligned_c(x) * squared_norm(x) - 1).abs()
        return (error <= sphere_tolerance(x.dtype)).squeeze(-1)

    def log_volume_element(self, x: Tensor) -> Tensor:
        r""":math:`-\log|\sqrt{c}\,x_0|`: with respect to Lebesgue measure of :math:`(x_1, \ldots, x_d)`."""
        return -torch.log((sm.root(self.aligned_c(x), x) * x[..., :1]).abs()).squeeze(-1)

    def from_unconstrained(self, v: Tensor) -> Tensor:
        """The inverse of the stereographic projection from the antipode of the origin, which it leaves out."""
        return sm.unproject(v, self.aligned_c(v))

    def to_unconstrained(self, x: Tensor) -> Tensor:
        return sm.project(x, self.aligned_c(x))

    def log_det_unconstrained(self, v: Tensor) -> Tensor:
        r""":math:`-d\log(1 + c|v|^2/4)`."""
        return -v.shape[-1] * torch.log1p(self.aligned_c(v) * squared_norm(v) / 4).squeeze(-1)
