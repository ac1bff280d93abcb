"""The Poincaré ball as an object."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import poincare_math as pm
from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.geometry.gyro import GyroManifold
from pyro_hyperbolic.ops.checks import check_sizes


class PoincareBall(StereographicChart, GyroManifold):
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

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        return pm.mobius_coadd(x, y, self.aligned_c(x, y))

    def antipode(self, x: Tensor) -> Tensor:
        """``-x``."""
        return -x

    def mobius_scalar_mul(self, t: float | Tensor, x: Tensor) -> Tensor:
        r""":math:`t \otimes x`, the point at ``t`` times the distance of ``x`` from the origin."""
        return pm.mobius_scalar_mul(t, x, self.aligned_c(x))

    def mobius_matvec(self, m: Tensor, x: Tensor) -> Tensor:
        r""":math:`\exp_0(M \log_0 x)` for a matrix ``(..., k, d)``."""
        return pm.mobius_matvec(m, x, self.aligned_c(x, m))

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point reached at time ``t`` on the geodesic with ``x`` at 0 and ``y`` at 1."""
        return pm.geodesic(t, x, y, self.aligned_c(x, y))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """``u`` itself, of the shape of the points: every vector is a tangent vector."""
        check_sizes(x, u)
        return u.expand(torch.broadcast_shapes(x.shape, u.shape))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        r""":math:`u/\lambda_x^2`, the Riemannian gradient from the gradient ``u`` in the coordinates."""
        return pm.egrad2rgrad(x, u, self.aligned_c(x, u))

    def _is_tangent(self, x: Tensor, u: Tensor) -> Tensor:
        check_sizes(x, u)
        return torch.broadcast_to(u, torch.broadcast_shapes(x.shape, u.shape)).isfinite().all(-1)
