"""The centroid of points in Minkowski space, as a point of any chart."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.geometry.poincare_math import logmap0
from pyro_hyperbolic.ops.special import asinhc, cosh_sqrt, safe_norm, sinhc, squared_norm, unit


def midpoint(manifold: ConstantCurvature, x: Tensor, weights: Tensor, dims: list[int]) -> Tensor:
    r"""The point in the direction of :math:`\sum_i w_i x_i`, where :math:`x_i` are points of the hyperboloid.

    It is written in normal coordinates, hence for every chart, and around the centroid itself, where no sum
    cancels. The centre is first found apart: the result depends on it by rounding alone.

    :param manifold: where the points lie, with one curvature for all that are joined.
    :param x: points ``(..., D)``.
    :param weights: ``(...)``.
    :param dims: the dimensions of ``x`` to reduce, all of them negative.
    :returns: ``(..., D)``, the reduced dimensions kept with size 1; ``nan`` where the centroid is not a point.
    """
    weights = weights.unsqueeze(-1)
    v = manifold.to_normal_coords(None, x)
    centre = manifold.from_normal_coords(None, _centroid_coords(v, weights, manifold.aligned_c(v), dims))
    v = manifold.to_normal_coords(centre, x)
    c = manifold.aligned_c(v)
    u = c * squared_norm(v)
    space = sum_over(weights * sinhc(u) * v, dims)
    time = sum_over(weights * cosh_sqrt(u), dims)
    return manifold.from_normal_coords(centre, logmap0(space / time, c))


def sum_over(x: Tensor, dims: list[int]) -> Tensor:
    """The sum over dimensions, kept with size 1; over none of them it is ``x``, where torch takes the sum over all."""
    return x.sum(dims, keepdim=True) if dims else x


@torch.no_grad()
def _centroid_coords(v: Tensor, weights: Tensor, c: float | Tensor, dims: list[int]) -> Tensor:
    r"""Normal coordinates at the origin of the centroid :math:`(T, S) = \sum_i w_i (\cosh s_i, \sinh(s_i)\,n_i)`.

    With :math:`s_i = \sqrt{c}\,|v_i|` and the directions :math:`n_i` and :math:`n`, of ``S``, the difference in
    :math:`\sinh\rho = |S| / \sqrt{(T - |S|)(T + |S|)}` is a sum of positive terms:

    .. math:: T - |S| = \sum_i w_i \left(e^{-s_i} + \tfrac12 \sinh(s_i)\,|n_i - n|^2\right) .
    """
    u = c * squared_norm(v)
    s = u.sqrt()
    weights = weights * (-(s.amax(dims, keepdim=True) if dims else s)).exp()  # so that no sum or square overflows
    space = sum_over(weights * (sinhc(u) * v), dims)
    time = sum_over(weights * cosh_sqrt(u), dims)
    length = safe_norm(space)
    apart = squared_norm(unit(v) - unit(space))
    less = sum_over(weights * (torch.exp(-s) + 0.5 * s * sinhc(u) * apart), dims)
    more = time + c**0.5 * length
    # Both factors are negative where all weights are; then the opposite centroid has the point.
    scaled = space * time.sign() * less.abs().rsqrt() * more.abs().rsqrt()
    point = asinhc(c * squared_norm(scaled)) * scaled
    return torch.where(less * more.sign() > 0, point, torch.nan)
