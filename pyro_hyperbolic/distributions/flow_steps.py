r"""The steps that flows are made of: diffeomorphisms of one space onto itself, with parameters.

A step takes the *state* of a point, coordinates in which it works, and numbers that it may depend on. Determinants are
those in the Riemannian volume.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.geometry import ConstantCurvature, Manifold, Sphere
from pyro_hyperbolic.geometry.sphere_math import root
from pyro_hyperbolic.ops.products import einsum
from pyro_hyperbolic.ops.special import safe_norm, squared_norm, unit
from pyro_hyperbolic.ops.splines import Spline, monotone, shares

_MOST_MIRRORS = 4
_FEW = 8  # coordinates, of which products are sums


class Conditioner(nn.Module):
    """A network whose last layer starts from zero; without inputs, a parameter.

    :param inputs: their number.
    :param outputs: their number.
    :param hidden_dims: the sizes of the hidden layers.
    """

    def __init__(self, inputs: int, outputs: int, hidden_dims: Sequence[int]) -> None:
        super().__init__()
        self.inputs = inputs
        if inputs == 0:
            self.constant = nn.Parameter(torch.zeros(outputs))
            return
        layers: list[nn.Module] = []
        for size in hidden_dims:
            layers += [nn.Linear(inputs, size), nn.SiLU()]
            inputs = size
        last = nn.Linear(inputs, outputs)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*layers, last)

    def forward(self, *parts: Tensor, like: Tensor) -> Tensor:
        """Numbers of the dtype of ``like`` from features ``(..., n)`` that broadcast."""
        if self.inputs == 0:
            return self.constant.to(like.dtype)
        weight = next(self.layers.parameters())
        return self.layers(joined(*parts).to(weight.dtype)).to(like.dtype)


class Turn(nn.Module):
    """An orthogonal matrix, the product of reflections along learned vectors, which start at random."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(min(size, _MOST_MIRRORS), size))


def axes(turns: Sequence[Turn], dtype: torch.dtype) -> Tensor:
    """The matrices of some turns of the same size, ``(L, n, n)``: all at once, for each by itself is many kernels."""
    vectors = unit(torch.stack([turn.vectors for turn in turns]).to(dtype))
    matrices = torch.eye(vectors.shape[-1], dtype=dtype, device=vectors.device)
    for vector in vectors.unsqueeze(-2).unbind(-3):
        matrices = matrices - 2 * einsum("...ij,...kj->...ik", matrices, vector) * vector
    return matrices


def _turned(x: Tensor, matrix: Tensor) -> Tensor:
    """Rows ``(..., n)`` times a matrix."""
    if len(matrix) > _FEW:
        return einsum("...i,ij->...j", x, matrix)
    # Part of other kernels, where a product is one by itself; and no product whose precision could be lowered.
    return (x.unsqueeze(-1) * matrix).sum(-2)


