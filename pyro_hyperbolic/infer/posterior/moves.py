r"""Moves from one arrangement of points to another.

Distances to a few others leave a point two places, on either side of them, and a chain does not cross what lies there.
And the place of all points together is known by the prior alone, so that a chain only drifts there. Four moves help.
All lead back with the same probability, so they are proposals of a Metropolis step:

* points near each other are *mirrored* at the geodesic hyperplane through ``d`` points, which stay. This is an isometry
  of those that move, and keeps their distances to those that stay on the hyperplane;
* two branches of the shortest tree that meet in a point are *swapped*: both are mirrored at the hyperplane through that
  point and their common middle, and then each one, or not, at the hyperplane through the point and its own. Twice the
  same brings all back, since these middles stay on their hyperplanes;
* a point and one of the nearest to it *exchange* their places;
* all points are *shifted* by an isometry.

Few of all mirrors lead to another arrangement of many points. Those that have done so in the warm-up are half of what
is tried from then on (:mod:`.library`), whatever the state, so that the way back is tried as often.

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
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.accelerate.programs.compiled import CompiledLater
from pyro_hyperbolic.accelerate.trainers.graphs import Captured
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold
from pyro_hyperbolic.infer.posterior.library import Library
from pyro_hyperbolic.infer.posterior.sets import Sets

_NEIGHBOURS = 4
_NEW = 0.2  # the share of sets that are chosen without regard to what was learned
# The moves, and how often each is tried between two trajectories until more is known: then until one can be expected to
# be accepted, but no more often than this.
MOVES = {"shift": 4, "exchange": 8, "mirror": 8, "two mirrors": 8, "swap": 8}
_MIRRORS = {"mirror": 1, "two mirrors": 2, "swap": 3}
_AGAIN = 0.5  # the share of tries that have led far before, as soon as there are any
# How far that is: the mean square of what the numbers of points change by, in those of their widths where the others
# stay. Trajectories and small turns of many points go to about ten.
_FAR = 60.0
_OFTEN = 2000  # tries of a kind after which its proposals are compiled on a CPU: short runs do without


@dataclass
class Tries:
    """What some tries of a move do, which no state has a say in.

    :ivar sets: the numbers of the sets that are moved ``(T, M, P)``; ``M`` is 0 where they are not of :class:`Sets`.
    :ivar entries: the numbers of those in the library ``(T, P)``, and -1 for others.
    :ivar moves: by mirror, the points that it moves, ``(T, M, P, N)``.
    :ivar spans: by mirror, weights of points whose sums span it, ``(T, M, P, d, N)``.
    """

    sets: Tensor
    entries: Tensor
    moves: Tensor
    spans: Tensor


@dataclass
class Points:
    """The points of a site, or of one factor of its space.

    :ivar site: its name.
    :ivar factor: the number of the factor.
    :ivar columns: where their numbers are in a vector, ``(N, d)``.
    :ivar distances: of all of them ``(N, N)`` in some fit. That the choice of points does not depend on the state makes
        mirroring them symmetric.
    :ivar radius: how far they are from the origin in that fit.
    :ivar moves: which of :data:`MOVES` can be made, and how often each is tried.
    :ivar libraries: by move, what has led far.
    :ivar precision: of the numbers of each point where the others stay ``(N,)``; 0 before it is known.
    """

    site: str
    factor: int
    columns: Tensor
    distances: Tensor
    radius: float

    def __post_init__(self) -> None:
        self._rank = self.distances.argsort(-1).argsort(-1)
        self._sets = Sets.of(self.distances)
        self.weights = self._sets.weights
        self._tried, self._taken = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.moves = {name: times for name, times in MOVES.items() if name != "swap" or len(self._sets.pairs)}
        self._shares: dict[str, list[Tensor]] = {name: [] for name in self.moves}
        self.libraries = {name: Library(_MIRRORS[name], self.columns) for name in self.moves if name in _MIRRORS}
        self.precision, self._knows_widths = torch.zeros_like(self.distances[0]), False
        self.known: dict[Any, Any] = {}  # the moves as functions

    def note(self, move: str, tries: Tries, accepted: Tensor, far: Tensor) -> None:
        """Remember which tries ``(T, P)`` of a move were accepted, of those that lead farther than a trajectory."""
        library = self.libraries.get(move)
        if library is not None and self._knows_widths:
            accepted = accepted & far
        self._shares[move].append(accepted.double().mean())
        fresh = tries.entries < 0
        weight = fresh.unsqueeze(1).expand_as(tries.sets).to(self._taken.dtype)
        self._tried.index_add_(0, tries.sets.flatten(), weight.flatten())
        self._taken.index_add_(0, tries.sets.flatten(), (accepted.unsqueeze(1) * weight).flatten())
        if library is not None and self._knows_widths:
            library.note(tries.entries[~fresh], accepted[~fresh])
            time, chain = (accepted & fresh).nonzero(as_tuple=True)
            library.add(tries.moves[time, :, chain], tries.spans[time, :, chain])

    def learn(self, gradients: Tensor) -> None:
        """Move the sets more often that went more often so far, and try what is often accepted less often.

        :param gradients: of the energy at draws ``(N, D)``. Their variance is the mean curvature of the energy.
        """
        self.precision.copy_(gradients[:, self.columns].square().mean((0, 2)))
        self._knows_widths = True
        for library in self.libraries.values():
            library.learn()
        mean = self._taken.sum() / self._tried.sum().clamp(min=1)
        share = (self._taken + mean) / (self._tried + 1)
        self.weights = _NEW * self._sets.weights + (1 - _NEW) * share / share.sum().clamp(min=1e-30)
        for move, shares in self._shares.items():
            if shares and move != "shift":  # it has widths of all scales: the small ones are accepted, and go nowhere
                accepted = torch.stack(shares).mean().item()
                self.moves[move] = math.ceil(min(MOVES[move], 1 / max(accepted, 1e-9)))
            shares.clear()

    def state(self) -> list[Any]:
        """What was learned."""
        return [self.weights, self.moves, {name: library.state() for name, library in self.libraries.items()}]

    def load(self, state: list[Any]) -> None:
        """Know what was learned."""
        self.weights, moves, libraries = state
        self.moves = dict(moves)
        for name, entries in libraries.items():
            self.libraries[name].load(entries)

    def moved(self, vectors: Tensor, space: Manifold, move: str) -> tuple[Tensor, Tensor]:
        """Vectors ``(P, D)`` with some points elsewhere, and the logarithms of the volume that the move gains ``(P,)``.

        :param space: with a curvature ``(P, 1)`` for each vector, or one for all. Spaces whose curvature is not
            constant know exchanges alone.
        """
        here = Places.of(vectors[:, self.columns], *curvature(space, vectors))
        tries = self.tries(len(vectors), 1, move)
        there, gain = self.propose(here, move, tries.moves[0], tries.spans[0])
        return self.put(vectors, there), gain

    def put(self, vectors: Tensor, places: Places) -> Tensor:
        """The vectors, with their points in other places."""
        x = vectors.clone()
        x[:, self.columns] = places.v
        return x

    def is_far(self, here: Places, there: Places, moves: Tensor) -> Tensor:
        """Which vectors ``(P,)`` are in another arrangement there, of those that mirrors ``(M, P, N)`` have moved."""
        some = moves.any(0)
        change = ((there.v - here.v).square().mean(-1) * self.precision).masked_fill(~some, 0.0)
        return change.sum(-1) > _FAR * some.sum(-1)

    def propose(self, here: Places, move: str, moves: Tensor, spans: Tensor) -> tuple[Places, Tensor]:
        """Other places, and the logarithms of the volume that the move gains.

        :param moves: by mirror, the points that it moves, ``(M, P, N)``.
        :param spans: by mirror, weights of points whose sums span it, ``(M, P, d, N)``.
        """
        if move == "exchange" or here.x is None:
            there = dataclasses.replace(here, v=_exchanged(here.v))
            return (there if here.x is None else there.measured()), torch.zeros_like(here.v[:, 0, 0])
        x = here.x
        if move == "shift":
            return here.moved_to(here.shifted(self.radius), None)
        for some, through in zip(moves, spans, strict=True):
            x = torch.where(some.unsqueeze(-1), _image(x, through, here.k), x)
        return here.moved_to(x, moves.any(0))

    def tries(self, count: int, times: int, move: str) -> Tries:
        """Of the next moves of so many vectors, all at once."""
        if move == "swap":
            moves, spans = (part.unflatten(1, (times, count)).transpose(0, 1) for part in self._swaps(count * times))
            sets = moves.new_zeros(times, 0, count, dtype=torch.long)
        else:
            each = _MIRRORS.get(move, 0)
            chosen = self._chosen(count * times * each)
            sets, moves, spans = (part.reshape(times, each, count, *part.shape[1:]) for part in chosen)
        found = Tries(sets, torch.full((times, count), -1, device=sets.device), moves, spans)
        library = self.libraries.get(move)
        return self._again(found, library) if library is not None and library.known else found

    def _again(self, tries: Tries, library: Library) -> Tries:
        """The same, some of them of the library."""
        chosen = library.draw(tries.entries.numel()).reshape_as(tries.entries)
        again = torch.rand(chosen.shape, device=chosen.device) < _AGAIN
        moves, spans = library.moves[chosen].transpose(1, 2), library.spans[chosen].transpose(1, 2)
        if moves.shape[1] == 2:  # the way back from two mirrors has them in the other order
            turn = torch.rand(again.shape, device=again.device).unsqueeze(1).unsqueeze(-1) < 0.5
            moves = torch.where(turn, moves.flip(1), moves)
            spans = torch.where(turn.unsqueeze(-1), spans.flip(1), spans)
        own = again.unsqueeze(1).unsqueeze(-1)
        return Tries(
            tries.sets,
            torch.where(again, chosen, -1),
            torch.where(own, moves, tries.moves),
            torch.where(own.unsqueeze(-1), spans, tries.spans),
        )

    def _swaps(self, count: int) -> tuple[Tensor, Tensor]:
        """By mirror, the points that swaps move ``(3, P, N)``, and weights that span the mirrors ``(3, P, d, N)``."""
        (number, dim), device = self.columns.shape, self.columns.device
        pairs, at = self._sets.pairs, self._sets.at
        # Those of more points more often: they are accepted less.
        chosen = torch.multinomial(pairs.sum((1, 2)).to(torch.float64), count, replacement=True)
        one, other = pairs[chosen].unbind(1)
        both = torch.stack([one | other, one, other])
        turned = torch.rand(3, count, 1, device=device) < torch.tensor([1.0, 0.5, 0.5], device=device)[:, None, None]
        # The point where they meet, and as many others as a hyperplane takes: the same ones for all three.
        keys = torch.rand(count, number, device=device).masked_fill(both[0], 2.0)
        keys = keys.scatter(1, at[chosen].unsqueeze(1), -1.0)
        axes = keys.argsort(-1)[:, : dim - 1]
        through = torch.nn.functional.one_hot(axes, number).bool().expand(3, -1, -1, -1)
        enough = number - both[0].sum(-1) >= dim - 1
        return both & turned & enough.unsqueeze(-1), torch.cat([both.unsqueeze(2), through], 2)

    def _chosen(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sets by their number, their points ``(P, N)``, and weights of points whose sums span a mirror ``(P, d, N)``.

        The mirror goes through the middle of those that move, or not, and through middles of others: it is the same one
        on the way back.
        """
        number, dim = self.columns.shape
        rank, device = self._rank, self._rank.device
        if not count:
            none = torch.zeros(0, number, dtype=torch.bool, device=device)
            return none[:, 0].long(), none, none.unsqueeze(1).expand(-1, dim, -1)
        sets = torch.multinomial(self.weights, count, replacement=True)
        moves = self._sets.members[sets]
        size = moves.sum(-1, keepdim=True)
        # Points near the set; the last one is often its anchor.
        most, share = torch.minimum(3 * size + 2 * dim, number - size), torch.rand(count, dim, device=device)
        place = (most * share).long()
        place[:, -1:] = ((most + 1) ** share[:, -1:]).long() - 1
        others = self._sets.order[sets].gather(-1, (size + place).clamp(max=number - 1))
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


