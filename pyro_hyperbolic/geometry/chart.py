"""What the stereographic charts share, whatever the sign of the curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import poincare_math as pm
from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.tolerances import border_distance


class StereographicChart(ConstantCurvature):
    r"""Coordinates ``(..., d)`` with the metric :math:`\lambda_x^2\,dx^2`, :math:`\lambda_x = 2/(1 - c|x|^2)`.

    The curvature is :math:`-c`; its sign decides which functions :mod:`~pyro_hyperbolic.geometry.poincare_math` takes.
    Tangent vectors are ``(..., d)``; everything broadcasts over the leading dimensions; distances and norms have no
    trailing dimension.
    """

    def intrinsic_dim(self, size: int) -> int:
        return size

    def ambient_dim(self, dim: int) -> int:
        return dim

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        return torch.zeros(checked_integer("dim", dim, least=1), dtype=dtype, device=device)

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        c = torch.as_tensor(self.c, dtype=torch.float64)
        # Only a ball has a border.
        distance = torch.where(c > 0, border_distance(dtype) / torch.where(c > 0, c, 1.0).sqrt(), math.inf)
        return distance if isinstance(self.c, Tensor) else distance.item()

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Möbius addition :math:`x \oplus y`."""
        return pm.mobius_add(x, y, self.aligned_c(x, y), self.sign)

    def gyration(self, a: Tensor, b: Tensor, u: Tensor) -> Tensor:
        r"""The rotation :math:`\operatorname{gyr}[a, b]u` by which :math:`\oplus` fails to be associative."""
        return pm.gyration(a, b, u, self.aligned_c(a, b, u), self.sign)

    def lambda_x(self, x: Tensor) -> Tensor:
        """Conformal factor ``(...)``."""
        return pm.lambda_x(x, self.aligned_c(x))

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Riemannian inner product of tangent vectors at ``x``."""
        return pm.inner(x, u, v, self.aligned_c(x, u, v))

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """Riemannian norm of a tangent vector at ``x``."""
        return pm.norm(x, u, self.aligned_c(x, u))

    def expmap(self, x: Tensor, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v`` at ``x``."""
        return pm.expmap(x, v, self.aligned_c(x, v), self.sign)

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithm map, the inverse of :meth:`expmap`."""
        return pm.logmap(x, y, self.aligned_c(x, y), self.sign)

    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map at the origin."""
        return pm.expmap0(v, self.aligned_c(v), self.sign)

    def logmap0(self, y: Tensor) -> Tensor:
        """Logarithm map at the origin."""
        return pm.logmap0(y, self.aligned_c(y), self.sign)

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        r""":math:`\exp_x(v/\lambda_x)`: the point at distance :math:`|v|` from ``x`` in direction ``v``."""
        c = self.aligned_c(v, x)
        return pm.expmap0(v / 2, c, self.sign) if x is None else pm.from_normal_coords(x, v, c, self.sign)

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        r""":math:`\lambda_x \log_x(y)`, the inverse of :meth:`from_normal_coords`."""
        c = self.aligned_c(y, x)
        return 2 * pm.logmap0(y, c, self.sign) if x is None else pm.to_normal_coords(x, y, c, self.sign)

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        r""":math:`v/\lambda_x`."""
        return pm.transp0(x, v / 2, self.aligned_c(x, v))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        r""":math:`\lambda_x u`."""
        return 2 * pm.transp0back(x, u, self.aligned_c(x, u))

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivative at ``x = y``, and at antipodes, is taken as 0."""
        return pm.dist(x, y, self.aligned_c(x, y), self.sign)

    def dist0(self, x: Tensor) -> Tensor:
        """Distance to the origin."""
        return pm.dist0(x, self.aligned_c(x), self.sign)

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances of ``(..., N, d)`` to ``(..., M, d)`` as ``(..., N, M)``, in O(N M) memory."""
        return pm.pairwise_dist(x, y, self.c_of_sets(x, y), self.sign)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` along the geodesic from ``x`` to ``y``."""
        return pm.transp(x, y, v, self.aligned_c(x, y, v), self.sign)

    def transp0(self, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` from the origin to ``y``."""
        return pm.transp0(y, v, self.aligned_c(y, v))

    def transp0back(self, x: Tensor, u: Tensor) -> Tensor:
        """Parallel transport of ``u`` from ``x`` to the origin."""
        return pm.transp0back(x, u, self.aligned_c(x, u))

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r"""Distance to the gyroplane :math:`\{\langle \log_p(x), a\rangle = 0\}`, positive on the side of ``a``.

        For many planes at once give ``x`` as ``(N, 1, d)`` and the planes as ``(M, d)``: the result ``(N, M)`` takes
        O(N M) memory, and one matrix product in float32. See :mod:`pyro_hyperbolic.geometry.planes`.
        """
        return pm.dist2plane(x, p, a, self.aligned_c(x, p, a), signed, self.sign)

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        # The frame at p has the directions of the coordinates.
        return self.dist2plane(x, p, v, signed)

    def projx(self, x: Tensor) -> Tensor:
        """The nearest point that the dtype can hold; ``x`` itself if it is one."""
        return pm.projx(x, self.aligned_c(x), self.sign)

    def contains(self, x: Tensor) -> Tensor:
        """Which points are strictly inside the ball; ``False`` for ``nan``."""
        return pm.contains(x, self.aligned_c(x))

    def log_volume_element(self, x: Tensor) -> Tensor:
        r""":math:`d\log\lambda_x`."""
        return pm.log_volume_element(x, self.aligned_c(x))
