r"""The density of a wrapped normal where geodesics close: a sum over all preimages of a point.

On a sphere of radius ``R``, the point at distance ``r`` in direction ``u`` is the image of the normal coordinates
:math:`s_m u`, :math:`s_m = r + 2\pi R m`, for every integer ``m``. The Jacobians of the exponential map there differ by
the factor :math:`|s_m/r|^{d-1}`. So

.. math::

    p(z) = \sum_m \mathcal{N}(s_m u \mid 0, \Sigma) \left|\frac{s_m/R}{\sin(r/R)}\right|^{d-1} .

(The branch ``m = 0`` alone integrates to 0.993, 0.980 and 0.870 in 2, 3 and 6 dimensions at :math:`\sigma = R`.) The
terms are a Gaussian times a power. So a fixed number of them around ``s = 0``, which depends only on ``d``, reaches
1e-16 for all standard deviations up to :data:`WIDEST` radii. A wider distribution is an error, or gives ``nan`` without
validation. Only numbers are summed: :math:`\Sigma` enters through the length of the whitened direction.

In two dimensions and more, the density is infinite at ``loc`` and at its antipode, where the images of whole spheres of
vectors meet. Both singularities are integrable, and at ``loc`` the weight of the divergent part is
:math:`e^{-2\pi^2R^2/\sigma^2}`. At ``loc`` itself the value is that of the branch ``m = 0``. So there is no mode.

The mass at the antipode also moves the Fréchet mean. On every line through ``loc``, :math:`|L^{-1}v|` is a chi variable
with ``d`` degrees of freedom. So the mean squared distance to a point is the average over lines of one integral each.
By these integrals ``loc`` is the only minimum, up to a distance of :math:`10^{-16}R`, if the standard deviation in
every direction is at most

.. math:: \frac{\pi R}{2\sqrt{d + 2}} .

Soon after it, points at some distance from ``loc`` are nearer to the mass. If the distribution is isotropic these are
whole spheres of points, or the antipode. On a circle ``loc`` is always mode and Fréchet mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.ops.special import dot, safe_norm

WIDEST = 5.0
"""Largest standard deviation, in units of the radius of a sphere."""

_TAIL_SCORE = 8.7  # beyond it a Gaussian has less than 1e-17 of its mass

Leaf = tuple[Manifold, int]


def is_centred(leaf: Manifold, dim: int, width: Tensor) -> Tensor:
    """Whether ``loc`` is the Fréchet mean on a factor, of a standard deviation in any direction."""
    return 4 * math.sqrt(dim + 2) * width <= _period(leaf, dim, width)


def is_bounded(leaf: Manifold, dim: int, width: Tensor) -> Tensor:
    """Whether the density has no singular points on a factor."""
    return _period(leaf, dim, width) == math.inf


def _period(leaf: Manifold, dim: int, width: Tensor) -> Tensor:
    """The length of closed geodesics, on which whole spheres of vectors meet: infinite if there are none."""
    period = leaf.period(width.unsqueeze(-1)) if leaf.geodesics_close and dim > 1 else None
    zero = torch.zeros_like(width)
    return zero + math.inf if period is None else (zero.unsqueeze(-1) + period).squeeze(-1)


def count_windings(dim: int) -> int:
    """The largest ``|m|`` that matters for any allowed scale."""
    # The longest s with mass is WIDEST (sqrt(n) + score) R, and terms up to M cover (2M + 1) pi R.
    longest = WIDEST * (math.sqrt(dim - 1) + _TAIL_SCORE)
    return math.ceil((longest / math.pi - 1) / 2)


def log_windings(
    v: Tensor,
    leaves: Sequence[Leaf],
    whiten: Callable[[Tensor], Tensor],
    couples: bool,
    widths: Sequence[Tensor],
) -> Tensor:
    r"""The logarithm of the sum of :math:`e^{-|L^{-1}v|^2/2}/|J(v)|` over all preimages ``v`` of a point.

    :param v: any normal coordinates of the point, ``(..., d)``.
    :param leaves: the parts of the space and their dimensions.
    :param whiten: :math:`v \mapsto L^{-1}v`, for :math:`LL^T = \Sigma`.
    :param couples: whether :math:`\Sigma` couples the factors.
    :param widths: upper bounds of the standard deviations, by factor.
    """
    pre = _Preimages(v, leaves, whiten, widths)
    out = -0.5 * pre.base.square().sum(-1) - pre.log_det
    if not couples or (len(pre.windings) == 1 and len(leaves) == 1):
        for winding, unit in zip(pre.windings, pre.units, strict=True):
            precision = unit.square().sum(-1, keepdim=True)
            out = out + torch.logsumexp(winding.log_weight - 0.5 * winding.s.square() * precision, -1)
        return out
    log_weight, cross = pre.all_terms()
    return out + (log_weight - 0.5 * cross).flatten(-len(pre.windings)).logsumexp(-1)


def share_within(
    v: Tensor, leaves: Sequence[Leaf], whiten: Callable[[Tensor], Tensor], widths: Sequence[Tensor], radius: float
) -> Tensor:
    r"""Of the density of a point, the share of its preimages ``v`` with :math:`|L^{-1}v|` up to ``radius``."""
    pre = _Preimages(v, leaves, whiten, widths)
    log_weight, cross = pre.all_terms()
    count = len(pre.windings)
    square = (cross + pre.number(pre.base.square().sum(-1))).flatten(-count)
    share = (log_weight - 0.5 * cross).flatten(-count).softmax(-1)
    return torch.where(square <= radius * radius, share, 0.0).sum(-1)


class _Preimages:
    """The normal coordinates of a point, whitened: ``base`` of the open factors, and what winds in the closed ones."""

    def __init__(
        self, v: Tensor, leaves: Sequence[Leaf], whiten: Callable[[Tensor], Tensor], widths: Sequence[Tensor]
    ) -> None:
        parts = v.split([dim for _, dim in leaves], -1)
        closed = [i for i, (leaf, _) in enumerate(leaves) if leaf.geodesics_close]
        rest = torch.cat([torch.zeros_like(part) if i in closed else part for i, part in enumerate(parts)], -1)
        self.windings = [_Winding(leaves[i][0], parts[i], widths[i]) for i in closed]
        self.units = []
        for i, winding in zip(closed, self.windings, strict=True):
            columns = [torch.zeros_like(part) for part in parts]
            columns[i] = winding.unit
            self.units.append(whiten(torch.cat(columns, -1)))
        self.base = whiten(rest)
        self.log_det = torch.zeros_like(self.base[..., 0])  # of the exponential maps of the open factors
        for i, ((leaf, _), part) in enumerate(zip(leaves, parts, strict=True)):
            if i not in closed:
                self.log_det = self.log_det + leaf.log_det_exp(part)

    def all_terms(self) -> tuple[Tensor, Tensor]:
        r"""Of the windings of all factors at once: the weights, and :math:`|L^{-1}v|^2` less that of ``base``.

        The squares come from the Gram matrix of the whitened directions.
        """
        log_weight = cross = self.number(torch.zeros_like(self.base[..., 0]))
        for i, (winding, unit) in enumerate(zip(self.windings, self.units, strict=True)):
            s = self._spread(winding.s, i)
            log_weight = log_weight + self._spread(winding.log_weight, i)
            cross = cross + 2 * s * self.number(dot(self.base, unit))
            for j, other in enumerate(self.units):
                cross = cross + s * self._spread(self.windings[j].s, j) * self.number(dot(unit, other))
        return log_weight, cross

    def number(self, value: Tensor) -> Tensor:
        """A number for all terms, ``(..., 1, 1)``."""
        return value.reshape(value.shape + (1,) * len(self.windings))

    def _spread(self, value: Tensor, axis: int) -> Tensor:
        """A term of one factor, ``(..., J)``, among the dimensions of all."""
        sizes = tuple(value.shape[-1] if i == axis else 1 for i in range(len(self.windings)))
        return value.reshape(value.shape[:-1] + sizes)


class _Winding:
    """The preimages in one factor: ``s`` and the logarithms of the inverse Jacobians, ``(..., 2M + 1)``."""

    def __init__(self, space: Manifold, v: Tensor, width: Tensor) -> None:
        dim = v.shape[-1]
        length = safe_norm(v)
        zero = length == 0
        # Not by an assignment: a number that is written to a place comes from the host, which no CUDA graph captures.
        first = (torch.arange(dim, device=v.device) == 0).to(v.dtype)
        self.unit = torch.where(zero, first, v / torch.where(zero, 1.0, length))
        count = count_windings(dim)
        period = space.period(length)
        assert period is not None  # for the type checker: of a closed factor
        # A sample's own coordinates may have gone around already, and the terms that matter are those around s = 0.
        turns = (length / period).detach().round()
        m = torch.arange(-count, count + 1, dtype=v.dtype, device=v.device) - turns
        winds = m != 0
        self.s = length + torch.where(winds, m * period, 0.0)
        # A period whose square overflows, of a curvature that is nearly 0, is as good as none.
        lost = ((self.s == 0) | ~(self.s.abs() < torch.finfo(v.dtype).max ** 0.25)) & winds
        weight = -space.log_det_exp(v).unsqueeze(-1)
        if dim > 1:  # on a circle no other vectors meet at loc
            lost = lost | (zero & winds)
            # log|s/r|, where it is defined.
            ratio = (torch.where(lost, 1.0, self.s) / torch.where(zero, 1.0, length)).abs()
            weight = weight + (dim - 1) * torch.where(winds & ~lost, ratio, 1.0).log()
        weight = weight.expand(self.s.shape)
        too_wide = (2 * math.pi * width.unsqueeze(-1) > WIDEST * period).expand(weight.shape)
        self.log_weight = torch.where(too_wide, torch.nan, torch.where(lost, -torch.inf, weight))
        self.s = torch.where(lost, 0.0, self.s)


def check_preimages(leaves: Sequence[Leaf]) -> None:
    """Refuse a space where the formula above does not give the preimages and their Jacobians."""
    for leaf, dim in leaves:
        if leaf.geodesics_close and dim > 1 and not isinstance(leaf, ConstantCurvature):
            raise ValueError(
                f"WrappedNormal: manifold must be of constant curvature where geodesics close, got {leaf!r}: the other"
                " preimages of a point are not known there."
            )


def check_widths(manifold: Manifold, leaves: Sequence[Leaf], widths: Sequence[Tensor]) -> None:
    """Refuse a distribution that goes around a sphere so often that the sum is cut."""
    for (leaf, _), width in zip(leaves, widths, strict=True):
        if not leaf.geodesics_close or not inspectable(width):
            continue
        with torch.no_grad():
            period = leaf.period(width.unsqueeze(-1))
            assert period is not None  # for the type checker: of a closed factor
            share = 2 * math.pi * width.unsqueeze(-1) / period
            if not bool((share <= WIDEST).all()):
                raise ValueError(
                    f"WrappedNormal on {manifold!r}: scale must be at most {WIDEST:g} radii of a sphere, got"
                    f" {share.max().item():.4g}; reduce scale, or use RiemannianNormal, which tends to the uniform"
                    " distribution (this one, in two dimensions and more, to loc and its antipode)."
                )
