r"""The density of a wrapped normal where geodesics close: a sum over all preimages of a point.

On a sphere of radius ``R``, the point at distance ``r`` in direction ``u`` is the image of the normal coordinates
:math:`s_m u`, :math:`s_m = r + 2\pi R m`, for every integer ``m``. The Jacobians of the exponential map there differ by
the factor :math:`|s_m/r|^{d-1}`. So

.. math::

    p(z) = \sum_m \mathcal{N}(s_m u \mid 0, \Sigma) \left|\frac{s_m/R}{\sin(r/R)}\right|^{d-1} .

(The branch ``m = 0`` alone integrates to 0.993, 0.980 and 0.870 in 2, 3 and 6 dimensions at :math:`\sigma = R`.) The
terms are a Gaussian times a power. So a fixed number of them, which depends only on ``d``, reaches 1e-16 for all
standard deviations up to :data:`WIDEST` radii. A wider distribution is an error, or gives ``nan`` without validation.
Only numbers are summed: :math:`\Sigma` enters through the length of the whitened direction.

In two dimensions and more, the density is infinite at ``loc`` and at its antipode, where the images of whole spheres of
vectors meet. Both singularities are integrable, and at ``loc`` the weight of the divergent part is
:math:`e^{-2\pi^2R^2/\sigma^2}`. At ``loc`` itself the value is that of the branch ``m = 0``.
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
    parts = v.split([dim for _, dim in leaves], -1)
    closed = [i for i, (leaf, _) in enumerate(leaves) if leaf.geodesics_close]
    rest = torch.cat([torch.zeros_like(part) if i in closed else part for i, part in enumerate(parts)], -1)
    windings = [_Winding(leaves[i][0], parts[i], widths[i]) for i in closed]
    units = []
    for i, winding in zip(closed, windings, strict=True):
        columns = [torch.zeros_like(part) for part in parts]
        columns[i] = winding.unit
        units.append(whiten(torch.cat(columns, -1)))
    base = whiten(rest)
    others = [
        leaf.log_det_exp(part) for i, ((leaf, _), part) in enumerate(zip(leaves, parts, strict=True)) if i not in closed
    ]
    out = -0.5 * base.square().sum(-1)
    for term in others:
        out = out - term
    if not couples or (len(closed) == 1 and len(leaves) == 1):
        for winding, unit in zip(windings, units, strict=True):
            precision = unit.square().sum(-1, keepdim=True)
            out = out + torch.logsumexp(winding.log_weight - 0.5 * winding.s.square() * precision, -1)
        return out
    return out + _coupled(windings, units, base)


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
        m = torch.arange(-count, count + 1, dtype=v.dtype, device=v.device)
        period = space.period(length)
        assert period is not None  # for the type checker: of a closed factor
        winds = m != 0
        self.s = length + torch.where(winds, m * period, 0.0)
        # A period whose square overflows, of a curvature that is nearly 0, is as good as none.
        lost = ((self.s == 0) | ~(self.s.abs() < torch.finfo(v.dtype).max ** 0.25)) & winds
        if dim > 1:  # on a circle no other vectors meet at loc
            lost = lost | (zero & winds)
        # log|s/r|, where it is defined.
        ratio = (torch.where(lost, 1.0, self.s) / torch.where(zero, 1.0, length)).abs()
        log_ratio = torch.where(winds & ~lost, ratio, 1.0).log()
        weight = (dim - 1) * log_ratio - space.log_det_exp(v).unsqueeze(-1)
        too_wide = (2 * math.pi * width.unsqueeze(-1) > WIDEST * period).expand(weight.shape)
        self.log_weight = torch.where(too_wide, torch.nan, torch.where(lost, -torch.inf, weight))
        self.s = torch.where(lost, 0.0, self.s)


def _coupled(windings: list[_Winding], units: list[Tensor], base: Tensor) -> Tensor:
    r"""The sum over the windings of all factors at once, by the Gram matrix of the whitened directions."""
    count = len(windings)

    def spread(value: Tensor, axis: int) -> Tensor:
        """A term of one factor, ``(..., J)``, among the dimensions of all."""
        return value.reshape(value.shape[:-1] + tuple(value.shape[-1] if i == axis else 1 for i in range(count)))

    def number(value: Tensor) -> Tensor:
        return value.reshape(value.shape + (1,) * count)

    total = number(torch.zeros_like(base[..., 0]))
    for i, (winding, unit) in enumerate(zip(windings, units, strict=True)):
        s = spread(winding.s, i)
        total = total + spread(winding.log_weight, i) - s * number(dot(base, unit))
        for j, other in enumerate(units):
            total = total - 0.5 * s * spread(windings[j].s, j) * number(dot(unit, other))
    return total.flatten(-count).logsumexp(-1)


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
