"""Regions of posteriors: where a given share of a wrapped or a Riemannian normal lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.geometry import Manifold

Scales = Tensor | Distribution | float


def region_factors(scales: Any, count: int, manifold: Manifold) -> Callable[[float], Tensor]:
    r"""For a share of the mass, the factors ``(N, 2, 2)`` of the borders of the regions.

    In normal coordinates at the mean the border is the ellipse :math:`L u`, :math:`|u| = 1`; the exponential map takes
    it to the surface.

    Args:
        scales: standard deviations of wrapped normals (a number, ``(N,)``, ``(N, 1)``, ``(N, 2)``), their Cholesky
            factors ``(N, 2, 2)``, or the posteriors themselves, a distribution of batch shape ``(N,)``.
        count: how many points there are.
        manifold: their space, of one curvature.
    """
    if isinstance(scales, hdist.RiemannianNormal):
        return _riemannian(scales, count, manifold)
    if isinstance(scales, hdist.WrappedNormal):
        _check_batch(scales, count)
        factor = torch.linalg.cholesky(scales.covariance_matrix.detach().double().cpu())
    elif isinstance(scales, Distribution):
        _check_batch(scales, count)
        factor = torch.diag_embed(scales.stddev.detach().double().cpu())
    else:
        factor = _factor(scales, count)
    # A share of a Gaussian of two dimensions lies within sqrt(-2 log(1 - share)).
    return lambda share: math.sqrt(-2 * math.log1p(-share)) * factor


def _riemannian(distribution: hdist.RiemannianNormal, count: int, manifold: Manifold) -> Callable[[float], Tensor]:
    _check_batch(distribution, count)

    def factors(share: float) -> Tensor:
        with torch.no_grad():
            # At the origin, where every region has the shape that it has elsewhere.
            scale = distribution.scale.double().cpu().reshape(count, 1)
            centred = hdist.RiemannianNormal(manifold.origin(2, torch.float64), scale, manifold)
            noise = torch.tensor([math.sqrt(-2 * math.log1p(-share)), 0.0], dtype=torch.float64)
            radius = manifold.dist0(centred.from_noise(noise.expand(count, 2)))
        return torch.diag_embed(radius.unsqueeze(-1).expand(count, 2))

    return factors


def _check_batch(distribution: Distribution, count: int) -> None:
    dims = len(distribution.event_shape)
    if tuple(distribution.batch_shape) != (count,) or dims != 1:
        raise ValueError(
            f"scales must be posteriors of batch shape {(count,)} and one event dimension, got"
            f" {tuple(distribution.batch_shape)} and event shape {tuple(distribution.event_shape)}; for independent"
            " dimensions use .to_event(1)."
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