def _image(x: Tensor, spans: Tensor, k: Tensor) -> Tensor:
    """The points mirrored at the hyperplane through ``d`` sums of points with weights ``(P, d, N)``."""
    along = spans.to(x.dtype) @ x
    a = torch.linalg.cross(along[:, 0], along[:, 1]) if x.shape[-1] == 3 else _orthogonal(along)
    a = a.unsqueeze(1)
    ga = torch.cat([k * a[..., :1], a[..., 1:]], -1)
    length = (a * ga).sum(-1, keepdim=True)
    return x - 2 * (x * a).sum(-1, keepdim=True) / torch.where(length == 0, 1.0, length) * ga


def _orthogonal(rows: Tensor) -> Tensor:
    """A vector orthogonal to ``d`` vectors ``(P, d, 1 + d)``: what these leave of the axis of which they leave most.

    By Gram and Schmidt: decompositions of matrices cannot be captured.
    """
    axes: list[Tensor] = []
    for row in rows.unbind(1):
        for _ in range(2):  # the second time for the digits
            if axes:
                row = _left(row, torch.stack(axes, 1))
            row = row / (row.square().sum(-1, keepdim=True) + torch.finfo(row.dtype).tiny).sqrt()
        axes.append(row)
    known = torch.stack(axes, 1)
    most = known.square().sum(1).argmin(-1, keepdim=True)
    axis = (most == torch.arange(rows.shape[-1], device=rows.device)).to(rows.dtype)
    row = _left(_left(axis, known), known)
    return row / (row.square().sum(-1, keepdim=True) + torch.finfo(row.dtype).tiny).sqrt()


