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
from torch.utils._python_dispatch import _disable_current_modes

from pyro_hyperbolic.ops.radial import (
    SCORE_MAX,
    _cell_nodes,
    _constant_when_compiled,
    _gather,
    _horner,
    _locate,
    gauss_legendre,
)

# Half-width of the window that holds all mass, in units of the standard deviation of the kernel at its mode.
_WINDOW = 12.0
_NODES = 96
_BISECTIONS = 60
_NEWTON_STEPS = 6

_SCORE_CELL = 1 / 3
_W_CELLS = 96
_QUANTILE_DEGREE = 5
_INTEGRAL_DEGREE = 9


def _square(angle: Tensor) -> Tensor:
    return 0.5 * angle * angle


def _cosine(angle: Tensor) -> Tensor:
    half = torch.sin(angle / 2)
    return 2 * half * half


def _power(angle: Tensor) -> Tensor:
    return -4 * torch.cos(angle / 2).log()


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
    table = _integral_table(dim, energy, w.dtype, w.device)
    cell, t = _locate(w, 1 / _W_CELLS, _W_CELLS)
    return _horner(_gather(table, cell), t)


def scaled_quantile(z: Tensor, w: Tensor, dim: int, energy: str) -> Tensor:
    r""":math:`e^V = \theta/\sqrt w` at :math:`F(\theta) = \Phi(z)`, :math:`|z| \le 9`, from the table."""
    table = _quantile_table(dim, energy, w.dtype, w.device)
    row, t = _locate(w, 1 / _W_CELLS, _W_CELLS)
    column, s = _locate(z + SCORE_MAX, _SCORE_CELL, table.shape[1])
    return _horner(_horner(_gather(table, row, column), s.unsqueeze(-1)), t).exp()


_tables: dict[tuple[int, str, torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}


@_constant_when_compiled
def _integral_table(dim: int, energy: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _table(dim, energy, dtype, device)[0]


@_constant_when_compiled
def _quantile_table(dim: int, energy: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _table(dim, energy, dtype, device)[1]


def _table(dim: int, energy: str, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Coefficients of :math:`J` and :math:`V`; made in float64 on first use, then kept."""
    key = (dim, energy, dtype, device)
    if key not in _tables:
        with _disable_current_modes():
            exact = (dim, energy, torch.float64, torch.device("cpu"))
            if exact not in _tables:
                _tables[exact] = _make_table(dim, energy)
            integral, quantiles = _tables[exact]
            _tables[key] = integral.to(device, dtype), quantiles.to(device, dtype)
    return _tables[key]


@torch.no_grad()
def _make_table(dim: int, energy: str) -> tuple[Tensor, Tensor]:
    columns = round(2 * SCORE_MAX / _SCORE_CELL)

    w, to_coefficients = _cell_nodes(_W_CELLS, 1 / _W_CELLS, _INTEGRAL_DEGREE)
    log_z = log_integral((dim / w - dim).reshape(-1), dim - 1, energy).reshape(w.shape)
    integral = (log_z - 0.5 * dim * w.log()) @ to_coefficients.T

    w, to_rows = _cell_nodes(_W_CELLS, 1 / _W_CELLS, _QUANTILE_DEGREE)
    z, to_columns = _cell_nodes(columns, _SCORE_CELL, _QUANTILE_DEGREE)
    angle = _solve_quantiles((dim / w - dim).reshape(-1), z.reshape(-1) - SCORE_MAX, dim - 1, energy)
    values = (angle.log() - 0.5 * w.reshape(-1, 1).log()).reshape(*w.shape, *z.shape)
    quantiles = torch.einsum("aibj,ki,lj->abkl", values, to_rows, to_columns)
    return integral, quantiles.contiguous()


def _solve_quantiles(kappa: Tensor, z: Tensor, n: int, energy: str, cells: int = 400, order: int = 8) -> Tensor:
    r"""Solve :math:`F(\theta) = \Phi(z)` for every pair, each tail from its own side.

    As in :mod:`~pyro_hyperbolic.ops.radial`: a grid of cumulated cells brackets the root, and Newton's method on the
    logarithm of the tail finishes. Here both ends of the interval may be ends of the sphere.
    """
    x, weight = gauss_legendre(order, kappa)
    top, low, high = (t.unsqueeze(-1) for t in _window(kappa, n, energy))
    column = kappa.unsqueeze(-1)
    peak = log_kernel(top, column, n, energy)
    grid = low + (high - low) * torch.linspace(0, 1, cells + 1, dtype=kappa.dtype, device=kappa.device)

    def mass(start: Tensor, end: Tensor) -> Tensor:
        width = (end - start).unsqueeze(-1)
        kernel = log_kernel(start.unsqueeze(-1) + width * x, column.unsqueeze(-1), n, energy)
        return ((kernel - peak.unsqueeze(-1)).exp() * weight * width).sum(-1)

    pieces = mass(grid[:, :-1], grid[:, 1:])
    zero = torch.zeros_like(top)
    below = torch.cat([zero, pieces.cumsum(-1)], -1)
    above = torch.cat([pieces.flip(-1).cumsum(-1).flip(-1), zero], -1)

    lower = z <= 0
    target = 0.5 * torch.special.erfc(z.abs() / math.sqrt(2)) * below[:, -1:]
    cell = torch.where(
        lower,
        torch.searchsorted(below, target) - 1,
        cells - torch.searchsorted(above.flip(-1).contiguous(), target),
    ).clamp(0, cells - 1)
    left, right = grid.gather(-1, cell), grid.gather(-1, cell + 1)
    done = torch.where(lower, below.gather(-1, cell), above.gather(-1, cell + 1))
    # In the first and in the last cell F grows like the d-th power of the distance to the end.
    share = ((target - done) / pieces.gather(-1, cell)).clamp(0, 1)
    at_end = (cell == 0) & lower | (cell == cells - 1) & ~lower
    share = torch.where(at_end, share ** (1 / (n + 1)), share)
    angle = left + (right - left) * torch.where(lower, share, 1 - share)
    for _ in range(_NEWTON_STEPS):
        tail = done + torch.where(lower, mass(left, angle), mass(angle, right))
        density = (log_kernel(angle, column, n, energy) - peak).exp()
        step = tail * (tail / target).log() / density
        # At the very end of the sphere, which rounding reaches in the last column, there is no tail left.
        step = torch.where(step.isfinite(), step, 0.0)
        angle = torch.where(lower, angle - step, angle + step).clamp(min=left, max=right)
    return angle
