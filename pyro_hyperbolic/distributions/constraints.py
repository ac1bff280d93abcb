"""Constraints whose values are points of a manifold."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.distributions.constraints import Constraint, independent, positive
from typing_extensions import Self

from pyro_hyperbolic.geometry import Euclidean, Lorentz, Manifold, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.geometry.manifold import describe


class _PositiveVector(independent):
    """Vectors of positive numbers: torch's own, which cannot be asked about an empty batch."""

    def __init__(self) -> None:
        super().__init__(positive, 1)

    def check(self, value: Tensor) -> Tensor:
        return (value > 0).all(-1)


positive_vector = _PositiveVector()


class OnManifold(Constraint):
    """Points of a manifold. Two such constraints are equal if their chart and curvature are the same.

    :param args: as in the chart; the result of ``check`` broadcasts with the curvature.
    """

    event_dim = 1
    is_discrete = False
    name: str
    chart: type[Manifold]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.manifold = self.chart(*args, **kwargs)
        super().__init__()

    @classmethod
    def of(cls, manifold: Manifold) -> Self:
        """The constraint of a manifold of this chart, whose curvature is not checked again."""
        new = cls.__new__(cls)
        new.manifold = manifold
        return new

    def check(self, value: Tensor) -> Tensor:
        return self.manifold.contains(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnManifold) and self.manifold == other.manifold

    def __hash__(self) -> int:
        return hash(self.manifold)

    def __repr__(self) -> str:
        return f"{self.name}(c={describe(self.manifold.c, 'g')})"


class _PoincareBall(OnManifold):
    """Points strictly inside the ball of radius :math:`1/\\sqrt{c}`; all of space at ``c = 0``."""

    name = "poincare_ball"
    chart = PoincareBall


class _Hyperboloid(OnManifold):
    """Points ``(..., d + 1)`` of the hyperboloid of curvature :math:`-c`, to rounding."""

    name = "hyperboloid"
    chart = Lorentz


class _Euclidean(OnManifold):
    """Finite vectors ``(..., d)``, as points of :class:`~pyro_hyperbolic.Euclidean`."""

    name = "euclidean"
    chart = Euclidean

    def __repr__(self) -> str:
        return f"{self.name}()"


class _Sphere(OnManifold):
    """Points ``(..., d + 1)`` of the sphere of curvature ``c``, to rounding."""

    name = "sphere"
    chart = Sphere


class _Stereographic(OnManifold):
    """Points of the stereographic chart of curvature ``k``: inside a ball for ``k < 0``, finite for ``k >= 0``."""

    name = "stereographic"
    chart = Stereographic

    def __repr__(self) -> str:
        (k,) = self.manifold.curvatures
        return f"{self.name}(k={describe(k, 'g')})"


class _Product(OnManifold):
    """Points of :class:`~pyro_hyperbolic.Product`, whose arguments it takes."""

    name = "product"
    chart = Product

    def __repr__(self) -> str:
        assert isinstance(self.manifold, Product)
        return f"{self.name}({', '.join(f'({space!r}, {dim})' for space, dim in self.manifold.factors)})"


poincare_ball = _PoincareBall
hyperboloid = _Hyperboloid
euclidean = _Euclidean
sphere = _Sphere
stereographic = _Stereographic
product = _Product

_SUPPORTS: dict[type[Manifold], type[OnManifold]] = {
    kind.chart: kind for kind in (_PoincareBall, _Hyperboloid, _Euclidean, _Sphere, _Stereographic, _Product)
}


def on_manifold(manifold: Manifold) -> OnManifold:
    """The constraint that a value is a point of ``manifold``."""
    if type(manifold) not in _SUPPORTS:
        names = ", ".join(sorted(t.__name__ for t in _SUPPORTS))
        raise ValueError(f"manifold must be one of {names}, got {manifold!r}; pass for example PoincareBall(c=1.0).")
    return _SUPPORTS[type(manifold)].of(manifold)


__all__ = [
    "OnManifold",
    "euclidean",
    "hyperboloid",
    "on_manifold",
    "poincare_ball",
    "positive_vector",
    "product",
    "sphere",
    "stereographic",
]
