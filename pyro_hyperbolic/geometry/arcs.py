r"""Lengths of arcs from their chords, and the way along them, for a curvature :math:`-c` of either sign.

Distances of the stereographic charts end in :math:`\operatorname{arsinh}(\sqrt c\,t)/\sqrt c`. For ``c < 0`` that is
:math:`\arcsin(\sqrt{-c}\,t)/\sqrt{-c}`, which has lost half of the digits at a right angle. Where an angle is *wide*,
more than half of a right one, it is the arc tangent of ``t`` and the cosine :math:`\sqrt{1 + ct^2}` instead, which a
caller may know without the difference. ``sign`` is that of :mod:`pyro_hyperbolic.ops.special`; a space that is
hyperbolic, with ``sign = 1``, pays for nothing of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.ops.special import asinhc, scaled_asinh, unit

Curvature = float | Tensor

# Where u = c t^2, minus the square of a sine, is below it, an angle is wide.
_WIDE = -0.5


def is_wide(u: Tensor) -> Tensor:
    """Where the angle with :math:`u = ct^2` is wide."""
    return u < _WIDE


def narrow(u: Tensor, sign: int) -> Tensor:
    """``u`` where the angle is not wide, 0 elsewhere."""
    return u if sign > 0 else torch.where(is_wide(u), 0.0, u)


def arc(t: Tensor, c: Curvature, sign: int, cosine: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    r""":math:`\operatorname{arsinh}(\sqrt c\,t)/\sqrt c`; for ``c < 0`` that of the arc sine.

    At the end of the arc sine, where its derivative is infinite, it is taken as 0.

    :param cosine: from where the angle is wide to :math:`\sqrt{1 + ct^2}` there and any positive number elsewhere.
    """
    if sign > 0:
        return scaled_asinh(t, c)
    u = c * t * t
    wide = is_wide(u)
    near = asinhc(torch.where(wide, 0.0, u), sign) * t
    return torch.where(wide, wide_arc(t, c, wide, _cosine(u, wide) if cosine is None else cosine(wide)), near)


def wide_arc(t: Tensor, c: Curvature, wide: Tensor, cosine: Tensor) -> Tensor:
    """The arc where the angle is wide, and some number elsewhere; ``t`` and ``cosine`` up to a common factor."""
    root = torch.where(wide, -c * torch.ones_like(t), 1.0).sqrt() if isinstance(c, Tensor) else math.sqrt(-c)
    return torch.atan2(root * t, cosine) / root


def _cosine(u: Tensor, wide: Tensor) -> Tensor:
    inside = wide & (u > -1)
    return torch.where(inside, torch.where(inside, 1 + u, 1.0).sqrt(), torch.where(wide, 0.0, 1.0).to(u.dtype))


def toward(direction: Tensor, length: Tensor, wide: Tensor, near: Tensor) -> Tensor:
    """``near``, and where the angle is wide the vector of this length and direction.

    Where no direction is left, at an antipode, to which every one leads, the first one is taken.
    """
    first = torch.cat([torch.ones_like(direction[..., :1]), torch.zeros_like(direction[..., 1:])], -1)
    lost = (direction == 0).all(-1, keepdim=True)
    return torch.where(wide, length * torch.where(lost, first, unit(torch.where(wide, direction, first))), near)
