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

    :ivar v: the numbers ``(P, N, d)``.
    :ivar k: the curvature, ``(P, 1, 1)``.
    :ivar sign: what it can be: -1, 0, 1, or 2 for either; nothing in a space of another kind.
    :ivar x: ``(P, N, 1 + d)``; nothing in a space of another kind.
    :ivar log_det: logarithm of the Jacobian from the numbers to the space, up to a number ``(P, N)``.
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
        v, k, dim = self.v, self.k, self.v.shape[-1]
        if self.sign == 0:
            return dataclasses.replace(self, x=torch.cat([torch.ones_like(v[..., :1]), v], -1), log_det=0 * v[..., 0])
        square = v.square().sum(-1, keepdim=True)
        if self.sign != 1:
            reach = self._root() * (square + torch.finfo(v.dtype).tiny).sqrt()
            time, factor = reach.cosh(), reach.sinh() / reach
            log_det = (dim - 1) * factor.log()
        if self.sign == 1 or self.sign == 2:
            q = 1 + k.clamp(min=0.0) * square / 4
            round_time, round_factor = 2 / q - 1, 1 / q
            if self.sign == 1:
                time, factor, log_det = round_time, round_factor, -dim * q.log()
            else:
                time, factor = torch.where(k > 0, round_time, time), torch.where(k > 0, round_factor, factor)
                log_det = torch.where(k > 0, -dim * q.log(), log_det)
        return dataclasses.replace(self, x=torch.cat([time, factor * v], -1), log_det=log_det.squeeze(-1))

    def moved_to(self, x: Tensor, some: Tensor | None) -> tuple[Places, Tensor]:
        """Some points, or all, at ``x``, and the logarithms of the volume gained ``(P,)``."""
        v = self._numbers(x)
        there = dataclasses.replace(
            self, v=v if some is None else torch.where(some.unsqueeze(-1), v, self.v)
        ).measured()
        # Far out the numbers of a point do not hold the image of its image: what does not lead back is not proposed.
        lost = (there.x - x).square().sum(-1) > torch.finfo(v.dtype).eps * x.square().sum(-1)
        gain = torch.where(lost, -torch.inf, self.log_det - there.log_det).sum(-1)
        return there, gain

    def shifted(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Points ``x`` after the shift of the origin along a geodesic to the point with the numbers ``(P, d)``."""
        k = self.k
        e = dataclasses.replace(self, v=numbers.unsqueeze(1)).measured().x
        product = (e[..., 1:] * x[..., 1:]).sum(-1, keepdim=True)
        time = e[..., :1] * x[..., :1] - k * product
        return torch.cat([time, x[..., 1:] + e[..., 1:] * (x[..., :1] - k * product / (1 + e[..., :1]))], -1)

    def _numbers(self, x: Tensor) -> Tensor:
        """The numbers of points ``x``."""
        space = x[..., 1:]
        if self.sign == 0:
            return space
        if self.sign != 1:
            reach = self._root() * (space.square().sum(-1, keepdim=True) + torch.finfo(x.dtype).tiny).sqrt()
            factor = reach.asinh() / reach
        if self.sign == 1 or self.sign == 2:
            round_factor = 2 / (1 + x[..., :1])
            factor = round_factor if self.sign == 1 else torch.where(self.k > 0, round_factor, factor)
        return space * factor

    def _root(self) -> Tensor:
        return (-self.k).clamp(min=torch.finfo(self.k.dtype).tiny ** 0.5).sqrt()


def curvature(space: Manifold, vectors: Tensor) -> tuple[Tensor, int | None]:
    """That of a space for each of the vectors ``(P, 1, 1)``, and what its sign can be (see :class:`Places`)."""
    if isinstance(space, ConstantCurvature):
        k = torch.as_tensor(-space.opposite(vectors.unsqueeze(-1)), dtype=vectors.dtype, device=vectors.device)
        return k.expand(len(vectors), 1, 1), -space.sign if space.sign else 2
    return vectors.new_zeros(len(vectors), 1, 1), 0 if isinstance(space, Euclidean) else None


def mirrored(x: Tensor, spans: Tensor, k: Tensor) -> Tensor:
    """The points mirrored at the hyperplane through ``d`` sums of points with weights ``(P, d, N)``."""
    along = spans.to(x.dtype) @ x
    a = torch.linalg.cross(along[:, 0], along[:, 1]) if x.shape[-1] == 3 else _orthogonal(along)
    a = a.unsqueeze(1)
    ga = torch.cat([k * a[..., :1], a[..., 1:]], -1)
    length = (a * ga).sum(-1, keepdim=True)
    return x - 2 * (x * a).sum(-1, keepdim=True) / torch.where(length == 0, 1.0, length) * ga


def _orthogonal(rows: Tensor) -> Tensor:
    """A vector orthogonal to ``d`` vectors ``(P, d, 1 + d)``: what these leave of the axis of which they leave most.

    By Gram and Schmidt, of all vectors and axes together: decompositions of matrices cannot be captured.
    """
    count, dim, size = rows.shape
    axes = torch.eye(size, dtype=rows.dtype, device=rows.device).expand(count, size, size)
    left = torch.cat([rows, axes], 1)
    for number in range(dim):
        row = torch.nn.functional.normalize(left[:, number : number + 1], dim=-1, eps=torch.finfo(rows.dtype).tiny)
        left = torch.baddbmm(left, left @ row.mT, row, alpha=-1)
    left = left[:, dim:]
    most = left.square().sum(-1).argmax(-1)
    return left[torch.arange(count, device=rows.device), most]
