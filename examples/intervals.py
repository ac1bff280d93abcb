"""Means with their confidence intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float | None]:
    """The mean, and the half width of its interval by Student's t, which is ``None`` for a single value.

    >>> mean, half = mean_interval([1.0, 2.0, 3.0])
    >>> print(f"{mean:.1f} ± {half:.2f}")
    2.0 ± 2.48
    """
    count = len(values)
    if count == 0:
        raise ValueError("values must not be empty.")
    mean = sum(values) / count
    if count == 1:
        return mean, None
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean, _quantile(count - 1, level) * deviation / math.sqrt(count)


@functools.cache
def _quantile(freedom: int, level: float) -> float:
    """Within which Student's t has the mass ``level``."""
    # With t = sqrt(n) tan(x), Student's t of n degrees of freedom has the density cos(x)^(n-1), up to a factor.
    angles = torch.linspace(0, math.pi / 2, 100_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angles.cos() ** (freedom - 1), angles)
    return math.sqrt(freedom) * math.tan(angles[1 + torch.searchsorted(mass, level * mass[-1])])
