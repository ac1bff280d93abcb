r"""Special functions that are smooth at curvature zero.

:math:`\tanh(\sqrt{c}\,x)/\sqrt{c}` and its relatives are even in :math:`\sqrt{c}`, so each is an analytic
function of :math:`u = c x^2`. Written in ``u``, with a power series near zero, values and derivatives
in ``x`` and in ``c`` are finite at ``x = 0`` and at ``c = 0``, and the Euclidean space needs no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

# The series are used where |u| is below this fraction of their radius of convergence ...
_SERIES_FRACTION = 0.02
# ... so this many terms reach the rounding error (0.02 ** 10 = 1e-17, 0.02 ** 5 = 3e-9).
_NUM_TERMS = {torch.float64: 11, torch.float32: 6}


def _bernoulli(count: int) -> list[Fraction]:
    numbers = [Fraction(1)]
    for m in range(1, count):
        total = sum((math.comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0))
        numbers.append(-total / (m + 1))
    return numbers


_B = _bernoulli(26)
_TANHC = [float(Fraction(4**k * (4**k - 1), math.factorial(2 * k)) * _B[2 * k]) for k in range(1, 13)]
_ASINHC = [float(Fraction((-1) ** k * math.comb(2 * k, k), 4**k * (2 * k + 1))) for k in range(13)]
_LOG_SINHC = [0.0] + [float(Fraction(4**k, 2 * k * math.factorial(2 * k)) * _B[2 * k]) for k in range(1, 12)]
_ASINHC_SLOPE = [(k + 1) * a for k, a in enumerate(_ASINHC[1:])]


def tanhc(u: Tensor) -> Tensor:
    r""":math:`\tanh(\sqrt{u}) / \sqrt{u}` for :math:`u \ge 0`; 1 at 0."""

    def direct(u: Tensor) -> Tensor:
        x = u.sqrt()
        return torch.tanh(x) / x

    return _smooth(u, _TANHC, math.pi**2 / 4, direct)


def asinhc(u: Tensor) -> Tensor:
    r""":math:`\operatorname{asinh}(\sqrt{u}) / \sqrt{u}` for :math:`u \ge 0`; 1 at 0."""

    def direct(u: Tensor) -> Tensor:
        x = u.sqrt()
        return torch.asinh(x) / x

    return _smooth(u, _ASINHC, 1.0, direct)


def log_sinhc(u: Tensor) -> Tensor:
    r""":math:`\log(\sinh(\sqrt{u}) / \sqrt{u})` for :math:`u \ge 0`; 0 at 0, no overflow."""

    def direct(u: Tensor) -> Tensor:
        x = u.sqrt()
        return x + torch.log(-torch.expm1(-2 * x) / (2 * x))

    return _smooth(u, _LOG_SINHC, math.pi**2, direct)


def scaled_asinh(t: Tensor, c: float | Tensor) -> Tensor:
    r""":math:`\operatorname{asinh}(\sqrt{c}\, t) / \sqrt{c}`; ``t`` itself at ``c = 0``.

    Distances end in this function, on tensors as large as the output. It costs one ``asinh`` and keeps
    one tensor for the backward pass; the derivative in ``c`` has its series near zero.
    """
    if isinstance(c, Tensor):
        return _ScaledAsinh.apply(t, c)
    if c == 0:
        return t
    root = math.sqrt(c)
    return torch.asinh(root * t) / root


class _ScaledAsinh(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, c: Tensor) -> Tensor:
        # Below eps^2 the function equals t to rounding: no branch on c is needed.
        floor = torch.finfo(t.dtype).eps ** 2
        root = c.to(t.dtype).clamp(min=floor).sqrt()
        return torch.asinh(root * t) / root

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        t, c = ctx.saved_tensors
        grad_t = grad_c = None
        if ctx.needs_input_grad[0]:
            grad_t = (grad * torch.rsqrt(1 + c * t * t)).sum_to_size(t.shape)
        if ctx.needs_input_grad[1]:
            grad_c = (grad * t**3 * _asinhc_slope(c * t * t)).sum_to_size(c.shape).to(c.dtype)
        return grad_t, grad_c

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        t, c = ctx.saved_tensors
        tangent_t, tangent_c = tangents
        out = torch.zeros_like(c * t)
        if tangent_t is not None:
            out = out + tangent_t * torch.rsqrt(1 + c * t * t)
        if tangent_c is not None:
            out = out + tangent_c * t**3 * _asinhc_slope(c * t * t)
        return out


def _asinhc_slope(u: Tensor) -> Tensor:
    def direct(u: Tensor) -> Tensor:
        x = u.sqrt()
        return (torch.rsqrt(1 + u) - torch.asinh(x) / x) / (2 * u)

    return _smooth(u, _ASINHC_SLOPE, 1.0, direct)


def _smooth(u: Tensor, coefficients: list[float], radius: float, direct: Callable[[Tensor], Tensor]) -> Tensor:
    """Power series for small ``u``, ``direct`` elsewhere; each branch sees only arguments it can take."""
    small = u < _SERIES_FRACTION * radius
    near = torch.where(small, u, torch.zeros_like(u))
    far = torch.where(small, torch.ones_like(u), u)
    terms = coefficients[: _NUM_TERMS.get(u.dtype, 11)]
    series = torch.full_like(near, terms[-1])
    for a in reversed(terms[:-1]):
        series = series * near + a
    return torch.where(small, series, direct(far))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension.

    Where the two broadcast against each other it is a matrix product, which never makes a tensor of
    the broadcast shape times the dimension: ``(N, 1, d)`` with ``(M, d)`` needs O(N M) memory.
    """
    if x.shape == y.shape:
        return (x * y).sum(-1)
    return torch.einsum("...d,...d->...", x, y)


def squared_norm(x: Tensor) -> Tensor:
    """Squared Euclidean norm over the last dimension, which is kept."""
    return (x * x).sum(-1, keepdim=True)


def safe_norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, which is kept; derivative 0 at 0, to every order."""
    square = squared_norm(x)
    zero = square == 0
    return torch.where(zero, torch.zeros_like(square), torch.where(zero, 1.0, square).sqrt())
