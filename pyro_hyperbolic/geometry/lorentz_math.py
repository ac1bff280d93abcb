r"""The hyperboloid of curvature :math:`-c` as pure functions.

Points are ``(..., d + 1)`` with :math:`-x_0^2 + |x_s|^2 = -1/c`, :math:`x_0 > 0`; ``c > 0`` is a float, a 0-dim
tensor, or ``(..., 1)``: one curvature for each point. Coordinates grow like :math:`e^{\sqrt{c}\,r}`, so float32 holds
distances to :math:`87/\sqrt{c}` from the origin and float64 to :math:`708/\sqrt{c}`, where a ball of the same dtype
ends at 15 and 35. To use that range nothing here squares a coordinate that may be large, and hyperbolic functions are
those of half distances.

A point *is* its space part: :math:`x_0` is redundant and rounded on its own, so it is not read, and derivatives in it
are 0 (the time component of a vector is read where its components have no digits left). What is needed of it is
:math:`\gamma = \sqrt{c}\,x_0 = \sqrt{1 + c|x_s|^2}`, which is smooth in ``c``. So is everything that is computed
here, and derivatives in ``c`` keep their digits however small it is.

The formulas are those of the ball, with its gap known exactly: the ball point is :math:`b = x_s/(1 + \gamma)` and its
gap :math:`1 - c|b|^2 = 2/(1 + \gamma)` is not a difference any more. For normal coordinates :math:`v` at ``x``, with
:math:`t = \tanh(\sqrt{c}\,|v|/2)\,v/(\sqrt{c}\,|v|)`, :math:`s = b + t`, :math:`C = \cosh(\sqrt{c}\,|v|/2)`,

.. math:: y_s = 2 C^2 s + c\,q^2\, b, \qquad q^2 = |s|^2 (1 + \gamma)\, C^2 .
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.planes import needs_double, plane_sinh
from pyro_hyperbolic.geometry.poincare_math import gap, geodesic_weights, gyrate, per_point, projx
from pyro_hyperbolic.ops.checks import check_precision
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
from pyro_hyperbolic.ops.tolerances import eps

Curvature = float | Tensor

# A Minkowski product may lose this factor before its parts are taken one by one.
_CANCELLED = 2.0


def root(c: Curvature, like: Tensor) -> Curvature:
    """:math:`\\sqrt c` to the precision of ``like``: a root of a float32 curvature would spoil float64 points."""
    return c.to(like.dtype).sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def time(x: Tensor) -> Tensor:
    """:math:`x_0`, last dimension kept."""
    return x[..., :1]


def space(x: Tensor) -> Tensor:
    """:math:`x_s`."""
    check_precision(x)
    return x[..., 1:]


def minkowski(u: Tensor, v: Tensor) -> Tensor:
    """:math:`-u_0 v_0 + \\langle u_s, v_s \\rangle`."""
    return dot(space(u), space(v)) - dot(time(u), time(v))


def large_norm(v: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, which is kept, without overflow; derivative 0 at 0."""
    scale = _size(v)
    return scale * safe_norm(v / scale)


def cosh_of(v: Tensor, c: Curvature) -> Tensor:
    r""":math:`\sqrt{1 + c|v|^2}`, the hyperbolic cosine where the sine is :math:`\sqrt{c}\,|v|`; without overflow.

    It is smooth in the square, and so in ``c`` and ``v``.
    """
    scale = _size(v)
    return scale * (scale.reciprocal().square() + c * squared_norm(v / scale)).sqrt()


def _size(v: Tensor) -> Tensor:
    """A factor to take out of ``v`` so that its square does not overflow."""
    return v.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)


def gamma(x: Tensor, c: Curvature) -> Tensor:
    r""":math:`\gamma = \cosh(\sqrt{c}\,d(0, x))`, last dimension kept."""
    return cosh_of(space(x), c)


def lift(xs: Tensor, c: Curvature) -> Tensor:
    """The point with the given space part."""
    x0 = cosh_of(xs, c) / root(c, xs)
    return torch.cat([x0, xs.expand(x0.shape[:-1] + xs.shape[-1:])], -1)


def to_ball(x: Tensor, c: Curvature) -> Tensor:
    """The isometry to the Poincaré ball, whose points have the representable margin to its border."""
    return projx(space(x) / (1 + gamma(x, c)), c)


