r"""Hyperbolic geometry of curvature -1 in a hundred digits: the reference of :mod:`benchmarks.accuracy`.

Textbook formulas of the hyperboloid on NumPy arrays of :class:`decimal.Decimal`, which is exact enough on every
platform (a ``long double`` is not) and fast enough for thousands of points. Points are ``(..., d + 1)``, time first;
tangent vectors are their components ``(..., d)`` in the frame carried from the origin. A chart says which of these a
tuple of floats stands for.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

DIGITS = 100
Array = Any  # of Decimal objects, which NumPy's types do not tell
ZERO: Any = Decimal(0)
ONE: Any = Decimal(1)


def decimals(values: Tensor | np.ndarray) -> Array:
    """The very numbers that floats hold."""
    array = values.detach().double().numpy() if isinstance(values, Tensor) else np.asarray(values, dtype=float)
    return np.vectorize(Decimal, otypes=[object])(array)


def digits() -> Any:
    """A context in which the arithmetic has a hundred digits."""
    return decimal.localcontext(decimal.Context(prec=DIGITS, Emin=-(10**6), Emax=10**6))


def _asinh(x: Array) -> Array:
    return np.sign(x) * _log(abs(x) + np.sqrt(x * x + 1))


def _log(x: Array) -> Array:
    return np.vectorize(Decimal.ln, otypes=[object])(x)


def dot(x: Array, y: Array) -> Array:
    return (x * y).sum(-1)


def norm(x: Array) -> Array:
    return np.sqrt(dot(x, x))


def _minkowski(x: Array, y: Array) -> Array:
    return dot(x[..., 1:], y[..., 1:]) - x[..., 0] * y[..., 0]


def _column(x: Array) -> Array:
    return x[..., None]


def _join(time: Array, space: Array) -> Array:
    return np.concatenate([_column(time), space], -1)


def lift(space: Array) -> Array:
    """The point with that space part."""
    return _join(np.sqrt(1 + dot(space, space)), space)


def dist(x: Array, y: Array) -> Array:
    r""":math:`2 \operatorname{asinh}(|x - y|_L/2)`."""
    chord = x - y
    square = _minkowski(chord, chord)
    return 2 * _asinh(np.sqrt(np.where(square < 0, ZERO, square)) / 2)


def frame(x: Array, v: Array) -> Array:
    """The vector of Minkowski space with components ``v`` at ``x``."""
    along = dot(x[..., 1:], v)
    return _join(along, v + _column(along / (1 + x[..., 0])) * x[..., 1:])


def coframe(x: Array, u: Array) -> Array:
    """The inverse of :func:`frame`."""
    return u[..., 1:] - u[..., :1] * x[..., 1:] / (1 + x[..., :1])


def expmap(x: Array, v: Array) -> Array:
    """The point with normal coordinates ``v`` at ``x``."""
    size = norm(v)
    grown = np.exp(size)
    cosh, sinh = (grown + 1 / grown) / 2, (grown - 1 / grown) / 2
    ratio = sinh / np.where(size == 0, ONE, size)
    y = _column(cosh) * x + _column(ratio) * frame(x, v)
    return lift(y[..., 1:])


def logmap(x: Array, y: Array) -> Array:
    """Normal coordinates of ``y`` at ``x``."""
    v = coframe(x, y + _column(_minkowski(x, y)) * x)
    size = norm(v)
    return _column(dist(x, y) / np.where(size == 0, ONE, size)) * v


def transp(x: Array, y: Array, v: Array) -> Array:
    """Components at ``y`` of the vector with components ``v`` at ``x``, carried along the geodesic."""
    u = frame(x, v)
    return coframe(y, u + _column(_minkowski(y, u) / (1 - _minkowski(x, y))) * (x + y))


def geodesic(t: Array, x: Array, y: Array) -> Array:
    return expmap(x, _column(t) * logmap(x, y))


def mobius_add(x: Array, y: Array) -> Array:
    return expmap(x, logmap(origin_like(y), y))


def gyration(a: Array, b: Array, u: Array) -> Array:
    """The rotation of ``u`` by a walk along the triangle of 0, ``a`` and the sum of ``a`` and ``b``, back to 0."""
    o, ab = origin_like(a), mobius_add(a, b)
    return transp(ab, o, transp(a, ab, transp(o, a, u)))


def origin_like(x: Array) -> Array:
    return lift(0 * x[..., 1:])


def dist2plane(x: Array, p: Array, a: Array) -> Array:
    return _asinh(_minkowski(x, frame(p, a)) / norm(a))


def wrapped_log_prob(y: Array, x: Array, scale: Decimal) -> Array:
    """Log-density at ``y`` of the isotropic wrapped normal with mean ``x``."""
    r, dim = dist(x, y), x.shape[-1] - 1
    grown = np.exp(r)
    stretch = (dim - 1) * _log((grown - 1 / grown) / (2 * r))
    return _gaussian(r, dim, scale) - stretch


def _gaussian(r: Array, dim: int, scale: Decimal) -> Array:
    two_pi = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799725606965")
    return -r * r / (2 * scale * scale) - dim * (two_pi.ln() / 2 + scale.ln())


def gradient(function: Any, point: Array) -> Array:
    """Components of the gradient of a function of points, by central differences."""
    step = Decimal(10) ** (-DIGITS // 3)
    slopes = []
    for i in range(point.shape[-1] - 1):
        v = 0 * point[..., 1:]
        v[..., i] = step
        slopes.append((function(expmap(point, v)) - function(expmap(point, -v))) / (2 * step))
    return np.stack(slopes, -1)


class Ball:
    """What coordinates of the Poincaré ball stand for."""

    @staticmethod
    def point(b: Array) -> Array:
        square = _column(dot(b, b))
        return np.concatenate([1 + square, 2 * b], -1) / (1 - square)

    @staticmethod
    def coordinates(x: Array) -> Array:
        return x[..., 1:] / (1 + x[..., :1])

    @staticmethod
    def vector(x: Array, u: Array) -> Array:
        """Components of a tangent vector given in the coordinates of the chart."""
        return (1 + x[..., :1]) * u

    @staticmethod
    def vector_coordinates(x: Array, v: Array) -> Array:
        return v / (1 + x[..., :1])

    @staticmethod
    def slope(x: Array, g: Array) -> Array:
        """Components of the gradient with these derivatives in the coordinates."""
        return g / (1 + x[..., :1])


class Hyperboloid:
    """The same for the hyperboloid. The time component of a point is redundant and says nothing."""

    @staticmethod
    def point(x: Array) -> Array:
        return lift(x[..., 1:])

    @staticmethod
    def coordinates(x: Array) -> Array:
        return x

    vector = staticmethod(coframe)
    vector_coordinates = staticmethod(frame)

    @staticmethod
    def slope(x: Array, g: Array) -> Array:
        dim = x.shape[-1] - 1
        units = [np.broadcast_to(decimals(np.eye(dim)[i]), x[..., 1:].shape) for i in range(dim)]
        return np.stack([dot(g, frame(x, unit)) for unit in units], -1)


def rounding(values: Array, dtype: torch.dtype) -> Array:
    """Half a unit in the last place of each."""
    kind = np.float32 if dtype == torch.float32 else np.float64
    return decimals(np.spacing(np.abs(values.astype(float).astype(kind))).astype(float)) / 2


def to_tensor(values: Array, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(values.astype(float)).to(dtype)
