"""What follows from Möbius addition and normal coordinates, in any chart: the rest of the operations of geoopt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.geometry.midpoint import midpoint, sum_over
from pyro_hyperbolic.geometry.poincare_math import as_factor
from pyro_hyperbolic.ops.special import unit


class GyroManifold(ConstantCurvature):
    r"""The operations that both charts have beyond those of :class:`Manifold`, under the names that geoopt gives them.

    They are the same maps of the space in both charts. Where an operation is defined by :math:`\log_0` and
    :math:`\exp_0`, these are the ball's, with values ``(..., d)`` whose length is half the distance to the origin.
    Factors and times ``t`` are one number per point, without a trailing dimension.
    """

    @abstractmethod
    def antipode(self, x: Tensor) -> Tensor:
        r"""The point :math:`\ominus x` opposite to ``x``, as far from the origin."""

    @abstractmethod
    def mobius_add(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Möbius addition :math:`x \oplus y`."""

    @abstractmethod
    def mobius_coadd(self, x: Tensor, y: Tensor) -> Tensor:
        r"""Möbius coaddition :math:`x \boxplus y = x \oplus \operatorname{gyr}[x, \ominus y]\,y`, which is commutative.

        Twice the midpoint of ``x`` and ``y``, in the sense of :meth:`mobius_scalar_mul`.
        """

    @abstractmethod
    def mobius_scalar_mul(self, t: float | Tensor, x: Tensor) -> Tensor:
        r""":math:`t \otimes x`, the point at ``t`` times the distance of ``x`` from the origin."""

    @abstractmethod
    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        """The vector ``u`` of the surrounding space, projected to the tangent space at ``x``."""

    @abstractmethod
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        """The Riemannian gradient at ``x``, from the gradient ``u`` in the coordinates."""

    def mobius_sub(self, x: Tensor, y: Tensor) -> Tensor:
        r""":math:`x \ominus y = x \oplus (\ominus y)`."""
        return self.mobius_add(x, self.antipode(y))

    def mobius_cosub(self, x: Tensor, y: Tensor) -> Tensor:
        r""":math:`x \boxminus y = x \boxplus (\ominus y)`."""
        return self.mobius_coadd(x, self.antipode(y))

    def mobius_fn_apply(self, fn: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        r""":math:`\exp_0(f(\log_0 x))`: a function of vectors ``(..., d)`` as one of points.

        >>> from pyro_hyperbolic import PoincareBall
        >>> PoincareBall(1.0).mobius_fn_apply(torch.relu, torch.tensor([0.5, -0.3]))
        tensor([0.5169, 0.0000])
        """
        v = self.to_normal_coords(None, x) / 2
        return self.from_normal_coords(None, 2 * fn(v, *args, **kwargs))

    def mobius_fn_apply_chain(self, x: Tensor, *fns: Callable[[Tensor], Tensor]) -> Tensor:
        r""":math:`\exp_0(f_n(\dots f_1(\log_0 x)))`; ``x`` itself without functions."""
        if not fns:
            return x
        v = self.to_normal_coords(None, x) / 2
        for fn in fns:
            v = fn(v)
        return self.from_normal_coords(None, 2 * v)

    def mobius_pointwise_mul(self, w: Tensor, x: Tensor) -> Tensor:
        r""":math:`\exp_0(w \cdot \log_0 x)`, one factor per coordinate, ``w`` of shape ``(..., d)``."""
        self._check_coords(x, w)
        return self.mobius_fn_apply(w.mul, x)

    def geodesic_unit(self, t: float | Tensor, x: Tensor, u: Tensor) -> Tensor:
        """The point at distance ``t`` from ``x`` in the direction of the tangent vector ``u``; ``x`` where it is 0."""
        return self.from_normal_coords(x, as_factor(t) * unit(self.coframe(x, u)))

    def weighted_midpoint(
        self,
        x: Tensor,
        weights: Tensor | None = None,
        *,
        reducedim: Sequence[int] | None = None,
        keepdim: bool = False,
        lincomb: bool = False,
        posweight: bool = False,
    ) -> Tensor:
        r"""The Möbius gyromidpoint, which is the centroid of the points in Minkowski space, scaled to the hyperboloid.

        .. math:: m = \tfrac12 \otimes \frac{\sum_i w_i \lambda_{x_i} x_i}{\sum_i w_i (\lambda_{x_i} - 1)}

        A closed form, where :func:`frechet_mean` iterates; of two points with equal weights both are the midpoint.
        It commutes with isometries, and is computed around the midpoint itself, so that nothing cancels however far
        out the points are. Weights whose centroid is not a point (it may happen if some are negative) give ``nan``.

        :param x: points ``(..., D)``.
        :param weights: ``(...)``; equal by default. Their scale does not matter.
        :param reducedim: the dimensions of ``x`` to reduce; by default all but the last. ``c`` has size 1 there. With
            none of them every point is the midpoint of itself.
        :param keepdim: keep these dimensions with size 1.
        :param lincomb: multiply the result by the sum of the weights, by :meth:`mobius_scalar_mul`.
        :param posweight: take a negative weight as a positive one of the opposite point.

        >>> from pyro_hyperbolic import PoincareBall
        >>> ball, x = PoincareBall(1.0), torch.tensor([[0.5, 0.0], [0.0, 0.5]])
        >>> ball.weighted_midpoint(x), ball.geodesic(0.5, *x)
        (tensor([0.2192, 0.2192]), tensor([0.2192, 0.2192]))
        """
        chosen = range(x.dim() - 1) if reducedim is None else reducedim
        dims = [dim if dim < 0 else dim - x.dim() for dim in chosen]
        self._check_reduced(x, dims)
        w = x.new_ones(()) if weights is None else weights.to(x.dtype)
        w = w.expand(torch.broadcast_shapes(w.shape, x.shape[:-1]))
        if posweight:
            x = torch.where((w < 0).unsqueeze(-1), self.antipode(x), x)
            w = w.abs()
        total = sum_over(w, [dim + 1 for dim in dims])
        mean = midpoint(self, x, w, dims)
        if lincomb:
            mean = self.mobius_scalar_mul(total, mean)
        return mean if keepdim or not dims else mean.squeeze(tuple(dims))

    def _check_reduced(self, x: Tensor, dims: Sequence[int]) -> None:
        if len(set(dims)) < len(dims) or any(not -x.dim() <= dim < -1 for dim in dims):
            raise ValueError(
                f"reducedim must be different dimensions of x, of shape {tuple(x.shape)}, without the last one, which"
                f" holds the coordinates, got {[dim + x.dim() for dim in dims]}; for all of them leave it out."
            )
        sizes = {dim: self.batch_shape[dim + 1] for dim in dims if -dim - 1 <= len(self.batch_shape)}
        if any(size != 1 for size in sizes.values()):
            raise ValueError(
                f"c must have size 1 in the dimensions that are reduced, got shape {tuple(self.batch_shape)}; for one"
                " curvature per set of points use c.unsqueeze(-1) and reducedim=[-2]."
            )

    def check_point_on_manifold(self, x: Tensor, *, explain: bool = False) -> Any:
        """Whether all points lie on the manifold, as one ``bool``; :meth:`contains` answers for each of them.

        :param explain: return the answer and the reason, which is ``None`` if they do.
        """
        count = int((~self.contains(x)).sum())
        reason = f"{count} of the points do not lie on {self!r}; use projx, or the manifold that made them."
        return (count == 0, reason if count else None) if explain else count == 0

    def check_vector_on_tangent(self, x: Tensor, u: Tensor, *, ok_point: bool = False, explain: bool = False) -> Any:
        """Whether all of the vectors are tangent vectors at points of the manifold, as one ``bool``.

        :param ok_point: do not check the points.
        :param explain: as in :meth:`check_point_on_manifold`.
        """
        ok, reason = (True, None) if ok_point else self.check_point_on_manifold(x, explain=True)
        if ok:
            count = int((~self._is_tangent(x, u)).sum())
            ok = count == 0
            reason = (
                f"{count} of the vectors are not tangent to {self!r} at their points; use proju." if count else None
            )
        return (ok, reason) if explain else ok

    @abstractmethod
    def _is_tangent(self, x: Tensor, u: Tensor) -> Tensor:
        """Which of the vectors are tangent vectors at ``x``, to rounding."""
