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
    """The bins' widths and heights ``(..., 2, K)``, each of sum 1, and the slopes at the knots ``(..., K + 1)``."""

    sizes: Tensor
    slopes: Tensor


def shares(raw: Tensor) -> Tensor:
    """Positive numbers of sum 1 from any ``(..., K)``; equal ones from zeros."""
    return _LEAST / raw.shape[-1] + (1 - _LEAST) * raw.softmax(-1)


def slopes(raw: Tensor) -> Tensor:
    """Positive numbers from any; 1 from 0."""
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

    >>> flat = Spline(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.ones(3))
    >>> y, rest, _ = monotone(torch.tensor(0.5), torch.tensor(0.5), flat)
    >>> y, rest, monotone(y, rest, flat, inverse=True)[0]
    (tensor(0.2000), tensor(0.8000), tensor(0.5000))
    """
    batch = torch.broadcast_shapes(x.shape, spline.sizes.shape[:-2], spline.slopes.shape[:-1])
    x, gap = x.expand(batch), gap.expand(batch)
    sizes, ends = spline.sizes.expand(batch + spline.sizes.shape[-2:]), spline.slopes.expand(batch + (-1,))
    sizes = sizes.flip(-2) if inverse else sizes
    knots = sizes.cumsum(-1)[..., :-1]
    index = (x.unsqueeze(-1) >= knots[..., 0, :]).sum(-1)
    # What is below a bin and above it: nothing below the first and above the last one, whatever the rounding. All is
    # looked up at once, for on a GPU each look and its derivative are kernels.
    outside = [F.pad(knots, (1, 0)), F.pad(1 - knots, (0, 1))]
    table = torch.cat([*outside, sizes, torch.stack([ends[..., :-1], ends[..., 1:]], -2)], -2)
    found = table.gather(-1, index[..., None, None].expand(batch + (table.shape[-2], 1))).squeeze(-1)
    below_x, below_y, above_x, above_y, size_x, size_y, d0, d1 = found.unbind(-1)
    w, h = (size_y, size_x) if inverse else (size_x, size_y)
    s = h / w
    bend = d0 + d1 - 2 * s
    low, high = (x - below_x).clamp(min=0), (gap - above_x).clamp(min=0)
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
    return below_y + y, above_y + y_gap, log_slope
