"""What distributions, layers and inference ask of a space."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.recentre import recentre
from pyro_hyperbolic.geometry.variation import base_point_variation
from pyro_hyperbolic.ops.checks import check_precision, check_sizes, inspectable, is_number, validating
from pyro_hyperbolic.ops.products import einsum
from pyro_hyperbolic.ops.special import cosh_sqrt, log_sinhc, squared_norm, tanhc


class Manifold(ABC):
    r"""A space of constant curvature in one of its charts, or a product of such spaces.

    The curvature is :math:`-c` in the hyperbolic charts and :math:`+c` on the sphere, ``c >= 0``; 0 is flat.

    *Normal coordinates* at ``x`` are the components of :math:`\log_x(y)` in the orthonormal frame carried
    from the origin to ``x`` by parallel transport, so that their length is the distance :math:`d(x, y)`.
    They are ``(..., d)`` in every chart, whatever the number of coordinates of a point.

    A tensor ``c`` may have any shape: one curvature for each element of a batch. It is aligned from the right with the
    batch shape of points, ``(...)`` of ``(..., d)``, as the scale of a distribution is with its location.

    Values of a tensor are checked if torch validates its distributions (``pyro.enable_validation``). Without that, a
    ``c`` that is not a curvature gives ``nan`` and disturbs no other element of its batch: samplers reject such a step.

    :param c: minus the curvature, a float or a floating tensor of any shape, ``c >= 0``.
    """

    sign = 1  # what minus the curvature can be: 1 for >= 0, -1 for <= 0, 0 for both
    _checked = True  # whether the values of c are known to be valid

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.c = checked_type(c, "c", "c >= 0 (the curvature is -c)")
        if not isinstance(c, Tensor) or (validating() and inspectable(c)):
            self._check_values()
        else:
            self._checked = False

    @classmethod
    def with_curvature(cls, c: Tensor) -> Self:
        """The manifold of a curvature known to be valid; no check, hence no host synchronisation."""
        new = cls.__new__(cls)
        new.c = c
        return new

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of ``c``."""
        return self.c.shape if isinstance(self.c, Tensor) else torch.Size()

    def aligned_c(self, x: Tensor, *others: Tensor | None, coords: Tensor | None = None) -> float | Tensor:
        """``c`` as a factor of the coordinates of ``x``: a number as it is, a batch ``(...)`` as ``(..., 1)``.

        The points decide the dtype of a result, whatever the dtype of the curvature.

        :param others: points and vectors that must have as many coordinates as ``x``.
        :param coords: normal coordinates at ``x``, of which there must be as many as the space has dimensions.
        """
        check_sizes(x, *others)
        if coords is not None:
            self._check_coords(x, coords)
        c = self.c if self._checked else self.valid_c
        return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) and c.dim() > 0 else c

    @property
    def valid_c(self) -> float | Tensor:
        """``c`` with ``nan`` in the place of what has not been checked and is not a curvature."""
        return self.c if self._checked else torch.where(self._is_valid(self.c), self.c, torch.nan)

    def opposite(self, x: Tensor, *others: Tensor) -> float | Tensor:
        """Minus the curvature as a factor of the coordinates of ``x``: the ``c`` of formulae for both signs."""
        c = self.aligned_c(x, *others)
        return c if self.sign > 0 else -c

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        """The numbers ``c`` of the space: one, none if it is flat by nature, those of all factors of a product."""
        return (self.c,)

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        """The same space with other curvatures, which are known to be as valid as those that it has."""
        (c,) = values
        new = copy.copy(self)
        new.c = c
        return new

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
        """The factors of constant curvature and their dimensions; of a space that is not a product, itself."""
        return [(self, dim)]

    def c_of_sets(self, x: Tensor, *others: Tensor) -> float | Tensor:
        """As :meth:`aligned_c`, for an operation that joins the points of a set ``(..., N, D)``: one ``c`` per set."""
        self._check_sets()
        return self.aligned_c(x, *others)

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

    def _is_valid(self, c: Any) -> Any:
        """Whether finite numbers are curvatures of the chart, a ``bool`` or a tensor of them."""
        return c >= 0

    def _check_values(self) -> None:
        c = self.c
        if not isinstance(c, Tensor):
            if not (self._is_valid(c) and c < math.inf):
                self._refuse(c)
        else:
            valid = self._is_valid(c) & (c < math.inf)
            if not bool(valid.all()):
                self._refuse(c[~valid][0].item())

    def _refuse(self, c: float) -> None:
        raise ValueError(
            f"c must be non-negative and finite, got {c}; pass a float or a tensor c >= 0 (the curvature is -c)."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(c={describe(self.c)})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and same_curvature(self.c, other.c)

    def __hash__(self) -> int:
        # Equal manifolds must hash alike, and a tensor equals the float that it holds.
        return hash(type(self))

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
        """The point with normal coordinates ``v`` at ``x`` (``None``: the origin): the exponential map."""

    @abstractmethod
    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        """Normal coordinates of ``y`` at ``x`` (``None``: the origin): the logarithm map."""

    @abstractmethod
    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        """The tangent vector at ``x`` with components ``v`` in the orthonormal frame carried from the origin."""

    @abstractmethod
    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance."""

    @abstractmethod
    def dist0(self, x: Tensor) -> Tensor:
        """Distance to the origin."""

    @abstractmethod
    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances of ``(..., N, D)`` to ``(..., M, D)`` as ``(..., N, M)``, in O(N M) memory."""

    @abstractmethod
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """Parallel transport of the tangent vector ``v`` from ``x`` to ``y``."""

    @abstractmethod
    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        """Distance to the geodesic hyperplane through ``p`` with normal ``a``, positive on the side of ``a``."""

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        """As :meth:`dist2plane`, for the normal with components ``v`` in the frame carried from the origin to ``p``.

        Layers keep their planes in this form. It is more exact where the coordinates of a tangent vector are large.
        """
        return self.dist2plane(x, p, self.frame(p, v), signed)

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Which of the points lie on the manifold."""

    @abstractmethod
    def log_volume_element(self, x: Tensor) -> Tensor:
        """Log-density of the Riemannian volume with respect to Lebesgue measure of the coordinates."""

    @abstractmethod
    def projx(self, x: Tensor) -> Tensor:
        """The nearest point of the manifold; ``x`` itself if it is one."""

    def log_det_exp(self, v: Tensor) -> Tensor:
        r"""Logarithm of the Jacobian of the exponential map at normal coordinates ``v``, in the Riemannian volume.

        .. math:: (d - 1) \log\frac{\sinh(\sqrt{c}\,|v|)}{\sqrt{c}\,|v|}

        for curvature :math:`-c`, with the sine for a positive one.
        """
        square = squared_norm(v)
        return (v.shape[-1] - 1) * log_sinhc(self.opposite(square) * square, self.sign).squeeze(-1)

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        r"""Hessian, at a point, of :math:`\tfrac12\sum_i w_i\,d(\cdot, x_i)^2` in normal coordinates there.

        That of :math:`\tfrac12 d^2` is 1 along the geodesic and :math:`s\coth s`, :math:`s = \sqrt{c}\,d`, across it;
        :math:`s\cot s` for a positive curvature.

        :param v: normal coordinates of the :math:`x_i`, ``(..., N, d)``.
        :param weights: ``(..., N, 1)``.
        :returns: ``(..., d, d)``.
        """
        square = squared_norm(v)
        across = 1 / tanhc(self.opposite(square) * square, self.sign)
        unit = v / torch.where(square == 0, 1.0, square).sqrt()
        eye = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        along = einsum("...ni,...nj->...ij", weights * (1 - across) * unit, unit)
        return (weights * across).sum(-2, keepdim=True) * eye + along

    def conditioning(self, x: Tensor) -> Tensor:
        r"""How much rounding is magnified at ``x``: :math:`\cosh(\sqrt{c}\,d(0, x))`, 1 on a sphere."""
        distance = self.dist0(x).unsqueeze(-1)
        if self.sign < 0:
            return torch.ones_like(distance).squeeze(-1)
        return cosh_sqrt(self.opposite(distance) * distance.square()).squeeze(-1)

    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        """How normal coordinates ``v`` change as their base moves; see :mod:`pyro_hyperbolic.geometry.variation`."""
        return base_point_variation(m, v, dm, self.opposite(m, v, dm), self.sign)

    def recentre(self, m: Tensor, v: Tensor) -> Tensor:
        """Normal coordinates, at the point with coordinates ``m`` at the origin, of the one with ``v`` there.

        In hyperbolic space without the points themselves: see :mod:`pyro_hyperbolic.geometry.recentre`.
        """
        if self.sign > 0:
            return recentre(m, v, self.aligned_c(v, m))
        return self.to_normal_coords(self.from_normal_coords(None, m), self.from_normal_coords(None, v))

    def exp0(self, v: Tensor) -> Tensor:
        r"""The ball's :math:`\exp_0`: the point at distance :math:`2|v|` of the origin; :math:`|v|` in flat factors.

        So layers and encoders of the hyperbolic charts are those of the paper, whose metric at the origin is
        :math:`4\,dz^2`.
        """
        return self.from_normal_coords(None, 2 * v)

    def log0(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`exp0`."""
        return self.to_normal_coords(None, x) / 2

    def period(self, x: Tensor) -> float | Tensor | None:
        r"""Length of a closed geodesic as a factor of the coordinates of ``x``; ``None`` if none closes.

        Where geodesics close the exponential map is onto, but not one-to-one: normal coordinates ``v`` and
        :math:`v + m\,v/|v|` times the period, for every integer m, are those of one point.
        """
        return None

    def from_flat(self, v: Tensor) -> Tensor:
        """A smooth one-to-one map of vectors ``(..., d)`` onto the space: the exponential map where that is one."""
        return self.from_normal_coords(None, v)

    def to_flat(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`from_flat`."""
        return self.to_normal_coords(None, x)

    def log_det_flat(self, v: Tensor) -> Tensor:
        """Logarithm of the Jacobian of :meth:`from_flat` in the Riemannian volume."""
        return self.log_det_exp(v)

    @abstractmethod
    def reach(self, dtype: torch.dtype) -> float | Tensor:
        """Largest distance from the origin that coordinates of ``dtype`` can hold.

        A number, or a float64 tensor, with derivatives, where the curvature is a tensor.
        """


def same_curvature(a: float | Tensor, b: float | Tensor) -> bool:
    """Whether two curvatures are the same object, or hold the same numbers wherever they broadcast."""
    if a is b:
        return True
    if not (isinstance(a, Tensor) or isinstance(b, Tensor)):
        return a == b
    if not inspectable(*[t for t in (a, b) if isinstance(t, Tensor)]):
        return False
    a, b = (torch.as_tensor(t, dtype=torch.float64, device="cpu").detach() for t in (a, b))
    try:
        return bool((a == b).all())
    except RuntimeError:  # the shapes do not broadcast
        return False


_NUM_SHOWN = 4


def describe(c: float | Tensor, form: str = "") -> str:
    """A curvature in words: a number in the format ``form``, the first values and the shape of a batch."""
    if not isinstance(c, Tensor):
        return f"{c:{form}}"
    if not inspectable(c):
        return f"<{c.dtype} of shape {tuple(c.shape)}>"
    if c.dim() == 0:
        return f"{c.item():{form}}"
    values = [f"{value:g}" for value in c.detach().flatten()[:_NUM_SHOWN].tolist()]
    return f"[{', '.join(values + ['...'] * (c.numel() > _NUM_SHOWN))}] of shape {tuple(c.shape)}"


def checked_type(c: float | Tensor, name: str, meaning: str) -> float | Tensor:
    """A curvature as a float or a floating tensor, whose values are not looked at."""
    remedy = f"pass a float or a floating tensor {meaning}"
    if isinstance(c, Tensor):
        if not c.is_floating_point():
            remedy += "" if c.is_complex() else f", for example {name}.float()"
            raise ValueError(f"{name} must be a floating tensor, got {c.dtype} of shape {tuple(c.shape)}; {remedy}.")
        check_precision(c, name)
        return c
    if not is_number(c):
        raise ValueError(f"{name} must be a number, got {c!r}; {remedy}.")
    return float(c)
