"""Principal components along horospheres."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.components import Projection, principal_directions
from pyro_hyperbolic.geometry import ConstantCurvature, Lorentz, Manifold
from pyro_hyperbolic.ops.tolerances import eps

_UNIT = Lorentz(1.0)
_MOST_STARTS = 8


class HoroPCA(Projection):
    r"""Projections along horospheres that keep most of the squared distances between pairs.

    Chami, Gu, Nguyen and Ré, *HoroPCA: hyperbolic dimensionality reduction via horospherical projections* (2021).
    The Fréchet mean is at the origin, and orthonormal directions :math:`p_1, \ldots, p_k` are ideal points. A point
    goes to the point of the subspace spanned by them that lies on the same horospheres: all its Busemann functions
    :math:`B_j(x) = \log(x_0 - \langle p_j, x_s\rangle)` stay the same. On the hyperboloid of radius 1, with
    :math:`a_j = e^{B_j(x)}`, that is

    .. math::

        y_0 = \frac{1 + |a|^2}{\sum_j a_j + \sqrt{(\sum_j a_j)^2 - (k - 1)(1 + |a|^2)}}, \qquad y_j = y_0 - a_j .

    For k > 1 there is a second point on these horospheres, beyond the geodesic subspace whose ideal points they are. As
    in the paper, we take the one nearer to the origin. So what lies beyond, in the direction of :math:`\sum_j p_j`
    farther than :math:`\operatorname{artanh}(1/\sqrt k)` radii of curvature, is folded back.

    The directions start from those of :class:`TangentPCA`. Adam then increases the mean squared distance between the
    pairs of random batches, and the directions that keep most of it on the way are kept. A direction and its opposite
    are different ideal points, from which the search ends in different local maxima: it begins from both, with at most
    8 starts in all, and after a tenth of the steps goes on with the best. All this is done in the frame of the
    principal axes, so that the result does not depend on the frame that the points are given in.

    :param dim: dimensions of the result, k.
    :param seed: seed of the batches, and of the pairs that measure ``explained_variance_ratio``.
    :param num_steps: number of steps of Adam from the best start.
    :param learning_rate: learning rate of Adam.
    :param batch_size: number of points whose pairs a step compares.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> points = ball.expmap0(torch.randn(50, 5) * torch.tensor([0.8, 0.05, 0.5, 0.05, 0.05]))
    >>> pca = HoroPCA(2, num_steps=20).fit(points, ball)
    >>> pca.transform(points).shape
    torch.Size([50, 2])
    """

    def __init__(
        self, dim: int = 2, seed: int = 0, num_steps: int = 200, learning_rate: float = 0.05, batch_size: int = 256
    ) -> None:
        super().__init__(dim, seed)
        for name, value in (("num_steps", num_steps), ("learning_rate", learning_rate), ("batch_size", batch_size)):
            if not value > 0:
                raise ValueError(f"HoroPCA: {name} must be positive, got {value!r}.")
        self.num_steps, self.learning_rate, self.batch_size = num_steps, learning_rate, batch_size

    def _checked_space(self, manifold: Manifold) -> ConstantCurvature:
        space = super()._checked_space(manifold)
        if space.geodesics_close or not float(space.c) > 0:
            raise ValueError(
                f"HoroPCA: manifold must be hyperbolic, got {manifold!r}: other spaces have no horospheres; use"
                " TangentPCA."
            )
        return space

    def _directions(self, coords: Tensor, generator: torch.Generator) -> Tensor:
        # In the frame of the points' own axes, because the steps of Adam depend on the frame.
        axes = principal_directions(coords, coords.shape[-1])
        x = _UNIT.from_normal_coords(None, coords @ axes.mT / self._radius)
        test = x[torch.randperm(len(x), generator=generator)[: 2 * self.batch_size]]
        tried = [self._climb(x, test, start, self.num_steps // 10, generator) for start in _starts(test, self.dim)]
        best = max(tried, key=lambda directions: float(_spread(test, directions)))
        return self._climb(x, test, best, self.num_steps, generator) @ axes

    def _climb(self, x: Tensor, test: Tensor, start: Tensor, num_steps: int, generator: torch.Generator) -> Tensor:
        """The directions that keep most of the distances of ``test``, on a way of so many steps."""
        free = start.mT.clone().requires_grad_()
        optimiser = torch.optim.Adam([free], self.learning_rate)
        best, most = start, -math.inf
        # Looks are as dear as steps.
        every = max(1, num_steps // 20)
        for step in range(num_steps + 1):
            if step % every == 0 or step == num_steps:
                kept = float(_spread(test, _orthonormal(free.detach())))
                if kept > most:
                    best, most = _orthonormal(free.detach()), kept
            batch = x[torch.randperm(len(x), generator=generator)[: self.batch_size]]
            with torch.enable_grad():
                optimiser.zero_grad()
                (-_spread(batch, _orthonormal(free)).log()).backward()
            optimiser.step()
        return best

    def _project(self, coords: Tensor) -> Tensor:
        y = horospherical(_UNIT.from_normal_coords(None, coords / self._radius), self.directions)
        return _UNIT.to_normal_coords(None, y) * self._radius

    @property
    def _radius(self) -> float:
        assert self._space is not None  # for the type checker: fit has set it
        return 1 / math.sqrt(float(self._space.c))


def horospherical(x: Tensor, directions: Tensor) -> Tensor:
    """Points ``(..., k + 1)`` of the hyperboloid of radius 1 on the same horospheres as ``(..., d + 1)``."""
    a = x[..., :1] - x[..., 1:] @ directions.mT
    total, square = a.sum(-1, keepdim=True), 1 + a.square().sum(-1, keepdim=True)
    gap = total.square() - (len(directions) - 1) * square
    # Zero where both points are one; the root has no derivative there.
    safe = gap > eps(x.dtype) * total.square()
    height = square / (total + torch.where(safe, torch.where(safe, gap, 1.0).sqrt(), 0.0))
    return _UNIT.projx(torch.cat([height, height - a], -1))


def _starts(x: Tensor, dim: int) -> list[Tensor]:
    """The first axes, each with either of its two ideal points, between which no frame chooses; the best of them."""
    axes = torch.eye(x.shape[-1] - 1).to(x)[:dim]
    starts = [axes[:0]]
    for axis in axes:
        longer = [torch.cat([start, sign * axis.unsqueeze(0)]) for start in starts for sign in (1, -1)]
        # In this order, which the frame does not change either.
        starts = sorted(longer, key=lambda start: -float(_spread(x, start)))[:_MOST_STARTS]
    return starts


def _orthonormal(free: Tensor) -> Tensor:
    """Orthonormal rows from columns; the signs of the columns stay."""
    q, r = torch.linalg.qr(free)
    return (q * r.diagonal().sign()).mT


def _spread(x: Tensor, directions: Tensor) -> Tensor:
    y = horospherical(x, directions)
    return _UNIT.pairwise_dist(y, y).square().mean()