def from_ball(b: Tensor, c: Curvature) -> Tensor:
    """The isometry from the Poincaré ball."""
    return lift(2 * b / gap(b, c), c)


def from_normal_coords0(v: Tensor, c: Curvature) -> Tensor:
    check_precision(v)
    return lift(sinhc(c * squared_norm(v)) * v, c)


def to_normal_coords0(y: Tensor, c: Curvature) -> Tensor:
    length = large_norm(space(y))
    # asinh(t)/t at t = |y_s|: the series where t is small. Elsewhere t^2 may overflow, and so may the product of y and
    # the derivative of what comes next, which meet in the derivative of a factor of y: there it is the unit vector's.
    far = root(c, y) * length > 1
    near = asinhc(c * torch.where(far, 0.0, length).square())
    safe = torch.where(far, length, 1.0)
    return torch.where(far, scaled_asinh(safe, c) * (space(y) / safe), near * space(y))


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    g = gamma(x, c)
    b = space(x) / (1 + g)
    quarter = c * squared_norm(v) / 4
    half_cosh = cosh_sqrt(quarter)
    s = b + 0.5 * tanhc(quarter) * v
    q = safe_norm(s) * (1 + g).sqrt() * half_cosh
    return lift(2 * half_cosh * (half_cosh * s) + (c * q) * q * b, c)


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`v = \frac{\sqrt{c}\,d}{\tanh(\sqrt{c}\,d/2)}\,w` with

    .. math:: w = \frac{(b_y - b_x)(1 + \gamma_y)}{2\cosh^2} - \tanh^2 b_x

    and hyperbolic functions of :math:`\sqrt{c}\,d/2`. The length of ``w`` carries the rounding of directions, which
    grows with the distance from the origin; that of the result is the distance.
    """
    gx, gy = gamma(x, c), gamma(y, c)
    bx, by = space(x) / (1 + gx), space(y) / (1 + gy)
    t, far, square = half_chord(x, y, c)
    h = cosh_of(t, c)
    sinh = root(c, x) * torch.where(far, t, 1.0)
    tanh2 = torch.where(far, (sinh / h).square(), c * square / (h * h))
    w = (by - bx) * ((1 + gy) / 2 / h) / h - tanh2 * bx
    v = 2 * torch.where(far, torch.asinh(sinh) / (sinh / h), asinhc(c * square) * h) * w
    length = safe_norm(v)
    k = root(c, x)
    share = torch.where(length == 0, 1.0, 2 * torch.asinh(k * t) / k / torch.where(length == 0, 1.0, length))
    # 1 but for rounding, and in the derivatives.
    return share.detach() * v


def half_chord(x: Tensor, y: Tensor, c: Curvature) -> tuple[Tensor, Tensor, Tensor]:
    r""":math:`t = \sinh(\sqrt{c}\,d(x, y)/2)/\sqrt c`, where :math:`\sqrt{c}\,t > 1`, and :math:`t^2` where not.

    In polar coordinates, with :math:`c = 1`,

    .. math:: \sinh^2\frac d2 = \sinh^2\frac{a - b}{2} + \tfrac14\sinh a\,\sinh b\,|n_x - n_y|^2 ,

    which is exact however far both points are; near the origin, where directions are lost, it is the chord of the
    ball, :math:`|b_x - b_y|\sqrt{(1 + \gamma_x)(1 + \gamma_y)}/2`. Either way it is the length of a vector, so that its
    square has all derivatives where the points coincide; those of the length are taken as 0 there.
    """
    k = root(c, x)
    rx, ry = large_norm(space(x)), large_norm(space(y))
    gx, gy = gamma(x, c), gamma(y, c)
    polar = k * torch.minimum(rx, ry) > 1
    # Safe in the branch not taken too: a far point is divided by its own length even if the other is near.
    sx, sy = (k * rx).clamp(min=1.0), (k * ry).clamp(min=1.0)
    factor = torch.where(polar, 0.5 * sx.sqrt() * sy.sqrt(), ((1 + gx) / 2).sqrt() * ((1 + gy) / 2).sqrt())
    across = factor * (space(x) / torch.where(polar, sx, 1 + gx) - space(y) / torch.where(polar, sy, 1 + gy))
    along = torch.where(polar, _along(sx, sy, gx, gy) / k, 0.0)
    # Not as one vector of both, which would be a tensor of its own.
    scale = torch.maximum(_size(across), along.detach().abs())
    square = squared_norm(across / scale) + (along / scale).square()
    zero = square == 0
    t = scale * square.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
    far = k * t > 1
    return t, far, squared_norm(torch.where(far, 0.0, across)) + torch.where(far, 0.0, along).square()


def _along(sa: Tensor, sb: Tensor, ca: Tensor, cb: Tensor) -> Tensor:
    r""":math:`\sinh\frac{a - b}{2} = (\sinh a - \sinh b) \big/ 2\cosh\frac{a + b}{2}` of sines and cosines.

    Products of two of them may overflow.
    """
    over = 1 + (sa / ca) * (sb / cb) + 1 / ca / cb
    return (sa - sb) / ((2 * ca).sqrt() * cb.sqrt() * over.sqrt())


def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return 2 * scaled_asinh(half_chord(x, y, c)[0], c).squeeze(-1)


def dist0(x: Tensor, c: Curvature) -> Tensor:
    return scaled_asinh(large_norm(space(x)), c).squeeze(-1)


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """As :func:`half_chord`, for all pairs; the chords and angles come without an O(N M d) tensor."""
    k = root(c, x)
    rx, ry = large_norm(space(x)), large_norm(space(y))
    gx, gy = gamma(x, c), gamma(y, c)
    chord = pairwise_norm(space(x) / (1 + gx), space(y) / (1 + gy)) * ((1 + gx) / 2).sqrt() * ((1 + gy) / 2).sqrt().mT
    sx, sy = (k * rx).clamp(min=1.0), (k * ry).clamp(min=1.0)
    across = 0.5 * sx.sqrt() * sy.sqrt().mT * pairwise_norm(space(x) / sx, space(y) / sy)
    along = _along(sx, sy.mT, gx, gy.mT) / k
    # hypot has no derivative at 0, where the points coincide; it is taken as 0.
    zero = (across == 0) & (along == 0)
    far = torch.where(zero, 0.0, torch.hypot(torch.where(zero, 1.0, across), along))
    return 2 * scaled_asinh(torch.where((k * rx > 1) & (k * ry > 1).mT, far, chord), c)


def frame(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    """The tangent vector at ``x`` with components ``v`` in the frame carried from the origin."""
    along = dot(space(x), v).unsqueeze(-1)
    turned = v + c * along * (space(x) / (1 + gamma(x, c)))
    return torch.cat([(root(c, x) * along).expand(turned[..., :1].shape), turned], -1)


def coframe(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""Components of the tangent vector ``u`` at ``x`` in that frame, the inverse of :func:`frame`.

    :math:`u_s - c\langle b, u_s\rangle \frac{1 + \gamma}{\gamma}\, b`: the time component is redundant here too.
    """
    g = gamma(x, c)
    b = space(x) / (1 + g)
    return space(u) - c * dot(b, space(u)).unsqueeze(-1) * ((1 + g) / g) * b