class ChartStep(nn.Module):
    r"""A step in the unconstrained coordinates ``v`` of a space, which are normal ones where no geodesic closes.

    First the space is moved by an isometry that takes a learned point to the origin, if its curvature is constant. Then
    the coordinates, turned by a learned matrix, are changed by halves: each half by splines whose parameters are a
    function of the other half. A spline changes numbers between ``-bound`` and ``bound`` alone, so that no point moves
    by more than that.

    :param fades: whether splines tend to the identity as the other half grows, as they must where infinity is a point.
    """

    def __init__(
        self, dim: int, context_dim: int, hidden_dims: Sequence[int], bins: int, bound: float, fades: bool
    ) -> None:
        super().__init__()
        self.bins, self.bound, self.fades = bins, bound, fades
        self.sizes = [dim // 2, dim - dim // 2] if dim > 1 else [1]
        self.turn = Turn(dim) if dim > 1 else None
        self.centre = Conditioner(context_dim, dim, ())
        self.splines = nn.ModuleList(
            Conditioner(dim - size + context_dim, size * (3 * bins - 1), hidden_dims) for size in self.sizes
        )

    @staticmethod
    def state(space: Manifold, x: Tensor) -> Tensor:
        return space.to_unconstrained(x)

    @staticmethod
    def point(space: Manifold, state: Tensor) -> Tensor:
        return space.from_unconstrained(state)

    def features(self, state: Tensor) -> Tensor:
        """Bounded functions of the state, for other steps to depend on."""
        return state / (self.bound**2 + squared_norm(state)).sqrt()

    def forward(
        self, space: Manifold, state: Tensor, matrix: Tensor | None, context: Tensor, inverse: bool
    ) -> tuple[Tensor, Tensor]:
        """The new state, and the logarithm of the determinant of the step, forward in either direction.

        :param matrix: of the turn, if there is one.
        """
        m = self.centre(context, like=state)
        before = state if inverse else _moved(space, m, state)
        v = before if matrix is None else _turned(before, matrix)
        halves = list(v.split(self.sizes, -1))
        total = torch.zeros_like(v[..., 0])
        places = range(len(halves))
        for place in reversed(places) if inverse else places:
            others = [half for i, half in enumerate(halves) if i != place]
            halves[place], log_slope = self._stretched(place, halves[place], others, context, inverse)
            total = total + log_slope.sum(-1)
        v = joined(*halves)
        if matrix is not None:
            v = _turned(v, matrix.mT)
        volumes = space.log_det_unconstrained(v) - space.log_det_unconstrained(before)
        if inverse:
            return _moved(space, -m, v), total - volumes
        return v, total + volumes

    def _stretched(
        self, place: int, x: Tensor, others: list[Tensor], context: Tensor, inverse: bool
    ) -> tuple[Tensor, Tensor]:
        raw = self.splines[place](*[self.features(other) for other in others], context, like=x)
        if self.fades:
            for other in others:
                raw = raw / (1 + squared_norm(other) / self.bound**2)
        raw = raw.unflatten(-1, (x.shape[-1], 3 * self.bins - 1))
        widths, heights, inner = raw.split([self.bins, self.bins, self.bins - 1], -1)
        spline = Spline(shares(widths), shares(heights), F.pad(inner, (1, 1)))
        inside = x.abs() < self.bound
        place_in = torch.where(inside, x, 0.0) / (2 * self.bound)
        y, _, log_slope = monotone(0.5 + place_in, 0.5 - place_in, spline, inverse)
        return torch.where(inside, 2 * self.bound * (y - 0.5), x), torch.where(inside, log_slope, 0.0)


def _moved(space: Manifold, m: Tensor, v: Tensor) -> Tensor:
    """Coordinates after the isometry that takes the point with normal coordinates ``m`` to the origin."""
    if not isinstance(space, ConstantCurvature):
        return v
    if not space.geodesics_close:
        return space.recentre(m, v)
    centre = space.from_normal_coords(None, m)
    at_origin = space.from_normal_coords(None, space.to_normal_coords(centre, space.from_unconstrained(v)))
    return space.to_unconstrained(at_origin)


class SphereStep(nn.Module):
    r"""A step of the unit sphere :math:`S^d`, without a point that is left out.

    * A conformal map, of a learned :math:`\omega` in the open ball:
      :math:`x \mapsto \frac{1 - |\omega|^2}{|x - \omega|^2}(x - \omega) - \omega`, with the determinant
      :math:`(1 - |\omega|^2)^d/|x - \omega|^{2d}`.
    * *Latitudes*, for ``d > 1``: the angle to a learned axis is changed by a spline that depends on the direction from
      there. Its slopes at the two ends do not, so that the map has continuous derivatives at the poles.
    * *Longitudes*: the angle in a plane across the axis is turned and changed by a periodic spline, both functions of
      the other coordinates. Where the plane's coordinates are small the spline tends to the identity.
    """

    def __init__(self, dim: int, context_dim: int, hidden_dims: Sequence[int], bins: int) -> None:
        super().__init__()
        self.dim, self.bins = dim, bins
        self.turn = Turn(dim + 1)
        self.pull = Conditioner(context_dim, dim + 1, ())
        self.longitudes = Conditioner(dim - 1 + context_dim, 3 * bins + 1, hidden_dims)
        if dim > 1:
            self.latitudes = Conditioner(dim + context_dim, 3 * bins - 1, hidden_dims)
            self.ends = nn.Parameter(torch.zeros(2))

    @staticmethod
    def state(space: Sphere, x: Tensor) -> Tensor:
        return unit(x * root(space.aligned_c(x), x))

    @staticmethod
    def point(space: Sphere, state: Tensor) -> Tensor:
        return unit(state) / root(space.aligned_c(state), state)

    @staticmethod
    def features(state: Tensor) -> Tensor:
        return state

    def forward(
        self, space: Sphere, state: Tensor, matrix: Tensor, context: Tensor, inverse: bool
    ) -> tuple[Tensor, Tensor]:
        """The new state, and the logarithm of the determinant of the step, forward in either direction.

        :param matrix: of the turn.
        """
        on_axes = functools.partial(self._on_axes, matrix)
        first, second = (on_axes, self._pulled) if inverse else (self._pulled, on_axes)
        state, log_det = first(state, context, inverse)
        state, other = second(state, context, inverse)
        return state, log_det + other

    def _pulled(self, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        raw = self.pull(context, like=x)
        scale = (1 + squared_norm(raw)).rsqrt()
        omega = -scale * raw if inverse else scale * raw
        step = x - omega
        # One less the square of omega over the square of the step.
        factor = scale.square() / squared_norm(step)
        log_det = self.dim * factor.log().squeeze(-1)
        return unit(factor * step - omega), -log_det if inverse else log_det

    def _on_axes(self, matrix: Tensor, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        x = _turned(x, matrix)
        parts = [self._along_latitudes, self._along_longitudes] if self.dim > 1 else [self._along_longitudes]
        total: Tensor = torch.zeros_like(x[..., 0])
        for part in reversed(parts) if inverse else parts:
            x, log_det = part(x, context, inverse)
            total = total + log_det
        return _turned(x, matrix.mT), total

    def _along_latitudes(self, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        height, side = x[..., :1], x[..., 1:]
        width, direction = safe_norm(side), unit(side)
        raw = self.latitudes(direction, context, like=x)
        widths, heights, inner = raw.split([self.bins, self.bins, self.bins - 1], -1)
        ends = self.ends.to(x.dtype).expand(inner.shape[:-1] + (2,))
        knots = torch.cat([ends[..., :1], inner, ends[..., 1:]], -1)
        angle, gap = torch.atan2(width, height), torch.atan2(width, -height)
        spline = Spline(shares(widths), shares(heights), knots)
        y, y_gap, log_slope = monotone(angle.squeeze(-1) / math.pi, gap.squeeze(-1) / math.pi, spline, inverse)
        # The nearer pole tells a sine to its relative precision.
        new_width = torch.sin(math.pi * torch.minimum(y, y_gap))
        before, after = (new_width, width.squeeze(-1)) if inverse else (width.squeeze(-1), new_width)
        pole = (before <= 0) | (after <= 0)
        spread = torch.where(pole, 1.0, after).log() - torch.where(pole, 1.0, before).log()
        log_det = log_slope + (self.dim - 1) * torch.where(pole, log_slope, spread)
        new_height = torch.cos(math.pi * y)
        return torch.cat([new_height.unsqueeze(-1), new_width.unsqueeze(-1) * direction], -1), log_det

    def _along_longitudes(self, x: Tensor, context: Tensor, inverse: bool) -> tuple[Tensor, Tensor]:
        first = 1 if self.dim > 1 else 0
        before, plane, after = x[..., :first], x[..., first : first + 2], x[..., first + 2 :]
        square = squared_norm(plane)
        raw = self.longitudes(before, after, context, like=x)
        turn, raw = raw[..., 0], raw[..., 1:] * square
        widths, heights, inner = raw.split(self.bins, -1)
        spline = Spline(shares(widths), shares(heights), torch.cat([inner, inner[..., :1]], -1))
        lost = square.squeeze(-1) == 0
        angle = torch.atan2(torch.where(lost, 0.0, plane[..., 1]), torch.where(lost, 1.0, plane[..., 0]))
        if not inverse:
            angle = angle + turn
        share = torch.remainder(angle / (2 * math.pi), 1.0)
        y, _, log_slope = monotone(share, 1 - share, spline, inverse)
        angle = 2 * math.pi * y
        if inverse:
            angle = angle - turn
        turned = safe_norm(plane) * torch.stack([angle.cos(), angle.sin()], -1)
        return joined(before, turned, after), log_slope


Step = ChartStep | SphereStep


def joined(*parts: Tensor) -> Tensor:
    """The parts ``(..., n)``, which broadcast, as one tensor."""
    batch = torch.broadcast_shapes(*[part.shape[:-1] for part in parts])
    return torch.cat([part.expand(batch + part.shape[-1:]) for part in parts], -1)
