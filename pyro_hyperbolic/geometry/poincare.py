"""The Poincaré ball as an object."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import poincare_math as pm
from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.geometry.gyro import GyroManifold
from pyro_hyperbolic.ops.tolerances import border_distance


class PoincareBall(GyroManifold):
    r"""The open ball :math:`c|x|^2 < 1` with the metric :math:`\lambda_x^2\,dx^2`, :math:`\lambda_x = 2/(1 - c|x|^2)`.

    Section 2.2 of Mathieu et al., *Continuous hierarchical representations with Poincaré variational
    auto-encoders* (2019). Points and tangent vectors are ``(..., d)``; everything broadcasts over the leading
    dimensions; distances, norms and factors ``t`` have no trailing dimension. The curvature is :math:`-c`;
    ``c = 0`` is the Euclidean space with metric :math:`4\,dx^2`.

    :param c: minus the curvature, a float or a floating tensor of any shape (see :class:`Manifold`), ``c >= 0``. A
        tensor with ``requires_grad`` gets its gradient through everything.

    >>> ball = PoincareBall(c=1.0)
    >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5])
    >>> ball.dist(x, y)
    tensor(1.6807)
    >>> torch.allclose(ball.expmap(x, ball.logmap(x, y)), y, atol=1e-6)
    True
    >>> PoincareBall(c=torch.tensor([0.0, 1.0, 2.0])).dist(x, y)
    tensor([1.4142, 1.6807, 2.0416])
    """

    def intrinsic_dim(self, size: int) -> int:
        return size

    def ambient_dim(self, dim: int) -> int:
        return dim

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        return torch.zeros(dim, dtype=dtype, device=device)

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        distance = border_distance(dtype) / torch.as_tensor(self.c, dtype=torch.float64).detach().sqrt()
        return distance if distance.dim() > 0 else distance.item()

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Möbius addition :math:`x \oplus y`."""
        return pm.mobius_add(x, y, self.aligned_c(x))

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        return pm.mobius_coadd(x, y, self.aligned_c(x))

    def antipode(self, x: Tensor) -> Tensor:
        """``-x``."""
        return -x

    def mobius_scalar_mul(self, t: float | Tensor, x: Tensor) -> Tensor:
        r""":math:`t \otimes x`, the point at ``t`` times the distance of ``x`` from the origin."""
        return pm.mobius_scalar_mul(t, x, self.aligned_c(x))

    def mobius_matvec(self, m: Tensor, x: Tensor) -> Tensor:
        r""":math:`\exp_0(M \log_0 x)` for a matrix ``(..., k, d)``."""
        return pm.mobius_matvec(m, x, self.aligned_c(x))

    def gyration(self, a: Tensor, b: Tensor, u: Tensor) -> Tensor:
        r"""The rotation :math:`\operatorname{gyr}[a, b]u` by which :math:`\oplus` fails to be associative."""
        return pm.gyration(a, b, u, self.aligned_c(a))

    def lambda_x(self, x: Tensor) -> Tensor:
        """Conformal factor ``(...)``."""
        return pm.lambda_x(x, self.aligned_c(x))

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Riemannian inner product of tangent vectors at ``x``."""
        return pm.inner(x, u, v, self.aligned_c(x))

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """Riemannian norm of a tangent vector at ``x``."""
        return pm.norm(x, u, self.aligned_c(x))

    def expmap(self, x: Tensor, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v`` at ``x``."""
        return pm.expmap(x, v, self.aligned_c(x))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithm map, the inverse of :meth:`expmap`."""
        return pm.logmap(x, y, self.aligned_c(x))

    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map at the origin."""
        return pm.expmap0(v, self.aligned_c(v))

    def logmap0(self, y: Tensor) -> Tensor:
        """Logarithm map at the origin."""
        return pm.logmap0(y, self.aligned_c(y))

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        r""":math:`\exp_x(v/\lambda_x)`: the point at distance :math:`|v|` from ``x`` in direction ``v``."""
        c = self.aligned_c(v)
        return pm.expmap0(v / 2, c) if x is None else pm.from_normal_coords(x, v, c)

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        r""":math:`\lambda_x \log_x(y)`, the inverse of :meth:`from_normal_coords`."""
        c = self.aligned_c(y)
        return 2 * pm.logmap0(y, c) if x is None else pm.to_normal_coords(x, y, c)

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        r""":math:`v/\lambda_x`."""
        return pm.transp0(x, v / 2, self.aligned_c(x))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        r""":math:`\lambda_x u`."""
        return 2 * pm.transp0back(x, u, self.aligned_c(x))

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivative at ``x = y`` is taken as 0."""
        return pm.dist(x, y, self.aligned_c(x))

    def dist0(self, x: Tensor) -> Tensor:
        """Distance to the origin."""
        return pm.dist0(x, self.aligned_c(x))

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances of ``(..., N, d)`` to ``(..., M, d)`` as ``(..., N, M)``, in O(N M) memory."""
        return pm.pairwise_dist(x, y, self.c_of_sets(x))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` along the geodesic from ``x`` to ``y``."""
        return pm.transp(x, y, v, self.aligned_c(x))

    def transp0(self, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` from the origin to ``y``."""
        return pm.transp0(y, v, self.aligned_c(y))

    def transp0back(self, x: Tensor, u: Tensor) -> Tensor:
        """Parallel transport of ``u`` from ``x`` to the origin."""
        return pm.transp0back(x, u, self.aligned_c(x))

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point reached at time ``t`` on the geodesic with ``x`` at 0 and ``y`` at 1."""
        return pm.geodesic(t, x, y, self.aligned_c(x))

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r"""Distance to the gyroplane :math:`\{\langle \log_p(x), a\rangle = 0\}`, positive on the side of ``a``.

        For many planes at once give ``x`` as ``(N, 1, d)`` and the planes as ``(M, d)``: the result ``(N, M)`` takes
        O(N M) memory, and one matrix product in float32. See :mod:`pyro_hyperbolic.geometry.planes`.
        """
        return pm.dist2plane(x, p, a, self.aligned_c(x), signed)

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        # The frame at p has the directions of the coordinates.
        return self.dist2plane(x, p, v, signed)

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted Fréchet mean of points ``(..., N, d)``; see :func:`~pyro_hyperbolic.geometry.frechet_mean`."""
        return frechet_mean(self, x, weights)

    def projx(self, x: Tensor) -> Tensor:
        """The nearest point that the dtype can hold inside the ball; ``x`` itself if it is one."""
        return pm.projx(x, self.aligned_c(x))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """``u`` itself, of the shape of the points: every vector is a tangent vector."""
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        r""":math:`u/\lambda_x^2`, the Riemannian gradient from the gradient ``u`` in the coordinates."""
        return pm.egrad2rgrad(x, u, self.aligned_c(x))

    def _is_tangent(self, x: Tensor, u: Tensor) -> Tensor:
        return torch.broadcast_to(u, torch.broadcast_shapes(x.shape, u.shape)).isfinite().all(-1)

    def contains(self, x: Tensor) -> Tensor:
        """Which points are strictly inside; ``False`` for ``nan``."""
        return pm.contains(x, self.aligned_c(x))

    def log_volume_element(self, x: Tensor) -> Tensor:
        r""":math:`d\log\lambda_x`."""
        return pm.log_volume_element(x, self.aligned_c(x))
