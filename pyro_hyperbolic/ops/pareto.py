"""Importance weights whose tail is smoothed by a generalised Pareto distribution."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Of Zhang and Stephens: how many values of b are tried beside the root of the length, and how far they spread.
_FEWEST, _SPREAD = 30, 3.0
# The shape is drawn towards 1/2, as if so many more of the tail had that one.
_PRIOR, _PRIOR_COUNT = 0.5, 10.0
_EQUAL = 1e-3  # differences of weights, in units of the greatest, that are no tail

FEWEST_WEIGHTS = 25
"""So many weights at least have a tail that can be fitted, of five."""


def pareto_smoothed(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    r"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry, *JMLR* 25, 2024).

    A generalised Pareto distribution is fitted to the :math:`M = \lceil\min(S/5, 3\sqrt S)\rceil` greatest of ``S``
    weights, less the next one (Zhang and Stephens, *Technometrics* 51, 2009). Its quantiles take their place, but none
    is let above the greatest weight. The shape ``k`` tells what weights are good for: moments of an order below
    :math:`1/k` exist, and where ``k`` is above :math:`\min(1 - 1/\log_{10} S, 0.7)`, averages with them are not to be
    relied on.

    :param log_weights: ``(S, ...)``, up to a constant for each of the other places.
    :returns: the smoothed ones ``(S, ...)``, the greatest of which is about 0, and ``k`` ``(...)``, both in float64.
        Where the weights of the tail are equal to a thousandth ``k`` is 0, for they differ by rounding or by nothing
        that matters; where most of them vanish beside the greatest, infinite.

    >>> log_weights = -0.5 * torch.linspace(0.0005, 0.9995, 1000).log()  # P(w > t) = t**-2
    >>> smoothed, k = pareto_smoothed(log_weights)
    >>> round(k.item(), 2)
    0.5
    """
    count = len(log_weights)
    if count < FEWEST_WEIGHTS:
        raise ValueError(f"log_weights must be at least {FEWEST_WEIGHTS} in the first dimension, got {count}.")
    size = math.ceil(min(count / 5, 3 * math.sqrt(count)))
    values, order = (log_weights.double() - log_weights.double().amax(0)).sort(0)
    body, tail = values[:-size], values[-size:]
    cutoff = body[-1].exp()
    excess = tail.exp() - cutoff
    k, scale = _fitted(excess)
    share = (torch.arange(size, dtype=k.dtype, device=k.device) + 0.5).div(size).reshape(-1, *[1] * k.dim())
    smooth = (cutoff + scale * torch.expm1(-k * torch.log1p(-share)) / k).log().clamp(max=0.0)
    known = k.isfinite()
    smoothed = torch.empty_like(values).scatter(0, order, torch.cat([body, torch.where(known, smooth, tail)]))
    return smoothed, torch.where(excess[-1] <= _EQUAL, 0.0, torch.where(known, k, torch.inf * excess[-1]))


def _fitted(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Shape and scale of the generalised Pareto distribution of sorted values ``(M, ...)``; not finite without a fit.

    Up to a weak prior the profile likelihood of b = -k / scale is averaged over a grid of it.
    """
    count = len(excess)
    points = _FEWEST + int(math.sqrt(count))
    quartile, most = excess[int(count / 4 + 0.5) - 1], excess[-1]
    grid = 1 - (points / (torch.arange(1, points + 1, dtype=excess.dtype, device=excess.device) - 0.5)).sqrt()
    b = 1 / most + grid.reshape(-1, *[1] * most.dim()) / (_SPREAD * quartile)
    k = torch.log1p(-b.unsqueeze(1) * excess).mean(1)
    likelihood = count * ((-b / k).log() - k - 1)
    mean = (likelihood.softmax(0) * b).sum(0)
    k = torch.log1p(-mean * excess).mean(0)
    return (count * k + _PRIOR_COUNT * _PRIOR) / (count + _PRIOR_COUNT), -k / mean
