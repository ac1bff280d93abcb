"""The hyperboloid as an object."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import lorentz_math as lm
from pyro_hyperbolic.geometry.gyro import GyroManifold
from pyro_hyperbolic.geometry.poincare_math import as_factor
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer
from pyro_hyperbolic.ops.products import einsum
from pyro_hyperbolic.ops.tolerances import hyperboloid_tolerance


class Lorentz(GyroManifold):
    r"""The hyperboloid :math:`-x_0^2 + |x_s|^2 = -1/c`, :math:`x_0 > 0`, in Minkowski space.

    The same space as :class:`PoincareBall`, in coordinates that reach distance :math:`87/\sqrt c` in float32 and
    :math:`708/\sqrt c` in float64. Points and tangent vectors are ``(..., d + 1)``; conventions of curvature, measure
    and shapes are those of the ball, and :meth:`to_poincare` and :meth:`from_poincare` are isometries. An operation
    that looks back from a far point (:meth:`logmap`, ``log_prob`` of a point that the distribution did not draw) loses
    :math:`e^{2\sqrt{c}\,d(0, x)}` in relative precision at most.

    :param c: minus the curvature, a float or a floating tensor of any shape (see :class:`Manifold`), ``c > 0``.

    >>> h = Lorentz(c=1.0)
    >>> x = h.from_normal_coords(None, torch.tensor([60.0, 0.0]))
    >>> h.dist0(x)
    tensor(60.)
    """

    def _is_valid(self, c: Any) -> Any:
        return c > 0

    def _refuse(self, c: float) -> None:
        if c == 0:
            raise ValueError("c must be positive, got 0: these coordinates have no flat limit; use PoincareBall(0).")
        super()._refuse(c)

    def intrinsic_dim(self, size: int) -> int:
        return size - 1

    def ambient_dim(self, dim: int) -> int:
        return dim + 1

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """``(d + 1,)``; for a batch of curvatures ``c.shape + (d + 1,)``."""
        dim = checked_integer("dim", dim, least=1)
        zero = torch.zeros(self.batch_shape + (dim,), dtype=dtype, device=device)
        return torch.cat([torch.ones_like(zero[..., :1]) / lm.root(self.aligned_c(zero), zero), zero], -1)

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        c = torch.as_tensor(self.c, dtype=torch.float64)
        # The largest coordinate is cosh(sqrt(c) r) / sqrt(c); a factor e is left for what is computed with it.
        distance = (math.log(torch.finfo(dtype).max) - 1 + (0.5 * c.log()).clamp(max=0)) / c.sqrt()
        return distance if isinstance(self.c, Tensor) else distance.item()

    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Möbius addition :math:`x \oplus y`, the translation from the origin to ``x`` applied to ``y``."""
        c = self.aligned_c(x, y)
        return lm.from_normal_coords(x, lm.to_normal_coords0(y, c), c)

    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        return lm.mobius_coadd(x, y, self.aligned_c(x, y))

    def antipode(self, x: Tensor) -> Tensor:
        """The point with the opposite space part."""
        return lm.antipode(x)

    def mobius_scalar_mul(self, t: float | Tensor, x: Tensor) -> Tensor:
        r""":math:`t \otimes x`, the point at ``t`` times the distance of ``x`` from the origin."""
        c = self.aligned_c(x)
        return lm.from_normal_coords0(as_factor(t) * lm.to_normal_coords0(x, c), c)

    def mobius_matvec(self, m: Tensor, x: Tensor) -> Tensor:
        r""":math:`\exp_0(M \log_0 x)` for a matrix ``(..., k, d)``."""
        c = self.aligned_c(x, coords=m)
        return lm.from_normal_coords0(einsum("...od,...d->...o", m, lm.to_normal_coords0(x, c)), c)

    def gyration(self, a: Tensor, b: Tensor, u: Tensor) -> Tensor:
        r"""The rotation :math:`\operatorname{gyr}[a, b]` of a tangent vector ``u`` at the origin, or of a point."""
        return lm.gyration(a, b, u, self.aligned_c(a, b, u))

    def inner(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Riemannian inner product of tangent vectors at ``x``: their Minkowski product, without its cancellation."""
        return super().inner(x, u, v)

    def inner0(self, x: Tensor) -> Tensor:
        r"""Minkowski product with the origin, :math:`-x_0/\sqrt{c}`."""
        return (-lm.time(x) / lm.root(self.aligned_c(x), x)).squeeze(-1)

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        return lm.frame(x, v, self.aligned_c(x, coords=v))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        return lm.coframe(x, u, self.aligned_c(x, u))

    def expmap(self, x: Tensor, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v`` at ``x``.

        Far out use :meth:`from_normal_coords`: rounding hides the length of a vector whose coordinates are large.
        """
        return super().expmap(x, v)

    def expmap0(self, v: Tensor) -> Tensor:
        """Exponential map of the tangent vector ``v``, with time component 0, at the origin."""
        return lm.from_normal_coords0(lm.space(v), self.aligned_c(v))

    def logmap0(self, y: Tensor) -> Tensor:
        """Logarithm map at the origin."""
        v = lm.to_normal_coords0(y, self.aligned_c(y))
        return torch.cat([torch.zeros_like(v[..., :1]), v], -1)

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        if x is None:
            return lm.from_normal_coords0(v, self.aligned_c(v))
        return lm.from_normal_coords(x, v, self.aligned_c(x, coords=v))

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        if x is None:
            return lm.to_normal_coords0(y, self.aligned_c(y))
        return lm.to_normal_coords(x, y, self.aligned_c(y, x))

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivative at ``x = y`` is taken as 0."""
        return lm.dist(x, y, self.aligned_c(x, y))

    def dist0(self, x: Tensor) -> Tensor:
        """Distance to the origin."""
        return lm.dist0(x, self.aligned_c(x))

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        return lm.pairwise_dist(x, y, self.c_of_sets(x, y))

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v`` along the geodesic from ``x`` to ``y``."""
        return lm.transp(x, y, v, self.aligned_c(x, y, v))

    def transp0(self, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of ``v``, with time component 0, from the origin to ``y``."""
        return self.frame(y, lm.space(v))

    def transp0back(self, x: Tensor, u: Tensor) -> Tensor:
        """Parallel transport of ``u`` from ``x`` to the origin, where its time component is 0."""
        v = self.coframe(x, u)
        return torch.cat([torch.zeros_like(v[..., :1]), v], -1)

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point reached at time ``t`` on the geodesic with ``x`` at 0 and ``y`` at 1."""
        return lm.geodesic(as_factor(t), x, y, self.aligned_c(x, y))

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r"""Distance to the hyperplane :math:`\{\langle x, a\rangle_L = 0\}`, ``a`` a tangent vector at ``p``.

        For many planes at once give ``x`` as ``(N, 1, d + 1)`` and the planes as ``(M, d + 1)``: the result ``(N, M)``
        takes O(N M) memory. A distance beyond :meth:`reach` is infinite.
        """
        return lm.dist2plane(x, p, a, self.aligned_c(x, p, a), signed)

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        return lm.dist2plane0(x, p, v, self.aligned_c(x, p, coords=v), signed)

    def projx(self, x: Tensor) -> Tensor:
        """The point with the same space part."""
        return lm.lift(lm.space(x), self.aligned_c(x))

    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        r""":math:`u + c\langle x, u\rangle_L\,x`: the vector ``u`` of Minkowski space, projected at ``x``."""
        return lm.proju(x, u, self.aligned_c(x, u))

    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient from the gradient ``u`` in the coordinates, whose time component changes its sign."""
        return self.proju(x, torch.cat([-lm.time(u), lm.space(u)], -1))

    def _is_tangent(self, x: Tensor, u: Tensor) -> Tensor:
        check_sizes(x, u)
        product = lm.minkowski(x, u).abs()
        return product <= hyperboloid_tolerance(x.dtype) * lm.dot(x.abs(), u.abs())

    def contains(self, x: Tensor) -> Tensor:
        """Which points satisfy the equation of the hyperboloid to rounding; ``False`` for ``nan`` and ``inf``."""
        x0 = lm.time(x)
        error = (self.projx(x)[..., :1] - x0).abs()
        return ((x0 > 0) & (x0 < math.inf) & (error <= hyperboloid_tolerance(x.dtype) * x0)).squeeze(-1)

    def num_features(self, dim: int) -> int:
        return dim

    def features(self, x: Tensor) -> Tensor:
        """The point of the ball, which is bounded."""
        return self.to_poincare(x)

    def log_volume_element(self, x: Tensor) -> Tensor:
        r""":math:`-\log(\sqrt{c}\,x_0)`: with respect to Lebesgue measure of the space part :math:`x_s`."""
        return -torch.log(lm.gamma(x, self.aligned_c(x))).squeeze(-1)

    def to_poincare(self, x: Tensor) -> Tensor:
        """The same point of ``PoincareBall(c)``, ``(..., d)``; the outermost one where the ball's coordinates end."""
        return lm.to_ball(x, self.aligned_c(x))

    def from_poincare(self, b: Tensor) -> Tensor:
        """The point of the hyperboloid that is ``b`` in ``PoincareBall(c)``; ``nan`` for a point outside."""
        return lm.from_ball(b, self.aligned_c(b))
