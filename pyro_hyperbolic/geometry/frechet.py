"""Weighted Fréchet means on any chart."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.ops.special import squared_norm
from pyro_hyperbolic.ops.tolerances import eps

# A Newton step shorter than this many eps (in units of 1 + the spread of the points) ends the iteration.
_STEP_TOLERANCE = 32.0
# Values that differ by rounding do not say which is lower; however coarse that is, one of twice the size does.
_MOST_SLACK = 1.0
_MAX_STEPS = 200
_HALVINGS = 30


class Space(Protocol):
    """What a mean needs of a manifold, which itself needs means."""

    @property
    def batch_shape(self) -> torch.Size: ...

    @property
    def geodesics_close(self) -> bool: ...

    def squeeze(self) -> Self: ...

    def intrinsic_dim(self, size: int) -> int: ...

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor: ...

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor: ...

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor: ...

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor: ...

    def conditioning(self, x: Tensor) -> Tensor: ...


def frechet_mean(manifold: Space, x: Tensor, weights: Tensor | None = None, *, start: Tensor | None = None) -> Tensor:
    r"""The point that minimises :math:`f(m) = \tfrac12 \sum_i w_i\, d(m, x_i)^2`.

    :math:`f` is geodesically strongly convex where no curvature is positive, so the minimum is unique. (On a sphere it
    is so for points within a quarter of a great circle of each other; for others the result is a local minimum.) It is
    found by Newton steps, halved until :math:`f` falls, which converge from any start; the iteration ends when the step
    is shorter than ``32 eps (1 + spread)``, or where coordinates cannot tell: rounding moves a mean at distance ``r``
    from the origin by :math:`\epsilon \cosh(\sqrt{c}\,r)`, and steps of that order which do not shrink any more are
    noise. The result is differentiable once in the points, the weights and the curvature: the last Newton step is taken
    with the graph attached, which is the implicit function theorem.

    :param manifold: where the points lie; a batch of curvatures has size 1 in its last dimension, that of the points.
    :param x: points ``(..., N, D)``.
    :param weights: non-negative ``(..., N)`` of any dtype, not all zero; equal by default.
    :param start: where the search begins, ``(..., D)``: :math:`f` is never larger at the result. By default the origin,
        or the point of greatest weight where geodesics close.
    :returns: ``(..., D)``.
    """
    if x.dim() < 2 or x.shape[-2] == 0:
        raise ValueError(
            f"x must have shape (..., N, d) with N >= 1, got {tuple(x.shape)}; stack the points along dim -2."
        )
    if weights is None:
        weights = x.new_ones(x.shape[:-1])
    if weights.dim() == 0 or weights.shape[-1] != x.shape[-2]:
        raise ValueError(
            f"weights must have one entry per point, got shape {tuple(weights.shape)} for points {tuple(x.shape)}."
        )
    # Integers, and floats of fewer digits than the points have, would be rounded where they are divided.
    weights = weights.to(torch.promote_types(weights.dtype, x.dtype))
    total = weights.sum(-1, keepdim=True)
    if not bool((weights >= 0).all()) or not bool(((total > 0) & total.isfinite()).all()):
        raise ValueError(
            f"weights must be non-negative with a positive and finite sum, got a weight of"
            f" {weights.min().item():g} and a sum of {total.min().item():g}; drop the negative ones."
        )
    weights = (weights / total).to(x.dtype).unsqueeze(-1)
    # The coordinates of a fixed point may depend on the curvature; its normal coordinates do not.
    mean = manifold.squeeze().from_normal_coords(None, _minimise(manifold, x, weights, start))
    gradient, hessian, _ = _derivatives(manifold, mean, x, weights)
    step = torch.linalg.solve(hessian.detach(), gradient)
    return manifold.squeeze().from_normal_coords(mean, step)


@torch.no_grad()
def _minimise(manifold: Space, x: Tensor, weights: Tensor, start: Tensor | None) -> Tensor:
    """Normal coordinates of the mean at the origin."""
    space = manifold.squeeze()  # of the mean, as manifold is that of the points
    dim = manifold.intrinsic_dim(x.shape[-1])
    mean = space.origin(dim, x.dtype, x.device) if start is None else start
    batch = torch.broadcast_shapes(x.shape[:-2], weights.shape[:-2], space.batch_shape, mean.shape[:-1])
    mean = mean.expand(batch + x.shape[-1:])
    if start is None and manifold.geodesics_close:
        # From the opposite side of a sphere no direction leads to the points.
        heaviest = weights.argmax(-2, keepdim=True).expand(batch + (1, x.shape[-1]))
        mean = x.expand(batch + x.shape[-2:]).gather(-2, heaviest).squeeze(-2)
    gradient, hessian, value = _derivatives(manifold, mean, x, weights)
    previous = torch.full_like(value, torch.inf)
    done = torch.zeros_like(value, dtype=torch.bool)
    rounding = _STEP_TOLERANCE * eps(x.dtype)
    for _ in range(_MAX_STEPS):
        noise = rounding * space.conditioning(mean)
        step = torch.linalg.solve(_positive(hessian), gradient)
        size = torch.where(done, 0.0, torch.ones_like(value))
        for _ in range(_HALVINGS):
            trial = space.from_normal_coords(mean, size.unsqueeze(-1) * step)
            trial_gradient, trial_hessian, trial_value = _derivatives(manifold, trial, x, weights)
            slack = noise.clamp(max=_MOST_SLACK)
            # Of points that are all the same f is 0, and a computed value is the square of a rounding.
            worse = trial_value > value * (1 + slack) + slack.square()
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        mean, gradient, hessian, value = trial, trial_gradient, trial_hessian, trial_value
        length = (size * step.norm(dim=-1)) / (1 + value.sqrt())
        # Written so that nan, of a point outside of the ball, is done.
        done = done | ~(length > rounding) | ((length <= noise) & (length > previous / 2))
        previous = length
        if bool(done.all()):
            break
    return space.to_normal_coords(None, mean)


def _positive(hessian: Tensor) -> Tensor:
    """The Hessian, or 1 where it is not positive: that of a sphere is never larger, so that the step still descends."""
    failed = torch.linalg.cholesky_ex(hessian).info > 0
    return torch.where(failed[..., None, None], torch.eye(hessian.shape[-1]).to(hessian), hessian)


def _derivatives(manifold: Space, mean: Tensor, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Minus the gradient, the Hessian and the value of :math:`f` in normal coordinates at ``mean``."""
    v = manifold.to_normal_coords(mean.unsqueeze(-2), x)
    return (weights * v).sum(-2), manifold.hessian(v, weights), 0.5 * (weights * squared_norm(v)).sum((-2, -1))
