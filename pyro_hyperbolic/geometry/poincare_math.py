r"""The Poincaré ball of curvature :math:`-c` as pure functions.

Points and tangent vectors are ``(..., d)``; ``c >= 0`` is a float, a 0-dim tensor, or ``(..., 1)``: one curvature for
each point, as a factor of its coordinates. Every formula is arranged so that nothing cancels: sums of opposite points
enter as :math:`s = x + y`, computed first, and the gaps :math:`1 - c|x|^2` as such. With
:math:`\alpha = 1 - c|x|^2`, :math:`\beta = 1 - c|y|^2`,

.. math::

    x \oplus y = \frac{\alpha s + c|s|^2 x}{\alpha\beta + c|s|^2}, \qquad
    1 - c|x \oplus y|^2 = \frac{\alpha\beta}{\alpha\beta + c|s|^2}.

All is smooth in ``c`` at 0, where the ball is the Euclidean space with metric :math:`4\,dz^2`.
Functions that produce a point return one whose gap is at least the representable margin
(:func:`pyro_hyperbolic.ops.tolerances.border_margin`); a point that has it is never moved.
A point outside the ball gives ``nan``, not a number that looks right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.special import (
    asinhc,
    dot,
    safe_norm,
    scaled_asinh,
    squared_norm,
    tanhc,
    unit,
)
from pyro_hyperbolic.ops.tolerances import border_margin

Curvature = float | Tensor


def gap(x: Tensor, c: Curvature) -> Tensor:
    """:math:`1 - c|x|^2`, last dimension kept: positive inside, ``nan`` on the border and outside."""
    return torch.threshold(1 - c * squared_norm(x), 0.0, torch.nan)


def projx(x: Tensor, c: Curvature) -> Tensor:
    """The nearest point with the representable margin to the border; ``x`` itself if it has it."""
    excess = c * squared_norm(x) / (1 - border_margin(x.dtype))
    # A square that overflows must not pass for the origin.
    return x * torch.threshold(excess.clamp(min=1).rsqrt(), 0.0, torch.nan)


def mobius_add(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    s = x + y
    cs2 = c * squared_norm(s)
    alpha, beta = gap(x, c), gap(y, c)
    return projx((alpha * s + cs2 * x) / (alpha * beta + cs2), c)


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
    return expmap0(torch.einsum("...od,...d->...o", m, logmap0(x, c)), c)


def gyration(a: Tensor, b: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r""":math:`\ominus(a \oplus b) \oplus (a \oplus (b \oplus u))`, a rotation, in closed form."""
    s = a + b
    cs2 = c * squared_norm(s)
    alpha, beta = gap(a, c), gap(b, c)
    su = dot(s, u).unsqueeze(-1)
    bu = dot(b, u).unsqueeze(-1)
    along_a = beta * su + cs2 * bu
    along_s = alpha * bu - su
    return u + 2 * c * (along_a * a + along_s * s) / (alpha * beta + cs2)


def lambda_x(x: Tensor, c: Curvature) -> Tensor:
    return 2 / gap(x, c).squeeze(-1)


def inner(x: Tensor, u: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return lambda_x(x, c) ** 2 * dot(u, v)


def norm(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    return lambda_x(x, c) * safe_norm(u).squeeze(-1)


def expmap0(v: Tensor, c: Curvature) -> Tensor:
    # As in projx: the factor is 0 only where the square overflows.
    return projx(torch.threshold(tanhc(c * squared_norm(v)), 0.0, torch.nan) * v, c)


def logmap0(y: Tensor, c: Curvature) -> Tensor:
    beta = gap(y, c)
    return asinhc(c * squared_norm(y) / beta) * y * beta.rsqrt()


def expmap(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return mobius_add(x, expmap0(v / gap(x, c), c), c)


def logmap(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return gap(x, c) * _half_log(x, y, c)


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    r""":math:`\exp_x(v / \lambda_x)`: the point at distance :math:`|v|` from ``x`` in direction ``v``."""
    return mobius_add(x, expmap0(v / 2, c), c)


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`\lambda_x \log_x(y)`, the inverse of :func:`from_normal_coords`."""
    return 2 * _half_log(x, y, c)


def _half_log(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`\log_0(\ominus x \oplus y)`, whose length is half the distance."""
    s = y - x
    s2 = squared_norm(s)
    alpha, beta = gap(x, c), gap(y, c)
    u = c * s2 / (alpha * beta)
    return asinhc(u) * (1 + u).rsqrt() * (alpha * s - c * s2 * x) / (alpha * beta)


def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    r""":math:`\tfrac{2}{\sqrt c}\operatorname{asinh}(\sqrt{c}\,|x-y| / \sqrt{\alpha\beta})`."""
    chord = safe_norm(x - y) * (gap(x, c) * gap(y, c)).rsqrt()
    return 2 * scaled_asinh(chord, c).squeeze(-1)


def dist0(x: Tensor, c: Curvature) -> Tensor:
    return 2 * scaled_asinh(safe_norm(x) * gap(x, c).rsqrt(), c).squeeze(-1)


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    """All distances between ``(..., N, d)`` and ``(..., M, d)`` as ``(..., N, M)``, O(N M) memory.

    ``c`` is a number for all pairs, or ``(..., 1, 1)``. The chords are taken from differences; from
    :math:`|x|^2 + |y|^2 - 2xy` all pairs near the border would be lost.
    """
    chord = pairwise_norm(x, y) * gap(x, c).rsqrt() * gap(y, c).rsqrt().transpose(-1, -2)
    return 2 * scaled_asinh(chord, c)


def transp(x: Tensor, y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return gap(y, c) / gap(x, c) * gyration(y, -x, v, c)


def transp0(y: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return gap(y, c) * v


def transp0back(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    return u / gap(x, c)


def egrad2rgrad(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    r""":math:`u / \lambda_x^2`."""
    return (0.5 * gap(x, c)).square() * u


def geodesic(t: float | Tensor, x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return expmap(x, as_factor(t) * logmap(x, y, c), c)


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r"""Distance of ``x`` to the gyroplane through ``p`` with normal ``a``.

    .. math::

        d = \tfrac{1}{\sqrt c}\operatorname{asinh}\left(\sqrt{c}\, t\right), \qquad
        t = \frac{\langle x, w\rangle - b\,(1 + c|x|^2)}{1 - c|x|^2}, \qquad
        b = \frac{2\langle p, \hat a\rangle}{1 - c|p|^2}, \qquad w = 2 \hat a + 2 c\, b\, p

    with :math:`\hat a = a/|a|`: the Möbius sum and its denominator of the usual form cancel,
    and one product of ``d + 1`` columns remains (the Minkowski product of the hyperboloid).
    A plane with ``a = 0`` has distance 0 from everything.
    """
    direction = unit(a)
    b = 2 * dot(p, direction).unsqueeze(-1) / gap(p, c)
    beta = gap(x, c)
    plane = torch.cat([2 * direction + 2 * c * b * p, -b], -1)
    point = torch.cat([x / beta, (2 - beta) / beta], -1)
    out = scaled_asinh(dot(point, plane), per_point(c))
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
