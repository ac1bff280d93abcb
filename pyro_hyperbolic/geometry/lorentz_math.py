r"""The hyperboloid of curvature :math:`-c` as pure functions.

Points are ``(..., d + 1)`` with :math:`-x_0^2 + |x_s|^2 = -1/c`, :math:`x_0 > 0`; ``c > 0`` is a float, a 0-dim
tensor, or ``(..., 1)``: one curvature for each point. Coordinates grow like :math:`e^{\sqrt{c}\,r}`, so float32 holds
distances to :math:`87/\sqrt{c}` from the origin and float64 to :math:`708/\sqrt{c}`, where a ball of the same dtype
ends at 15 and 35. To use that range nothing here squares a coordinate: lengths are taken of :math:`x_s / x_0`, and
hyperbolic functions of half distances.

The formulas are those of the ball, with its gap known exactly. In units of :math:`1/\sqrt c` the ball point is
:math:`b = x_s/(1 + x_0)` and its gap :math:`1 - |b|^2 = 2/(1 + x_0)` is no difference any more. For normal coordinates
:math:`v` at ``x``, with :math:`t = \tanh(|v|/2)\,v/|v|`, :math:`s = b + t`, :math:`C = \cosh(|v|/2)`,

.. math:: y_0 = 1 + p^2, \qquad y_s = 2 C^2 s + p^2 b, \qquad p^2 = |s|^2 (1 + x_0)\, C^2 .
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.poincare_math import gap, per_point, projx
from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.special import (
    asinhc,
    cosh_sqrt,
    dot,
    safe_norm,
    scaled_asinh,
    sinhc,
    squared_norm,
    tanhc,
)

Curvature = float | Tensor


def root(c: Curvature, like: Tensor) -> Curvature:
    """:math:`\\sqrt c` to the precision of ``like``: a root of a float32 curvature would spoil float64 points."""
    return c.to(like.dtype).sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def time(x: Tensor) -> Tensor:
    """:math:`x_0`, last dimension kept."""
    return x[..., :1]


def space(x: Tensor) -> Tensor:
    """:math:`x_s`."""
    return x[..., 1:]


def space_norm(x: Tensor) -> Tensor:
    """:math:`|x_s|`, last dimension kept, without overflow."""
    scale = time(x).detach()
    return scale * safe_norm(space(x) / scale)


def minkowski(u: Tensor, v: Tensor) -> Tensor:
    """:math:`-u_0 v_0 + \\langle u_s, v_s \\rangle`, a matrix product where the two broadcast."""
    return dot(torch.cat([-time(u), space(u)], -1), v)


def lift(xs: Tensor, c: Curvature) -> Tensor:
    """The point with the given space part."""
    inverse = 1 / root(c, xs)
    scale = xs.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
    length = scale * safe_norm(xs / scale)
    x0 = torch.hypot(length, inverse * torch.ones_like(length))
    return torch.cat([x0, xs.expand(x0.shape[:-1] + xs.shape[-1:])], -1)


def to_ball(x: Tensor, c: Curvature) -> Tensor:
    """The isometry to the Poincaré ball, whose points have the representable margin to its border."""
    return projx(space(x) / (1 + root(c, x) * time(x)), c)


def from_ball(b: Tensor, c: Curvature) -> Tensor:
    """The isometry from the Poincaré ball."""
    alpha = gap(b, c)
    return torch.cat([(2 / alpha - 1) / root(c, b), 2 * b / alpha], -1)


def from_normal_coords0(v: Tensor, c: Curvature) -> Tensor:
    u = c * squared_norm(v)
    return torch.cat([cosh_sqrt(u) / root(c, v), sinhc(u) * v], -1)


def to_normal_coords0(y: Tensor, c: Curvature) -> Tensor:
    length = space_norm(y)
    # asinh(t)/t at t = |y_s|: the series where t is small. Elsewhere t^2 may overflow, and so may the product of y and
    # the derivative of what comes next, which meet in the derivative of a factor of y: there it is the unit vector's.
    far = root(c, y) * length > 1
    near = asinhc(c * torch.where(far, 0.0, length).square())
    safe = torch.where(far, length, 1.0)
    return torch.where(far, scaled_asinh(safe, c) * (space(y) / safe), near * space(y))


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    k = root(c, x)
    x0, b = k * time(x), k * space(x) / (1 + k * time(x))
    quarter = c * squared_norm(v) / 4
    half_cosh = cosh_sqrt(quarter)
    s = b + 0.5 * k * tanhc(quarter) * v
    p = safe_norm(s) * (1 + x0).sqrt() * half_cosh
    p2 = p * p
    return torch.cat([1 + p2, 2 * half_cosh * (half_cosh * s) + p2 * b], -1) / k


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    k = root(c, x)
    x0, y0 = k * time(x), k * time(y)
    bx, by = k * space(x) / (1 + x0), k * space(y) / (1 + y0)
    t = half_sinh(x, y, c)
    h = torch.hypot(t, torch.ones_like(t))
    tanh = t / h
    w = (by - bx) * ((1 + y0) / 2 / h) / h - tanh * tanh * bx
    # |w| = tanh(d/2), so the factor is d / tanh(d/2).
    far = t > 1
    near = asinhc(torch.where(far, 0.0, t).square()) * h
    ratio = torch.where(far, torch.asinh(t) / torch.where(far, tanh, 1.0), near)
    return 2 * ratio * w / k


def half_sinh(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`\sinh(\sqrt{c}\,d(x, y)/2)`, last dimension kept.

    In polar coordinates

    .. math:: \sinh^2\frac d2 = \sinh^2\frac{a - b}{2} + \tfrac14\sinh a\,\sinh b\,|n_x - n_y|^2 ,

    which is exact however far both points are; near the origin, where directions are lost, it is the chord of the
    ball, :math:`|b_x - b_y|\sqrt{(1 + x_0)(1 + y_0)}/2`.
    """
    k = root(c, x)
    x0, y0 = k * time(x), k * time(y)
    rx, ry = k * space_norm(x), k * space_norm(y)
    chord = safe_norm(k * space(x) / (1 + x0) - k * space(y) / (1 + y0))
    near = chord * (1 + x0).sqrt() * (1 + y0).sqrt() / 2
    polar = torch.minimum(rx, ry) > 1
    # Safe in the branch not taken too: a far point is divided by its own length even if the other is near.
    sx, sy = rx.clamp(min=1.0), ry.clamp(min=1.0)
    angle = safe_norm(k * space(x) / sx - k * space(y) / sy)
    return torch.where(polar, _polar(torch.asinh(sx), torch.asinh(sy), sx, sy, angle), near)