def _left(row: Tensor, axes: Tensor) -> Tensor:
    """What axes ``(P, m, n)`` leave of rows ``(P, n)``."""
    return row - ((axes @ row.unsqueeze(-1)).mT @ axes).squeeze(1)


def _exchanged(v: Tensor) -> Tensor:
    """One point and one of the nearest to it in each other's place: who is near whom is a matter of the places."""
    count, number, _ = v.shape
    one = torch.randint(number, (count, 1), device=v.device)
    at = torch.arange(number, device=v.device)
    distance = (v - v.take_along_dim(one.unsqueeze(-1), 1)).norm(dim=-1)
    nearest = torch.where(at == one, -1.0, distance).topk(min(number, _NEIGHBOURS + 1), largest=False).indices[:, 1:]
    other = nearest.gather(1, torch.randint(nearest.shape[1], (count, 1), device=v.device))
    source = torch.where(at == one, other, torch.where(at == other, one, at))
    return v.take_along_dim(source.unsqueeze(-1), 1)


def jumps(
    gradients: Gradients,
    state: State,
    points: list[Points],
    leaves: dict[str, list[tuple[Manifold, int]]],
    *,
    learn: bool = True,
) -> tuple[State, Tensor]:
    """Every move of all points, and the share of the moves that each chain took ``(P,)``.

    :param leaves: the factors of their spaces, with the curvatures of each chain.
    :param learn: whether the points take note of what is accepted.
    """
    share = torch.zeros_like(state.energy)
    for some in points:
        space, _ = leaves[some.site][some.factor]
        for move in some.moves:
            state, moved = jump(gradients, state, some, space, move, learn=learn)
            share = share + moved / (len(points) * len(some.moves))
    return state, share


