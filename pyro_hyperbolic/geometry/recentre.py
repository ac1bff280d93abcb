"""Normal coordinates at one point from those at the origin, without the point itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.ops.special import asinhc, cosh_sqrt, squared_norm, tanhc

# Beyond this value of c|v|^2, a distance of 20 in units of the radius of curvature, cosh is an exponential.
_FAR = 400.0


def recentre(m: Tensor, v: Tensor, c: float | Tensor) -> Tensor:
    r"""The normal coordinates, at the point with coordinates ``m`` at the origin, of the one with coordinates ``v``.

    .. math:: w = \lambda_x \log_x(z), \qquad x = \exp_0(m/2), \quad z = \exp_0(v/2)

    in the orthonormal frame carried from the origin to ``x``; they are the same in every chart. With the points of the
    ball :math:`x, z` and :math:`g_x = 1 - c|x|^2 = \cosh^{-2}(\sqrt c\,|m|/2)`,

    .. math::

        w = \frac{2}{\sqrt c} \operatorname{asinh}\left(\frac{\sqrt c\,|z - x|}{\sqrt{g_x g_z}}\right)
            \frac{g_x (z - x) - c|z - x|^2 x}{|z - x| \sqrt{c|z - x|^2 + g_x g_z}} .

    The gaps come from ``m`` and ``v`` and not from rounded coordinates, so ``z`` may lie beyond what the
    coordinates of either chart can hold: :math:`|w|` goes on growing with :math:`|v|`.

    :param m: normal coordinates at the origin of the new centre, ``(..., d)``.
    :param v: those of the point.
    :param c: minus the curvature, a number or ``(..., 1)``.

    >>> recentre(torch.tensor([1.0, 0.0]), torch.tensor([300.0, 0.0]), 1.0).norm()
    tensor(299.0001)
    """
    mm, vv = c * squared_norm(m), c * squared_norm(v)
    far = (mm > _FAR) | (vv > _FAR)
    near = _near(torch.where(far, 0.0, m), torch.where(far, 0.0, v), c)
    return torch.where(far, _far(m, v, c, far), near)


def _near(m: Tensor, v: Tensor, c: float | Tensor) -> Tensor:
    square, numerator = _steps(m, v, c)
    heights = cosh_sqrt(c * squared_norm(m) / 4) * cosh_sqrt(c * squared_norm(v) / 4)  # of the product of gaps, ^-1/2
    length = asinhc(c * square * heights * heights) * heights
    return 2 * length * numerator / (c * square + heights**-2).sqrt()


def _far(m: Tensor, v: Tensor, c: float | Tensor, far: Tensor) -> Tensor:
    m, v = torch.where(far, m, 0.0), torch.where(far, v, 1.0)
    square, numerator = _steps(m, v, c)
    # Two points that the ball cannot tell apart: their numerator is 0, and the rest has to be finite.
    scaled = torch.where((c * square > 0) & far, c * square, 1.0)
    log_heights = _log_cosh_half(c * squared_norm(m)) + _log_cosh_half(c * squared_norm(v))
    exponent = 0.5 * scaled.log() + log_heights
    large = exponent > 20
    angle = torch.where(large, exponent + math.log(2), torch.asinh(torch.where(large, 0.0, exponent).exp()))
    return 2 * angle * numerator / (scaled * (scaled + (-2 * log_heights).exp())).sqrt()


def _steps(m: Tensor, v: Tensor, c: float | Tensor) -> tuple[Tensor, Tensor]:
    """On the ball: the squared distance of centre and point, and the direction of the result."""
    x, z = (u * (0.5 * tanhc(c * squared_norm(u) / 4)) for u in (m, v))
    step = z - x
    square = squared_norm(step)
    gap = (-2 * _log_cosh_half(c * squared_norm(m))).exp()
    return square, gap * step - c * square * x


def _log_cosh_half(u: Tensor) -> Tensor:
    r""":math:`\log\cosh(\sqrt u/2)`."""
    zero = u == 0
    x = torch.where(zero, 1.0, u).sqrt()
    return torch.where(zero, 0.0, 0.5 * x + torch.log1p((-x).exp()) - math.log(2))
