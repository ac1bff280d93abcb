r"""Special functions that are smooth at curvature zero.

:math:`\tanh(\sqrt{c}\,x)/\sqrt{c}` and its relatives are even in :math:`\sqrt{c}`, so each is an analytic
function of :math:`u = c x^2`. Written in ``u``, with a power series near zero, values and derivatives
in ``x`` and in ``c`` are finite at ``x = 0`` and at ``c = 0``, and the Euclidean space needs no special case. Below
zero each continues to its circular twin, :math:`\tanh(\sqrt u)/\sqrt u` to :math:`\tan(\sqrt{-u})/\sqrt{-u}`: a space
of curvature :math:`k = -c` of either sign needs none either. The argument ``sign`` says which values ``u`` can have, so
that only those are paid for: 1 is for :math:`u \ge 0`, -1 for :math:`u \le 0` and 0 for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.ops.products import einsum

# The series are used where |u| is below this fraction of their radius of convergence ...
_SERIES_FRACTION = 0.02
# ... so this many terms reach the rounding error (0.02 ** 10 = 1e-17, 0.02 ** 5 = 3e-9).
_NUM_TERMS = {torch.float64: 11, torch.float32: 6}
# Numbers of a matrix that are worked on at a time, so that what is made on the way stays small.
_PART = 1 << 16


def bernoulli(count: int) -> list[Fraction]:
    numbers = [Fraction(1)]
    for m in range(1, count):
        total = sum((math.comb(m + 1, k) * numbers[k] for k in range(m)), Fraction(0))
        numbers.append(-total / (m + 1))
    return numbers


_B = bernoulli(26)
_TANHC = [float(Fraction(4**k * (4**k - 1), math.factorial(2 * k)) * _B[2 * k]) for k in range(1, 13)]
_ASINHC = [float(Fraction((-1) ** k * math.comb(2 * k, k), 4**k * (2 * k + 1))) for k in range(13)]
_LOG_SINHC = [0.0] + [float(Fraction(4**k, 2 * k * math.factorial(2 * k)) * _B[2 * k]) for k in range(1, 12)]
_SINHC = [1 / math.factorial(2 * k + 1) for k in range(12)]
_COSHC = [1 / math.factorial(2 * k) for k in range(12)]
# These two converge everywhere; below 0.5 their terms fall by 1/50 and more, as above.
_ENTIRE_RADIUS = 0.5 / _SERIES_FRACTION


def _slopes(coefficients: list[float]) -> list[float]:
    return [(k + 1) * a for k, a in enumerate(coefficients[1:])]


_ASINHC_SLOPE = _slopes(_ASINHC)
Function = Callable[[Tensor], Tensor]


def tanhc(u: Tensor, sign: int = 1, most: float = 1.0) -> Tensor:
    r""":math:`\tanh(\sqrt{u}) / \sqrt{u}`; 1 at 0, :math:`\tan(\sqrt{-u}) / \sqrt{-u}` below.

    :param most: a bound of the hyperbolic tangent, near 1.
    """

    def above(x: Tensor) -> Tensor:
        tanh = torch.tanh(x)
        return (tanh if most == 1 else tanh.clamp(max=most)) / x

    def rise(u: Tensor, f: Tensor, sign: int) -> Tensor:
        # Of the square of a tangent near its bound rounding is left.
        return torch.threshold(1 - u * f * f, 1 - most * most + 4 * torch.finfo(u.dtype).eps, 0.0) - f

    return _smooth(u, sign, _Smooth(_TANHC, math.pi**2 / 4, above, _tanc, rise))


def _tanc(x: Tensor) -> Tensor:
    return torch.tan(x) / x


def asinhc(u: Tensor, sign: int = 1) -> Tensor:
    r""":math:`\operatorname{asinh}(\sqrt{u}) / \sqrt{u}`; 1 at 0, with the arc sine for :math:`-1 \le u < 0`."""
    return _smooth(u, sign, _ASINHC_PARTS)


def sinhc(u: Tensor, sign: int = 1) -> Tensor:
    r""":math:`\sinh(\sqrt{u}) / \sqrt{u}`; 1 at 0, :math:`\sin(\sqrt{-u}) / \sqrt{-u}` below."""
    return _smooth(u, sign, _SINHC_PARTS)


def cosh_sqrt(u: Tensor, sign: int = 1) -> Tensor:
    r""":math:`\cosh(\sqrt{u})`, smooth at 0, :math:`\cos(\sqrt{-u})` below."""
    return _smooth(u, sign, _COSHC_PARTS)


def log_sinhc(u: Tensor, sign: int = 1) -> Tensor:
    r""":math:`\log(\sinh(\sqrt{u}) / \sqrt{u})`; 0 at 0, no overflow. Below, that of the absolute value of the sine."""
    return _smooth(u, sign, _LOG_SINHC_PARTS)


@dataclass(frozen=True)
class _Smooth:
    r"""A smooth function :math:`f(u)`.

    :ivar coefficients: of its power series, with this ``radius`` of convergence.
    :ivar above: the function for :math:`u > 0`, of :math:`\sqrt{u}`; ``below``, for :math:`u < 0`, of
        :math:`\sqrt{-u}`.
    :ivar rise: :math:`2uf'(u)`, from ``u``, :math:`f(u)` and the sign.
    """

    coefficients: list[float]
    radius: float
    above: Function
    below: Function
    rise: Callable[[Tensor, Tensor, int], Tensor]


def scaled_asinh(t: Tensor, c: float | Tensor) -> Tensor:
    r""":math:`\operatorname{asinh}(\sqrt{c}\, t) / \sqrt{c}`; ``t`` itself at ``c = 0``, ``nan`` for ``c < 0``.

    The two broadcast. Distances end in this function, on tensors as large as the output. It costs one ``asinh`` and
    keeps one tensor for the backward pass, or the output too where ``c`` has a derivative; this one has its series near
    zero.
    """
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        # Neither takes the autograd function: the tracer hands it a constant tensor as a number, and dynamo does not
        # trace a derivative in forward mode.
        return _plain_scaled_asinh(t, c)
    if not isinstance(c, Tensor):
        return t if c == 0 else _ScaledAsinh.apply(t.view_as(t), torch.tensor(c, dtype=t.dtype, device="cpu"))
    # As views, which a torch function mode sees being made: it does not see an autograd function (DReG_ELBO has one).
    return _ScaledAsinh.apply(t.view_as(t), c.view_as(c))


def _plain_scaled_asinh(t: Tensor, c: float | Tensor) -> Tensor:
    """The same by operations that torch can differentiate, with its series near zero."""
    root = _positive_root(c, t.dtype) if isinstance(c, Tensor) else math.sqrt(c + _least_curvature(t.dtype))
    small = (root * t).abs() < 1
    near, far = torch.where(small, t, 0.0), torch.where(small, 1.0, t)
    return torch.where(small, near * asinhc(c * near * near), torch.asinh(root * far) / root)


class _ScaledAsinh(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, c: Tensor) -> Tensor:
        root = _positive_root(c, t.dtype)
        # In place: on matrices of distances memory is what counts.
        return _asinh_(root * t).div_(root)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        # Without a derivative in c nothing reads the output.
        ctx.save_for_backward(*inputs, output if ctx.needs_input_grad[1] else inputs[0])
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (grad,) = grads
        t, c, out = ctx.saved_tensors
        grad_t = grad_c = None
        slope = _asinh_slope(t, c)
        if ctx.needs_input_grad[0]:
            grad_t = (grad * slope).sum_to_size(t.shape)
        if ctx.needs_input_grad[1]:
            grad_c = (grad * _slope_in_curvature(t, c, out, slope)).sum_to_size(c.shape).to(c.dtype)
        return grad_t, grad_c

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        t, c = ctx.saved_tensors
        tangent_t, tangent_c = tangents
        slope = _asinh_slope(t, c)
        out = torch.zeros_like(c * t)
        if tangent_t is not None:
            out = out + tangent_t * slope
        if tangent_c is not None:
            out = out + tangent_c * _slope_in_curvature(t, c, scaled_asinh(t, c), slope)
        return out.to(t.dtype)


def _asinh_(x: Tensor) -> Tensor:
    r""":func:`torch.asinh` in place, on a CPU at a quarter of its time, to one unit in the last place.

    .. math:: \operatorname{asinh} a = \log\big(1 + a + a \big/ (1/a + \sqrt{1 + 1/a^2})\big), \qquad a \ge 0,

    whose functions are vectorised there. Beyond half of the largest number the result is infinite.
    """
    if x.device.type != "cpu" or torch.jit.is_tracing():
        return x.asinh_()
    if not inspectable(x):
        # A compiler makes one loop of it, whatever its size; its own asinh has two logarithms.
        return _positive_asinh(x.abs()).copysign_(x)
    if not x.is_contiguous():
        return x.asinh_()
    for part in x.view(-1).split(_PART):
        torch.copysign(_positive_asinh(part.abs()), part, out=part)
    return x


def _positive_asinh(a: Tensor) -> Tensor:
    """In the place of ``a``, with few tensors of its size."""
    inverse = a.reciprocal()
    one = torch.ones((), dtype=a.dtype, device=a.device)
    return a.add_(a / torch.addcmul(one, inverse, inverse).sqrt_().add_(inverse)).log1p_()


def _least_curvature(dtype: torch.dtype) -> float:
    """Below it :func:`scaled_asinh` is ``t`` to rounding for every ``t`` up to 1e10: no branch on ``c`` is needed."""
    return torch.finfo(dtype).eps ** 4


def _positive_root(c: Tensor, dtype: torch.dtype) -> Tensor:
    return (c.to(dtype) + _least_curvature(dtype)).sqrt()


def _safe_sqrt(c: Tensor) -> Tensor:
    """Square root with derivative 0 at 0."""
    zero = c == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, c).sqrt())


def _asinh_slope(t: Tensor, c: Tensor) -> Tensor:
    """Derivative of :func:`scaled_asinh` in ``t``; where ``t`` is large its square alone would overflow."""
    c = c.to(t.dtype)
    x = _safe_sqrt(c) * t
    inside = x.abs() < torch.finfo(t.dtype).max ** 0.5 / 2
    near, far = torch.where(inside, t, 0.0), torch.where(inside, 1.0, x)
    return torch.where(inside, torch.rsqrt(1 + c * near * near), 1 / far.abs())


def _slope_in_curvature(t: Tensor, c: Tensor, out: Tensor, slope: Tensor) -> Tensor:
    r"""Derivative of :func:`scaled_asinh` in ``c``, from its value and its derivative ``slope`` in ``t``.

    .. math:: \frac{\partial}{\partial c} \frac{\operatorname{asinh}(\sqrt{c}\,t)}{\sqrt{c}}
        = \frac{1}{2c}\Big(\frac{t}{\sqrt{1 + ct^2}} - \frac{\operatorname{asinh}(\sqrt{c}\,t)}{\sqrt{c}}\Big)
    """
    c = c.to(t.dtype)
    small = (_safe_sqrt(c) * t).abs() < math.sqrt(_SERIES_FRACTION)
    near = torch.where(small, t, 0.0)
    series = near * (near * (near * _horner(_ASINHC_SLOPE, c * near * near)))
    return torch.where(small, series, (t * slope - out) / torch.where(small, 1.0, 2 * c))


def _smooth(u: Tensor, sign: int, parts: _Smooth) -> Tensor:
    if torch.jit.is_tracing() or torch.compiler.is_compiling():
        return _plain_smooth(u, sign, parts)
    return _SmoothFunction.apply(u, sign, parts)


class _SmoothFunction(torch.autograd.Function):
    """A smooth function without a series for its value, where that is as good, and with one for its derivative.

    Torch's derivative of a series has twice as many operations, and there is that of the function beside it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, sign: int, parts: _Smooth) -> Tensor:
        if parts.coefficients[0] == 0:
            return _plain_smooth(u, sign, parts)  # what vanishes at 0 cancels there
        least = torch.finfo(u.dtype).tiny
        if sign > 0:
            return parts.above(u.clamp(min=least).sqrt())
        below = parts.below((-u).clamp(min=least).sqrt())
        return below if sign < 0 else torch.where(u < 0, below, parts.above(u.clamp(min=least).sqrt()))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, _Smooth], output: Tensor) -> None:
        u, ctx.sign, ctx.parts = inputs
        ctx.save_for_backward(u, output)
        ctx.save_for_forward(u, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        u, f = ctx.saved_tensors
        return grads[0] * _slope(u, f, ctx.sign, ctx.parts), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        u, f = ctx.saved_tensors
        return tangents[0] * _slope(u, f, ctx.sign, ctx.parts)


def _slope(u: Tensor, f: Tensor, sign: int, parts: _Smooth) -> Tensor:
    if parts is _COSHC_PARTS:
        return sinhc(u, sign) / 2
    small = _is_small(u, sign, parts)
    series = _horner(_slopes(parts.coefficients), torch.where(small, u, 0.0))
    return torch.where(small, series, parts.rise(u, f, sign) / (2 * u.masked_fill(small, 1.0)))


def _is_small(u: Tensor, sign: int, parts: _Smooth) -> Tensor:
    border = _SERIES_FRACTION * parts.radius
    return u < border if sign > 0 else u > -border if sign < 0 else u.abs() < border


def _plain_smooth(u: Tensor, sign: int, parts: _Smooth) -> Tensor:
    """By operations that torch can differentiate; each part sees only arguments that it can take."""
    border, small = _SERIES_FRACTION * parts.radius, _is_small(u, sign, parts)
    out = _horner(parts.coefficients, torch.where(small, u, 0.0))
    if sign >= 0:
        other = small if sign > 0 else u < border
        out = torch.where(other, out, parts.above(u.masked_fill(other, 1.0).sqrt()))
    if sign <= 0:
        other = small if sign < 0 else u > -border
        out = torch.where(other, out, parts.below((-u).masked_fill(other, 1.0).sqrt()))
    return out


_ASINHC_PARTS = _Smooth(
    _ASINHC, 1.0, lambda x: torch.asinh(x) / x, lambda x: torch.asin(x) / x, lambda u, f, sign: (1 + u).rsqrt() - f
)
_SINHC_PARTS = _Smooth(
    _SINHC,
    _ENTIRE_RADIUS,
    lambda x: torch.sinh(x) / x,
    lambda x: torch.sin(x) / x,
    lambda u, f, sign: cosh_sqrt(u, sign) - f,
)
_COSHC_PARTS = _Smooth(_COSHC, _ENTIRE_RADIUS, torch.cosh, torch.cos, lambda u, f, sign: u * sinhc(u, sign))
_LOG_SINHC_PARTS = _Smooth(
    _LOG_SINHC,
    math.pi**2,
    lambda x: x + torch.log(-torch.expm1(-2 * x) / (2 * x)),
    lambda x: torch.log((torch.sin(x) / x).abs()),
    lambda u, f, sign: 1 / tanhc(u, sign) - 1,
)


def _horner(coefficients: list[float], u: Tensor) -> Tensor:
    """The power series, to as many terms as the dtype can tell."""
    terms = coefficients[: _NUM_TERMS.get(u.dtype, 11)]
    out = terms[-1] * u + terms[-2]
    for a in reversed(terms[:-2]):
        out = out * u + a
    return out


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension.

    Where the two broadcast against each other it is a matrix product, which never makes a tensor of
    the broadcast shape times the dimension: ``(N, 1, d)`` with ``(M, d)`` needs O(N M) memory.
    """
    if x.shape == y.shape:
        return (x * y).sum(-1)
    return einsum("...d,...d->...", x, y)


def squared_norm(x: Tensor) -> Tensor:
    """Squared Euclidean norm over the last dimension, which is kept."""
    return (x * x).sum(-1, keepdim=True)


def safe_norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, which is kept; derivative 0 at 0, to every order."""
    square = squared_norm(x)
    zero = square == 0
    return square.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)


def inverse_norm(x: Tensor) -> Tensor:
    """One over the Euclidean norm over the last dimension, which is kept; 1 at 0, with derivative 0."""
    square = squared_norm(x)
    return square.masked_fill(square == 0, 1.0).rsqrt()


def unit(x: Tensor) -> Tensor:
    """The direction of ``x`` over the last dimension; 0 at 0."""
    length = safe_norm(x)
    return x / torch.where(length == 0, 1.0, length)
