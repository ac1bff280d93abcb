r"""Vector fields on one space: how the outputs of a network become the velocity of a point.

A field works in the *state* of a point, coordinates that a solver can add to. The velocity is linear in the outputs of
the network, and smooth on the whole space if they are smooth functions of the state. The divergence in the Riemannian
volume is the *spread*, that for outputs that do not change, and the sum of the derivatives of the outputs, each in the
direction of the velocity that it alone would give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Manifold, Sphere, Stereographic
from pyro_hyperbolic.geometry.sphere_math import root
from pyro_hyperbolic.ops.special import log_sinhc, squared_norm, tanhc, unit
from pyro_hyperbolic.ops.tolerances import eps


class NormalField:
    r"""A field on hyperbolic or flat space, in normal coordinates ``v`` at the origin.

    The network gives the components ``w`` of the velocity in the frame that is carried from the origin along geodesics,
    so that its length is that of ``w`` everywhere:

    .. math:: \dot v = \hat v\hat v^\top w + \frac{s}{\sinh s}(I - \hat v\hat v^\top)\,w, \qquad s = \sqrt{c}\,|v| ,

    with the spread :math:`(d - 1)\sqrt c\tanh(s/2)\,\langle\hat v, w\rangle`. Nothing cancels far out, where the
    coordinates of points do.
    """

    def __init__(self, dim: int) -> None:
        self.dim = self.size = dim

    def state(self, space: Any, x: Tensor) -> Tensor:
        return space.to_normal_coords(None, x)

    def point(self, space: Any, state: Tensor) -> Tensor:
        return space.from_normal_coords(None, state)

    def settled(self, space: Any, state: Tensor) -> Tensor:
        """The state without the error that a step leaves across the space; here there is none."""
        return state

    def inputs(self, state: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """What the network depends on, and its derivatives in directions of the state."""
        return state, directions

    def velocity(self, space: Any, state: Tensor, raw: Tensor) -> Tensor:
        square = squared_norm(state)
        stretch = log_sinhc(space.opposite(square) * square)
        direction = unit(state)
        return (-stretch).exp() * raw - torch.expm1(-stretch) * _dot(direction, raw) * direction

    def spread(self, space: Any, state: Tensor, raw: Tensor) -> Tensor:
        c = space.opposite(state)
        factor = 0.5 * (self.dim - 1) * c * tanhc(c * squared_norm(state) / 4)
        return (factor * _dot(state, raw)).squeeze(-1)

    def components(self, space: Any, state: Tensor, raw: Tensor) -> Tensor:
        """The velocity as an array whose sum of squares is that of its length."""
        return raw

    def target(self, space: Any, x: Tensor, v: Tensor) -> Tensor:
        """The same of a velocity with components ``v`` in the frame carried from the origin."""
        return v


class SphereField:
    r"""A field on the unit sphere in the space around it: :math:`\dot x = (I - xx^\top)\,w`, with the spread
    :math:`-d\,\langle x, w\rangle`.
    """

    def __init__(self, dim: int) -> None:
        self.dim, self.size = dim, dim + 1

    def state(self, space: Sphere, x: Tensor) -> Tensor:
        return unit(x * root(space.aligned_c(x), x))

    def point(self, space: Sphere, state: Tensor) -> Tensor:
        return state / root(space.aligned_c(state), state)

    def settled(self, space: Sphere, state: Tensor) -> Tensor:
        return unit(state)

    def inputs(self, state: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        return state, directions

    def velocity(self, space: Sphere, state: Tensor, raw: Tensor) -> Tensor:
        return raw - _dot(state, raw) * state

    def spread(self, space: Sphere, state: Tensor, raw: Tensor) -> Tensor:
        return -self.dim * _dot(state, raw).squeeze(-1)

    def components(self, space: Sphere, state: Tensor, raw: Tensor) -> Tensor:
        return self.velocity(space, state, raw)

    def target(self, space: Sphere, x: Tensor, v: Tensor) -> Tensor:
        return space.frame(x, v) * root(space.aligned_c(x), x)


class SignedField:
    r"""A field on a space of curvature ``k`` of either sign, on its quadric :math:`k|X|^2 + X_0^2 = 1`.

    The state is :math:`X_0 = \lambda - 1` and :math:`X = \lambda x`, with the conformal factor :math:`\lambda`: a point
    of a sphere, a plane or a hyperboloid. From outputs :math:`w_0` and ``w`` of the network and
    :math:`\beta = w_0/\sqrt{1 + |X|^2}`, the components of the velocity in the frame carried from the origin are

    .. math:: w - \Big(\frac{\max(k, 0)\,\langle X, w\rangle}{1 + X_0} + \beta\Big)\,X ,

    which for ``k > 0`` is the projection of :math:`(\beta, w)` to the sphere, smooth at the antipode too. Its spread is

    .. math:: -d\,k\,\langle X, w\rangle + X_0\,\beta\,\Big(\frac{|X|^2}{1 + |X|^2} - d\Big) ,

    with :math:`(d - 1)/(1 + X_0)` in the place of the first ``d`` where ``k`` is not positive.
    """

    def __init__(self, dim: int) -> None:
        self.dim, self.size = dim, dim + 1

    def state(self, space: Stereographic, x: Tensor) -> Tensor:
        square = _curvature(space, x) * squared_norm(x)
        return torch.cat([(1 - square) / (1 + square), 2 * x / (1 + square)], -1)

    def point(self, space: Stereographic, state: Tensor) -> Tensor:
        height, side = state[..., :1], state[..., 1:]
        square = _curvature(space, side) * squared_norm(side)
        south = height < 0
        # At the antipode every direction leads there, and the first one is taken, at a distance that has coordinates.
        lost = south & (square < eps(state.dtype) ** 2)
        first = torch.cat([torch.ones_like(height), torch.zeros_like(side[..., 1:])], -1)
        # For the southern half 1 + X_0 is a difference, and k|X|^2 / (1 - X_0) is the same.
        below = torch.where(south & ~lost, square, 1.0) / (1 - torch.where(south, height, 0.0))
        x = side / torch.where(south, below, 1 + torch.where(south, 0.0, height))
        return space.projx(torch.where(lost, first / eps(state.dtype), x))

    def settled(self, space: Stereographic, state: Tensor) -> Tensor:
        height, side = state[..., :1], state[..., 1:]
        square, closed = _curvature(space, side) * squared_norm(side), _closed(space, side)
        length = torch.where(closed, square + height * height, 1.0).sqrt()
        above = torch.where(closed, 1.0, 1 - square).sqrt()
        return torch.cat([torch.where(closed, height / length, above), side / length], -1)

    def inputs(self, state: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        # Bounded, since the coordinates of a hyperboloid grow exponentially.
        scale = (1 + squared_norm(state)).rsqrt()
        bounded = scale * state
        return bounded, scale * (directions - _dot(bounded, directions) * bounded)

    def velocity(self, space: Stereographic, state: Tensor, raw: Tensor) -> Tensor:
        height, side, w = state[..., :1], state[..., 1:], raw[..., 1:]
        k, closed = _curvature(space, side), _closed(space, side)
        square, beta, along = squared_norm(side), self._beta(state, raw), _dot(side, w)
        inner = torch.where(closed, height, 1.0) * along - square * beta
        other = beta + k * inner / torch.where(closed, 1.0, 1 + height)
        return torch.cat([-k * inner, w - torch.where(closed, k * along + height * beta, other) * side], -1)

    def spread(self, space: Stereographic, state: Tensor, raw: Tensor) -> Tensor:
        height, side = state[..., :1], state[..., 1:]
        k, closed, square = _curvature(space, side), _closed(space, side), squared_norm(side)
        count = torch.where(closed, self.dim, (self.dim - 1) / torch.where(closed, 1.0, 1 + height))
        shrink = height * self._beta(state, raw) * (square / (1 + square) - self.dim)
        return (shrink - count * k * _dot(side, raw[..., 1:])).squeeze(-1)

    def components(self, space: Stereographic, state: Tensor, raw: Tensor) -> Tensor:
        height, side, w = state[..., :1], state[..., 1:], raw[..., 1:]
        k, closed, south = _curvature(space, side), _closed(space, side), height < 0
        # As for the point: (1 - X_0) / |X|^2 is k / (1 + X_0).
        below = (1 - height) / torch.where(south, squared_norm(side), 1.0)
        share = torch.where(south, below, torch.where(closed, k, 0.0) / (1 + torch.where(south, 0.0, height)))
        return w - (share * _dot(side, w) + self._beta(state, raw)) * side

    def target(self, space: Stereographic, x: Tensor, v: Tensor) -> Tensor:
        return v

    @staticmethod
    def _beta(state: Tensor, raw: Tensor) -> Tensor:
        return raw[..., :1] * (1 + squared_norm(state[..., 1:])).rsqrt()


Field = NormalField | SphereField | SignedField


def field_on(space: Manifold, dim: int) -> Field:
    """The field of a space that is no product."""
    if not isinstance(space, ConstantCurvature):
        raise ValueError(
            f"continuous flows are on spaces of constant curvature and their products, got {space!r}; use"
            " manifold_flow."
        )
    if isinstance(space, Sphere):
        return SphereField(dim)
    return SignedField(dim) if any(space.signed_curvatures) else NormalField(dim)


def _curvature(space: Stereographic, x: Tensor) -> float | Tensor:
    return -space.opposite(x)


def _closed(space: Stereographic, x: Tensor) -> Tensor:
    """Whether the curvature is positive, ``(..., 1)``."""
    return (_curvature(space, x) + torch.zeros_like(x[..., :1])) > 0


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, which is kept."""
    return (x * y).sum(-1, keepdim=True)
