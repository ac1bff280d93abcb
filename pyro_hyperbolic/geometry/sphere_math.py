r"""The sphere of curvature :math:`c` as pure functions.

Points are ``(..., d + 1)`` with :math:`|x|^2 = 1/c`; ``c > 0`` is a float, a 0-dim tensor, or ``(..., 1)``: one
curvature for each point. Parallel transport from ``x`` to ``y`` is the reflection along :math:`(x + y)/|x + y|`,
distances are
:math:`\tfrac{2}{\sqrt c}\operatorname{atan2}(|x - y|, |x + y|)`; neither cancels, near or at the antipode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.poincare_math import per_point
from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.special import cosh_sqrt, dot, safe_norm, sinhc, squared_norm, unit

Curvature = float | Tensor


def root(c: Curvature, like: Tensor) -> Curvature:
    """:math:`\\sqrt c` to the precision of ``like``."""
    return c.to(like.dtype).sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def lift(v: Tensor) -> Tensor:
    """The tangent vector at the origin with components ``v``."""
    return torch.cat([torch.zeros_like(v[..., :1]), v], -1)


def origin_of(x: Tensor, c: Curvature) -> Tensor:
    """The origin, broadcast against ``x``."""
    zero = torch.zeros_like(x[..., 1:])
    return torch.cat([torch.ones_like(x[..., :1]) / root(c, x) + zero[..., :1], zero], -1)


def transp(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """The reflection along the middle of ``x`` and ``y``; the identity where they are antipodes."""
    middle = _middle(x, y)
    return v - 2 * dot(middle, v).unsqueeze(-1) * middle


def _middle(x: Tensor, y: Tensor) -> Tensor:
    """The unit vector along ``x + y``.

    It is orthogonal to ``x - y`` if the two are equally long. Rounded points are not quite, and near antipodes, where
    the sum is short, it would be turned by much more than rounding, towards the points themselves.
    """
    total, step = x + y, x - y
    # Between antipodes the last factor is 1/|step|^2; elsewhere there is next to nothing to take away.
    excess = dot(total, step).unsqueeze(-1) / (2 * (squared_norm(x) + squared_norm(y)))
    return unit(total - excess * step)


def frame(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    return transp(origin_of(x, c), x, lift(v))


def coframe(x: Tensor, u: Tensor, c: Curvature) -> Tensor:
    return transp(x, origin_of(x, c), u)[..., 1:]


def from_normal_coords0(v: Tensor, c: Curvature) -> Tensor:
    u = -c * squared_norm(v)
    return torch.cat([cosh_sqrt(u, -1) / root(c, v), sinhc(u, -1) * v], -1)


def from_normal_coords(x: Tensor, v: Tensor, c: Curvature) -> Tensor:
    u = -c * squared_norm(v)
    return cosh_sqrt(u, -1) * x + sinhc(u, -1) * frame(x, v, c)


def to_normal_coords0(y: Tensor, c: Curvature) -> Tensor:
    return _with_length(y[..., 1:], _angle0(y, c), c)


def to_normal_coords(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    step = y - x
    # The part of the step in the tangent space at x: on the sphere <step, x> = -|step|^2 / 2.
    tangent = step + 0.5 * c * squared_norm(step) * x
    return _with_length(coframe(x, tangent, c), _angle(x, y), c)


def _with_length(v: Tensor, angle: Tensor, c: Curvature) -> Tensor:
    r"""The vector of length :math:`\theta/\sqrt c` along ``v``, whose length is :math:`\sin(\theta)/\sqrt c`.

    At the antipode, where ``v`` is 0 and every direction leads, the first one is taken.
    """
    near = angle < 1
    small = torch.where(near, angle, 0.0)
    straight = v / sinhc(-small * small, -1)
    first = torch.cat([torch.ones_like(v[..., :1]), torch.zeros_like(v[..., 1:])], -1)
    lost = (v == 0).all(-1, keepdim=True)
    direction = torch.where(lost, first, unit(torch.where(near, first, v)))
    return torch.where(near, straight, angle / root(c, v) * direction)


def _angle0(y: Tensor, c: Curvature) -> Tensor:
    return torch.atan2(root(c, y) * safe_norm(y[..., 1:]), root(c, y) * y[..., :1])


def _angle(x: Tensor, y: Tensor) -> Tensor:
    return 2 * torch.atan2(safe_norm(x - y), safe_norm(x + y))


def dist0(x: Tensor, c: Curvature) -> Tensor:
    return (_angle0(x, c) / root(c, x)).squeeze(-1)


def dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return (_angle(x, y) / root(c, x)).squeeze(-1)


def pairwise_dist(x: Tensor, y: Tensor, c: Curvature) -> Tensor:
    return 2 * torch.atan2(pairwise_norm(x, y), pairwise_norm(x, -y)) / root(c, x)


def dist2plane(x: Tensor, p: Tensor, a: Tensor, c: Curvature, signed: bool = True) -> Tensor:
    r""":math:`\tfrac{1}{\sqrt c}\arcsin(\sqrt{c}\,\langle x, a\rangle/|a|)`: one product.

    At the two points farthest from the plane the derivative is taken as 0. A normal of length 0 has distance 0 from
    everything.
    """
    k = per_point(root(c, x))
    height = k * dot(x, unit(a))
    inside = height.abs() < 1
    angle = torch.where(inside, torch.asin(torch.where(inside, height, 0.0)), 0.5 * math.pi * height.sign())
    out = angle / k
    return out if signed else out.abs()


def project(x: Tensor, c: Curvature) -> Tensor:
    """The stereographic projection from the antipode of the origin, ``(..., d)``; isometric at the origin."""
    # For the southern half 1 + x_0 is a difference, and |x_s|^2 / (1 - x_0) is the same.
    k = root(c, x)
    height, side = k * x[..., :1], x[..., 1:]
    south = height < 0
    below = c * squared_norm(side) / torch.where(south, 1 - height, 1.0)
    return 2 * side / torch.where(south, below, 1 + height)


def unproject(v: Tensor, c: Curvature) -> Tensor:
    """The inverse of :func:`project`."""
    u = c * squared_norm(v) / 4
    return torch.cat([(1 - u) / (1 + u) / root(c, v), v / (1 + u)], -1)