def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r""":math:`v + \frac{c\langle y, v\rangle_L}{1 - c\langle x, y\rangle_L}(x + y)`.

    The denominator is :math:`2\cosh^2(\sqrt{c}\,d/2)`. The numerator cancels by a factor of
    :math:`\gamma_x\gamma_y/\cosh^2`: there the components are carried, by :math:`\operatorname{gyr}[y, \ominus x]`.
    Where it does not, the way from ``x`` to ``y`` leads past the origin, and the vector as it stands has more digits
    than its components. So it has where these have none; near points there cannot be told apart, and it stays as it is.
    """
    gx, gy = gamma(x, c), gamma(y, c)
    bx, by = space(x) / (1 + gx), space(y) / (1 + gy)
    t, far, _ = half_chord(x, y, c)
    h = cosh_of(t, c)
    lost = gx * eps(x.dtype) > 1
    past = far & (lost | ((gx / h) * (gy / h) < _CANCELLED))
    # Divided by y_0, so that it does not overflow.
    product = dot(root(c, y) * space(y) / gy, space(v)).unsqueeze(-1) - time(v)
    straight = v + 0.5 * root(c, x) * product * torch.where(past, gy / h, 0.0) / h * (x + y)
    whole = past | lost
    components = torch.where(whole, 0.0, coframe(x, v, c))
    carried = frame(y, gyrate(by, 2 / (1 + gy), -bx, 2 / (1 + gx), components, c), c)
    return torch.where(whole, straight, carried)


