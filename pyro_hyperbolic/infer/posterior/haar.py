r"""The mean of :math:`e^{\kappa \operatorname{tr} Q}` over the orthogonal matrices, or the rotations among them.

The eigenvalues of ``Q`` are pairs :math:`e^{\pm i\theta_j}` and, as the determinant and the dimension demand, 1 and -1.
With :math:`x_j = \cos\theta_j` Weyl's integration formula is

.. math:: \int \prod_{i<j} (x_i - x_j)^2 \prod_j e^{2 \kappa x_j} w(x_j)\,dx_j = l! \prod_{k<l} h_k

with :math:`w = (1-x)^{\pm 1/2} (1+x)^{\pm 1/2}`, whose signs say which of 1 and -1 are there, and the squared norms
:math:`h_k` of the orthogonal polynomials of the weight :math:`e^{2\kappa x} w(x)`. The mean is this number divided by
the one at :math:`\kappa = 0`. Determinants of Bessel functions (Baik and Rains, 2001) are the same number, of which
cancellation leaves no digits where ``kappa`` or the dimension is large.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NODES = 2000


def log_mean_exp_trace(kappa: float, dim: int, proper: bool = False) -> float:
    r"""Logarithm of the mean of :math:`e^{\kappa \operatorname{tr} Q}` over :math:`O(d)`, or over :math:`SO(d)`.

    >>> round(log_mean_exp_trace(1.0, 1), 6), round(math.log(math.cosh(1.0)), 6)
    (0.433781, 0.433781)
    """
    # Of each component the fixed eigenvalues.
    components = ((), (1, -1)) if dim % 2 == 0 else ((1,), (-1,))  # first the rotations
    logs = [kappa * sum(fixed) + _log_ratio(kappa, (dim - len(fixed)) // 2, fixed) for fixed in components]
    if proper:
        return logs[0]
    return torch.tensor(logs, dtype=torch.float64).logsumexp(0).item() - math.log(2)


def _log_ratio(kappa: float, pairs: int, fixed: tuple[int, ...]) -> float:
    """Of the integrals over the angles, with ``kappa`` and without."""
    half = (torch.arange(_NODES, dtype=torch.float64) + 0.5) * (0.5 * math.pi / _NODES)
    below = -2 * half.sin().square()  # x - 1, with all digits where the weight is
    weight = torch.ones_like(half)
    for sign in fixed:
        weight = weight * (-below if sign == 1 else 2 + below)
    norms = _log_norms(below, weight * (2 * kappa * below).exp(), pairs) - _log_norms(below, weight, pairs)
    return 2 * kappa * pairs + norms.sum().item()


def _log_norms(x: Tensor, weight: Tensor, count: int) -> Tensor:
    """Logarithms of the squared norms of the first monic orthogonal polynomials, by Stieltjes' procedure."""
    last, now, norms = torch.zeros_like(x), torch.ones_like(x), []
    for _ in range(count):
        norms.append((weight * now.square()).sum())
        centre = (weight * x * now.square()).sum() / norms[-1]
        ratio = norms[-1] / norms[-2] if len(norms) > 1 else 0.0
        last, now = now, (x - centre) * now - ratio * last
    return torch.stack(norms).log() if norms else x.new_zeros(0)
