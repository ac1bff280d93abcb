"""What distributions, layers, models and inference ask of a space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.curvature import describe, same_curvature
from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.ops.checks import static_size
from pyro_hyperbolic.ops.special import dot, safe_norm


class Manifold(ABC):
    r"""A Riemannian manifold, of any curvature.

    *Normal coordinates* at ``x`` are the components of :math:`\log_x(y)` in the orthonormal frame carried
    from the origin to ``x`` by parallel transport, so that their length is the distance :math:`d(x, y)`.
    They are ``(..., d)`` in every chart, whatever the number of coordinates of a point.

    Tangent vectors have as many coordinates as points; factors and times ``t`` are one number per point. Everything
    broadcasts over the leading dimensions.

    A space of your own gives the abstract methods, and everything else here follows from them. Derive it from
    :class:`~pyro_hyperbolic.geometry.scaled.ScaledManifold` if one number ``c`` scales it, and from
    :class:`~pyro_hyperbolic.geometry.constant_curvature.ConstantCurvature` if it is a chart of a hyperbolic space or a
    sphere. Where geodesics close it has to give :meth:`period`, :meth:`parts` and the maps of
    :meth:`from_unconstrained` too. :doc:`/extending` writes one.
    """

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        """The numbers that the space depends on: one ``c`` or ``k`` for each curved factor, none if there is none."""
        return ()

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        """The same space with other curvatures, which are known to be as valid as those that it has."""
        () = values
        return self

    @property
    def signed_curvatures(self) -> tuple[bool, ...]:
        """Which of the :attr:`curvatures` may have either sign."""
        return (False,) * len(self.curvatures)

    def assume_valid(self) -> Self:
        """The same space, whose curvatures, and those put in their place, need no check."""
        return self

    @property
    def batch_shape(self) -> torch.Size:
        """The shape that those of all curvatures make."""
        return torch.broadcast_shapes(*[c.shape for c in self.curvatures if isinstance(c, Tensor)])

    def detach(self) -> Self:
        """The same space, whose curvatures have no gradient."""
        return self._each(Tensor.detach)

    def snapshot(self) -> Self:
        """As :meth:`detach`, with curvatures that nothing changes any more."""
        return self._each(lambda c: c.detach().clone())

    @property
    def moves(self) -> bool:
        """Whether a curvature is differentiated."""
        return any(isinstance(c, Tensor) and c.requires_grad for c in self.curvatures)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        return self.with_curvatures([change(c) if isinstance(c, Tensor) else c for c in self.curvatures])

    def leaves(self, dim: int) -> list[tuple[Manifold, int]]:
        """The factors that are no products, and their dimensions; of a space that is not a product, itself."""
        return [(self, dim)]

    def parts(self, dim: int) -> list[int]:
        """The dimensions of the parts in which densities are worked out, for a space that is not a product.

        In each part all preimages of a point under the exponential map lie on one geodesic. A sphere is one part; a
        flat torus has as many as it has dimensions.
        """
        return [dim]

    @property
    def kind(self) -> str:
        """The name of the class; of a product, those of its factors."""
        return type(self).__name__

    def unsqueeze(self) -> Self:
        """The same space for points with one more batch dimension at the end: ``c`` of shape ``(...)`` as ``(..., 1)``.

        >>> from pyro_hyperbolic import PoincareBall
        >>> PoincareBall(torch.tensor([1.0, 2.0])).unsqueeze().batch_shape
        torch.Size([2, 1])
        """
        return self._each(lambda c: c if c.dim() == 0 else c.unsqueeze(-1))

    def squeeze(self) -> Self:
        """The inverse of :meth:`unsqueeze`: the space of one point for each set of points ``(..., N, D)``."""
        self._check_sets()
        return self._each(lambda c: c if c.dim() == 0 else c.squeeze(-1))

    def _check_sets(self) -> None:
        if self.batch_shape[-1:] not in ((), (1,)):
            raise ValueError(
                f"c must have size 1 in its last dimension, which is that of the points of a set (..., N, D), got shape"
                f" {tuple(self.batch_shape)}; for one curvature per set use c.unsqueeze(-1)."
            )

    def _check_coords(self, x: Tensor, coords: Tensor) -> None:
        size, count = x.shape[-1], coords.shape[-1]
        if type(size) is int and self.intrinsic_dim(size) != count:
            raise ValueError(
                f"a point with {size} coordinates has {self.intrinsic_dim(size)} normal coordinates on {self!r}, got"
                f" {count}."
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(describe(c) for c in self.curvatures)})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        mine, theirs = self.curvatures, other.curvatures
        return len(mine) == len(theirs) and all(map(same_curvature, mine, theirs))

    def __hash__(self) -> int:
        # Equal manifolds must hash alike, and a tensor equals the float that it holds.
        return hash(type(self))

    @property
    @abstractmethod
    def geodesics_close(self) -> bool:
        """Whether geodesics close, or may do so where the sign of a curvature is not known without a look.

        Then the exponential map is onto, but not one-to-one.
        """

    @abstractmethod
    def intrinsic_dim(self, size: int) -> int:
        """Dimension of the space whose points have ``size`` coordinates."""

    @abstractmethod
    def ambient_dim(self, dim: int) -> int:
        """Number of coordinates of a point of the ``dim``-dimensional space."""

    @abstractmethod
    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """The origin of the ``dim``-dimensional space."""

    @abstractmethod
    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        """The point with normal coordinates ``v`` at ``x`` (``None``: the origin)."""

    @abstractmethod
    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        """Normal coordinates of ``y`` at ``x`` (``None``: the origin), those of the shortest geodesic."""

    @abstractmethod
    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        """The tangent vector at ``x`` with components ``v`` in the orthonormal frame carried from the origin."""

    @abstractmethod
    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        """Components ``(..., d)`` of the tangent vector ``u`` at ``x``, the inverse of :meth:`frame`."""

    @abstractmethod
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of the tangent vector ``v`` from ``x`` to ``y``."""

    @abstractmethod
    def projx(self, x: Tensor) -> Tensor:
        """The nearest point of the manifold; ``x`` itself if it is one."""

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Which of the points lie on the manifold."""

    @abstractmethod
    def reach(self, dtype: torch.dtype) -> float | Tensor:
        """Largest distance from the origin that coordinates of ``dtype`` can hold.

        A number, or a float64 tensor, with derivatives, where the curvature is a tensor.
        """

    @abstractmethod
    def log_volume_element(self, x: Tensor) -> Tensor:
        """Log-density of the Riemannian volume with respect to Lebesgue measure of the coordinates."""

    @abstractmethod
    def log_det_exp(self, v: Tensor) -> Tensor:
        """Logarithm of the Jacobian of the exponential map at normal coordinates ``v``, in the Riemannian volume."""

    @abstractmethod
    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        r"""Hessian, at a point, of :math:`\tfrac12\sum_i w_i\,d(\cdot, x_i)^2` in normal coordinates there.

        :param v: normal coordinates of the :math:`x_i`, ``(..., N, d)``.
        :param weights: ``(..., N, 1)``.
        :returns: ``(..., d, d)``.
        """

    @abstractmethod
    def conditioning(self, x: Tensor) -> Tensor:
        """How much rounding of coordinates is magnified at ``x``, in lengths: 1 if not at all."""

    @abstractmethod
    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        """How normal coordinates ``v`` change as their base moves; see :mod:`pyro_hyperbolic.geometry.variation`."""

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivative at ``x = y`` is taken as 0."""
        return safe_norm(self.to_normal_coords(x, y)).squeeze(-1)

    def dist0(self, x: Tensor) -> Tensor:
        """Distance to the origin."""
        return safe_norm(self.to_normal_coords(None, x)).squeeze(-1)

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances of ``(..., N, D)`` to ``(..., M, D)`` as ``(..., N, M)``; the spaces here take O(N M) memory."""
        self._check_sets()
        return self.unsqueeze().dist(x.unsqueeze(-2), y.unsqueeze(-3))

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

    def transp0back(self, x: Tensor, u: Tensor) -> Tensor:
        """Parallel transport of ``u`` from ``x`` to the origin."""
        return self.frame(self._origin_of(u), self.coframe(x, u))

    def geodesic(self, t: float | Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The point reached at time ``t`` on the geodesic with ``x`` at 0 and ``y`` at 1."""
        factor = t.unsqueeze(-1) if isinstance(t, Tensor) else t
        return self.from_normal_coords(x, factor * self.to_normal_coords(x, y))

    def frechet_mean(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """Weighted Fréchet mean of points ``(..., N, D)``; see :func:`~pyro_hyperbolic.geometry.frechet_mean`."""
        return frechet_mean(self, x, weights)

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        """Distance to the geodesic hyperplane through ``p`` with normal ``a``, positive on the side of ``a``."""
        raise ValueError(
            f"{self!r} has no distances to geodesic hyperplanes; use its normal coordinates, or in a model the decoder"
            " 'logmap' or 'mlp'."
        )

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        """As :meth:`dist2plane`, for the normal with components ``v`` in the frame carried from the origin to ``p``.

        Layers keep their planes in this form. It is more exact where the coordinates of a tangent vector are large.
        """
        return self.dist2plane(x, p, self.frame(p, v), signed)

    def recentre(self, m: Tensor, v: Tensor) -> Tensor:
        """Normal coordinates, at the point with coordinates ``m`` at the origin, of the one with ``v`` there."""
        return self.to_normal_coords(self.from_normal_coords(None, m), self.from_normal_coords(None, v))

    def period(self, x: Tensor) -> float | Tensor | None:
        r"""Length of a closed geodesic as a factor of the coordinates of ``x``; ``None`` if none closes.

        Where geodesics close, normal coordinates ``v`` and :math:`v + m\,v/|v|` times the period, for every integer m,
        are those of one point. A product has no period of its own: ask its :meth:`leaves`.
        """
        if not self.geodesics_close:
            return None
        raise ValueError(f"{self!r} has no one period; ask each of its leaves(dim) for its own.")

    def from_unconstrained(self, v: Tensor) -> Tensor:
        """A smooth bijection from all vectors ``(..., d)`` to the space, up to a set without volume.

        It is what ``biject_to`` gives. Where no geodesic closes, the vectors are normal coordinates at the origin.
        """
        self._check_open()
        return self.from_normal_coords(None, v)

    def to_unconstrained(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`from_unconstrained`."""
        self._check_open()
        return self.to_normal_coords(None, x)

    def log_det_unconstrained(self, v: Tensor) -> Tensor:
        """Logarithm of the Jacobian of :meth:`from_unconstrained` in the Riemannian volume."""
        self._check_open()
        return self.log_det_exp(v)

    def _check_open(self) -> None:
        if self.geodesics_close:
            raise NotImplementedError(
                f"geodesics of {self!r} close, so that the exponential map is no bijection; its class has to give"
                " from_unconstrained, to_unconstrained and log_det_unconstrained."
            )

    def num_features(self, dim: int) -> int:
        """How many numbers :meth:`features` gives in ``dim`` dimensions."""
        return self.ambient_dim(dim)

    def features(self, x: Tensor) -> Tensor:
        """Points as inputs of a network: ``x`` itself, or functions of it that are bounded and continuous."""
        return x

    def _origin_of(self, x: Tensor) -> Tensor:
        return self.origin(self.intrinsic_dim(static_size(x)), x.dtype, x.device)
