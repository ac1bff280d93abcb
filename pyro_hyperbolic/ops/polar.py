r"""The angle of an isotropic distribution on a sphere: its integral and its quantiles, for one ``d`` at a time.

With :math:`n = d - 1` and an energy :math:`e(\theta) = \theta^2/2 + O(\theta^4)` the angle to the mean has the density

.. math::

    f(\theta) = e^{h(\theta)} / Z(\kappa), \qquad h(\theta) = -\kappa\,e(\theta) + n \log\sin\theta, \qquad
    0 < \theta < \pi .

===========  =============================  ===========================================================
``square``   :math:`\theta^2/2`             Riemannian normal, :math:`\kappa = 1/(c\sigma^2)`
``cosine``   :math:`1 - \cos\theta`         von Mises-Fisher distribution
``power``    :math:`-4\log\cos(\theta/2)`   power spherical distribution, :math:`\kappa` half its concentration
===========  =============================  ===========================================================

The family runs from the uniform distribution, :math:`\kappa = 0`, to the flat limit :math:`\kappa \to \infty`, where
:math:`\sqrt\kappa\,\theta` is a chi variable with ``d`` degrees of freedom. In :math:`w = d/(d + \kappa)`, which is 1
and 0 there, both :math:`J = \log Z - \tfrac d2 \log w` and :math:`V = \log\theta - \tfrac12 \log w`, at
:math:`F(\theta) = \Phi(z)`, are smooth up to the ends. As in :mod:`~pyro_hyperbolic.ops.radial` each is a piecewise
polynomial that is made once per ``d``, so that a sample costs about as much as a Gaussian one, has its implicit
gradients, and needs no loop, no branch on data and no host synchronisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.ops.tables import (
    Table,
    Tables,
    evaluate,
    evaluate_quantile,
    gauss_legendre,
    make_table,
    solve_quantiles,
)
from pyro_hyperbolic.private import constant_when_compiled

# Half-width of the window that holds all mass, in units of the standard deviation of the kernel at its mode.
_WINDOW = 12.0
_NODES = 96
_BISECTIONS = 60
_W_CELLS = 96


def _square(angle: Tensor) -> Tensor:
    return 0.5 * angle * angle


def _cosine(angle: Tensor) -> Tensor:
    half = torch.sin(angle / 2)
    return 2 * half * half


def _power(angle: Tensor) -> Tensor:
    # The cosine of a small angle has lost the digits of the angle.
    square = torch.sin(angle / 2).square()
    near = square < 0.5
    far = torch.where(near, 1.0, torch.cos(angle / 2)).log()
    return torch.where(near, -2 * torch.log1p(-torch.where(near, square, 0.0)), -4 * far)


ENERGIES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "square": (_square, lambda angle: angle),
    "cosine": (_cosine, torch.sin),
    "power": (_power, lambda angle: 2 * torch.tan(angle / 2)),
}
"""The energies and their derivatives, by name."""


def log_kernel(angle: Tensor, kappa: Tensor, n: int, energy: str) -> Tensor:
    """:math:`h(\\theta)`."""
    out = -kappa * ENERGIES[energy][0](angle)
    return out + n * torch.sin(angle).log() if n > 0 else out


@torch.no_grad()
def mode(kappa: Tensor, n: int, energy: str) -> Tensor:
    r"""The maximum of :math:`h`, where :math:`\kappa\,e'(\theta)\sin\theta = n\cos\theta`."""
    slope = ENERGIES[energy][1]
    low, high = torch.zeros_like(kappa), torch.full_like(kappa, math.pi)
    for _ in range(_BISECTIONS if n > 0 else 0):
        middle = (low + high) / 2
        rises = kappa * slope(middle) * torch.sin(middle) < n * torch.cos(middle)
        low, high = torch.where(rises, middle, low), torch.where(rises, high, middle)
    return low


@torch.no_grad()
def _window(kappa: Tensor, n: int, energy: str) -> tuple[Tensor, Tensor, Tensor]:
    """Mode, start and end of the interval with all mass."""
    top = mode(kappa, n, energy)
    width = _WINDOW * (kappa + n + 1e-3).rsqrt()
    return top, (top - width).clamp(min=0), (top + width).clamp(max=math.pi)


def log_integral(kappa: Tensor, n: int, energy: str) -> Tensor:
    r""":math:`\log Z(\kappa)` by quadrature, differentiable in ``kappa``."""
    _, low, high = _window(kappa, n, energy)
    return _log_mass(low, high, kappa, n, energy)


def _log_mass(low: Tensor, high: Tensor, kappa: Tensor, n: int, energy: str) -> Tensor:
    x, weight = gauss_legendre(_NODES, kappa)
    width = (high - low).unsqueeze(-1)
    kernel = log_kernel(low.unsqueeze(-1) + width * x, kappa.unsqueeze(-1), n, energy)
    return torch.logsumexp(kernel + (weight * width).log(), -1)


def mean_of(function: Callable[[Tensor], Tensor], kappa: Tensor, n: int, energy: str) -> Tensor:
    """The mean of a function of the angle, by quadrature."""
    _, low, high = _window(kappa, n, energy)
    x, weight = gauss_legendre(_NODES, kappa)
    angle = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * x
    mass = (log_kernel(angle, kappa.unsqueeze(-1), n, energy) + weight.log()).softmax(-1)
    return (mass * function(angle)).sum(-1)


def cdf(angle: Tensor, kappa: Tensor, n: int, energy: str) -> Tensor:
    """:math:`F(\\theta)`, each half from its own side, by quadrature."""
    top, low, high = _window(kappa, n, energy)
    total = _log_mass(low, high, kappa, n, energy)
    upper = angle > top
    below = torch.where(upper, top, angle)
    above = torch.where(upper, angle, top)
    start = torch.minimum(low, (below - (high - low)).clamp(min=0).detach())
    end = torch.maximum(high, (above + (high - low)).clamp(max=math.pi).detach())
    tiny = torch.finfo(angle.dtype).tiny
    lower_mass = (_log_mass(start, torch.maximum(below, start + tiny), kappa, n, energy) - total).exp()
    upper_mass = (_log_mass(torch.minimum(above, end - tiny), end, kappa, n, energy) - total).exp()
    mass = torch.where(upper, 1 - upper_mass, lower_mass)
    return torch.where(angle <= 0, 0.0, torch.where(angle >= math.pi, 1.0, mass))


def scaled_log_integral(w: Tensor, dim: int, energy: str) -> Tensor:
    """:math:`J(w)`, from the table."""
    return evaluate(_integral_table(dim, energy, w.dtype, w.device), w, 1 / _W_CELLS, _W_CELLS)


def scaled_quantile(z: Tensor, w: Tensor, dim: int, energy: str) -> Tensor:
    r""":math:`e^V = \theta/\sqrt w` at :math:`F(\theta) = \Phi(z)`, :math:`|z| \le 9`, from the table."""
    return evaluate_quantile(_quantile_table(dim, energy, w.dtype, w.device), w, z, 1 / _W_CELLS, _W_CELLS).exp()


@constant_when_compiled
def _integral_table(dim: int, energy: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _tables.get(dim, energy, dtype=dtype, device=device)[0]


@constant_when_compiled
def _quantile_table(dim: int, energy: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _tables.get(dim, energy, dtype=dtype, device=device)[1]


def _make_table(dim: int, energy: str) -> Table:
    """Coefficients of :math:`J` and :math:`V`."""
    n = dim - 1
    return make_table(
        _W_CELLS,
        1 / _W_CELLS,
        lambda w: log_integral(dim / w - dim, n, energy) - 0.5 * dim * w.log(),
        lambda w, z: _solve_quantiles(dim / w - dim, z, dim, energy).log() - 0.5 * w.log().unsqueeze(-1),
    )


_tables = Tables(_make_table)


def _solve_quantiles(kappa: Tensor, z: Tensor, dim: int, energy: str) -> Tensor:
    n = dim - 1
    top, low, high = _window(kappa, n, energy)
    return solve_quantiles(lambda y, kappa: log_kernel(y, kappa, n, energy), kappa, z, dim, top=top, low=low, high=high)
