"""The special functions against high precision, from 1e-30 to 1e8, with their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_hyperbolic.ops.special import (
    asinhc,
    cosh_sqrt,
    dot,
    log_sinhc,
    safe_norm,
    scaled_asinh,
    sinhc,
    squared_norm,
    tanhc,
)
from tests.helpers import DTYPES, ROUNDING, SLOPE, LargestStorage, each, same

MP = mpmath.mp.clone()
MP.dps = 250  # the slopes cancel all digits of c t^2, and this is down to 1e-95


def _tanhc(u):
    x = MP.sqrt(u)
    return MP.tanh(x) / x


def _tanhc_slope(u):
    x = MP.sqrt(u)
    return (MP.sech(x) ** 2 - MP.tanh(x) / x) / (2 * u)


def _asinhc(u):
    x = MP.sqrt(u)
    return MP.asinh(x) / x


def _asinhc_slope(u):
    return (1 / MP.sqrt(1 + u) - _asinhc(u)) / (2 * u)


def _log_sinhc(u):
    x = MP.sqrt(u)
    return x + MP.log(-MP.expm1(-2 * x) / (2 * x))


def _log_sinhc_slope(u):
    x = MP.sqrt(u)
    return (MP.coth(x) - 1 / x) / (2 * x)


def _sinhc(u):
    x = MP.sqrt(u)
    return MP.sinh(x) / x


def _sinhc_slope(u):
    return (MP.cosh(MP.sqrt(u)) - _sinhc(u)) / (2 * u)


class Smooth(NamedTuple):
    function: Callable[[Tensor], Tensor]
    exact: Callable
    slope: Callable
    at_zero: tuple[float, float, float]  # value, first and second derivative
    seam: float  # where the series ends
    largest: float = 1e8


SMOOTH = {
    "tanhc": Smooth(tanhc, _tanhc, _tanhc_slope, (1, -1 / 3, 4 / 15), 0.02 * math.pi**2 / 4),
    "asinhc": Smooth(asinhc, _asinhc, _asinhc_slope, (1, -1 / 6, 3 / 20), 0.02),
    "log_sinhc": Smooth(log_sinhc, _log_sinhc, _log_sinhc_slope, (0, 1 / 6, -1 / 90), 0.02 * math.pi**2),
    # These two grow exponentially, and so does their sensitivity.
    "sinhc": Smooth(sinhc, _sinhc, _sinhc_slope, (1, 1 / 6, 1 / 60), 0.5, largest=100.0),
    "cosh_sqrt": Smooth(
        cosh_sqrt, lambda u: MP.cosh(MP.sqrt(u)), lambda u: _sinhc(u) / 2, (1, 1 / 2, 1 / 12), 0.5, 100.0
    ),
}
smooth = each("name", SMOOTH)
dtypes = each("dtype", DTYPES)

# Both sides of every seam between series and direct formula lie in the second range.
ARGUMENTS = torch.cat(
    [torch.logspace(-30, 8, 77, dtype=torch.float64), torch.linspace(0.01, 0.6, 60, dtype=torch.float64)]
)


def arguments(name: str, dtype: torch.dtype) -> Tensor:
    return ARGUMENTS[SMOOTH[name].largest >= ARGUMENTS].to(dtype)


def exactly(f: Callable, x: Tensor) -> Tensor:
    """``f`` of the very numbers in ``x``, in high precision, rounded to float64."""
    return torch.tensor([float(f(MP.mpf(v))) for v in x.tolist()], dtype=torch.float64)


@smooth
@dtypes
def test_smooth_value(name, dtype):
    u = arguments(name, dtype)
    same(SMOOTH[name].function(u), exactly(SMOOTH[name].exact, u), ROUNDING[dtype], scale=0)


@smooth
@dtypes
def test_smooth_derivative(name, dtype):
    u = arguments(name, dtype)
    same(vmap(grad(SMOOTH[name].function))(u), exactly(SMOOTH[name].slope, u), SLOPE[dtype], scale=0)


@smooth
@dtypes
def test_smooth_at_zero(name, dtype):
    f, zero = SMOOTH[name].function, torch.zeros((), dtype=dtype)
    same(torch.stack([f(zero), grad(f)(zero), grad(grad(f))(zero)]), SMOOTH[name].at_zero, ROUNDING[dtype])


@smooth
def test_smooth_is_continuous_at_the_seam(name):
    u = torch.tensor(SMOOTH[name].seam, dtype=torch.float64)
    u = torch.stack([torch.nextafter(u, u - 1), u, torch.nextafter(u, u + 1)])
    same(SMOOTH[name].function(u), exactly(SMOOTH[name].exact, u), ROUNDING[torch.float64])


@smooth
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_smooth_gradcheck(name, check):
    seam = SMOOTH[name].seam
    # Finite differences straddle no seam, the nearest argument is 1e-4 away from it, nor 0, where the domain ends.
    u = torch.tensor([2e-5, 5e-4, seam - 1e-4, seam + 1e-4, 1.0, 30.0], dtype=torch.float64, requires_grad=True)
    assert check(SMOOTH[name].function, (u,), eps=1e-5, atol=1e-6)


@smooth
def test_smooth_vmap(name):
    f = SMOOTH[name].function
    u = ARGUMENTS[:12].reshape(3, 4)
    assert torch.equal(vmap(vmap(f))(u), f(u))


# --- scaled_asinh -----------------------------------------------------------------------------------------------

CURVATURES = [0.0, 1e-35, 1e-20, 1e-12, 1e-6, 0.01, 1.0, 7.0, 1e3]
LENGTHS = torch.logspace(-30, 8, 77, dtype=torch.float64)
# root(c) t must stay a normal number: below this length float32 is accurate absolutely, not relatively.
SMALLEST = {torch.float64: 1e-30, torch.float32: 1e-20}


def _scaled_asinh(t, c):
    return MP.asinh(MP.sqrt(c) * t) / MP.sqrt(c) if c else t


def _scaled_asinh_slope_t(t, c):
    return 1 / MP.sqrt(1 + c * t * t)


def _scaled_asinh_slope_c(t, c):
    return t**3 * (_asinhc_slope(c * t * t) if c else -MP.mpf(1) / 6)


@pytest.fixture(params=CURVATURES)
def curvature(request):
    return request.param


@dtypes
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_scaled_asinh_value(curvature, kind, dtype):
    t, c = LENGTHS.to(dtype), torch.tensor(curvature, dtype=dtype)
    exact = partial(_scaled_asinh, c=MP.mpf(c.item()))
    function = partial(scaled_asinh, c=c.item() if kind == "float" else c)
    for value in (function(t), vmap(function)(t), make_fx(function)(t)(t)):
        same(value, exactly(exact, t), ROUNDING[dtype], scale=SMALLEST[dtype])


@dtypes
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_scaled_asinh_derivative_in_t(curvature, kind, dtype):
    t, c = LENGTHS.to(dtype), torch.tensor(curvature, dtype=dtype)
    exact = partial(_scaled_asinh_slope_t, c=MP.mpf(c.item()))
    actual = vmap(grad(partial(scaled_asinh, c=c.item() if kind == "float" else c)))(t)
    same(actual, exactly(exact, t), SLOPE[dtype], scale=0)


@dtypes
def test_scaled_asinh_derivative_in_c(curvature, dtype):
    t, c = LENGTHS.to(dtype), torch.tensor(curvature, dtype=dtype)
    exact = partial(_scaled_asinh_slope_c, c=MP.mpf(c.item()))
    actual = vmap(grad(scaled_asinh, argnums=1), (0, None))(t, c)
    # t^3 underflows below 1e-13 in float32.
    same(actual, exactly(exact, t), SLOPE[dtype], scale=torch.finfo(dtype).tiny / SLOPE[dtype])


@dtypes
def test_scaled_asinh_derivative_in_c_does_not_overflow(dtype):
    # A point and a gyroplane on opposite sides of a float32 ball: sqrt(c) t is sinh(30).
    t, c = torch.tensor([5e15], dtype=dtype), torch.tensor(1e-6, dtype=dtype)
    actual = vmap(grad(scaled_asinh, argnums=1), (0, None))(t, c)
    same(actual, exactly(partial(_scaled_asinh_slope_c, c=MP.mpf(c.item())), t), SLOPE[dtype], scale=0)


@dtypes
@pytest.mark.parametrize("c", [0.0, 1.0])
def test_scaled_asinh_at_zero(c, dtype):
    zero, c = torch.zeros((), dtype=dtype), torch.tensor(c, dtype=dtype)
    values = [scaled_asinh(zero, c), *grad(scaled_asinh, argnums=(0, 1))(zero, c)]
    assert torch.stack(values).tolist() == [0, 1, 0]


@dtypes
@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_scaled_asinh_traced(curvature, kind, dtype):
    # The tracer of torch.jit, which Pyro's compiled losses and kernels use, takes the curvature for a constant.
    c = torch.tensor(curvature, dtype=dtype)
    c = c.item() if kind == "float" else c
    values = []

    def f(t):
        return scaled_asinh(t, c)

    for function in (f, torch.jit.trace(f, (torch.ones(3, dtype=dtype),))):
        t = LENGTHS.to(dtype).requires_grad_()
        value = function(t)
        values.append((value, *torch.autograd.grad(value.sum(), t)))
    same(values[1][0], values[0][0], ROUNDING[dtype], scale=SMALLEST[dtype])
    same(values[1][1], values[0][1], SLOPE[dtype], scale=0)


def test_scaled_asinh_of_zero_float_is_the_argument():
    t = torch.randn(3)
    assert scaled_asinh(t, 0.0) is t


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("c", [0.0, 1e-3, 0.4, 2.0])
def test_scaled_asinh_gradcheck(check, c):
    t = torch.tensor([[-3.0, 0.0, 0.05, 0.4, 12.0]], dtype=torch.float64, requires_grad=True)
    # Finite differences step below c = 0, where the function is not defined: start one step above.
    c = torch.tensor(max(c, 1e-4), dtype=torch.float64, requires_grad=True)
    assert check(scaled_asinh, (t, c), eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", [0.0, 1e-3, 2.0])
def test_scaled_asinh_second_derivatives_agree_with_the_plain_formula(c):
    c = torch.tensor(c, dtype=torch.float64)
    for t in torch.tensor([-3.0, 0.0, 0.4, 12.0], dtype=torch.float64):
        hessian = torch.autograd.functional.hessian(scaled_asinh, (t, c))
        plain = torch.autograd.functional.hessian(lambda t, c: t * asinhc(c * t * t), (t, c))
        same(torch.stack(sum(hessian, ())), torch.stack(sum(plain, ())), 1e-9)


@pytest.mark.parametrize("c", [0.0, 1e-3, 2.0])
@pytest.mark.parametrize("argument", [0, 1])
def test_scaled_asinh_forward_mode_agrees_with_backward_mode(c, argument):
    inputs = [torch.tensor(0.7, dtype=torch.float64), torch.tensor(c, dtype=torch.float64)]

    def f(value):
        return scaled_asinh(*(value if i == argument else x for i, x in enumerate(inputs)))

    _, tangent = jvp(f, (inputs[argument],), (torch.ones((), dtype=torch.float64),))
    same(tangent, grad(f)(inputs[argument]), ROUNDING[torch.float64])


def test_scaled_asinh_forward_mode_in_both_arguments():
    t, c = torch.randn(4, 3, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    tangents = torch.randn_like(t), torch.tensor(2.0, dtype=torch.float64)
    _, both = jvp(scaled_asinh, (t, c), tangents)
    _, only_t = jvp(lambda t: scaled_asinh(t, c), (t,), tangents[:1])
    _, only_c = jvp(lambda c: scaled_asinh(t, c), (c,), tangents[1:])
    same(both, only_t + only_c, ROUNDING[torch.float64])


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_scaled_asinh_vmap(in_dims):
    t = torch.randn(4, 3, dtype=torch.float64) if in_dims[0] == 0 else torch.randn(3, dtype=torch.float64)
    c = torch.rand(4, dtype=torch.float64) if in_dims[1] == 0 else torch.tensor(0.3, dtype=torch.float64)
    rows = [scaled_asinh(t[i] if in_dims[0] == 0 else t, c[i] if in_dims[1] == 0 else c) for i in range(4)]
    same(vmap(scaled_asinh, in_dims)(t, c), torch.stack(rows), ROUNDING[torch.float64])


def test_scaled_asinh_vmap_of_the_gradient():
    t, c = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    by_vmap = torch.stack(vmap(grad(scaled_asinh, argnums=(0, 1)))(t, c), -1)
    by_loop = torch.stack([torch.stack(grad(scaled_asinh, argnums=(0, 1))(a, b)) for a, b in zip(t, c, strict=True)])
    same(by_vmap, by_loop, ROUNDING[torch.float64])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_scaled_asinh_keeps_the_dtype_of_t(shape):
    t = torch.ones(shape, dtype=torch.float32, requires_grad=True)
    c = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    out = scaled_asinh(t, c)
    out.sum().backward()
    assert (out.dtype, t.grad.dtype, c.grad.dtype) == (torch.float32, torch.float32, torch.float64)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_scaled_asinh_forward_mode_keeps_the_dtype_of_t(shape):
    t, c = torch.ones(shape), torch.tensor(0.3, dtype=torch.float64)
    out, tangent = jvp(scaled_asinh, (t, c), (torch.ones_like(t), torch.ones_like(c)))
    assert (out.dtype, tangent.dtype) == (torch.float32, torch.float32)


# --- norms and products -----------------------------------------------------------------------------------------

# Squares below this length lose digits to underflow; what is left is absolute accuracy.
SQUARE_FLOOR = {dtype: math.sqrt(torch.finfo(dtype).tiny / torch.finfo(dtype).eps) for dtype in DTYPES}


@dtypes
def test_safe_norm_value(dtype):
    x = LENGTHS.to(dtype).unsqueeze(-1) * torch.tensor([0.6, 0.0, -0.8], dtype=dtype)
    expected = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
    same(safe_norm(x), expected, ROUNDING[dtype], scale=SQUARE_FLOOR[dtype])


@dtypes
def test_safe_norm_derivative_is_the_direction(dtype):
    lengths = LENGTHS[SQUARE_FLOOR[dtype] < LENGTHS].to(dtype)
    direction = torch.tensor([0.6, 0.0, -0.8], dtype=dtype)
    x = lengths.unsqueeze(-1) * direction
    actual = grad(lambda x: safe_norm(x).sum())(x)
    same(actual, direction.expand_as(x), ROUNDING[dtype])


@dtypes
def test_safe_norm_derivative_is_bounded_where_squares_underflow(dtype):
    x = torch.logspace(-200, -18, 400, dtype=torch.float64).to(dtype).unsqueeze(-1)
    slope = grad(lambda x: safe_norm(x).sum())(x)
    assert ((slope >= 0) & (slope < 2)).all()


@dtypes
def test_safe_norm_derivatives_at_zero_are_zero(dtype):
    zero = torch.zeros(3, dtype=dtype)

    def length(x):
        return safe_norm(x).squeeze(-1)

    assert torch.equal(grad(length)(zero), zero)
    assert torch.equal(torch.func.hessian(length)(zero), torch.zeros(3, 3, dtype=dtype))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_safe_norm_gradcheck(check):
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert check(safe_norm, (x,))


def test_safe_norm_vmap():
    x = torch.randn(4, 3, dtype=torch.float64)
    x[1] = 0
    assert torch.equal(vmap(safe_norm)(x), safe_norm(x))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 1, 3)])
def test_norms_keep_the_last_dimension(shape):
    x = torch.randn(shape)
    assert safe_norm(x).shape == squared_norm(x).shape == shape[:-1] + (1,)


DOT_SHAPES = [
    ((3,), (3,)),
    ((4, 3), (3,)),
    ((3,), (4, 3)),
    ((4, 3), (4, 3)),
    ((4, 1, 3), (5, 3)),
    ((2, 4, 1, 3), (2, 1, 5, 3)),
    ((4, 1, 1), (5, 1)),
]


@pytest.mark.parametrize(("left", "right"), DOT_SHAPES)
def test_dot(left, right):
    x, y = torch.randn(left, dtype=torch.float64), torch.randn(right, dtype=torch.float64)
    same(dot(x, y), (x * y).sum(-1), ROUNDING[torch.float64])


@pytest.mark.parametrize(("left", "right"), DOT_SHAPES)
def test_dot_gradcheck(left, right):
    x = torch.randn(left, dtype=torch.float64, requires_grad=True)
    y = torch.randn(right, dtype=torch.float64, requires_grad=True)
    assert gradcheck(dot, (x, y))


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_dot_vmap(in_dims):
    x = torch.randn((5, 2, 3) if in_dims[0] == 0 else (2, 3), dtype=torch.float64)
    y = torch.randn((5, 3) if in_dims[1] == 0 else (3,), dtype=torch.float64)
    rows = [dot(x[i] if in_dims[0] == 0 else x, y[i] if in_dims[1] == 0 else y) for i in range(5)]
    same(vmap(dot, in_dims)(x, y), torch.stack(rows), ROUNDING[torch.float64])


def test_dot_of_all_pairs_never_makes_the_broadcast_tensor():
    x = torch.randn(30, 1, 50, requires_grad=True)
    y = torch.randn(40, 50, requires_grad=True)
    with LargestStorage() as largest:
        dot(x, y).sum().backward()
    assert largest.numel == 40 * 50  # the larger input, not 30 * 40 * 50