def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """The line between the two points of Minkowski space, weighted as on the ball, and back on the sheet."""
    s, far, square = half_chord(x, y, c)
    apart = scaled_asinh(torch.where(far, s, 1.0), c)
    distance = 4 * torch.where(far, apart.square(), square * asinhc(c * square).square())
    start, end = geodesic_weights(t, c * distance)
    return lift(start * space(x) + end * space(y), c)


def proju(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """:math:`u + c\\langle x, u\\rangle_L\\, x`, the part of ``u`` that is orthogonal to ``x``."""
    return u + c * minkowski(x, u).unsqueeze(-1) * x


def antipode(x: Tensor) -> Tensor:
    return torch.cat([time(x), -space(x)], -1)


def mobius_coadd(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""Twice the midpoint, :math:`(x + y) / 2\cosh(\sqrt{c}\,d(x, y)/2)`."""
    midpoint = (x + y) / (2 * cosh_of(half_chord(x, y, c)[0], c))
    return from_normal_coords0(2 * to_normal_coords0(midpoint, c), c)


def gyration(a: Tensor, b: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The ball's formula, with its gaps known exactly; a rotation of the space part."""
    ga, gb = gamma(a, c), gamma(b, c)
    turned = gyrate(space(a) / (1 + ga), 2 / (1 + ga), space(b) / (1 + gb), 2 / (1 + gb), space(u), c)
    return torch.cat([time(u).expand(turned[..., :1].shape), turned], -1)


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r"""Distance of ``x`` to the plane through ``p`` with normal ``a``, a tangent vector there.

    The components of ``a`` are taken, except where ``p`` is so far that these have no digits and ``x`` is near the
    origin: there it is :math:`\langle x, a\rangle_L/|a|`, in which nothing cancels and no derivative overflows.
    A normal of length 0 has distance 0 from everything.
    """
    if x.shape[:-1] != p.shape[:-1]:
        # The components, too, to the precision that the distance is computed in.
        wide = torch.float64 if needs_double(x, p) else x.dtype
        p64, c64 = p.to(wide), c.to(wide) if isinstance(c, Tensor) else c
        return dist2plane0(x, p64, coframe(p64, a.to(wide), c64), c, signed)
    gx, gp = gamma(x, c), gamma(p, c)
    near = (gx < _CANCELLED) & (gp * eps(p.dtype) > 1)
    normal = coframe(p, a, c)
    length = large_norm(normal)
    product = dot(space(a), space(x)).unsqueeze(-1) - time(a) * gx / root(c, x)
    # What the first form cannot hold does not enter it.
    far_x, far_p, far_normal = (torch.where(near, 0.0, t) for t in (x, p, normal))
    apart = _plane_sinh(far_x, far_p, far_normal, torch.where(near, 1.0, gx), torch.where(near, 1.0, gp), c)
    t = torch.where(near, product / torch.where(length == 0, 1.0, length), apart.unsqueeze(-1))
    return _signed(scaled_asinh(t.squeeze(-1), per_point(c)), signed)


def dist2plane0(x: Tensor, p: Tensor, normal: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    """The same for the normal with these components in the frame carried from the origin."""
    dtype, curvature = x.dtype, per_point(c)
    if needs_double(x, p):
        x, p, normal = x.double(), p.double(), normal.double()
        c = c.double() if isinstance(c, Tensor) else c
    t = _plane_sinh(x, p, normal, gamma(x, c), gamma(p, c), c, dtype)
    return _signed(scaled_asinh(t, curvature), signed)


def _plane_sinh(
    x: Tensor, p: Tensor, normal: Tensor, gx: Tensor, gp: Tensor, c: Curvature, dtype: torch.dtype | None = None
) -> Tensor:
    points = space(x) / (1 + gx), (1 + gx) / 2, space(p) / (1 + gp), (1 + gp) / 2
    return plane_sinh(*points, normal, c, dtype or x.dtype)


def _signed(distance: Tensor, signed: bool) -> Tensor:
    return distance if signed else distance.abs()