def jump(
    gradients: Gradients, state: State, points: Points, space: Manifold, move: str, *, learn: bool
) -> tuple[State, Tensor]:
    """Metropolis steps of every chain to other arrangements of the points, and which of them moved.

    Each step begins where the one before ended: a chain that stopped at the first arrangement it takes would be too
    often where few others are taken.

    :param learn: whether the points take note of what is accepted.
    """
    k, sign = curvature(space, state.x)

    def proposal(x: Tensor, v: Tensor, k: Tensor, at: Any, log_det: Any, some: Tensor, through: Tensor) -> Any:
        here = Places(v, k, sign, at, log_det)
        there, gain = points.propose(here, move, some, through)
        return points.put(x, there), (there.v, there.x, there.log_det), gain, points.is_far(here, there, some)

    is_fixed = move in _MIRRORS and sign is not None  # others draw random numbers
    propose = points.known.setdefault(("proposal", move), CompiledLater(proposal, _OFTEN)) if is_fixed else proposal

    def steps(x: Tensor, energy: Tensor, gradient: Tensor, k: Tensor, moves: Tensor, spans: Tensor) -> Any:
        state, here = State(x, energy, gradient), Places.of(x[:, points.columns], k, sign)
        taken, far = [], []
        for some, through in zip(moves, spans, strict=True):
            y, (v, at, log_det), gain, is_far = propose(state.x, here.v, k, here.x, here.log_det, some, through)
            there, other = Places(v, k, sign, at, log_det), State.at(gradients, y)
            log_ratio = (state.energy - other.energy + gain).nan_to_num(-torch.inf)
            accepted = (torch.rand_like(log_ratio).log() < log_ratio) & other.gradient.isfinite().all(-1)
            taken.append(accepted)
            far.append(is_far)
            state, here = state.taken(other, accepted), here.taken(there, accepted)
        return state.x, state.energy, state.gradient, torch.stack(taken), torch.stack(far)

    tries = points.tries(len(state.x), points.moves[move], move)
    run = points.known.setdefault((move, points.moves[move]), Captured(steps))
    *parts, taken, far = run(state.x, state.energy, state.gradient, k.contiguous(), tries.moves, tries.spans)
    if learn:
        points.note(move, tries, taken, far)
    return State(*parts), taken.any(0)
