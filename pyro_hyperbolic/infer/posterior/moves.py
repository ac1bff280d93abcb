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

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold

_NEIGHBOURS = 4
_NEW = 0.2  # the share of sets that are chosen without regard to what was learned
# The moves, and how often each is tried between two trajectories: those that are rarely accepted more often.
MOVES = {"shift": 1, "exchange": 8, "mirror": 8, "two mirrors": 8}


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
        v = vectors[:, self.columns]
        self._last = []
        if move == "exchange" or not isinstance(space, (ConstantCurvature, Euclidean)):
            out, gain = _exchanged(v), torch.zeros_like(vectors[:, 0])
        else:
            k = -space.opposite(v) if isinstance(space, ConstantCurvature) else 0.0
            k = torch.as_tensor(k, dtype=v.dtype, device=v.device).expand(len(v), 1, 1)
            start = _embedded(v, k)
            if move == "shift":
                end, some = _shifted(start, self.radius, k), torch.ones_like(v[..., 0], dtype=torch.bool)
            else:
                end, some = self._mirrored(start, k, 2 if move == "two mirrors" else 1)
            out, gain = _back(v, start, end, some, k)
        x = vectors.clone()
        x[:, self.columns] = out
        return x, gain

    def _mirrored(self, x: Tensor, k: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The points after so many mirrors, and which of them have moved ``(P, N)``."""
        some = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        for _ in range(count):
            moves, spans = self._chosen(len(x))
            x = torch.where(moves.unsqueeze(-1), _image(x, spans, k), x)
            some = some | moves
        return x, some

    def _chosen(self, count: int) -> tuple[Tensor, Tensor]:
        """Which points are mirrored ``(P, N)``, and weights of points whose sums span the mirror ``(P, d, N)``.

        The mirror goes through the middle of those that move, or not, and through middles of others: it is the same one
        on the way back.
        """
        number, dim = self.columns.shape
        order, rank, device = self.order, self._rank, self.order.device
        sets = torch.multinomial(self.weights, count, replacement=True)
        self._last.append(sets)
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
        return moves & spanned.unsqueeze(-1), spans


def _embedded(v: Tensor, k: Tensor) -> Tensor:
    """Points from their numbers without bounds ``(P, N, d)``: ``(P, N, 1 + d)``."""
    square = v.square().sum(-1, keepdim=True)
    root = (-k).clamp(min=torch.finfo(v.dtype).tiny).sqrt()
    length = (square + torch.finfo(v.dtype).tiny).sqrt()
    q = k.clamp(min=0.0) * square / 4
    time = torch.where(k > 0, (1 - q) / (1 + q), torch.where(k < 0, (root * length).cosh(), 1.0))
    factor = torch.where(k > 0, 1 / (1 + q), torch.where(k < 0, (root * length).sinh() / (root * length), 1.0))
    return torch.cat([time, factor * v], -1)


def _back(v: Tensor, start: Tensor, end: Tensor, some: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers of points that have moved from ``start`` to ``end``, and the volume gained."""
    out = torch.where(some.unsqueeze(-1), _coordinates(end, k), v)
    again = _embedded(out, k)
    # Far out the numbers of a point do not hold the image of its image: what does not lead back is not proposed.
    lost = ((again - end).norm(dim=-1) > torch.finfo(v.dtype).eps ** 0.5 * end.norm(dim=-1)).any(-1)
    gain = (_log_det(v, start, k) - _log_det(out, again, k)).sum(-1)
    return out, torch.where(lost, -torch.inf, gain)


def _shifted(x: Tensor, radius: float, k: Tensor) -> Tensor:
    """All points after a random shift: a tenth of the radius of the set on average, or more, or much less."""
    count, dim = len(x), x.shape[-1] - 1
    width = radius * 10 ** (-2 * torch.rand(count, 1, 1, dtype=x.dtype, device=x.device))
    e = _embedded(width * torch.randn(count, 1, dim, dtype=x.dtype, device=x.device) / dim**0.5, k)
    product = (e[..., 1:] * x[..., 1:]).sum(-1, keepdim=True)
    time = e[..., :1] * x[..., :1] - k * product
    return torch.cat([time, x[..., 1:] + e[..., 1:] * (x[..., :1] - k * product / (1 + e[..., :1]))], -1)


def _log_det(v: Tensor, x: Tensor, k: Tensor) -> Tensor:
    """Logarithm of the Jacobian from the numbers to the space, up to a number: ``(P, N)``."""
    tiny = torch.finfo(v.dtype).tiny
    stretch = (x[..., 1:].square().sum(-1) + tiny).log() - (v.square().sum(-1) + tiny).log()
    dim = v.shape[-1]
    return 0.5 * torch.where(k[..., 0] > 0, dim, dim - 1) * stretch


def _coordinates(x: Tensor, k: Tensor) -> Tensor:
    """The inverse of ``_embedded``."""
    time, space = x[..., :1], x[..., 1:]
    root = (-k).clamp(min=torch.finfo(x.dtype).tiny).sqrt()
    length = (space.square().sum(-1, keepdim=True) + torch.finfo(x.dtype).tiny).sqrt()
    open_ = torch.where(k < 0, (root * length).asinh() / (root * length), 1.0)
    return space * torch.where(k > 0, 2 / (1 + time), open_)


def _image(x: Tensor, spans: Tensor, k: Tensor) -> Tensor:
    """The points mirrored at the hyperplane through ``d`` sums of points with weights ``(P, d, N)``."""
    along = spans.to(x.dtype) @ x
    if x.shape[-1] == 3:
        a = torch.linalg.cross(along[:, 0], along[:, 1]).unsqueeze(1)
    else:
        # What the points of the plane leave of a basis.
        a = torch.linalg.qr(torch.cat([along, torch.randn_like(along[:, :1])], 1).mT).Q[..., -1:].mT
    ga = torch.cat([k * a[..., :1], a[..., 1:]], -1)
    return x - 2 * (x * a).sum(-1, keepdim=True) / (a * ga).sum(-1, keepdim=True) * ga


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
    moved = torch.zeros_like(state.energy, dtype=torch.bool)
    for _ in range(MOVES[move]):
        x, gain = points.moved(state.x, space, move)
        other = State.at(gradients, x)
        log_ratio = (state.energy - other.energy + gain).nan_to_num(-torch.inf)
        accepted = (torch.rand_like(log_ratio).log() < log_ratio) & other.gradient.isfinite().all(-1)
        points.note(accepted)
        state, moved = state.taken(other, accepted), moved | accepted
    return state, moved
