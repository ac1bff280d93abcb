"""Moves from one arrangement of points to another.

Distances to a few others leave a point two places, on either side of them, and a chain does not cross what lies there.
And the place of all points together is known by the prior alone, so that a chain only drifts there. These moves help.
All lead back with the same probability, so they are proposals of a Metropolis step (:mod:`.jumps`):

* all points are *shifted* by an isometry;
* a point and one of the nearest to it *exchange* their places;
* points near each other are *mirrored* at the geodesic hyperplane through ``d`` points, which stay, or at two of these
  in turn. This is an isometry of those that move, and a mirror keeps their distances to those that stay on it;
* two branches of the shortest tree that meet in a point are *swapped*: both are mirrored at the hyperplane through that
  point and their common middle, and then each one, or not, at the hyperplane through the point and its own. Twice the
  same brings all back, since these middles stay on their hyperplanes;
* two branches of the same form exchange their places *point by point*.

Few of all mirrors and exchanges lead to another arrangement of many points. Those that do so in the warm-up are most of
what is tried from then on (:mod:`.library`), whatever the state, so that the way back is tried as often.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.infer.posterior.library import Library, balanced
from pyro_hyperbolic.infer.posterior.places import Places, mirrored
from pyro_hyperbolic.infer.posterior.sets import Sets

_NEIGHBOURS = 4
_NEW = 0.2  # the share of sets that are chosen without regard to what was learned
# How often each move is tried in a round at first, and how many of them should be accepted from then on: it is tried as
# often as that takes, but no more often than at first; mirrors no more often than Points.most times as often.
MOVES = {"shift": 2, "exchange": 8, "mirror": 16}
_ACCEPTED = {"exchange": 1.0, "mirror": 5.0}
_HOPELESS = 0.1  # of the most tries of a round, how many must be accepted that there are more than at first
_RARE = 0.1  # the share of mirrors that are accepted, below which they are rare
_AGAIN = 0.5, 0.8  # the share of mirrors that have led far before, in the warm-up and after it
_LIKELY, _NEWEST = 0.005, 100  # the probability to be accepted of what is kept, and how many of these at a time
_ROUNDS, _AT_ONCE = 8, 2**24  # for which tries are drawn together, as long as their points have no more numbers
_SEEDS = 2**62


@dataclass
class Tries:
    """What some tries do, which no state has a say in, in the order in which it is done.

    :ivar sets: the numbers of the sets that are mirrored ``(T, P, 2)``, or -1.
    :ivar entries: the numbers of those in the library ``(T, P)``, and -1 for others.
    :ivar picks: numbers by which two points are chosen to exchange their places ``(T, P)``, negative for none.
    :ivar sources: whose place each point takes ``(T, P, N)``.
    :ivar moves: by mirror, the points that it moves, ``(T, P, M, N)``.
    :ivar spans: by mirror, weights of points whose sums span it, ``(T, P, M, d, N)``.
    :ivar shifts: where a shift of all points takes the origin ``(T, P, d)``.
    """

    sets: Tensor
    entries: Tensor
    picks: Tensor
    sources: Tensor
    moves: Tensor
    spans: Tensor
    shifts: Tensor

    def split(self, count: int) -> list[Tries]:
        """The tries of so many vectors at a time."""
        parts = (getattr(self, some.name).split(count, 1) for some in dataclasses.fields(self))
        return [Tries(*some) for some in zip(*parts, strict=True)]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """What :func:`moved_vectors` takes."""
        return self.picks, self.sources, self.moves, self.spans, self.shifts


@dataclass
class Points:
    """The points of a site, or of one factor of its space.

    :ivar site: its name.
    :ivar factor: the number of the factor.
    :ivar columns: where their numbers are in a vector, ``(N, d)``.
    :ivar distances: of all of them ``(N, N)`` in some fit. That the choice of points does not depend on the state makes
        mirroring them symmetric.
    :ivar radius: how far they are from the origin in that fit.
    :ivar most: how many times more often than at first mirrors may be tried.
    :ivar later: functions that are the same for all points with these columns.
    :ivar times: how often each of :data:`MOVES` is tried.
    :ivar library: what has led far.
    """

    site: str
    factor: int
    columns: Tensor
    distances: Tensor
    radius: float
    most: int = 1
    later: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rank = self.distances.argsort(-1).argsort(-1)
        self._sets = Sets.of(self.distances)
        self.weights = self._sets.weights
        self._tried, self._taken = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.times = dict(MOVES)
        self._shares: dict[str, list[Tensor]] = {name: [] for name in MOVES}
        self.library = Library(self.columns)
        self.known: dict[Any, Any] = {}  # looks at tries as functions
        self._next: list[Tries] = []
        self._drawn: list[Any] = []  # how

    def note(self, tries: Tries, chance: Tensor, far: Tensor) -> None:
        """Remember the probabilities to accept tries ``(T, P)``, and which of them lead to another arrangement."""
        for shares, part in zip(self._shares.values(), chance.split(list(self.times.values())), strict=True):
            shares.append(part.mean())
        moved = (tries.sources != torch.arange(len(self.columns), device=chance.device)) | tries.moves.any(2)
        chance, fresh = chance * (far & moved.any(-1)), tries.entries < 0  # of mirrors and exchanges of branches
        weight = (fresh.unsqueeze(-1) & (tries.sets >= 0)).to(self._taken.dtype)
        sets = tries.sets.clamp(min=0).flatten()
        self._tried.index_add_(0, sets, weight.flatten())
        self._taken.index_add_(0, sets, (chance.unsqueeze(-1) * weight).flatten())
        self.library.note(tries.entries[~fresh], chance[~fresh])
        new = tuple(index[:_NEWEST] for index in (fresh & (chance > _LIKELY)).nonzero(as_tuple=True))
        self.library.add(tries.sources[new], tries.moves[new], tries.spans[new], chance[new])

    def learn(self) -> None:
        """Choose which sets to move, and how often to try, by what was accepted so far."""
        self._next = []
        self.library.learn()
        mean = self._taken.sum() / self._tried.sum().clamp(min=1)
        weights = balanced((self._taken + mean) / (self._tried + 1))
        self.weights = _NEW * self._sets.weights + (1 - _NEW) * weights / weights.sum().clamp(min=1e-30)
        for move, wanted in _ACCEPTED.items():  # small shifts are accepted, and go nowhere
            shares = self._shares[move]
            if shares:
                most, share = MOVES[move] * (self.most if move == "mirror" else 1), torch.stack(shares).mean().item()
                # Where hardly one would be accepted in a round, many would be as much in vain as few.
                self.times[move] = math.ceil(min(most, wanted / share)) if share * most > _HOPELESS else MOVES[move]
            shares.clear()

    @property
    def is_rarely_moved(self) -> bool:
        """Whether few mirrors are accepted."""
        return self.times["mirror"] > _ACCEPTED["mirror"] / _RARE

    def state(self) -> list[Any]:
        """What was learned, and which tries come next."""
        return [self.weights, self.times, self.library.state(), self._drawn, len(self._next)]

    def load(self, state: list[Any]) -> None:
        """Know what was learned, and go on with the same tries."""
        self.weights, times, entries, drawn, left = state
        self.times = dict(times)
        self.library.load(entries)
        if left:
            self._draw(*drawn)
            self._next = self._next[-left:]

    def next_tries(self, count: int, *, learn: bool) -> Tries:
        """Those of the next round, of so many vectors.

        They depend on no state, and to draw those of one round takes a hundred operations of few numbers: so those of
        some rounds are drawn together.

        :param learn: whether it is to be found out what leads far: then more of what is not known.
        """
        if not self._next or self._drawn[::2] != [count, learn]:
            numbers = sum(self.times.values()) * count * self.columns.numel()
            rounds = max(1, min(_ROUNDS, _AT_ONCE // numbers))
            self._draw(count, rounds, learn, int(torch.randint(_SEEDS, (), device="cpu")))
        return self._next.pop(0)

    def _draw(self, count: int, rounds: int, learn: bool, seed: int) -> None:
        self._drawn = [count, rounds, learn, seed]
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            self._next = self.tries(count * rounds, learn=learn).split(count)

    def tries(self, count: int, *, learn: bool = True) -> Tries:
        """Of so many vectors: shifts, exchanges and mirrors (see :meth:`next_tries`)."""
        (number, dim), device, dtype = self.columns.shape, self.columns.device, self.distances.dtype
        shifts, exchanges, mirrors = self.times.values()
        none = torch.full((mirrors, count), -1, device=device)
        chosen = self._mirrors(mirrors * count)
        sets, sources, moves, spans = (part.unflatten(0, (mirrors, count)) for part in chosen)
        found = Tries(sets, none, none, sources, moves, spans, none.new_zeros(mirrors, count, dim, dtype=dtype))
        if self.library.known:
            found = self._again(found, _AGAIN[0 if learn else 1])
        # By a tenth of the radius on average, or more, or much less.
        widths = self.radius / dim**0.5 * 10 ** (-2 * torch.rand(shifts, count, 1, dtype=dtype, device=device))
        before = shifts + exchanges
        first = found.shifts.new_zeros(before, count, dim)
        first[:shifts] = widths * torch.randn_like(first[:shifts])
        picks = torch.rand(before, count, dtype=dtype, device=device)
        picks[:shifts] = -1.0
        own = torch.arange(number, device=device).expand(before, count, number)
        others = (found.sets, found.entries, found.moves, found.spans)
        sets, entries, moves, spans = (
            torch.cat([torch.full_like(part[:1], fill).expand(before, *part.shape[1:]), part])
            for part, fill in zip(others, (-1, -1, 0, 0), strict=True)
        )
        return Tries(
            sets,
            entries,
            torch.cat([picks, none.to(dtype)]),
            torch.cat([own, found.sources]),
            moves,
            spans,
            torch.cat([first, found.shifts]),
        )

    def _again(self, tries: Tries, share: float) -> Tries:
        """The same, a share of them of the library."""
        chosen = self.library.draw(tries.entries.numel()).reshape_as(tries.entries)
        again = torch.rand(chosen.shape, device=chosen.device) < share
        moves, spans = self.library.moves[chosen], self.library.spans[chosen]
        # The way back from two mirrors has them in the other order; that of a swap is the same in both.
        turn = (torch.rand(again.shape, device=again.device) < 0.5) & ~moves[:, :, 2].any(-1)
        order = torch.arange(3, device=turn.device)
        order = torch.where(turn.unsqueeze(-1), order[[1, 0, 2]], order)
        moves = moves.take_along_dim(order.unsqueeze(-1), 2)
        spans = spans.take_along_dim(order[..., None, None], 2)
        own = again[..., None, None]
        return dataclasses.replace(
            tries,
            entries=torch.where(again, chosen, -1),
            moves=torch.where(own, moves, tries.moves),
            spans=torch.where(own.unsqueeze(-1), spans, tries.spans),
            sources=torch.where(again.unsqueeze(-1), self.library.sources[chosen], tries.sources),
        )

    def _mirrors(self, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One mirror, two, a swap or an exchange of branches: their sets, sources, moves and spans."""
        device, swaps, exchanges = self.columns.device, len(self._sets.pairs), self._sets.exchanges
        kinds = [0, 1] + ([2] if swaps else []) + ([3] if len(exchanges) else [])
        kind = torch.tensor(kinds, device=device)[torch.randint(len(kinds), (count, 1), device=device)]
        sets, moves, spans = (part.unflatten(0, (count, 2)) for part in self._chosen(2 * count))
        both = kind > torch.arange(2, device=device) - 1
        sets, moves = torch.where(both & (kind < 2), sets, -1), moves & both.unsqueeze(-1)
        moves, spans = torch.cat([moves, torch.zeros_like(moves[:, :1])], 1), torch.cat([spans, spans[:, :1]], 1)
        if swaps:
            is_swap = (kind == 2).unsqueeze(-1)
            turned, through = self._swaps(count)
            moves, spans = torch.where(is_swap, turned, moves), torch.where(is_swap.unsqueeze(-1), through, spans)
        sources = torch.arange(moves.shape[-1], device=device).expand(count, -1)
        if len(exchanges):
            is_exchange = kind == 3
            chosen = exchanges[torch.randint(len(exchanges), (count,), device=device)]
            sources, moves = torch.where(is_exchange, chosen, sources), moves & ~is_exchange.unsqueeze(-1)
        return sets, sources, moves, spans

    def _swaps(self, count: int) -> tuple[Tensor, Tensor]:
        """By mirror, the points that swaps move ``(P, 3, N)``, and weights that span the mirrors ``(P, 3, d, N)``."""
        (number, dim), device = self.columns.shape, self.columns.device
        pairs, at = self._sets.pairs, self._sets.at
        # Those of more points more often: they are accepted less.
        chosen = torch.multinomial(pairs.sum((1, 2)).to(torch.float64), count, replacement=True)
        one, other = pairs[chosen].unbind(1)
        both = torch.stack([one | other, one, other], 1)
        turned = torch.rand(count, 3, 1, device=device) < torch.tensor([1.0, 0.5, 0.5], device=device).unsqueeze(-1)
        # The point where they meet, and as many others as a hyperplane takes: the same ones for all three.
        keys = torch.rand(count, number, device=device).masked_fill(both[:, 0], 2.0)
        keys = keys.scatter(1, at[chosen].unsqueeze(1), -1.0)
        axes = keys.argsort(-1)[:, : dim - 1]
        through = torch.nn.functional.one_hot(axes, number).bool().unsqueeze(1).expand(-1, 3, -1, -1)
        enough = number - both[:, 0].sum(-1) >= dim - 1
        return both & turned & enough[:, None, None], torch.cat([both.unsqueeze(2), through], 2)

    def _chosen(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Sets by their number, their points ``(P, N)``, and weights of points whose sums span a mirror ``(P, d, N)``.

        The mirror goes through the middle of those that move, or not, and through middles of others: it is the same one
        on the way back.
        """
        number, dim = self.columns.shape
        rank, device = self._rank, self._rank.device
        sets = torch.multinomial(self.weights, count // 2, replacement=True).repeat_interleave(2)
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


def moved_vectors(
    rows: Tensor,
    vectors: Tensor,
    k: Tensor,
    sign: int | None,
    picks: Tensor,
    sources: Tensor,
    moves: Tensor,
    spans: Tensor,
    shifts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Vectors ``(P, A, D)``: some ``(P, D)`` after ``A`` tries of each, and the logarithms of the volume that is
    gained ``(P, A)``.

    :param rows: where the numbers of the points are in a vector, ``(d, N)``.
    :param k: the curvature of each one ``(P, 1, 1)``, with its ``sign``. Spaces whose curvature is not constant
        know no mirrors and no shifts.
    :param picks: of :class:`Tries` for each one ``(P, A)``, as the others.
    """
    # The points come last: the same is done to all of them.
    here = Places.of(vectors[:, rows].unsqueeze(1), k.unsqueeze(1), sign)
    own = torch.arange(rows.shape[-1], device=k.device)
    sources = torch.where(picks.unsqueeze(-1) < 0, sources, _exchanged(here.v, picks.unsqueeze(-1)))
    if here.x is None:
        there, gain = _taken(here.v, sources), torch.zeros_like(picks)
    else:
        y = _taken(here.x, sources)
        for those, through in zip(moves.unbind(2), spans.unbind(2), strict=True):
            y = torch.where(those.unsqueeze(-2), mirrored(y, through, here.k), y)
        is_shift = (shifts != 0).any(-1, keepdim=True)
        there, gain = here.moved_to(here.shifted(y, shifts), moves.any(2) | (sources != own) | is_shift)
    x = vectors.unsqueeze(1).repeat(1, picks.shape[1], 1)
    x[:, :, rows] = there
    return x, gain


def _taken(x: Tensor, sources: Tensor) -> Tensor:
    """Of numbers ``(P, 1, d, N)`` those of other points ``(P, A, M)``."""
    shape = *sources.shape[:-1], x.shape[-2], -1
    return x.expand(*shape).gather(-1, sources.unsqueeze(-2).expand(*shape))  # take_along_dim divides indices


def _exchanged(v: Tensor, pick: Tensor) -> Tensor:
    """One point and one of the nearest to it in each other's place: who is near whom is a matter of the places.

    :param v: the numbers of points ``(P, 1, d, N)``.
    :param pick: between 0 and 1, by which both are chosen, ``(P, A, 1)``.
    :returns: whose place each point takes ``(P, A, N)``.
    """
    count = v.shape[-1]
    one = (pick * count).long().clamp(0, count - 1)
    at = torch.arange(count, device=v.device)
    distance = (v - _taken(v, one)).square().sum(-2)
    distance = torch.where(at == one, torch.inf, distance)
    neighbours = min(count - 1, _NEIGHBOURS)
    chosen = (pick * count - one) * neighbours
    limit = nearest = distance.amin(-1, keepdim=True)
    for number in range(1, neighbours):
        nearest = torch.where(distance > nearest, distance, torch.inf).amin(-1, keepdim=True)
        limit = torch.where(chosen >= number, nearest, limit)
    other = (distance == limit).long().argmax(-1, keepdim=True)
    return torch.where(at == one, other, torch.where(at == other, one, at))
