r"""Piecewise polynomials of a family of distributions on an interval, made once from quadrature.

Of a family with one parameter ``w`` two functions are kept: one of ``w`` alone, that of its integral, and the quantile
as a function of ``w`` and the normal score ``z``, :math:`|z| \le 9` (probabilities down to 1e-19). The families are
those of :mod:`~pyro_hyperbolic.ops.radial` and :mod:`~pyro_hyperbolic.ops.polar`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

SCORE_MAX = 9.0  # quantiles are tabulated for normal scores |z| <= 9
_SCORE_CELL = 1 / 3
_NUM_COLUMNS = round(2 * SCORE_MAX / _SCORE_CELL)
_QUANTILE_DEGREE = 5
_INTEGRAL_DEGREE = 9
# Quadrature and bracketing of the quantiles: cells of the grid and nodes in each.
_GRID, _ORDER = 400, 8
_NEWTON_STEPS = 6
_CONVERGED = 1e-11  # of a step; the next one would be its square

Table = tuple[Tensor, Tensor]


class Tables:
    """The tables of a family, by key, dtype and device; made in float64 on first use, then kept.

    :param make: from the parts of a key to the coefficients of both functions.
    """

    def __init__(self, make: Callable[..., Table]) -> None:
        self._make = make
        self._kept: dict[tuple, Table] = {}

    def get(self, *key: int | str, dtype: torch.dtype, device: torch.device) -> Table:
        place = (*key, dtype, device)
        if place not in self._kept:
            # They are constants: whatever traces or fakes tensors around this call must not see them made. What torch
            # has for that (modes, function transforms) belongs to the thread that it was opened in.
            with ThreadPoolExecutor(1) as elsewhere:
                self._kept[place] = elsewhere.submit(self._made, key, dtype, device).result()
        return self._kept[place]

    @torch.no_grad()
    def _made(self, key: tuple[int | str, ...], dtype: torch.dtype, device: torch.device) -> Table:
        exact = (*key, torch.float64, torch.device("cpu"))
        if exact not in self._kept:
            self._kept[exact] = self._make(*key)
        integral, quantiles = self._kept[exact]
        return integral.to(device, dtype), quantiles.to(device, dtype)


def evaluate(table: Tensor, w: Tensor, width: float, cells: int) -> Tensor:
    """The function of ``w`` alone, tabulated in ``cells`` cells of this width."""
    cell, t = _locate(w, width, cells)
    return _horner(_gather(table, cell), t)


def evaluate_quantile(table: Tensor, w: Tensor, z: Tensor, width: float, cells: int) -> Tensor:
    """The function of ``w`` and ``z``, of one shape."""
    row, t = _locate(w, width, cells)
    column, s = _locate(z + SCORE_MAX, _SCORE_CELL, _NUM_COLUMNS)
    return _horner(_horner(_gather(table, row, column), s.unsqueeze(-1)), t)


@torch.no_grad()
def make_table(
    cells: int, width: float, integral: Callable[[Tensor], Tensor], quantiles: Callable[[Tensor, Tensor], Tensor]
) -> Table:
    """Coefficients from values at the Chebyshev nodes of every cell.

    :param integral: the function of ``w``, on vectors.
    :param quantiles: that of ``w`` and ``z``, on vectors; a matrix.
    """
    w, to_coefficients = _cell_nodes(cells, width, _INTEGRAL_DEGREE)
    first = integral(w.reshape(-1)).reshape(w.shape) @ to_coefficients.T
    w, to_rows = _cell_nodes(cells, width, _QUANTILE_DEGREE)
    z, to_columns = _cell_nodes(_NUM_COLUMNS, _SCORE_CELL, _QUANTILE_DEGREE)
    values = quantiles(w.reshape(-1), z.reshape(-1) - SCORE_MAX).reshape(*w.shape, *z.shape)
    return first, torch.einsum("aibj,ki,lj->abkl", values, to_rows, to_columns).contiguous()


def solve_quantiles(
    kernel: Callable[[Tensor, Tensor], Tensor],
    parameter: Tensor,
    z: Tensor,
    dim: int,
    *,
    top: Tensor,
    low: Tensor,
    high: Tensor,
) -> Tensor:
    r"""Solve :math:`F(y) = \Phi(z)` for every pair of a parameter and a score; each tail from its own side.

    A grid of cumulated cells brackets the root; inside its cell Newton's method on the logarithm of the tail, a concave
    function, finishes.

    :param kernel: the logarithm of the density up to its integral, of points and the parameter.
    :param dim: at the ends of the interval the distribution function grows like this power of the distance to them.
    :param top: the mode, of the shape of the parameter, and the interval that holds all mass.
    """
    x, weight = gauss_legendre(_ORDER, parameter)
    top, low, high = (t.unsqueeze(-1) for t in (top, low, high))
    column = parameter.unsqueeze(-1)
    peak = kernel(top, column)
    grid = low + (high - low) * torch.linspace(0, 1, _GRID + 1, dtype=parameter.dtype, device=parameter.device)

    def mass(start: Tensor, end: Tensor, parameter: Tensor, peak: Tensor) -> Tensor:
        width = (end - start).unsqueeze(-1)
        heights = kernel(start.unsqueeze(-1) + width * x, parameter.unsqueeze(-1)) - peak.unsqueeze(-1)
        return (heights.exp() * weight * width).sum(-1)

    pieces = mass(grid[:, :-1], grid[:, 1:], column, peak)
    zero = torch.zeros_like(top)
    below = torch.cat([zero, pieces.cumsum(-1)], -1)
    above = torch.cat([pieces.flip(-1).cumsum(-1).flip(-1), zero], -1)

    lower = z <= 0
    target = 0.5 * torch.special.erfc(z.abs() / math.sqrt(2)) * below[:, -1:]
    cell = torch.where(
        lower,
        torch.searchsorted(below, target) - 1,
        _GRID - torch.searchsorted(above.flip(-1).contiguous(), target),
    ).clamp(0, _GRID - 1)
    left, right = grid.gather(-1, cell), grid.gather(-1, cell + 1)
    done = torch.where(lower, below.gather(-1, cell), above.gather(-1, cell + 1))
    share = ((target - done) / pieces.gather(-1, cell)).clamp(0, 1)
    at_end = (cell == 0) & lower | (cell == _GRID - 1) & ~lower
    share = torch.where(at_end, share ** (1 / dim), share)
    y = left + (right - left) * torch.where(lower, share, 1 - share)
    every = [t.expand(y.shape).reshape(-1) for t in (lower, left, right, done, target, column, peak)]
    roots, moving = y.reshape(-1), torch.arange(y.numel(), device=y.device)
    for _ in range(_NEWTON_STEPS):
        lower, left, right, done, target, column, peak = (t[moving] for t in every)
        last = roots[moving]
        tail = done + mass(torch.where(lower, left, last), torch.where(lower, last, right), column, peak)
        density = (kernel(last, column) - peak).exp()
        step = tail * (tail / target).log() / density
        # At the very end of a sphere, which rounding reaches in the last column, there is no tail left.
        step = torch.where(step.isfinite(), step, 0.0)
        root = torch.where(lower, last - step, last + step).clamp(min=left, max=right)
        roots[moving] = root
        # Most have converged before the last ones.
        moving = moving[~((root - last).abs() <= _CONVERGED * root)]
        if not len(moving):
            break
    return roots.reshape(y.shape)


def gauss_legendre(count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss-Legendre rule on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return like.new_tensor((1 + nodes) / 2), like.new_tensor(weights / 2)


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


def _cell_nodes(cells: int, width: float, degree: int) -> tuple[Tensor, Tensor]:
    """Chebyshev nodes of every cell, and the matrix from values there to monomial coefficients."""
    k = torch.arange(degree + 1, dtype=torch.float64, device="cpu")
    t = -torch.cos(math.pi * (k + 0.5) / (degree + 1))
    start = torch.arange(cells, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return width * (start + (1 + t) / 2), torch.linalg.inv(t.unsqueeze(-1) ** k)