def _polar(a: Tensor, b: Tensor, sinh_a: Tensor, sinh_b: Tensor, angle: Tensor) -> Tensor:
    across = 0.5 * sinh_a.sqrt() * sinh_b.sqrt() * angle
    along = torch.sinh((a - b) / 2)
    # hypot has no derivative at 0, where the points coincide; it is taken as 0.
    zero = (across == 0) & (along == 0)
    return torch.where(zero, 0.0, torch.hypot(torch.where(zero, 1.0, across), along))


def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return (2 * torch.asinh(half_sinh(x, y, c)) / root(c, x)).squeeze(-1)


def dist0(x: Tensor, c: Curvature) -> Tensor:
    return scaled_asinh(space_norm(x), c).squeeze(-1)


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """As :func:`half_sinh`, for all pairs; the chords and angles come without an O(N M d) tensor."""
    k = root(c, x)
    x0, y0 = k * time(x), k * time(y)
    chord = pairwise_norm(k * space(x) / (1 + x0), k * space(y) / (1 + y0))
    near = chord * (1 + x0).sqrt() * (1 + y0).sqrt().mT / 2
    rx, ry = k * space_norm(x), k * space_norm(y)
    sx, sy = rx.clamp(min=1.0), ry.clamp(min=1.0)
    angle = pairwise_norm(k * space(x) / sx, k * space(y) / sy)
    far = _polar(torch.asinh(sx), torch.asinh(sy).mT, sx, sy.mT, angle)
    return 2 * torch.asinh(torch.where((rx > 1) & (ry > 1).mT, far, near)) / k


