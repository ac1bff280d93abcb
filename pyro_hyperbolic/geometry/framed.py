"""What follows from normal coordinates and frames, in any space."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.ops.checks import static_size
from pyro_hyperbolic.ops.special import dot, safe_norm


class Space(Manifold):
    """The operations of geoopt by way of :meth:`frame` and its inverse.

    Tangent vectors have as many coordinates as points; factors and times ``t`` are one number per point.
    """

    @abstractmethod
    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        """Components ``(..., d)`` of the tangent vector ``u`` at ``x``, the inverse of :meth:`frame`."""

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Riemannian inner product of tangent vectors at ``x``."""
        return dot(self.coframe(x, u), self.coframe(x, v))

    def norm(self, x: Tensor, u: Tensor) -> Tensor:
        """Riemannian norm of a tangent vector at ``x``."""
        return safe_norm(self.coframe(x, u)).squeeze(-1)

    def expmap(self, x: Tensor, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v`` at ``x``."""
        return self.from_normal_coords(x, self.coframe(x, v))

    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        """Logarithm map, the inverse of :meth:`expmap`."""
        return self.frame(x, self.to_normal_coords(x, y))

    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v`` at the origin."""
        return self.expmap(self._origin_of(v), v)

    def logmap0(self, y: Tensor) -> Tensor:
        """Logarithm map at the origin."""
        return self.frame(self._origin_of(y), self.to_normal_coords(None, y))

    def transp0(self, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` from the origin to ``y``."""
        return self.frame(y, self.coframe(self._origin_of(v), v))

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point reached at time ``t`` on the geodesic with ``x`` at 0 and ``y`` at 1."""
        factor = t.unsqueeze(-1) if isinstance(t, Tensor) else t
        return self.from_normal_coords(x, factor * self.to_normal_coords(x, y))

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted Fréchet mean; see :func:`~pyro_hyperbolic.geometry.frechet_mean`."""
        return frechet_mean(self, x, weights)

    def _origin_of(self, x: Tensor) -> Tensor:
        return self.origin(self.intrinsic_dim(static_size(x)), x.dtype, x.device)
