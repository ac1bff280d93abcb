r"""Moves from one arrangement of points to another.

Distances to a few others leave a point two places, on either side of them, and a chain does not cross what lies there.
And the place of all points together is known by the prior alone, so that a chain only drifts there. Three moves help.
All lead back with the same probability, so they are proposals of a Metropolis step:

* points near each other are *mirrored* at the geodesic hyperplane through ``d`` points, which stay. This is an isometry
  of those that move, and keeps their distances to those that stay on the hyperplane;
* a point and one of the nearest to it *exchange* their places;
* all points are *shifted* by an isometry.

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

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold

_NEIGHBOURS = 4
_NEW = 0.2  # the share of sets that are chosen without regard to what was learned
# The moves, and how often each is tried between two trajectories: those that are rarely accepted more often.
MOVES = {"shift": 4, "exchange": 8, "mirror": 8, "two mirrors": 8}


@dataclass
class Points:
    """The points of a site, or of one factor of its space.

    :ivar site: its name.
    :ivar factor: the number of the factor.
    :ivar columns: where their numbers are in a vector, ``(N, d)``.
    :ivar order: ``(N, N)``, for each point all of them by their distances from it, in some fit. That the choice of
        points does not depend on the state makes mirroring them symmetric.
    :ivar radius: how far they are from the origin in that fit.
    """

    site: str
    factor: int
    columns: Tensor
    order: Tensor
    radius: float

    def __post_init__(self) -> None:
        self._rank = self.order.argsort(-1)
        sizes = torch.arange(1, max(2, len(self.order) // 2 + 1), device=self.order.device)
        # Sets of points by one of them and their number, those of twice as many half as often at first.
        self._first = (1 / sizes).repeat(len(self.order)) / len(self.order) / (1 / sizes).sum()
        self._sets = torch.cartesian_prod(torch.arange(len(self.order), device=self.order.device), sizes)
        self.weights = self._first
        self._tried, self._taken = torch.zeros_like(self._first), torch.zeros_like(self._first)
        self._last: list[Tensor] = []
        self._ahead: list[tuple[Tensor, ...]] = []

    def note(self, accepted: Tensor) -> None:
        """Remember which of the sets of the last move may go where they were sent."""
        for sets in self._last:
            self._tried.index_add_(0, sets, torch.ones_like(accepted, dtype=self._tried.dtype))
            self._taken.index_add_(0, sets, accepted.to(self._taken.dtype))

    def learn(self) -> None:
        """Move the sets more often that went more often so far."""
        mean = self._taken.sum() / self._tried.sum().clamp(min=1)
        share = (self._taken + mean) / (self._tried + 1)
        self.weights = _NEW * self._first + (1 - _NEW) * share / share.sum().clamp(min=1e-30)

    def moved(self, vectors: Tensor, space: Manifold, move: str) -> tuple[Tensor, Tensor]:
        """Vectors ``(P, D)`` with some points elsewhere, and the logarithms of the volume that the move gains ``(P,)``.

        :param space: with a curvature ``(P, 1)`` for each vector, or one for all. Spaces whose curvature is not
            constant know exchanges alone.
        """
        here = self.places(vectors, space)
        there, gain = self.propose(here, move)
        return self.put(vectors, there), gain

    def places(self, vectors: Tensor, space: Manifold) -> Places:
        """Where the points of vectors are."""
        return Places.of(vectors[:, self.columns], space)

    def put(self, vectors: Tensor, places: Places) -> Tensor:
        """The vectors, with their points in other places."""
        x = vectors.clone()
        x[:, self.columns] = places.v
        return x

    def propose(self, here: Places, move: str) -> tuple[Places, Tensor]:
        """Other places, and the logarithms of the volume that the move gains."""
        self._last = []
        if move == "exchange" or here.x is None:
            there = dataclasses.replace(here, v=_exchanged(here.v))
            return (there if here.x is None else there.measured()), torch.zeros_like(here.v[:, 0, 0])
        x = here.x
        if move == "shift":
            return here.moved_to(here.shifted(self.radius), None)
        some = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        for _ in range(2 if move == "two mirrors" else 1):
            if not self._ahead:
                self.choose(len(x), 1)
            sets, moves, spans = self._ahead.pop()
            self._last.append(sets)
            x = torch.where(moves.unsqueeze(-1), _image(x, spans, here.k), x)
            some = some | moves
        return here.moved_to(x, some)

    def choose(self, count: int, times: int) -> None:
        """Choose the mirrors of the next moves of so many vectors: all at once, since no state has a say in it."""
        chosen = self._chosen(count * times)
        self._ahead = list(zip(*(part.split(count) for part in chosen), strict=True))

    def _chosen(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sets by their number, their points ``(P, N)``, and weights of points whose sums span a mirror ``(P, d, N)``.

        The mirror goes through the middle of those that move, or not, and through middles of others: it is the same one
        on the way back.
        """
        number, dim = self.columns.shape
        order, rank, device = self.order, self._rank, self.order.device
        sets = torch.multinomial(self.weights, count, replacement=True)
        centre, size = self._sets[sets, 0], self._sets[sets, 1:]
        moves = rank[centre] < size
        place = size + (torch.rand(count, dim, device=device) * torch.minimum(3 * size + 2 * dim, number - size)).long()
        others = order[centre.unsqueeze(-1), place.clamp(max=number - 1)]
        # One of the others, or so many of them that twice as many are half as likely.
        sizes = (number ** torch.rand(count, dim, device=device)).long() ** torch.randint(
            2, (count, dim), device=device
        )
        spans = (rank[others] < sizes.unsqueeze(-1)) & ~moves.unsqueeze(1)
        own = (size > 1) & (torch.rand(count, 1, device=device) < 0.5)
        spans[:, 0] = torch.where(own, moves, spans[:, 0])
        # Sums that are not independent span no mirror; whether they are is a matter of their weights alone.
        weights = spans.to(torch.float64)
        spanned = torch.linalg.det(weights @ weights.mT) > 0.5
        return sets, moves & spanned.unsqueeze(-1), spans


