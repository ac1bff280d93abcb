r"""Differences of gamma functions of large arguments, which cancel as written.

With Stirling's formula and its remainder,
:math:`\log\Gamma(z) = (z - \tfrac12)\log z - z + \tfrac12\log 2\pi + s(z)`,

.. math::

    \log\Gamma(a + b) - \log\Gamma(a) - b\log a
    = (a + b - \tfrac12)\,l(b/a) + (b - \tfrac12)\,b/a + s(a + b) - s(a), \qquad l(u) = \log(1 + u) - u .

For large :math:`a` every term is of the size of the result, :math:`b(b - 1)/2a`, and so are their derivatives.
Arguments are float64.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from pyro_hyperbolic.ops.special import bernoulli

SMALL = 0.1
"""Largest argument of :func:`log1p_less`."""

# From here on eight terms of the asymptotic series reach the rounding error.
_FAR = 10
_B = bernoulli(17)
# In powers of 1/z^2: s(z) = sum of B_2k / (2k (2k - 1) z^(2k - 1)), and its slope.
_STIRLING = [float(_B[2 * k] / (2 * k * (2 * k - 1))) for k in range(1, 9)]
_STIRLING_SLOPE = [float(-_B[2 * k] / (2 * k)) for k in range(1, 9)]
# Of (artanh(y) - y) / y^3 in powers of y^2, where y^2 <= 1/441.
_ARTANH = [float(Fraction(1, 2 * k + 3)) for k in range(7)]


def log_gamma_ratio(a: Tensor, b: Tensor | float) -> Tensor:
    r""":math:`\log\Gamma(a + b) - \log\Gamma(a) - b \log a` for :math:`a > 0`, :math:`b \ge 0`."""
    u = b / a
    small = u < SMALL
    near = torch.where(small, u, 0.0)
    series = (a + b - 0.5) * log1p_less(near) + (b - 0.5) * near
    direct = (a + b - 0.5) * torch.log1p(u) - b
    return torch.where(small, series, direct) + stirling(a + b) - stirling(a)


def digamma_difference(a: Tensor, b: Tensor | float) -> Tensor:
    r""":math:`\psi(a + b) - \psi(a)` for :math:`a > 0`, :math:`b \ge 0`."""
    u = b / a
    return torch.log1p(u) + 0.5 * u / (a + b) + stirling_slope(a + b) - stirling_slope(a)


def log1p_less(u: Tensor) -> Tensor:
    r""":math:`\log(1 + u) - u` for :math:`0 \le u \le` :data:`SMALL`, to full relative precision."""
    # log(1 + u) is 2 artanh(y), and 2 y - u = -u y.
    y = u / (2 + u)
    return 2 * y * y * y * _series(_ARTANH, y * y) - u * y


def stirling(z: Tensor) -> Tensor:
    """The remainder ``s(z)`` of Stirling's formula, for ``z > 0``."""
    near, inverse = z.clamp(max=_FAR), 1 / z.clamp(min=_FAR)
    direct = torch.lgamma(near) - (near - 0.5) * near.log() + near - 0.5 * math.log(2 * math.pi)
    return torch.where(z > _FAR, inverse * _series(_STIRLING, inverse * inverse), direct)


def stirling_slope(z: Tensor) -> Tensor:
    r"""Its derivative, :math:`\psi(z) - \log z + 1/2z`."""
    near, inverse = z.clamp(max=_FAR), 1 / z.clamp(min=_FAR)
    square = inverse * inverse
    direct = torch.digamma(near) - near.log() + 0.5 / near
    return torch.where(z > _FAR, square * _series(_STIRLING_SLOPE, square), direct)


def _series(coefficients: list[float], x: Tensor) -> Tensor:
    out = coefficients[-2] + coefficients[-1] * x
    for a in reversed(coefficients[:-2]):
        out = out * x + a
    return out
