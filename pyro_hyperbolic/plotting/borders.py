"""Regions of posteriors: where a given share of a wrapped or a Riemannian normal lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.analysis.widening import plain, widened
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.geometry import Euclidean, Manifold
from pyro_hyperbolic.ops.tolerances import agreement_tolerance
from pyro_hyperbolic.plotting.surfaces import same_space

Scales = Tensor | Distribution | float


def region_factors(scales: Any, points: Tensor, manifold: Manifold) -> Callable[[float], Tensor]:
    r"""For a share of the mass, the factors ``(N, 2, 2)`` of the borders of the regions.

    In normal coordinates at the mean the border is the ellipse :math:`L u`, :math:`|u| = 1`; the exponential map takes
    it to the surface.

    Args:
        scales: standard deviations of wrapped normals (a number, ``(N,)``, ``(N, 1)``, ``(N, 2)``), their Cholesky
            factors ``(N, 2, 2)``, or the posteriors themselves, a distribution of batch shape ``(N,)`` on the same
            space, in any chart.
        points: their means, float64 ``(N, D)``.
        manifold: the space of the points, with its curvature as a plain number.
    """
    if not isinstance(scales, Distribution):
        factor = _factor(scales, len(points))
    else:
        _check_posteriors(scales, points, manifold)
        distribution = base_distribution(scales)
        if isinstance(distribution, hdist.RiemannianNormal):
            return _riemannian(distribution, len(points), manifold)
        if hasattr(distribution, "covariance_matrix"):
            factor = torch.linalg.cholesky(distribution.covariance_matrix.detach().double().cpu())
        else:
            factor = torch.diag_embed(scales.stddev.detach().double().cpu())
    # A share of a Gaussian of two dimensions lies within sqrt(-2 log(1 - share)).
    return lambda share: math.sqrt(-2 * math.log1p(-share)) * factor


def _riemannian(distribution: hdist.RiemannianNormal, count: int, manifold: Manifold) -> Callable[[float], Tensor]:
    def factors(share: float) -> Tensor:
        with torch.no_grad():
            # At the origin, where every region has the shape that it has elsewhere.
            scale = distribution.scale.double().cpu().reshape(count, 1)
            centred = hdist.RiemannianNormal(manifold.origin(2, torch.float64), scale, manifold)
            noise = torch.tensor([math.sqrt(-2 * math.log1p(-share)), 0.0], dtype=torch.float64)
            radius = manifold.dist0(centred.from_noise(noise.expand(count, 2)))
        return torch.diag_embed(radius.unsqueeze(-1).expand(count, 2))

    return factors


def _check_posteriors(scales: Distribution, points: Tensor, manifold: Manifold) -> None:
    """Posteriors of other points, or of another space, have regions elsewhere."""
    count = len(points)
    if tuple(scales.batch_shape) != (count,) or len(scales.event_shape) != 1:
        raise ValueError(
            f"scales must be posteriors of batch shape {(count,)} and one event dimension, got"
            f" {tuple(scales.batch_shape)} and event shape {tuple(scales.event_shape)}; for independent"
            " dimensions use .to_event(1)."
        )
    distribution = base_distribution(scales)
    own = getattr(distribution, "manifold", Euclidean())  # a Gaussian of torch or Pyro is one of flat space
    if not same_space(own, manifold):
        raise ValueError(
            f"scales must be posteriors on the space of the points, {manifold!r}, got {type(distribution).__name__} on"
            f" {own!r}; pass the manifold of the posteriors, and their means as points."
        )
    own = plain(own)
    if own.intrinsic_dim(scales.event_shape[0]) != 2:
        raise ValueError(f"scales must be posteriors of two dimensions, got event shape {tuple(scales.event_shape)}.")
    centre = distribution.loc if isinstance(distribution, ManifoldDistribution) else scales.mean
    # Charts of one space have the same normal coordinates at the origin.
    there = manifold.from_normal_coords(None, own.to_normal_coords(None, widened(centre, own)))
    rounding = agreement_tolerance(torch.float32) * (1 + manifold.dist0(points)) * manifold.conditioning(points)
    off = ~(manifold.dist(there, points) <= rounding)  # nan too
    if bool(off.any()):
        i = int(off.nonzero()[0])
        raise ValueError(
            f"scales must be posteriors with their means at the points, got {int(off.sum())} of {count} that are"
            f" elsewhere, the first in row {i}; pass posterior.mean as points."
        )


def _factor(scales: Any, count: int) -> Tensor:
    s = torch.as_tensor(scales).detach().to("cpu", torch.float64)
    if s.shape == (count, 2, 2):
        good = bool((s.diagonal(dim1=-2, dim2=-1) > 0).all() and (s[:, 0, 1] == 0).all())
        if not good or not bool(s.isfinite().all()):
            raise ValueError(
                f"scales of shape {tuple(s.shape)} must be lower Cholesky factors; use torch.linalg.cholesky."
            )
        return s
    if s.dim() == 0:
        s = s.expand(count)
    if s.shape == (count,):
        s = s.unsqueeze(-1)
    if s.dim() != 2 or len(s) != count or s.shape[1] not in (1, 2):
        raise ValueError(
            f"scales must be a number, {(count,)}, {(count, 1)}, {(count, 2)}, Cholesky factors {(count, 2, 2)} or a"
            f" distribution, got shape {tuple(s.shape)}."
        )
    if not bool(((s > 0) & s.isfinite()).all()):
        raise ValueError(f"scales must be positive and finite, got {float(s.min())} to {float(s.max())}.")
    return torch.diag_embed(s.expand(count, 2))