@dataclass
class Places:
    """Points of a space of constant curvature, by their numbers without bounds and as ``X``.

    :ivar v: the numbers ``(P, N, d)``.
    :ivar k: the curvature, ``(P, 1, 1)``.
    :ivar sign: what it can be: -1, 0, 1, or 2 for either.
    :ivar x: ``(P, N, 1 + d)``; nothing in a space of another kind.
    :ivar log_det: logarithm of the Jacobian from the numbers to the space, up to a number ``(P, N)``.
    """

    v: Tensor
    k: Tensor
    sign: int
    x: Any = None
    log_det: Any = None

    @classmethod
    def of(cls, v: Tensor, space: Manifold) -> Places:
        """Of the numbers of points of a space."""
        if isinstance(space, ConstantCurvature):
            k = torch.as_tensor(-space.opposite(v), dtype=v.dtype, device=v.device).expand(len(v), 1, 1)
            return cls(v, k, -space.sign if space.sign else 2).measured()
        zero = v.new_zeros(len(v), 1, 1)
        return cls(v, zero, 0).measured() if isinstance(space, Euclidean) else cls(v, zero, 0)

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
        if self.sign > 0:
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

    def shifted(self, radius: float) -> Tensor:
        """All points after a random shift, by a tenth of the radius on average, or more, or much less."""
        x, k, (count, _, dim) = self.x, self.k, self.v.shape
        width = radius * 10 ** (-2 * torch.rand(count, 1, 1, dtype=x.dtype, device=x.device))
        shift = width * torch.randn(count, 1, dim, dtype=x.dtype, device=x.device) / dim**0.5
        e = dataclasses.replace(self, v=shift).measured().x
        product = (e[..., 1:] * x[..., 1:]).sum(-1, keepdim=True)
        time = e[..., :1] * x[..., :1] - k * product
        return torch.cat([time, x[..., 1:] + e[..., 1:] * (x[..., :1] - k * product / (1 + e[..., :1]))], -1)

    def taken(self, other: Places, where: Tensor) -> Places:
        """The other ones for some of the vectors."""
        if self.x is None:
            return dataclasses.replace(self, v=torch.where(where[:, None, None], other.v, self.v))
        rows = where[:, None, None]
        return dataclasses.replace(
            self,
            v=torch.where(rows, other.v, self.v),
            x=torch.where(rows, other.x, self.x),
            log_det=torch.where(where[:, None], other.log_det, self.log_det),
        )

    def _numbers(self, x: Tensor) -> Tensor:
        """The numbers of points ``x``."""
        space = x[..., 1:]
        if self.sign == 0:
            return space
        if self.sign != 1:
            reach = self._root() * (space.square().sum(-1, keepdim=True) + torch.finfo(x.dtype).tiny).sqrt()
            factor = reach.asinh() / reach
        if self.sign > 0:
            round_factor = 2 / (1 + x[..., :1])
            factor = round_factor if self.sign == 1 else torch.where(self.k > 0, round_factor, factor)
        return space * factor

    def _root(self) -> Tensor:
        return (-self.k).clamp(min=torch.finfo(self.k.dtype).tiny ** 0.5).sqrt()


