"""What the laws of :mod:`pyro_hyperbolic.distributions` ask of a manifold."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.ops.checks import inspectable


class Manifold(ABC):
    r"""A chart of the hyperbolic space of curvature :math:`-c` (Euclidean at ``c = 0``).

    *Normal coordinates* at ``x`` are the components of :math:`\log_x(y)` in the orthonormal frame carried
    from the origin to ``x`` by parallel transport, so that their length is the distance :math:`d(x, y)`.
    They are ``(..., d)`` in every chart, whatever the number of coordinates of a point.

    :param c: minus the curvature, a float or a 0-dim tensor, ``c >= 0``.
    """

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.c = _check_curvature(c)

    @classmethod
    def with_curvature(cls, c: Tensor) -> Self:
        """The manifold of a curvature known to be valid; no check, hence no host synchronisation."""
        new = cls.__new__(cls)
        new.c = c
        return new

    def __repr__(self) -> str:
        c = self.c.item() if isinstance(self.c, Tensor) and inspectable(self.c) else self.c
        return f"{type(self).__name__}(c={c})"

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

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Which of the points lie on the manifold."""

    @abstractmethod
    def log_volume_element(self, x: Tensor) -> Tensor:
        """Log-density of the Riemannian volume with respect to Lebesgue measure of the coordinates."""

    @abstractmethod
    def reach(self, dtype: torch.dtype) -> float:
        """Largest distance from the origin that coordinates of ``dtype`` can hold."""


def same_curvature(a: float | Tensor, b: float | Tensor) -> bool:
    """Whether two curvatures are the same object or hold the same number."""
    if a is b:
        return True
    tensors = [t for t in (a, b) if isinstance(t, Tensor)]
    return inspectable(*tensors) and as_number(a) == as_number(b)


def as_number(c: float | Tensor) -> float:
    """The value of a curvature, read on the host; ``float`` of a tensor with ``requires_grad`` would warn."""
    return c.item() if isinstance(c, Tensor) else c


def _check_curvature(c: float | Tensor) -> float | Tensor:
    remedy = "pass a float or a 0-dim tensor c >= 0 (the curvature is -c)"
    if isinstance(c, Tensor):
        if c.dim() != 0 or not c.is_floating_point():
            raise ValueError(f"c must be a 0-dim floating tensor, got {c.dtype} of shape {tuple(c.shape)}; {remedy}.")
        if inspectable(c) and not (c >= 0 and c.isfinite()):
            raise ValueError(f"c must be non-negative and finite, got {c.item()}; {remedy}.")
        return c
    if isinstance(c, bool) or not isinstance(c, (int, float)):
        raise ValueError(f"c must be a number, got {c!r}; {remedy}.")
    if not 0 <= c < float("inf"):
        raise ValueError(f"c must be non-negative and finite, got {c}; {remedy}.")
    return float(c)
