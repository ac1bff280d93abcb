r"""The stereographic chart of curvature :math:`-c` as pure functions: the Poincaré ball, and its twin for ``c < 0``.

Points and tangent vectors are ``(..., d)``; ``c`` is a float, a 0-dim tensor, or ``(..., 1)``: one curvature for
each point, as a factor of its coordinates. Formulas are arranged so that nothing cancels but what the coordinates
decide: the gap :math:`1 - c|x|^2`, and the sum :math:`s = x + y` of opposite points, which is computed first. These two
carry the rounding of the coordinates; everything else is a product, a quotient or a sum of terms that are no larger
than the result, up to a small factor. The exception is a step through the origin (:func:`from_normal_coords` with a
``v`` longer than twice the way to it): its end is as uncertain as its direction, times the growth of the space. With
:math:`\alpha = 1 - c|x|^2`, :math:`\beta = 1 - c|y|^2`,

.. math::

    x \oplus y = \frac{\alpha s + c|s|^2 x}{\alpha\beta + c|s|^2}, \qquad
    1 - c|x \oplus y|^2 = \frac{\alpha\beta}{\alpha\beta + c|s|^2}.

All is smooth in ``c`` at 0, where the ball is the Euclidean space with metric :math:`4\,dz^2`.
Functions that produce a point return one whose gap is at least the representable margin
(:func:`pyro_hyperbolic.ops.tolerances.border_margin`); a point that has it is never moved.
A point outside the ball gives ``nan``, not a number that looks right.

Every formula is analytic in ``c`` through 0 and serves both signs. For ``c < 0`` the chart is all of space, the sphere
of radius :math:`1/\sqrt{-c}` without the antipode of the origin. ``sign``, that of :mod:`pyro_hyperbolic.ops.special`,
leads the special functions to their circular twins, and wide angles to :mod:`~pyro_hyperbolic.geometry.arcs`.
Functions without it are rational in ``c``. :func:`geodesic` is the ball's alone: its weights, a quotient of sines for
``c < 0``, are lost towards antipodes, and the way by normal coordinates is not.

For ``c < 0`` the denominator :math:`\alpha\beta + c|s|^2` is a difference, of which nothing is left where
:math:`x \oplus y` comes near to the antipode of the origin. It is a sum of two squares instead,

.. math:: \alpha\beta + c|s|^2 = (1 + c\langle x, y\rangle)^2 + c^2|x \wedge y|^2 ,

and a step of normal coordinates has the sine and the cosine of half its length in the place of their quotient, which
has poles. The antipode is the other end of the chart: with the margin ``m`` of the border, the gap of a point that is
made is at most :math:`1/m^2`, so that none is made nearer to the antipode than :math:`2m/\sqrt{-c}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.arcs import arc, is_wide, narrow, toward, wide_arc
from pyro_hyperbolic.geometry.planes import needs_double, plane_sinh
from pyro_hyperbolic.ops.checks import check_precision
from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.products import einsum
from pyro_hyperbolic.ops.special import (
    asinhc,
    cosh_sqrt,
    dot,
    log_sinhc,
    safe_norm,
    sinhc,
    squared_norm,
    tanhc,
    unit,
)
from pyro_hyperbolic.ops.tolerances import border_margin

Curvature = float | Tensor


def gap(x: Tensor, c: Curvature) -> Tensor:
    """:math:`1 - c|x|^2`, last dimension kept: positive inside, ``nan`` on the border and outside."""
    check_precision(x)
    return _inside(c * squared_norm(x))


def _inside(square: Tensor) -> Tensor:
    """The gap of a point with this :math:`c|x|^2`."""
    return torch.threshold(1 - square, 0.0, torch.nan)


def projx(x: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    """The nearest point with the representable margin to the border, or to the antipode; ``x`` itself if it has it."""
    check_precision(x)
    square, margin = c * squared_norm(x), border_margin(x.dtype)
    excess = square / (1 - margin)
    if sign <= 0:
        far = -(margin * margin) * square
        excess = far if sign < 0 else torch.maximum(excess, far)
    # A square that overflows must not pass for the origin.
    return x * torch.threshold(excess.clamp(min=1).rsqrt(), 0.0, torch.nan)


def mobius_add(x: Tensor, y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    return _by_sign(c, sign, lambda c: _open_sum(x, y, c), lambda c: _closed_sum(x, y, 1.0, c))


def _by_sign(
    c: Curvature, sign: int, at_least_0: Callable[[Curvature], Tensor], at_most_0: Callable[[Curvature], Tensor]
) -> Tensor:
    """One of two functions of the curvature by its sign; each sees only what it can take, 0 in the other's place."""
    if sign != 0:
        return at_least_0(c) if sign > 0 else at_most_0(c)
    c = torch.as_tensor(c)
    return torch.where(c < 0, at_most_0(c.clamp(max=0)), at_least_0(c.clamp(min=0)))


