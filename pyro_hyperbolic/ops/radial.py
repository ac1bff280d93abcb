r"""The radius of the Riemannian normal: its integral and its quantiles, for one dimension ``d`` at a time.

With :math:`y = r/\sigma`, :math:`q = c\sigma^2` and :math:`n = d - 1` the law of the radius is

.. math::

    f(y) = e^{h(y)} / I(q), \qquad
    h(y) = -\tfrac{y^2}{2} + n \log y + n \log\frac{\sinh(\sqrt{q}\,y)}{\sqrt{q}\,y}, \qquad
    I(q) = \int_0^\infty e^{h(y)}\,dy ,

a family with the one parameter :math:`q \ge 0`, analytic in it; :math:`q = 0` is the chi law with ``d`` degrees of
freedom. :math:`h'' \le -1` everywhere, so all mass lies within a few units of the mode. The closed forms of the
paper's appendix (its Eq. for :math:`Z_r`) are alternating sums that cancel; Gauss-Legendre nodes
around the mode sum positive terms only.

Two functions are needed at every training step, :math:`L(q) = \log I(q) - \log I(0)` and the
logarithm of the quantile, :math:`V(q, z) = \log y` at :math:`F(y) = \Phi(z)`. Both are smooth in
:math:`w = \log(1 + d q)` and :math:`z`, so each is kept as a piecewise polynomial, made once per ``d`` from the
quadrature. A sample then costs about as much as a Gaussian one, its derivatives in :math:`\sigma` and
in :math:`c` are those of the polynomial (the implicit gradients, to the accuracy of the table), and there is no
loop, no branch on data and no host synchronisation. Beyond the table :math:`\sinh` is an
exponential to the last digit and both functions are elementary:
:math:`y = n\sqrt{q} + z`, :math:`\log I = n^2 q/2 - n \log(2\sqrt{q}) + \tfrac12 \log 2\pi`.
In one dimension (:math:`n = 0`) the law is the half-normal for every :math:`q` and the table is constant in it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from pyro_hyperbolic.ops.special import log_sinhc, tanhc

WINDOW = 9.0  # half-width, in units of y, outside of which the law has less than 1e-17 of its mass
_NODES = 64
_MODE_STEPS = 8
_NEWTON_STEPS = 4  # from a grid whose cells are a twentieth of a standard deviation wide

SCORE_MAX = 9.0  # quantiles are tabulated for normal scores |z| <= 9 (probabilities down to 1e-19)
_SCORE_CELL = 1 / 3
_NUM_COLUMNS = round(2 * SCORE_MAX / _SCORE_CELL)
_W_CELL = 0.125
_QUANTILE_DEGREE = 5
_INTEGRAL_DEGREE = 9


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return like.new_tensor((1 + nodes) / 2), like.new_tensor(weights / 2)


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
    r"""Where the law is Gaussian to the last digit, and the normal score :math:`y - n\sqrt q` there (0 elsewhere).

    The terms of the kernel grow like :math:`n^2 q`; where the score serves, their difference need not be formed.
    """
    n, end = dim - 1, _table_end(dim)
    # Besides a law beyond the table, sinh(s) must be an exponential at this point: s > 20.
    far = (q > end) & (q * y * y > 400.0) if n > 0 else torch.zeros_like(y, dtype=torch.bool)
    return far, torch.where(far, y - n * torch.where(far, q, 1.0).sqrt(), 0.0)


def moments(q: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the scaled radius, by quadrature.

    Beyond the table the law is Gaussian to the last digit, while the terms of its kernel grow like :math:`n^2 q` and
    their difference would lose as many digits.
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
    table = _integral_table(dim, q.dtype, q.device)
    cell, t = _locate(torch.log1p(dim * q.clamp(max=end)), _W_CELL, _num_rows(dim))
    near = _horner(_gather(table, cell), t)
    if n == 0:
        return near + 0 * q  # nan at infinity, as in all other dimensions
    beyond = q.clamp(min=end)
    far = 0.5 * n * n * beyond - 0.5 * n * beyond.log() + _far_constant(dim)
    return torch.where(q > end, far, near)


def quantile(z: Tensor, q: Tensor, dim: int) -> Tensor:
    r"""The ``y`` with :math:`F(y) = \Phi(z)`, :math:`|z| \le 9`, from the table; ``z`` and ``q`` of one shape."""
    n, end = dim - 1, _table_end(dim)
    table = _quantile_table(dim, q.dtype, q.device)
    row, t = _locate(torch.log1p(dim * q.clamp(max=end)), _W_CELL, _num_rows(dim))
    column, s = _locate(z + SCORE_MAX, _SCORE_CELL, _NUM_COLUMNS)
    near = _horner(_horner(_gather(table, row, column), s.unsqueeze(-1)), t).exp()
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


def _locate(x: Tensor, width: float, count: int) -> tuple[Tensor, Tensor]:
    """Cell of ``x`` and its coordinate there, in (-1, 1)."""
    position = x / width
    # Of integers, so that nan has a cell too: its coordinate there is nan.
    cell = position.detach().long().clamp(0, count - 1)
    return cell, 2 * (position - cell) - 1


def _gather(table: Tensor, *index: Tensor) -> Tensor:
    """``table[index]``; plain indexing reads an index without dimensions on the host, which ``vmap`` forbids."""
    return table[tuple(i.unsqueeze(-1) for i in index)].squeeze(index[0].dim())


def _horner(coefficients: Tensor, t: Tensor) -> Tensor:
    """Polynomial in ``t`` with the coefficients in the last dimension, lowest first."""
    out = coefficients[..., -1]
    for k in range(coefficients.shape[-1] - 2, -1, -1):
        out = torch.addcmul(coefficients[..., k], out, t)
    return out


_tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}


def _constant_when_compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.compiler.assume_constant_result``, which would import all of ``torch._dynamo`` (two seconds)."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_constant_when_compiled
def _integral_table(dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _table(dim, dtype, device)[0]


@_constant_when_compiled
def _quantile_table(dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _table(dim, dtype, device)[1]


def _table(dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Coefficients of :math:`L` and :math:`V`; made in float64 on first use, then kept."""
    key = (dim, dtype, device)
    if key not in _tables:
        # They are constants: whatever traces or fakes tensors around this call must not see them made.
        with _disable_current_modes():
            exact = (dim, torch.float64, torch.device("cpu"))
            if exact not in _tables:
                _tables[exact] = _make_table(dim)
            integral, quantiles = _tables[exact]
            _tables[key] = integral.to(device, dtype), quantiles.to(device, dtype)
    return _tables[key]


