r"""Points of a space of constant curvature, and their mirror images.

In a space of the curvature ``k`` a point is :math:`X = (X_0, X_1, \ldots, X_d)` with
:math:`X_0^2 + k (X_1^2 + \cdots + X_d^2) = 1`, a hyperplane is :math:`\{a \cdot X = 0\}` and the mirror image

.. math:: X' = X - 2\,\frac{a \cdot X}{a \cdot G a}\,G a, \qquad G = \operatorname{diag}(k, 1, \ldots, 1) .

The isometry that takes the origin to the point ``E`` along a geodesic is, with the product of the last ``d`` numbers,

.. math::

    X_0' = E_0 X_0 - k\,(E \cdot X), \qquad
    (X_1', \ldots) = (X_1, \ldots) + (E_1, \ldots) \left(X_0 - \frac{k\,(E \cdot X)}{1 + E_0}\right) .
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold


@dataclass
class Places:
    """Points of a space of constant curvature, by their numbers without bounds and as ``X``.

    :ivar v: the numbers ``(..., d, N)``.
    :ivar k: the curvature, ``(..., 1, 1)``.
    :ivar sign: what it can be: -1, 0, 1, or 2 for either; nothing in a space of another kind.
    :ivar x: ``(..., 1 + d, N)``; nothing in a space of another kind.
    :ivar log_det: logarithm of the Jacobian from the numbers to the space, up to a number ``(..., N)``.
    """

    v: Tensor
    k: Tensor
    sign: int | None
    x: Any = None
    log_det: Any = None

    @classmethod
    def of(cls, v: Tensor, k: Tensor, sign: int | None) -> Places:
        """Of the numbers of points."""
        places = cls(v, k, sign)
        return places if sign is None else places.measured()

    def measured(self) -> Places:
        """The same with ``x`` and ``log_det``, from the numbers."""
        v, k, dim = self.v, self.k, self.v.shape[-2]
        if self.sign == 0:
            x = torch.cat([torch.ones_like(v[..., :1, :]), v], -2)
            return dataclasses.replace(self, x=x, log_det=torch.zeros_like(v[..., 0, :]))
        if self.sign != 1:
            reach = self._reach(v)
            time, factor = reach.cosh(), reach.sinh() / reach
            log_det = (dim - 1) * factor.log()
        if self.sign == 1 or self.sign == 2:
            # By what numbers are larger than positions.
            q = 1 + k.clamp(min=0.0) * v.square().sum(-2, keepdim=True) / 4
            if self.sign == 1:
                time, factor, log_det = 2 / q - 1, 1 / q, -dim * q.log()
            else:
                time, factor = torch.where(k > 0, 2 / q - 1, time), torch.where(k > 0, 1 / q, factor)
                log_det = torch.where(k > 0, -dim * q.log(), log_det)
        return dataclasses.replace(self, x=torch.cat([time, factor * v], -2), log_det=log_det.squeeze(-2))

    def moved_to(self, x: Tensor, some: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of the points, some of which ``(..., N)`` are now at ``x``, and the logarithms of the volume
        gained ``(...)``.
        """
        v, log_det, away = self._numbers(x)
        # Far out the numbers of a point do not hold the image of its image: what does not lead back is not proposed.
        lost = away > torch.finfo(v.dtype).eps * x.square().sum(-2)
        gain = torch.where(some, torch.where(lost, -torch.inf, self.log_det - log_det), 0.0).sum(-1)
        return torch.where(some.unsqueeze(-2), v, self.v), gain

    def shifted(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Points ``x`` after the shift of the origin along a geodesic to the point with the numbers ``(..., d)``."""
        k = self.k
        e = dataclasses.replace(self, v=numbers.unsqueeze(-1)).measured().x
        (e_time, e_space), (time, space) = ((t[..., :1, :], t[..., 1:, :]) for t in (e, x))
        product = k * (e_space * space).sum(-2, keepdim=True)
        return torch.cat([e_time * time - product, space + e_space * (time - product / (1 + e_time))], -2)

    def _numbers(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers of points ``x``, their ``log_det``, and how far away, squared, these numbers are."""
        first, space, dim = x[..., :1, :], x[..., 1:, :], x.shape[-2] - 1
        if self.sign == 0:
            return space, torch.zeros_like(x[..., 0, :]), (1 - x[..., 0, :]).square()
        if self.sign != 1:
            reach = self._reach(space)
            factor = reach.asinh() / reach
            log_det, away = (1 - dim) * factor.log(), ((1 + reach.square()).sqrt() - first).square()
        if self.sign == 1 or self.sign == 2:
            round_factor = 2 / (1 + first)
            size = space.square().sum(-2, keepdim=True)
            q = 1 + self.k.clamp(min=0.0) * size * round_factor.square() / 4
            round_away = (2 / q - 1 - first).square() + size * (round_factor / q - 1).square()
            if self.sign == 1:
                factor, log_det, away = round_factor, -dim * q.log(), round_away
            else:
                is_round = self.k > 0
                factor, away = torch.where(is_round, round_factor, factor), torch.where(is_round, round_away, away)
                log_det = torch.where(is_round, -dim * q.log(), log_det)
        return space * factor, log_det.squeeze(-2), away.squeeze(-2)

    def _reach(self, v: Tensor) -> Tensor:
        """Lengths in units of the curvature, where it is negative."""
        tiny = torch.finfo(v.dtype).tiny
        return (-self.k).clamp(min=tiny**0.5).sqrt() * (v.square().sum(-2, keepdim=True) + tiny).sqrt()


def curvature(space: Manifold, vectors: Tensor) -> tuple[Tensor, int | None]:
    """That of a space for each of the vectors ``(P, 1, 1)``, and what its sign can be (see :class:`Places`)."""
    if isinstance(space, ConstantCurvature):
        k = torch.as_tensor(-space.opposite(vectors.unsqueeze(-1)), dtype=vectors.dtype, device=vectors.device)
        return k.expand(len(vectors), 1, 1), -space.sign if space.sign else 2
    return vectors.new_zeros(len(vectors), 1, 1), 0 if isinstance(space, Euclidean) else None


def mirrored(x: Tensor, spans: Tensor, k: Tensor) -> Tensor:
    """The points mirrored at the hyperplane through ``d`` sums of points with weights ``(..., d, N)``."""
    along = (spans.to(x.dtype).unsqueeze(-2) * x.unsqueeze(-3)).sum(-1)
    a = torch.linalg.cross(along[..., 0, :], along[..., 1, :]) if along.shape[-1] == 3 else _orthogonal(along)
    a = a.unsqueeze(-1)
    ga = torch.cat([k * a[..., :1, :], a[..., 1:, :]], -2)
    length = (a * ga).sum(-2, keepdim=True)
    return x - 2 * (x * a).sum(-2, keepdim=True) / torch.where(length == 0, 1.0, length) * ga


def _orthogonal(rows: Tensor) -> Tensor:
    """A vector orthogonal to ``d`` vectors ``(..., d, 1 + d)``: what these leave of the axis of which they leave most.

    By Gram and Schmidt, of all vectors and axes together: decompositions of matrices cannot be captured. What is left
    is made orthogonal twice, for the digits.
    """
    size, tiny = rows.shape[-1], torch.finfo(rows.dtype).tiny
    axes = torch.eye(size, dtype=rows.dtype, device=rows.device).expand(*rows.shape[:-2], size, size)
    left, done = torch.cat([torch.nn.functional.normalize(rows, dim=-1, eps=tiny), axes], -2), []
    for _ in range(size - 1):
        row, left = left[..., :1, :], left[..., 1:, :]
        row = torch.nn.functional.normalize(row, dim=-1, eps=tiny)
        left = torch.addcmul(left, (left * row).sum(-1, keepdim=True), row, value=-1)
        done.append(row)
    most = left.square().sum(-1).argmax(-1)
    a = left.gather(-2, most[..., None, None].expand(*most.shape, 1, size))
    known = torch.cat(done, -2)
    return (a - ((a * known).sum(-1, keepdim=True) * known).sum(-2, keepdim=True)).squeeze(-2)