def _open_sum(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """:math:`x \\oplus y` for ``c >= 0``."""
    s = x + y
    cs2 = c * squared_norm(s)
    alpha, beta = gap(x, c), gap(y, c)
    return projx((alpha * s + cs2 * x) / (alpha * beta + cs2), c)


def _closed_sum(x: Tensor, y: Tensor, h: float | Tensor, c: Curvature) -> Tensor:
    r""":math:`x \oplus y/h` for ``c <= 0``, where ``h`` may be 0.

    Of the two forms of the numerator, :math:`\alpha s + c|s|^2x` with the sum and
    :math:`(1 + 2c\langle x, y\rangle + c|y|^2)x + \alpha y` with the terms, that with the smaller vectors is taken: a
    large ``x`` cancels in the first, a small ``s`` is lost in the second.
    """
    s = h * x + y
    along, ss, yy = (x * y).sum(-1, keepdim=True), squared_norm(s), squared_norm(y)
    alpha, beta = gap(x, c), h * h - c * yy
    by_sum = alpha * h * s + c * ss * x
    by_terms = (h * h + 2 * c * h * along + c * yy) * x + alpha * h * y
    numerator = torch.where(yy < ss, by_terms, by_sum)
    denominator = (h + c * along).square() + (c * _wedge(x, y)).square()
    margin = border_margin(x.dtype)
    lost = denominator < margin * margin * alpha * beta
    point = numerator / torch.where(lost, 1.0, denominator)
    far = torch.where(lost, -c * torch.ones_like(alpha), 1.0).rsqrt() / margin
    # What is left of the numerator there is rounding: a direction as good as any, without a derivative.
    return projx(toward(numerator.detach(), far, lost, point), c, -1)


def _wedge(x: Tensor, y: Tensor) -> Tensor:
    r""":math:`|x \wedge y|`, the area between two vectors, last dimension kept."""
    direction = unit(x)
    return safe_norm(x) * safe_norm(y - (direction * y).sum(-1, keepdim=True) * direction)


def mobius_coadd(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`x \boxplus y = (\beta x + \alpha y) / (\alpha + \beta - \alpha\beta)`.

    The numerator is :math:`\tfrac12((\alpha + \beta) s + c\langle e, s\rangle e)` with :math:`e = x - y`.
    """
    s, e = x + y, x - y
    alpha, beta = gap(x, c), gap(y, c)
    total = alpha + beta
    return projx(0.5 * (total * s + c * dot(e, s).unsqueeze(-1) * e) / (total - alpha * beta), c)


def mobius_scalar_mul(t: float | Tensor, x: Tensor, c: Curvature) -> Tensor:
    return expmap0(as_factor(t) * logmap0(x, c), c)


def mobius_matvec(m: Tensor, x: Tensor, c: Curvature) -> Tensor:
    return expmap0(einsum("...od,...d->...o", m, logmap0(x, c)), c)


def gyration(a: Tensor, b: Tensor, u: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    r""":math:`\ominus(a \oplus b) \oplus (a \oplus (b \oplus u))`, a rotation, in closed form."""
    return _by_sign(c, sign, lambda c: gyrate(a, gap(a, c), b, gap(b, c), u, c), lambda c: _turn(a, b, u, c))


def _turn(a: Tensor, b: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r"""The same for ``c <= 0``, by half of its angle; the identity where there is none, :math:`a \oplus b` an antipode.

    .. math:: u + 2\,\frac{pJu + J^2u}{p^2 + c^2|a \wedge b|^2}, \qquad
              p = 1 + c\langle a, b\rangle, \quad Ju = c\,(\langle b, u\rangle a - \langle a, u\rangle b)
    """

    def half(u: Tensor) -> Tensor:
        return c * (dot(b, u).unsqueeze(-1) * a - dot(a, u).unsqueeze(-1) * b)

    p = 1 + c * dot(a, b).unsqueeze(-1)
    denominator = p.square() + (c * _wedge(a, b)).square()
    lost = denominator < border_margin(u.dtype) ** 2 * gap(a, c) * gap(b, c)
    first = half(u)
    return torch.where(lost, u, u + 2 * (p * first + half(first)) / torch.where(lost, 1.0, denominator))


def gyrate(a: Tensor, alpha: Tensor, b: Tensor, beta: Tensor, u: Tensor, c: Curvature) -> Tensor:
    """The same for points whose gaps are known."""
    s = a + b
    cs2 = c * squared_norm(s)
    su = dot(s, u).unsqueeze(-1)
    bu = dot(b, u).unsqueeze(-1)
    along_a = beta * su + cs2 * bu
    along_s = alpha * bu - su
    denominator = alpha * beta + cs2
    # Opposite points so far out that the product of their gaps underflows: the rotation is the identity.
    return u + 2 * c * (along_a * a + along_s * s) / torch.where(denominator == 0, 1.0, denominator)


def lambda_x(x: Tensor, c: Curvature) -> Tensor:
    return 2 / gap(x, c).squeeze(-1)


def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return lambda_x(x, c) ** 2 * dot(u, v)


def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    return lambda_x(x, c) * safe_norm(u).squeeze(-1)


def expmap0(v: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    check_precision(v)
    square = c * squared_norm(v)
    if sign > 0:
        # The hyperbolic tangent is the length of the point: bounded, it needs no projx. As there, the factor is 0 only
        # where the square overflows.
        factor = tanhc(square, most=math.sqrt(1 - border_margin(v.dtype)))
        return torch.threshold(factor, 0.0, torch.nan) * v
    factor = tanhc(square, sign)
    return projx(torch.where(factor == 0, torch.nan, factor) * v, c, sign)


def logmap0(y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    check_precision(y)
    square = c * squared_norm(y)
    beta = _inside(square)
    u = square / beta
    near = asinhc(narrow(u, sign), sign) * y * beta.rsqrt()
    if sign > 0:
        return near
    wide = is_wide(u)
    length = safe_norm(y)
    return toward(y, wide_arc(length, c, wide, torch.ones_like(length)), wide, near)


def expmap(x: Tensor, v: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    return from_normal_coords(x, 2 * v / gap(x, c), c, sign)


def logmap(x: Tensor, y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    return gap(x, c) * _half_log(x, y, c, sign)


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    r""":math:`\exp_x(v / \lambda_x)`: the point at distance :math:`|v|` from ``x`` in direction ``v``."""
    return _by_sign(c, sign, lambda c: _open_sum(x, expmap0(v / 2, c), c), lambda c: _closed_step(x, v / 2, c))


def _closed_step(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    u = c * squared_norm(v)
    return _closed_sum(x, sinhc(u, -1) * v, cosh_sqrt(u, -1), c)


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    r""":math:`\lambda_x \log_x(y)`, the inverse of :func:`from_normal_coords`; at antipodes the first direction."""
    return 2 * _half_log(x, y, c, sign)


def _half_log(x: Tensor, y: Tensor, c: Curvature, sign: int) -> Tensor:
    r""":math:`\log_0(\ominus x \oplus y)`, whose length is half the distance."""
    s = y - x
    s2 = squared_norm(s)
    alpha, beta = gap(x, c), gap(y, c)
    gaps = alpha * beta
    u = c * s2 / gaps
    direction = alpha * s - c * s2 * x
    if sign <= 0:
        # As in _closed_sum; for c >= 0 the first form is the better one, however long the terms are.
        yy = squared_norm(y)
        by_terms = alpha * y - (1 - 2 * c * dot(x, y).unsqueeze(-1) + c * yy) * x
        direction = torch.where((yy < s2) & (u < 0), by_terms, direction)
    small = narrow(u, sign)
    near = asinhc(small, sign) * (1 + small).rsqrt() * direction / gaps
    if sign > 0:
        return near
    wide = is_wide(u)
    return toward(direction, wide_arc(safe_norm(s), c, wide, _cochord(x, y, c, wide)), wide, near)


def dist(x: Tensor, y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    r""":math:`\tfrac{2}{\sqrt c}\operatorname{asinh}(\sqrt{c}\,|x-y| / \sqrt{\alpha\beta})`."""
    scale = (gap(x, c) * gap(y, c)).rsqrt()
    half = arc(safe_norm(x - y) * scale, c, sign, lambda wide: _cochord(x, y, c, wide) * scale)
    return 2 * half.squeeze(-1)


def _cochord(x: Tensor, y: Tensor, c: Curvature, wide: Tensor) -> Tensor:
    r""":math:`\sqrt{\alpha\beta + c|x - y|^2}` where the angle is wide, by a sum of two squares; 1 elsewhere.

    .. math:: \alpha\beta + c|x - y|^2 = (1 - c\langle x, y\rangle)^2 + c^2|x \wedge y|^2
    """
    return torch.where(wide, safe_norm(torch.cat([1 - c * dot(x, y).unsqueeze(-1), c * _wedge(x, y)], -1)), 1.0)


def dist0(x: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    scale = gap(x, c).rsqrt()
    return 2 * arc(safe_norm(x) * scale, c, sign, lambda wide: scale).squeeze(-1)


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    """All distances between ``(..., N, d)`` and ``(..., M, d)`` as ``(..., N, M)``, O(N M) memory.

    ``c`` is a number for all pairs, or ``(..., 1, 1)``. The chords are taken from differences; from
    :math:`|x|^2 + |y|^2 - 2xy` all pairs near the border would be lost. For ``c < 0`` pairs near antipodes have half of
    the digits.
    """
    chord = pairwise_norm(x, y) * gap(x, c).rsqrt() * gap(y, c).rsqrt().transpose(-1, -2)
    return 2 * arc(chord, c, sign)


def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature, sign: int = 1) -> Tensor:
    return gap(y, c) / gap(x, c) * gyration(y, -x, v, c, sign)


def transp0(y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return gap(y, c) * v


def transp0back(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    return u / gap(x, c)


def egrad2rgrad(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r""":math:`u / \lambda_x^2`."""
    return (0.5 * gap(x, c)).square() * u


def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r"""The point at time ``t`` between ``x`` (0) and ``y`` (1).

    .. math::

        \frac{w_0 \beta x + w_1 \alpha y}{w_0 \beta + w_1 \alpha + \frac12 \alpha\beta (1 - w_0 - w_1)}, \qquad
        w_0 = \frac{\sinh((1 - t)\theta)}{\sinh\theta}, \quad w_1 = \frac{\sinh(t\theta)}{\sinh\theta}, \quad
        \theta = \sqrt{c}\,d(x, y):

    the line between the two points of the hyperboloid. All terms are positive for :math:`0 \le t \le 1`, and both ends
    are exact.
    """
    alpha, beta = gap(x, c), gap(y, c)
    u = c * squared_norm(x - y) / (alpha * beta)
    start, end = geodesic_weights(as_factor(t), 4 * u * asinhc(u).square())
    middle = 0.5 * alpha * beta * (1 - start - end)
    return projx((start * beta * x + end * alpha * y) / (middle + start * beta + end * alpha), c)


def geodesic_weights(t: float | Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\sinh((1-t)\theta)/\sinh\theta` and :math:`\sinh(t\theta)/\sinh\theta` for a given :math:`\theta^2`."""
    t = t.to(square.dtype) if isinstance(t, Tensor) else t
    whole = log_sinhc(square)
    start, end = (s * torch.exp(log_sinhc(s * s * square) - whole) for s in (1 - t, t))
    return start, end


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True, sign: int = 1) -> Tensor:
    r"""Distance of ``x`` to the gyroplane through ``p`` with normal ``a``, by :mod:`~pyro_hyperbolic.geometry.planes`.

    A plane with ``a = 0`` has distance 0 from everything. For ``c < 0`` it is a great sphere, and the derivative at the
    two points farthest from it is taken as 0.
    """
    dtype, curvature = x.dtype, per_point(c)
    if needs_double(x, p):
        x, p, a = x.double(), p.double(), a.double()
        c = c.double() if isinstance(c, Tensor) else c
    out = arc(plane_sinh(x, 1 / gap(x, c), p, 1 / gap(p, c), a, c, dtype), curvature, sign)
    return out if signed else out.abs()


def per_point(c: Curvature) -> Curvature:
    """The curvature as a factor of numbers, of which there is one for each point."""
    return c.squeeze(-1) if isinstance(c, Tensor) and c.dim() > 0 else c


def contains(x: Tensor, c: Curvature) -> Tensor:
    return (gap(x, c) > 0).squeeze(-1)


def log_volume_element(x: Tensor, c: Curvature) -> Tensor:
    r""":math:`d \log\lambda_x`: log-density of the Riemannian volume in ball coordinates."""
    return x.shape[-1] * torch.log(lambda_x(x, c))


def as_factor(t: float | Tensor) -> float | Tensor:
    """A number per point as a factor of its coordinates."""
    return t.unsqueeze(-1) if isinstance(t, Tensor) else t