def frame(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """The tangent vector at ``x`` with components ``v`` in the frame carried from the origin."""
    k = root(c, x)
    along = k * dot(space(x), v).unsqueeze(-1)
    return torch.cat([along, v + along * (k * space(x) / (1 + k * time(x)))], -1)


def coframe(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """Components of the tangent vector ``u`` at ``x`` in that frame, the inverse of :func:`frame`."""
    k = root(c, x)
    return space(u) - time(u) * (k * space(x) / (1 + k * time(x)))


def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r""":math:`v + \frac{c\langle y, v\rangle_L}{1 - c\langle x, y\rangle_L}(x + y)`.

    The denominator is :math:`2\cosh^2(\sqrt{c}\,d/2)`, and the numerator is divided by :math:`y_0` so that it does not
    overflow. Where the points are close it cancels; there the quotient is taken from :math:`\log_x(y)`.
    """
    t = half_sinh(x, y, c)
    h = torch.hypot(t, torch.ones_like(t))
    far = t > 1
    product = minkowski(y / time(y), v).unsqueeze(-1)
    apart = 0.5 * c * product * torch.where(far, time(y) / h, 0.0) / h
    towards = to_normal_coords(x, y, c)
    close = 0.5 * c * tanhc(c * squared_norm(towards) / 4) * dot(towards, coframe(x, v, c)).unsqueeze(-1)
    return v + torch.where(far, apart, close) * (x + y)


def proju(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """:math:`u + c\\langle x, u\\rangle_L\\, x`, the part of ``u`` that is orthogonal to ``x``."""
    return u + c * minkowski(x, u).unsqueeze(-1) * x


def antipode(x: Tensor) -> Tensor:
    return torch.cat([time(x), -space(x)], -1)


def mobius_coadd(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Twice the midpoint, :math:`(x + y) / 2\cosh(\sqrt{c}\,d(x, y)/2)`."""
    t = half_sinh(x, y, c)
    midpoint = (x + y) / (2 * torch.hypot(t, torch.ones_like(t)))
    return from_normal_coords0(2 * to_normal_coords0(midpoint, c), c)


def gyration(a: Tensor, b: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The ball's formula, with its gaps known exactly; a rotation of the space part."""
    k = root(c, a)
    alpha, beta = 2 / (1 + k * time(a)), 2 / (1 + k * time(b))
    a, b = 0.5 * alpha * k * space(a), 0.5 * beta * k * space(b)
    s = a + b
    s2 = squared_norm(s)
    denominator = alpha * beta + s2
    su = dot(s, space(u)).unsqueeze(-1)
    bu = dot(b, space(u)).unsqueeze(-1)
    turned = (beta * su + s2 * bu) * a + (alpha * bu - su) * s
    # Opposite points so far out that the product of their gaps underflows: the rotation is the identity.
    turned = 2 * turned / torch.where(denominator == 0, 1.0, denominator)
    return torch.cat([time(u).expand(turned[..., :1].shape), space(u) + turned], -1)


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r""":math:`\tfrac{1}{\sqrt c}\operatorname{asinh}(\sqrt{c}\,\langle x, a\rangle_L / |a|_p)`: one Minkowski product.

    The length of ``a`` is taken of its components in the frame at ``p``: its Minkowski square is a difference of
    large numbers when ``p`` is far. A normal of length 0 has distance 0 from everything.
    """
    length = safe_norm(coframe(p, a, c))
    out = scaled_asinh(minkowski(a / torch.where(length == 0, 1.0, length), x), per_point(c))
    return out if signed else out.abs()
