r"""The radius of the Riemannian normal: its integral and its quantiles, for one dimension ``d`` at a time.

With :math:`y = r/\sigma`, :math:`q = c\sigma^2` and :math:`n = d - 1` the distribution of the radius is

.. math::

    f(y) = e^{h(y)} / I(q), \qquad
    h(y) = -\tfrac{y^2}{2} + n \log y + n \log\frac{\sinh(\sqrt{q}\,y)}{\sqrt{q}\,y}, \qquad
    I(q) = \int_0^\infty e^{h(y)}\,dy ,

a family with the one parameter :math:`q \ge 0`, analytic in it; :math:`q = 0` is the chi distribution with ``d``
degrees of freedom. :math:`h'' \le -1` everywhere, so all mass lies within a few units of the mode. The closed forms of
the paper's appendix (its Eq. for :math:`Z_r`) are alternating sums that cancel; Gauss-Legendre nodes around the mode
sum positive terms only.

Two functions are needed at every training step, :math:`L(q) = \log I(q) - \log I(0)` and the
logarithm of the quantile, :math:`V(q, z) = \log y` at :math:`F(y) = \Phi(z)`. Both are smooth in
:math:`w = \log(1 + d q)` and :math:`z`, so each is kept as a piecewise polynomial, made once per ``d`` from the
quadrature. A sample then costs about as much as a Gaussian one, its derivatives in :math:`\sigma` and
in :math:`c` are those of the polynomial (the implicit gradients, to the accuracy of the table), and there is no
loop, no branch on data and no host synchronisation. Beyond the table :math:`\sinh` is an
exponential to the last digit and both functions are elementary:
:math:`y = n\sqrt{q} + z`, :math:`\log I = n^2 q/2 - n \log(2\sqrt{q}) + \tfrac12 \log 2\pi`.
In one dimension (:math:`n = 0`) the radius is half-normal for every :math:`q`, and the table is constant in it.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from pyro_hyperbolic.ops.special import log_sinhc, tanhc
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

WINDOW = 9.0  # half-width, in units of y, outside of which the distribution has less than 1e-17 of its mass
_NODES = 64
_MODE_STEPS = 8
_W_CELL = 0.125


def log_kernel(y: Tensor, q: Tensor, n: int) -> Tensor:
    """:math:`h(y)`, the logarithm of the density of the scaled radius up to its integral."""
    return torch.xlogy(torch.full_like(y, n), y) - 0.5 * y * y + n * log_sinhc(q * y * y)


@torch.no_grad()
def mode(q: Tensor, n: int) -> Tensor:
    r"""The maximum of :math:`h`, where :math:`y \tanh(\sqrt{q}\,y)/\sqrt{q} = n`."""
    # The left side is convex in y and the start lies above the root: Newton descends to it.
    y = (n + n * n * q).sqrt()
    for _ in range(_MODE_STEPS if n > 0 else 0):
        slope = y * tanhc(q * y * y)
        y = y - (y * slope - n) / (slope + y * (1 - q * slope * slope))
    return y


@torch.no_grad()
def nodes(q: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes over all of the mass and the logarithms of their weights, ``q.shape + (64,)``."""
    x, weight = gauss_legendre(_NODES, q)
    centre = mode(q, n).unsqueeze(-1)
    low, high = (centre - WINDOW).clamp(min=0), centre + WINDOW
    return low + (high - low) * x, (weight * (high - low)).log()


def log_integral(q: Tensor, n: int) -> Tensor:
    """:math:`\\log I(q)` by quadrature, differentiable in ``q``."""
    y, log_weight = nodes(q, n)
    return torch.logsumexp(log_kernel(y, q.unsqueeze(-1), n) + log_weight, -1)


def tail_mass(y: Tensor, q: Tensor, n: int, upper: bool) -> Tensor:
    r""":math:`F(y)` or, with ``upper``, :math:`1 - F(y)`, by quadrature and differentiable in both arguments."""
    x, weight = gauss_legendre(_NODES, q)
    centre = mode(q, n)
    if upper:
        low = y
        width = torch.maximum(centre, y.detach()) + WINDOW - y
    else:
        low = (torch.minimum(centre, y.detach()) - WINDOW).clamp(min=0)
        width = y - low
    points = low.unsqueeze(-1) + width.unsqueeze(-1) * x
    log_density = log_kernel(points, q.unsqueeze(-1), n) - log_integral(q, n).unsqueeze(-1)
    return width * (weight * log_density.exp()).sum(-1)


