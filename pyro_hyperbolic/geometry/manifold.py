"""What the laws of :mod:`pyro_hyperbolic.distributions` ask of a manifold."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.ops.checks import check_precision, inspectable, validating


class Manifold(ABC):
    r"""A chart of the hyperbolic space of curvature :math:`-c` (Euclidean at ``c = 0``).

    *Normal coordinates* at ``x`` are the components of :math:`\log_x(y)` in the orthonormal frame carried
    from the origin to ``x`` by parallel transport, so that their length is the distance :math:`d(x, y)`.
    They are ``(..., d)`` in every chart, whatever the number of coordinates of a point.

    A tensor ``c`` may have any shape: one curvature for each element of a batch. It is aligned from the right with the
    batch shape of points, ``(...)`` of ``(..., d)``, as the scale of a distribution is with its location.

    Values of a tensor are checked if torch validates its distributions (``pyro.enable_validation``). Without that a
    ``c`` that is no curvature gives ``nan`` and disturbs no other element of its batch: a sampler rejects such a step.

    :param c: minus the curvature, a float or a floating tensor of any shape, ``c >= 0``.
    """

    _checked = True  # whether the values of c are known to be valid

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.c = _check_type(c)
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

    def aligned_c(self, x: Tensor) -> float | Tensor:
        """``c`` as a factor of the coordinates of ``x``: a number as it is, a batch ``(...)`` as ``(..., 1)``.

        The points decide the dtype of a result, whatever the dtype of the curvature.
        """
        c = self.c if self._checked else self.valid_c
        return c.to(x.dtype).unsqueeze(-1) if isinstance(c, Tensor) and c.dim() > 0 else c

    @property
    def valid_c(self) -> float | Tensor:
        """``c`` with ``nan`` in the place of what has not been checked and is no curvature."""
        return self.c if self._checked else torch.where(self._is_valid(self.c), self.c, torch.nan)

    def c_of_sets(self, x: Tensor) -> float | Tensor:
        """As :meth:`aligned_c`, for an operation that joins the points of a set ``(..., N, D)``: one ``c`` per set."""
        self._check_sets()
        return self.aligned_c(x)

    def unsqueeze(self) -> Self:
        """The same space for points with one more batch dimension at the end: ``c`` of shape ``(...)`` as ``(..., 1)``.

        >>> from pyro_hyperbolic import PoincareBall
        >>> PoincareBall(torch.tensor([1.0, 2.0])).unsqueeze().batch_shape
        torch.Size([2, 1])
        """
        return self if self.batch_shape == () else self._with(self.c.unsqueeze(-1))  # type: ignore[union-attr]

    def squeeze(self) -> Self:
        """The inverse of :meth:`unsqueeze`: the space of one point for each set of points ``(..., N, D)``."""
        self._check_sets()
        return self if self.batch_shape == () else self._with(self.c.squeeze(-1))  # type: ignore[union-attr]

    def _with(self, c: Tensor) -> Self:
        new = type(self).with_curvature(c)
        new._checked = self._checked
        return new

    def _check_sets(self) -> None:
        if self.batch_shape[-1:] not in ((), (1,)):
            raise ValueError(
                f"c must have size 1 in its last dimension, which is that of the points of a set (..., N, D), got shape"
                f" {tuple(self.batch_shape)}; for one curvature per set use c.unsqueeze(-1)."
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

        A layer keeps its planes so; where the coordinates of a tangent vector are large this is the more exact way.
        """
        return self.dist2plane(x, p, self.frame(p, v), signed)

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Which of the points lie on the manifold."""

    @abstractmethod
    def log_volume_element(self, x: Tensor) -> Tensor:
        """Log-density of the Riemannian volume with respect to Lebesgue measure of the coordinates."""

    @abstractmethod
    def reach(self, dtype: torch.dtype) -> float | Tensor:
        """Largest distance from the origin that coordinates of ``dtype`` can hold; one for each element of ``c``."""


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


def _check_type(c: float | Tensor) -> float | Tensor:
    remedy = "pass a float or a floating tensor c >= 0 (the curvature is -c)"
    if isinstance(c, Tensor):
        if not c.is_floating_point():
            remedy += "" if c.is_complex() else ", for example c.float()"
            raise ValueError(f"c must be a floating tensor, got {c.dtype} of shape {tuple(c.shape)}; {remedy}.")
        check_precision(c, "c")
        return c
    if isinstance(c, bool) or not isinstance(c, (int, float)):
        raise ValueError(f"c must be a number, got {c!r}; {remedy}.")
    return float(c)
