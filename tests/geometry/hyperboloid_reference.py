"""The hyperboloid by the textbook's formulas, in arithmetic of so many digits that cancellation does not matter.

Points and vectors are lists of mpmath numbers, time component first. At distance ``300/sqrt(c)`` a Minkowski product
cancels 260 digits, so 400 are used; derivatives are central differences of step 1e-50.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch
from mpmath import mp, mpf
from torch import Tensor

DIGITS = 400
STEP = mpf(10) ** -50

Vector = list[Any]


def number(value: Tensor | float) -> Any:
    """The very number that a float holds."""
    return mpf(value.item() if isinstance(value, Tensor) else value)


def vector(values: Tensor) -> Vector:
    return [number(value) for value in values]


def tensor(values: Any) -> Tensor:
    """Back to float64."""
    return torch.tensor([float(v) for v in values] if isinstance(values, list) else float(values), dtype=torch.float64)


def exact(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with 400 digits."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with mp.workdps(DIGITS):
            return function(*args, **kwargs)

    return run


@exact
def gradient(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Derivatives of a function with one value in each of its arguments, numbers or vectors."""
    slopes: list[Any] = []
    for i, arg in enumerate(args):
        entries = arg if isinstance(arg, list) else [arg]
        column = []
        for k in range(len(entries)):
            ends = []
            for sign in (1, -1):
                moved = [e + sign * STEP if j == k else e for j, e in enumerate(entries)]
                ends.append(function(*args[:i], moved if isinstance(arg, list) else moved[0], *args[i + 1 :]))
            column.append((ends[0] - ends[1]) / (2 * STEP))
        slopes.append(column if isinstance(arg, list) else column[0])
    return slopes


def minkowski(x: Sequence[Any], y: Sequence[Any]) -> Any:
    return mpmath.fsum([-x[0] * y[0], *(a * b for a, b in zip(x[1:], y[1:], strict=True))])


def length(v: Sequence[Any]) -> Any:
    return mpmath.sqrt(mpmath.fsum([a * a for a in v]))


def lift(space: Sequence[Any], c: Any) -> Vector:
    """The point with that space part: where a point in floats is, its time component being redundant."""
    return [mpmath.sqrt(1 / c + mpmath.fsum([a * a for a in space])), *space]


def combine(a: Any, x: Sequence[Any], b: Any, y: Sequence[Any]) -> Vector:
    return [a * p + b * q for p, q in zip(x, y, strict=True)]


def origin(dim: int, c: Any) -> Vector:
    return [1 / mpmath.sqrt(c), *[mpf(0)] * dim]


def dist(x: Vector, y: Vector, c: Any) -> Any:
    return mpmath.acosh(max(mpf(1), -c * minkowski(x, y))) / mpmath.sqrt(c)


def dist0(x: Vector, c: Any) -> Any:
    return mpmath.asinh(mpmath.sqrt(c) * length(x[1:])) / mpmath.sqrt(c)


def expmap(x: Vector, u: Vector, c: Any) -> Vector:
    s = mpmath.sqrt(c * minkowski(u, u))
    return combine(mpmath.cosh(s), x, mpmath.sinh(s) / s, u) if s else list(x)


def logmap(x: Vector, y: Vector, c: Any) -> Vector:
    u = combine(1, y, c * minkowski(x, y), x)
    size = mpmath.sqrt(minkowski(u, u))
    return combine(dist(x, y, c) / size, u, 0, u) if size else [mpf(0)] * len(x)


def transp(x: Vector, y: Vector, u: Vector, c: Any) -> Vector:
    along = c * minkowski(y, u) / (1 - c * minkowski(x, y))
    return [a + along * (p + q) for a, p, q in zip(u, x, y, strict=True)]


def frame(x: Vector, v: Vector, c: Any) -> Vector:
    """The vector ``v`` of the origin, carried to ``x``."""
    return transp(origin(len(v), c), x, [mpf(0), *v], c)


def coframe(x: Vector, u: Vector, c: Any) -> Vector:
    """Its inverse: the vector ``u`` at ``x`` carried to the origin."""
    return transp(x, origin(len(x) - 1, c), u, c)[1:]


def from_normal_coords(x: Vector | None, v: Vector, c: Any) -> Vector:
    x = origin(len(v), c) if x is None else x
    return expmap(x, frame(x, v, c), c)


def to_normal_coords(x: Vector | None, y: Vector, c: Any) -> Vector:
    x = origin(len(y) - 1, c) if x is None else x
    return coframe(x, logmap(x, y, c), c)


def dist2plane(x: Vector, a: Vector, c: Any) -> Any:
    """``a`` is tangent somewhere on the plane; where does not matter."""
    k = mpmath.sqrt(c)
    return mpmath.asinh(k * minkowski(x, a) / mpmath.sqrt(minkowski(a, a))) / k


def to_poincare(x: Vector, c: Any) -> Vector:
    return [a / (1 + mpmath.sqrt(c) * x[0]) for a in x[1:]]


def log_jacobian(v: Vector, c: Any) -> Any:
    """Log-density of the Riemannian volume in normal coordinates."""
    s = mpmath.sqrt(c) * length(v)
    return (len(v) - 1) * mpmath.log(mpmath.sinh(s) / s)


def wrapped_log_prob(v: Vector, scale: Any, c: Any) -> Any:
    """Of the point with normal coordinates ``v`` at the mean; ``scale`` a number, or one per dimension."""
    scales = scale if isinstance(scale, list) else [scale] * len(v)
    pairs = list(zip(v, scales, strict=True))
    gaussian = mpmath.fsum([-((a / s) ** 2) / 2 - mpmath.log(s) for a, s in pairs])
    return gaussian - len(v) * mpmath.log(2 * mpmath.pi) / 2 - log_jacobian(v, c)


def riemannian_log_normalizer(dim: int, scale: Any, c: Any) -> Any:
    r"""log of the area of the sphere times :math:`\int e^{-r^2/2\sigma^2}(\sinh(\sqrt c r)/\sqrt c)^{d-1} dr`.

    The power of the hyperbolic sine is a sum of exponentials, and each makes an error function: all terms are exact,
    and their cancellation, which rules the formula out for floats, is nothing to 400 digits.
    """
    n, k = dim - 1, mpmath.sqrt(c)
    terms = []
    for j in range(n + 1):
        b = (n - 2 * j) * k * scale
        # int_0^inf exp(-y^2/2 + b y) dy = sqrt(pi/2) exp(b^2/2) (1 + erf(b / sqrt 2))
        terms.append((-1) ** j * mpmath.binomial(n, j) * mpmath.exp(b * b / 2) * mpmath.erfc(-b / mpmath.sqrt(2)))
    radial = scale * mpmath.sqrt(mpmath.pi / 2) * mpmath.fsum(terms) / (2 * k) ** n
    area = 2 * mpmath.pi ** (mpf(dim) / 2) / mpmath.gamma(mpf(dim) / 2)
    return mpmath.log(area * radial)


def riemannian_log_prob(v: Vector, scale: Any, c: Any) -> Any:
    square = mpmath.fsum([a * a for a in v])
    return -square / (2 * scale * scale) - riemannian_log_normalizer(len(v), scale, c)
