r"""The stereographic chart for a curvature :math:`-c` of either sign, as pure functions.

The ball's formulae (:mod:`~pyro_hyperbolic.geometry.poincare_math`) are analytic in ``c`` through 0, and what has no
special function in it serves as it is. Here is the rest. For ``c < 0`` the chart is all of space, the sphere of radius
:math:`1/\sqrt{-c}` without the antipode of the origin. Beyond a right angle, where an arc sine would lose half of the
digits, angles come from

.. math:: \tan\frac\theta2 = \frac{\sqrt{-c}\,|y - x|}{\sqrt{q}}, \qquad
          q = (1 - c\langle x, y\rangle)^2 + c^2(|x|^2|y|^2 - \langle x, y\rangle^2) .

``sign`` is that of :mod:`pyro_hyperbolic.ops.special`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import poincare_math as pm
from pyro_hyperbolic.geometry.planes import needs_double, plane_sinh
from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.special import asinhc, dot, safe_norm, squared_norm, tanhc, unit

Curvature = float | Tensor

# Where u = c|x - y|^2 / (gaps) = -sin^2 of half the angle is below it, the angle is more than a right one.
_WIDE = -0.5


def expmap0(v: Tensor, c: Curvature, sign: int) -> Tensor:
    return pm.projx(tanhc(c * squared_norm(v), sign) * v, c)


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature, sign: int) -> Tensor:
    return pm.mobius_add(x, expmap0(v / 2, c, sign), c)


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature, sign: int) -> Tensor:
    """At antipodes, where every direction leads, the first one is taken."""
    s = y - x
    s2 = squared_norm(s)
    gaps = pm.gap(x, c) * pm.gap(y, c)
    u = c * s2 / gaps
    wide = u < _WIDE
    q = torch.where(wide, 1.0, gaps + c * s2)
    direction = pm.gap(x, c) * s - c * s2 * x
    near = 2 * asinhc(torch.where(wide, 0.0, u), sign) * direction * (gaps * q).rsqrt()
    first = torch.cat([torch.ones_like(s[..., :1]), torch.zeros_like(s[..., 1:])], -1)
    lost = (direction == 0).all(-1, keepdim=True)
    far = torch.where(lost, first, unit(torch.where(wide, direction, first)))
    return torch.where(wide, _wide_distance(x, y, c, wide) * far, near)


def dist(x: Tensor, y: Tensor, c: Curvature, sign: int) -> Tensor:
    gaps = pm.gap(x, c) * pm.gap(y, c)
    s = safe_norm(x - y)
    u = c * s * s / gaps
    wide = u < _WIDE
    near = 2 * asinhc(torch.where(wide, 0.0, u), sign) * s * gaps.rsqrt()
    return torch.where(wide, _wide_distance(x, y, c, wide), near).squeeze(-1)


def _wide_distance(x: Tensor, y: Tensor, c: Curvature, wide: Tensor) -> Tensor:
    """Where the angle is more than a right one; a number elsewhere."""
    xy = dot(x, y).unsqueeze(-1)
    across = y - xy * x / torch.where(wide & (x != 0).any(-1, keepdim=True), squared_norm(x), 1.0)
    q = torch.cat([1 - c * xy, c * safe_norm(x) * safe_norm(across)], -1)
    root = _root(-c * torch.ones_like(xy), wide)
    return 2 * torch.atan2(root * safe_norm(x - y), torch.where(wide, safe_norm(q), 1.0)) / root


def _root(k: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, k, 1.0).sqrt()


def dist0(x: Tensor, c: Curvature, sign: int) -> Tensor:
    length, beta = safe_norm(x), pm.gap(x, c)
    u = c * length * length / beta
    wide = u < _WIDE
    near = 2 * asinhc(torch.where(wide, 0.0, u), sign) * length * beta.rsqrt()
    root = _root(-c * torch.ones_like(length), wide)
    return torch.where(wide, 2 * torch.atan(root * length) / root, near).squeeze(-1)


def to_normal_coords0(y: Tensor, c: Curvature, sign: int) -> Tensor:
    length = safe_norm(y)
    zero = length == 0
    ratio = dist0(y, c, sign).unsqueeze(-1) / torch.where(zero, 1.0, length)
    return torch.where(zero, 2.0, ratio) * y


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature, sign: int) -> Tensor:
    """As :func:`dist`, by an arc sine: near antipodes to half of the digits."""
    chord = pairwise_norm(x, y) * pm.gap(x, c).rsqrt() * pm.gap(y, c).rsqrt().mT
    u = c * chord * chord
    wide = u < _WIDE
    near = 2 * asinhc(torch.where(wide, 0.0, u), sign) * chord
    root = _root(-c * torch.ones_like(u), wide)
    rest = torch.where(wide, 1 + u, 1.0)
    # At the antipode itself the derivative is taken as 0.
    cosine = torch.where(rest > 0, rest, 1.0).sqrt()
    angle = torch.where(rest > 0, torch.atan2(root * chord, cosine), math.pi / 2)
    return torch.where(wide, 2 * angle / root, near)


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, sign: int, signed: bool = True) -> Tensor:
    """At the points farthest from a plane that is a great sphere the derivative is taken as 0."""
    dtype, curvature = x.dtype, pm.per_point(c)
    if needs_double(x, p):
        x, p, a = x.double(), p.double(), a.double()
        c = c.double() if isinstance(c, Tensor) else c
    t = plane_sinh(x, 1 / pm.gap(x, c), p, 1 / pm.gap(p, c), unit(a), c, dtype)
    u = curvature * t * t
    end = u <= -1
    root = _root(-curvature * torch.ones_like(t), end)
    out = torch.where(end, 0.5 * math.pi / root * t.sign(), asinhc(torch.where(end, 0.0, u), sign) * t)
    return out if signed else out.abs()
