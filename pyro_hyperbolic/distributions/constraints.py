"""Constraints whose values are points of a manifold."""

from __future__ import annotations

from torch import Tensor
from torch.distributions.constraints import Constraint, independent, positive

from pyro_hyperbolic.geometry import Manifold


class _PositiveVector(independent):
    """Vectors of positive numbers: torch's own, which cannot be asked about an empty batch."""

    def __init__(self) -> None:
        super().__init__(positive, 1)

    def check(self, value: Tensor) -> Tensor:
        return (value > 0).all(-1)


class OnManifold(Constraint):
    """Points of a manifold. Two such constraints are equal if their manifolds are.

    ``biject_to`` and ``transform_to`` give :class:`~pyro_hyperbolic.distributions.ManifoldTransform`.

    :param manifold: the manifold; the result of ``check`` broadcasts with its curvature.

    >>> from pyro_hyperbolic import PoincareBall
    >>> on(PoincareBall(1.0)).check(torch.tensor([[0.6, 0.0], [0.8, 0.8]]))
    tensor([ True, False])
    """

    event_dim = 1
    is_discrete = False

    def __init__(self, manifold: Manifold) -> None:
        if not isinstance(manifold, Manifold):
            raise ValueError(f"manifold must be a manifold, got {manifold!r}; pass for example PoincareBall(c=1.0).")
        self.manifold = manifold
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        return self.manifold.contains(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OnManifold) and self.manifold == other.manifold

    def __hash__(self) -> int:
        return hash(self.manifold)

    def __repr__(self) -> str:
        return f"on({self.manifold!r})"


# Written as torch writes its constraints.
on = OnManifold
positive_vector = _PositiveVector()

__all__ = ["OnManifold", "on", "positive_vector"]
