"""Pictures of the hyperbolic plane: which point is in the middle, and how distances from it are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from matplotlib.axes import Axes
from torch import Tensor

from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.ops.special import log_sinhc, squared_norm

# How the point x of the ball, with the middle at the origin, is drawn; the way back; and the logarithm of the area of
# the plane per area of paper.
_Map = Callable[[PoincareBall, Tensor], Tensor]
VIEWS: dict[str, tuple[_Map, _Map, _Map]] = {
    "poincare": (lambda ball, x: x, lambda ball, p: p, lambda ball, p: ball.log_volume_element(p)),
    "klein": (
        lambda ball, x: 2 * x / (1 + ball.c * squared_norm(x)) if ball.c else x,
        lambda ball, p: p / (1 + (1 - ball.c * squared_norm(p)).clamp(min=0).sqrt()) if ball.c else p,
        lambda ball, p: (
            -1.5 * torch.log1p(-ball.c * squared_norm(p)).squeeze(-1) if ball.c else ball.log_volume_element(p)
        ),
    ),
    "equidistant": (
        lambda ball, x: ball.to_normal_coords(None, x),
        lambda ball, p: ball.from_normal_coords(None, p),
        lambda ball, p: log_sinhc(ball.c * squared_norm(p)).squeeze(-1),
    ),
}


class Lens:
    """The map from the ball to the paper.

    Args:
        ball: with its curvature as a plain number.
        view: ``"poincare"``, ``"klein"`` or ``"equidistant"``.
        center: the point in the middle, ``(2,)``; the origin by default.
    """

    def __init__(self, ball: PoincareBall, view: str = "poincare", center: Tensor | None = None) -> None:
        if view not in VIEWS:
            raise ValueError(f"view must be one of {', '.join(VIEWS)}, got {view!r}.")
        self.ball, self.view, self.center = ball, view, center
        self._there, self._back, self._volume = VIEWS[view]

    @property
    def radius(self) -> float:
        """Of the border on paper."""
        return math.inf if self.ball.c == 0 or self.view == "equidistant" else 1 / math.sqrt(float(self.ball.c))

    def __call__(self, x: Tensor) -> Tensor:
        """Points of the ball on paper, ``(..., 2)``."""
        if self.center is not None:
            x = self.ball.projx(self.ball.mobius_add(-self.center.expand_as(x), x))
        return self._there(self.ball, x)

    def back(self, p: Tensor) -> Tensor:
        """The points of the ball that are drawn at ``p``; outside of the border the nearest ones inside."""
        x = self.ball.projx(self._back(self.ball, p))
        return x if self.center is None else self.ball.projx(self.ball.mobius_add(self.center.expand_as(x), x))

    def push(self, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Points and tangent vectors on paper."""
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            at = self(x)
            # Points do not depend on each other, so that a sum has the derivatives of all.
            rows = [torch.autograd.grad(part.sum(), x, retain_graph=True)[0] for part in at.unbind(-1)]
        return at.detach(), torch.stack([(row * v).sum(-1) for row in rows], -1)

    def log_volume(self, p: Tensor) -> Tensor:
        """Logarithm of the area of the plane per area of paper at ``p``, ``(...)``."""
        return self._volume(self.ball, p if math.isinf(self.radius) else self.inside(p))

    def inside(self, p: Tensor) -> Tensor:
        """The nearest places of the paper inside the border."""
        return self.ball.projx(p)

    def is_like(self, other: Lens) -> bool:
        """Whether both draw the same picture."""
        if self.view != other.view or self.ball.c != other.ball.c:
            return False
        first, second = (torch.zeros(2) if lens.center is None else lens.center for lens in (self, other))
        return torch.allclose(first.double(), second.double())


# What the axes show, so that every call on them draws the same picture.
_LENSES: WeakKeyDictionary[Axes, Lens] = WeakKeyDictionary()


def lens_of(ax: Axes) -> Lens | None:
    """The picture that axes show already."""
    check_axes("ax", ax)
    return _LENSES.get(ax)


def check_axes(name: str, ax: Any) -> None:
    """Refuse what cannot be drawn on."""
    if not isinstance(ax, Axes):
        raise ValueError(
            f"{name} must be matplotlib Axes, got {type(ax).__name__}; make them with figure, ax = plt.subplots(), and"
            " of an array of axes pass one."
        )


def show(ax: Axes, lens: Lens) -> None:
    """Remember what the axes show."""
    _LENSES[ax] = lens
