r"""The monotone map from the length of white noise to the radius of the Riemannian normal.

The length :math:`\rho` of ``d`` white-noise numbers has the distribution of the radius at curvature zero. With the
quantile :math:`y(z, q)` of the scaled radius at the normal score ``z`` (:mod:`pyro_hyperbolic.ops.radial`),

.. math:: y = y\big(\Phi^{-1}(F_{\chi_d}(\rho)),\; q\big), \qquad q = c\sigma^2,

is the identity at :math:`q = 0` and smooth through :math:`\rho = 0`, where both densities grow like the same power.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.ops import radial
from pyro_hyperbolic.ops.tables import SCORE_MAX

_BISECTIONS = 60


def stretch(rho: Tensor, q: Tensor, dim: int) -> Tensor:
    r""":math:`y/\rho`; ``rho`` and ``q`` of one shape."""
    if dim == 1:
        return torch.ones_like(rho) + 0 * q  # the half-normal for every q; nan where q is
    low, high = ends(dim)
    y = radial.quantile(score(rho.clamp(low, high), dim), q, dim)
    # Beyond the table a power of the length below, a shift of it above.
    return y / rho.clamp(min=low) + (rho - high).clamp(min=0) / rho.clamp(min=high)


@torch.no_grad()
def length_of_noise(y: Tensor, q: Tensor, dim: int) -> Tensor:
    r"""The :math:`\rho` of a scaled radius ``y``, by bisection; no derivatives."""
    # Curvature moves mass outwards only.
    return invert(lambda rho: rho * stretch(rho, q, dim), y, low=torch.zeros_like(y), high=y)


def invert(function: Callable[[Tensor], Tensor], y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """The argument of an increasing function between two bounds, by bisection."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        below = function(middle) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return (low + high) / 2


def score(rho: Tensor, dim: int) -> Tensor:
    r""":math:`\Phi^{-1}(F_{\chi_d}(\rho))`, each tail from its own side."""
    half = rho.double().square() / 2
    a = torch.full_like(half, dim / 2)
    lower, upper = torch.special.gammainc(a, half), torch.special.gammaincc(a, half)
    left = lower < 0.5
    score = torch.special.ndtri(torch.where(left, lower, upper))
    return torch.where(left, score, -score).to(rho.dtype)


@functools.cache
def ends(dim: int) -> tuple[float, float]:
    """The lengths at the ends of the table of quantiles."""
    z = torch.tensor([-SCORE_MAX, SCORE_MAX], dtype=torch.float64, device="cpu")
    low, high = radial.quantile(z, torch.zeros_like(z), dim).tolist()
    return low, high