def _image(x: Tensor, spans: Tensor, k: Tensor) -> Tensor:
    """The points mirrored at the hyperplane through ``d`` sums of points with weights ``(P, d, N)``."""
    along = spans.to(x.dtype) @ x
    if x.shape[-1] == 3:
        a = torch.linalg.cross(along[:, 0], along[:, 1]).unsqueeze(1)
    else:
        # What the points of the plane leave of a basis.
        a = torch.linalg.qr(torch.cat([along, torch.randn_like(along[:, :1])], 1).mT).Q[..., -1:].mT
    ga = torch.cat([k * a[..., :1], a[..., 1:]], -1)
    length = (a * ga).sum(-1, keepdim=True)
    return x - 2 * (x * a).sum(-1, keepdim=True) / torch.where(length == 0, 1.0, length) * ga


def _exchanged(v: Tensor) -> Tensor:
    """One point and one of the nearest to it in each other's place: who is near whom is a matter of the places."""
    count, number, _ = v.shape
    rows = torch.arange(count, device=v.device)
    one = torch.randint(number, (count,), device=v.device)
    distance = (v - v[rows, one].unsqueeze(1)).norm(dim=-1)
    distance[rows, one] = -1.0
    nearest = distance.topk(min(number, _NEIGHBOURS + 1), largest=False).indices[:, 1:]
    other = nearest[rows, torch.randint(nearest.shape[1], (count,), device=v.device)]
    out = v.clone()
    out[rows, one], out[rows, other] = v[rows, other], v[rows, one]
    return out


def jump(gradients: Gradients, state: State, points: Points, space: Manifold, move: str) -> tuple[State, Tensor]:
    """Metropolis steps of every chain to other arrangements of the points, and which of them moved.

    Each step begins where the one before ended: a chain that stopped at the first arrangement it takes would be too
    often where few others are taken.
    """
    here, moved = points.places(state.x, space), torch.zeros_like(state.energy, dtype=torch.bool)
    if "mirror" in move and here.x is not None:
        points.choose(len(state.x), MOVES[move] * (2 if move == "two mirrors" else 1))
    for _ in range(MOVES[move]):
        there, gain = points.propose(here, move)
        other = State.at(gradients, points.put(state.x, there))
        log_ratio = (state.energy - other.energy + gain).nan_to_num(-torch.inf)
        accepted = (torch.rand_like(log_ratio).log() < log_ratio) & other.gradient.isfinite().all(-1)
        points.note(accepted)
        state, here, moved = state.taken(other, accepted), here.taken(there, accepted), moved | accepted
    return state, moved