def gaussian_score(y: Tensor, q: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    r"""Where the radius is Gaussian to the last digit, and the normal score :math:`y - n\sqrt q` there (0 elsewhere).

    The terms of the kernel grow like :math:`n^2 q`; where the score serves, their difference need not be formed.
    """
    n, end = dim - 1, _table_end(dim)
    # Besides a distribution beyond the table, sinh(s) must be an exponential at this point: s > 20.
    far = (q > end) & (q * y * y > 400.0) if n > 0 else torch.zeros_like(y, dtype=torch.bool)
    return far, torch.where(far, y - n * torch.where(far, q, 1.0).sqrt(), 0.0)


def moments(q: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the scaled radius, by quadrature.

    Beyond the table the radius is Gaussian to the last digit, while the terms of its kernel grow like :math:`n^2 q`
    and their difference would lose as many digits.
    """
    n, end = dim - 1, _table_end(dim)
    inside = q.clamp(max=end)
    y, log_weight = nodes(inside, n)
    mass = (log_kernel(y, inside.unsqueeze(-1), n) + log_weight).softmax(-1)
    mean = (mass * y).sum(-1)
    variance = (mass * (y - mean.unsqueeze(-1)).square()).sum(-1)
    if n == 0:
        return mean, variance
    far = q > end
    return torch.where(far, n * q.clamp(min=end).sqrt(), mean), torch.where(far, 1.0, variance)


def entropy(q: Tensor, dim: int) -> Tensor:
    """Entropy of the scaled radius, by quadrature; beyond the table it is that of a normal variable."""
    n, end = dim - 1, _table_end(dim)
    inside = q.clamp(max=end)
    y, log_weight = nodes(inside, n)
    kernel = log_kernel(y, inside.unsqueeze(-1), n)
    total = torch.logsumexp(kernel + log_weight, -1, keepdim=True)
    near = -((kernel + log_weight - total).exp() * (kernel - total)).sum(-1)
    if n == 0:
        return near + 0 * q
    return torch.where(q > end, 0.5 + 0.5 * math.log(2 * math.pi), near)


_TAU_CELL = 0.25
_TAU_RANGE = (-90.0, 1.75)


def mean_log_sinhc(variances: Tensor) -> Tensor:
    r""":math:`\mathbb{E}\log(\sinh R/R)` for :math:`R^2 = \sum_i \lambda_i z_i^2` with normal :math:`z_i`.

    With :math:`\sinh R/R = \prod_k (1 + R^2/k^2\pi^2)`, :math:`\log(1 + a) = \int (1 - e^{-ta})\,e^{-t}\,dt/t` and the
    Laplace transform of :math:`R^2`,

    .. math::

        \mathbb{E}\log\frac{\sinh R}{R} = \int_0^\infty \Big(1 - \prod_i (1 + 2\tau\lambda_i)^{-1/2}\Big)\,
        \vartheta(\tau)\,\frac{d\tau}{\tau}, \qquad \vartheta(\tau) = \sum_{k \ge 1} e^{-k^2\pi^2\tau} ,

    by the trapezoidal rule in :math:`\log\tau`, whose error falls like :math:`e^{-\pi^2/h}`: of all terms none is
    negative and nothing cancels.

    :param variances: :math:`\lambda \ge 0`, ``(..., d)``.
    :returns: ``(...)``.
    """
    tau, weight = (torch.tensor(values, dtype=torch.float64, device=variances.device) for values in _tau_rule())
    log_det = torch.log1p(2 * tau * variances.double().unsqueeze(-1)).sum(-2)
    return -(weight * torch.expm1(-0.5 * log_det)).sum(-1).to(variances.dtype)


@functools.cache
def _tau_rule() -> tuple[list[float], list[float]]:
    """Nodes and :math:`h\vartheta` at them."""
    low, high = _TAU_RANGE
    taus = [math.exp(low + _TAU_CELL * k) for k in range(round((high - low) / _TAU_CELL) + 1)]
    return taus, [_TAU_CELL * _theta(tau) for tau in taus]


def _theta(tau: float) -> float:
    # Each of the two sums, which are one by Poisson's formula, where its terms fall by e^-3 and more.
    if tau > 1 / math.pi:
        return sum(math.exp(-((k * math.pi) ** 2) * tau) for k in range(1, 5))
    return 0.5 * ((1 + 2 * sum(math.exp(-k * k / tau) for k in range(1, 5))) / math.sqrt(math.pi * tau) - 1)


def log_integral_ratio(q: Tensor, dim: int) -> Tensor:
    """:math:`L(q) = \\log I(q) - \\log I(0)`, from the table."""
    n, end = dim - 1, _table_end(dim)
    w = torch.log1p(dim * q.clamp(max=end))
    near = evaluate(_integral_table(dim, q.dtype, q.device), w, _W_CELL, _num_rows(dim))
    if n == 0:
        return near + 0 * q  # nan at infinity, as in all other dimensions
    beyond = q.clamp(min=end)
    far = 0.5 * n * n * beyond - 0.5 * n * beyond.log() + _far_constant(dim)
    return torch.where(q > end, far, near)


def quantile(z: Tensor, q: Tensor, dim: int) -> Tensor:
    r"""The ``y`` with :math:`F(y) = \Phi(z)`, :math:`|z| \le 9`, from the table; ``z`` and ``q`` of one shape."""
    n, end = dim - 1, _table_end(dim)
    w = torch.log1p(dim * q.clamp(max=end))
    near = evaluate_quantile(_quantile_table(dim, q.dtype, q.device), w, z, _W_CELL, _num_rows(dim)).exp()
    if n == 0:
        return near
    far = n * q.clamp(min=end).sqrt() + z
    return torch.where(q > end, far, near)


def _table_end(dim: int) -> float:
    """Where :math:`n\\sqrt{q} - 9 > 20/\\sqrt{q}`: then :math:`e^{-2s} < 10^{-17}` for :math:`s = \\sqrt{q}\\,y`."""
    n = dim - 1
    return 1.0 if n == 0 else ((WINDOW + math.sqrt(WINDOW**2 + 80 * n)) / (2 * n)) ** 2


def _num_rows(dim: int) -> int:
    """Cells of the table in :math:`w`; a compiler that takes shapes for symbols cannot ask the table."""
    return max(1, math.ceil(math.log1p(dim * _table_end(dim)) / _W_CELL))


def log_chi_integral(dim: int) -> float:
    """:math:`\\log I(0)`."""
    return (dim / 2 - 1) * math.log(2) + math.lgamma(dim / 2)


def log_ndtr(z: float) -> float:
    r""":math:`\log\Phi(z)` of a number."""
    return math.log(0.5 * math.erfc(-z / math.sqrt(2)))


def _far_constant(dim: int) -> float:
    return 0.5 * math.log(2 * math.pi) - (dim - 1) * math.log(2) - log_chi_integral(dim)


@constant_when_compiled
def _integral_table(dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _tables.get(dim, dtype=dtype, device=device)[0]


@constant_when_compiled
def _quantile_table(dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _tables.get(dim, dtype=dtype, device=device)[1]


def _make_table(dim: int) -> Table:
    """Coefficients of :math:`L` and :math:`V`."""
    return make_table(
        _num_rows(dim),
        _W_CELL,
        lambda w: log_integral(torch.expm1(w) / dim, dim - 1) - log_chi_integral(dim),
        lambda w, z: _solve_quantiles(torch.expm1(w) / dim, z, dim).log(),
    )


_tables = Tables(_make_table)


def _solve_quantiles(q: Tensor, z: Tensor, dim: int) -> Tensor:
    n = dim - 1
    top = mode(q, n)
    low, high = (top - WINDOW - 1).clamp(min=0), top + WINDOW + 1
    return solve_quantiles(lambda y, q: log_kernel(y, q, n), q, z, dim, top=top, low=low, high=high)