@torch.no_grad()
def _make_table(dim: int) -> tuple[Tensor, Tensor]:
    cells = _num_rows(dim)
    w, to_coefficients = _cell_nodes(cells, _W_CELL, _INTEGRAL_DEGREE)
    q = torch.expm1(w) / dim
    ratio = log_integral(q.reshape(-1), dim - 1).reshape(q.shape) - log_chi_integral(dim)
    integral = ratio @ to_coefficients.T

    w, to_rows = _cell_nodes(cells, _W_CELL, _QUANTILE_DEGREE)
    z, to_columns = _cell_nodes(_NUM_COLUMNS, _SCORE_CELL, _QUANTILE_DEGREE)
    q = torch.expm1(w) / dim
    y = _solve_quantiles(q.reshape(-1), z.reshape(-1) - SCORE_MAX, dim - 1)
    values = y.log().reshape(*w.shape, *z.shape)
    quantiles = torch.einsum("aibj,ki,lj->abkl", values, to_rows, to_columns)
    return integral, quantiles.contiguous()


def _cell_nodes(cells: int, width: float, degree: int) -> tuple[Tensor, Tensor]:
    """Chebyshev nodes of every cell, and the matrix from values there to monomial coefficients."""
    k = torch.arange(degree + 1, dtype=torch.float64, device="cpu")
    t = -torch.cos(math.pi * (k + 0.5) / (degree + 1))
    start = torch.arange(cells, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return width * (start + (1 + t) / 2), torch.linalg.inv(t.unsqueeze(-1) ** k)


def _solve_quantiles(q: Tensor, z: Tensor, n: int, cells: int = 400, order: int = 8) -> Tensor:
    r"""Solve :math:`F(y) = \Phi(z)` for every pair of ``q`` and ``z``; each tail from its own side.

    A grid of cumulated cells brackets the root; inside its cell Newton's method on the logarithm of the
    tail, a concave function, finishes.
    """
    x, weight = gauss_legendre(order, q)
    top = mode(q, n).unsqueeze(-1)
    peak = log_kernel(top, q.unsqueeze(-1), n) if n > 0 else torch.zeros_like(top)
    low, high = (top - WINDOW - 1).clamp(min=0), top + WINDOW + 1
    grid = low + (high - low) * torch.linspace(0, 1, cells + 1, dtype=q.dtype, device=q.device)

    def mass(start: Tensor, end: Tensor) -> Tensor:
        width = (end - start).unsqueeze(-1)
        kernel = log_kernel(start.unsqueeze(-1) + width * x, q[:, None, None], n)
        return ((kernel - peak.unsqueeze(-1)).exp() * weight * width).sum(-1)

    pieces = mass(grid[:, :-1], grid[:, 1:])
    zero = torch.zeros_like(top)
    below = torch.cat([zero, pieces.cumsum(-1)], -1)
    above = torch.cat([pieces.flip(-1).cumsum(-1).flip(-1), zero], -1)
    total = below[:, -1:]

    lower = z <= 0
    target = 0.5 * torch.special.erfc(z.abs() / math.sqrt(2)) * total
    cell = torch.where(
        lower,
        torch.searchsorted(below, target) - 1,
        cells - torch.searchsorted(above.flip(-1).contiguous(), target),
    ).clamp(0, cells - 1)
    left, right = grid.gather(-1, cell), grid.gather(-1, cell + 1)
    done = torch.where(lower, below.gather(-1, cell), above.gather(-1, cell + 1))
    # The first cell of a small dimension starts at 0, where F grows like the d-th power.
    share = ((target - done) / pieces.gather(-1, cell)).clamp(0, 1)
    share = torch.where(cell == 0, share ** (1 / (n + 1)), torch.where(lower, share, 1 - share))
    y = left + (right - left) * share
    for _ in range(_NEWTON_STEPS):
        tail = done + torch.where(lower, mass(left, y), mass(y, right))
        density = (log_kernel(y, q.unsqueeze(-1), n) - peak).exp()
        step = tail * (tail / target).log() / density
        y = torch.where(lower, y - step, y + step).clamp(min=left, max=right)
    return y
