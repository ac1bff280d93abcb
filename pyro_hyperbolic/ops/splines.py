r"""Monotone rational-quadratic splines of the unit interval onto itself.

Durkan et al., *Neural spline flows* (2019). A number is given with its gap, :math:`1 - x`, and so is the result. Each
is exact to its own relative precision, so that nothing is lost at either end: an angle next to :math:`\pi` keeps its
distance from there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_LEAST = 1e-3  # of a bin, in units of one of equal bins, and of a slope
_UNIT_SLOPE = math.log(math.expm1(1.0))  # whose softplus is 1


class Spline(NamedTuple):
    """The bins' widths and heights ``(..., K)``, each of sum 1, and numbers ``(..., K + 1)`` for slopes at the knots.

    Any number gives a slope, and 0 the slope 1.
    """

    widths: Tensor
    heights: Tensor
    knots: Tensor


def shares(raw: Tensor) -> Tensor:
    """Positive numbers of sum 1 from any ``(..., K)``; equal ones from zeros."""
    return _LEAST / raw.shape[-1] + (1 - _LEAST) * raw.softmax(-1)


def _slope(raw: Tensor) -> Tensor:
    return _LEAST + (1 - _LEAST) * F.softplus(raw + _UNIT_SLOPE)


def monotone(x: Tensor, gap: Tensor, spline: Spline, inverse: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    r"""Value, gap of the value and logarithm of the slope of a spline, or of its inverse.

    In a bin of width ``w``, height ``h`` and slopes :math:`d_0, d_1`, with :math:`s = h/w` and
    :math:`t \in [0, 1]` the place in the bin, the value grows by

    .. math:: h\,\frac{s t^2 + d_0 t(1-t)}{s + (d_0 + d_1 - 2s)\,t(1-t)} .

    :param x: numbers of the unit interval, ``(...)``.
    :param gap: :math:`1 - x`.
    :param spline: of batch shape ``(...)``.
    :param inverse: whether ``x`` is a value, whose argument is looked for; the slope is that of the spline there.

    >>> flat = Spline(torch.tensor([0.5, 0.5]), torch.tensor([0.2, 0.8]), torch.zeros(3))
    >>> y, rest, _ = monotone(torch.tensor(0.5), torch.tensor(0.5), flat)
    >>> y, rest, monotone(y, rest, flat, inverse=True)[0]
    (tensor(0.2000), tensor(0.8000), tensor(0.5000))
    """
    w, h, knots = spline
    own, other = (h, w) if inverse else (w, h)
    bins = torch.arange(w.shape[-1], device=x.device)
    index = (x.unsqueeze(-1) >= own.detach().cumsum(-1)).sum(-1, keepdim=True).clamp(max=len(bins) - 1)
    here, below, above = bins == index, bins < index, bins > index

    # Nothing is below the first bin and above the last one, whatever the rounding. Sums, and not a look at a place:
    # the compiler makes one kernel of all of them, and of their derivatives.
    def total(of: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, of, 0.0).sum(-1)

    w, h = total(w, here), total(h, here)
    d0, d1 = _slope(total(knots[..., :-1], here)), _slope(total(knots[..., 1:], here))
    s = h / w
    bend = d0 + d1 - 2 * s
    low, high = (x - total(own, below)).clamp(min=0), (gap - total(own, above)).clamp(min=0)
    if inverse:
        first, last = h * d0 - low * bend, h * d1 - high * bend
        root = (first.square() + 4 * s * low * (h * (s - d0) + low * bend)).clamp(min=torch.finfo(x.dtype).tiny).sqrt()
        t, rest = 2 * s * low / (first + root), 2 * s * high / (last + root)
        y, y_gap = w * t, w * rest
    else:
        t, rest = low / w, high / w
    across = t * rest
    bottom = s + bend * across
    if not inverse:
        y, y_gap = h * (s * t * t + d0 * across) / bottom, h * (s * rest * rest + d1 * across) / bottom
    log_slope = 2 * (s / bottom).log() + (d1 * t * t + 2 * s * across + d0 * rest * rest).log()
    return total(other, below) + y, total(other, above) + y_gap, log_slope
