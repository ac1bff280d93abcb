"""Constraints whose values are points of a manifold."""

from __future__ import annotations

from torch import Tensor
from torch.distributions.constraints import Constraint

from pyro_hyperbolic.geometry import Manifold, PoincareBall
from pyro_hyperbolic.geometry.manifold import same_curvature


class _PoincareBall(Constraint):
    """Points strictly inside the ball of radius :math:`1/\\sqrt{c}`; all of space at ``c = 0``.

    Two such constraints are equal when they are of the same curvature.
    """

    event_dim = 1
    is_discrete = False

    def __init__(self, c: float | Tensor = 1.0) -> None:
        self.manifold: Manifold = PoincareBall(c)
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        return self.manifold.contains(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PoincareBall) and same_curvature(self.manifold.c, other.manifold.c)

    def __hash__(self) -> int:
        return hash(self.manifold)

    def __repr__(self) -> str:
        return f"poincare_ball(c={float(self.manifold.c):g})"


poincare_ball = _PoincareBall

_SUPPORTS: dict[type[Manifold], type[_PoincareBall]] = {PoincareBall: _PoincareBall}


def on_manifold(manifold: Manifold) -> Constraint:
    """The constraint that a value is a point of ``manifold``."""
    if type(manifold) not in _SUPPORTS:
        names = ", ".join(sorted(t.__name__ for t in _SUPPORTS))
        raise ValueError(f"manifold must be one of {names}, got {manifold!r}; pass for example PoincareBall(c=1.0).")
    return _SUPPORTS[type(manifold)](manifold.c)


__all__ = ["on_manifold", "poincare_ball"]
