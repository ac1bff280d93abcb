"""Every tolerance of the package, as named multiples of the machine epsilon."""

from __future__ import annotations

import math

import torch

# 1 - c|x|^2 of a computed point carries a rounding error of one to three eps (coordinates, squares,
# their sum, the product with c). Eight eps keep a point inside whichever way the sum is ordered.
_BORDER_MARGIN = 8.0

# x_0 and |x_s| of a point of the hyperboloid are rounded independently of each other, each after a few operations.
_HYPERBOLOID = 64.0

# |x|^2 of a point of the sphere is a sum of rounded squares, after as few operations.
_SPHERE = 64.0

# The angle to the antipode comes out of a logarithm map, and is pi to a few roundings.
_ANTIPODE = 8.0

# A distance that comes from a matrix product, as torch.cdist makes it, is the root of a difference of squares.
_METRIC = 64.0

# What is the same point, or the same curvature, comes out of a few operations in either of two dtypes.
_AGREEMENT = 64.0


def eps(dtype: torch.dtype) -> float:
    """Machine epsilon of ``dtype``."""
    return torch.finfo(dtype).eps


def border_margin(dtype: torch.dtype) -> float:
    """Smallest value of :math:`1 - c|x|^2` that a point computed in ``dtype`` may have."""
    return _BORDER_MARGIN * eps(dtype)


def border_distance(dtype: torch.dtype) -> float:
    r"""Largest :math:`\sqrt{c}\, d(0, x)` of a ball point in ``dtype``: 15.2 in float32, 35.3 in float64.

    With :math:`1 - c|x|^2 = m` it is :math:`2 \operatorname{artanh}\sqrt{1 - m} \approx \log(4/m)`.
    """
    return math.log(4.0 / border_margin(dtype))


def hyperboloid_tolerance(dtype: torch.dtype) -> float:
    """Largest relative error of :math:`x_0` at which a point counts as one of the hyperboloid."""
    return _HYPERBOLOID * eps(dtype)


def sphere_tolerance(dtype: torch.dtype) -> float:
    """Largest relative error of :math:`|x|^2` at which a point counts as one of the sphere."""
    return _SPHERE * eps(dtype)


def antipode_tolerance(dtype: torch.dtype) -> float:
    """Largest angle to the antipode at which a point counts as the antipode."""
    return _ANTIPODE * eps(dtype)


def metric_tolerance(dtype: torch.dtype) -> float:
    """Largest asymmetry and diagonal of a matrix of distances, in units of its largest entry; 0 for integers."""
    return math.sqrt(_METRIC * eps(dtype)) if dtype.is_floating_point else 0.0


def agreement_tolerance(dtype: torch.dtype) -> float:
    """Largest relative difference of numbers that count as the same if one of them was rounded to ``dtype``."""
    return _AGREEMENT * eps(dtype)
