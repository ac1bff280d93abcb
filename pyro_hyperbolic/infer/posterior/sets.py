"""Points that may move together: balls around each of them, and branches of their shortest tree."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.ops.spanning import spanning_tree

_MOST_PAIRS = 10  # branches of a point that are joined in pairs
_MATCHES = 6  # ways to exchange the points of two branches


@dataclass
class Sets:
    """Sets of points, and for each one all points, those in it first and the others by their distance from its anchor.

    :ivar members: ``(S, N)``.
    :ivar order: ``(S, N)``.
    :ivar weights: how often each is to be chosen at first, ``(S,)``.
    :ivar pairs: two branches each at the same point, which may change places, ``(Q, 2, N)``.
    :ivar at: these points, ``(Q,)``.
    :ivar exchanges: branches of the same form at the same point, each point in the place of its counterpart: whose
        place each point takes ``(E, N)``.
    """

    members: Tensor
    order: Tensor
    weights: Tensor
    pairs: Tensor
    at: Tensor
    exchanges: Tensor

    @classmethod
    def of(cls, distances: Tensor) -> Sets:
        """Of points with the distances ``(N, N)``.

        Half of the weight is that of balls: those of twice as many points have half of it. Branches are what is left of
        the shortest tree if one of its points, the anchor, is taken out: one of them, or two. Points on a tree, whose
        branches may be in any order around a point, are rearranged by these.
        """
        number = len(distances)
        rank = distances.argsort(-1).argsort(-1)
        sizes = sorted({max(1, round(2 ** (k / 4))) for k in range(4 * number.bit_length())})
        sizes = [size for size in sizes if size <= max(1, number // 2)]
        balls = torch.cat([rank < size for size in sizes])
        shares = 1 / torch.tensor(sizes, dtype=distances.dtype, device=distances.device).repeat_interleave(number)
        with torch.device("cpu"):
            branches = _branches(distances.cpu())
            found, at = _rearranged(branches, number)
            pairs, between = _pairs(branches, number)
            exchanges = _exchanges(distances.cpu(), branches).to(balls.device)
            anchors = torch.cat([torch.arange(number).repeat(len(sizes)), at]).to(balls.device)
        members = torch.cat([balls, found.to(balls.device)])
        order = torch.where(members, -2.0, distances[anchors]).argsort(-1)  # an anchor is at -1 from itself
        others = torch.full_like(members[len(balls) :, 0], 1 / max(1, len(found)), dtype=shares.dtype)
        weights = torch.cat([shares / shares.sum(), others]) / (2 if len(found) else 1)
        return cls(members, order, weights, pairs.to(balls.device), between.to(balls.device), exchanges)


def _branches(distances: Tensor) -> list[list[Tensor]]:
    """The branches of the shortest tree at each of its points."""
    number = len(distances)
    order, parents = spanning_tree(distances)
    below = torch.eye(number, dtype=torch.bool)  # for each point those on its side of the edge to its parent
    for point in reversed(order[1:]):
        below[parents[point]] |= below[point]
    found = []
    for point in range(number):
        branches = [below[child] for child in order[1:] if parents[child] == point]
        found.append(branches if point == order[0] else [*branches, ~below[point]])
    return found


def _rearranged(branches: list[list[Tensor]], number: int) -> tuple[Tensor, Tensor]:
    """One or two branches at each point, or else all but these; and the points."""
    sets, anchors = [], []
    for point, some in enumerate(branches):
        own = torch.arange(number) == point
        joined = [one | other for k, one in enumerate(some[:_MOST_PAIRS]) for other in some[:k] if len(some) > 2]
        for branch in some + joined:
            branch = branch if branch.sum() <= number / 2 else ~(branch | own)
            if branch.any():
                sets.append(branch)
                anchors.append(point)
    return _stacked(sets, (number,)), torch.tensor(anchors, dtype=torch.long)


def _pairs(branches: list[list[Tensor]], number: int) -> tuple[Tensor, Tensor]:
    """Two branches at each point that has three or more, the largest one left out; and the points."""
    pairs, anchors = [], []
    for point, some in enumerate(branches):
        small = sorted(some, key=lambda branch: int(branch.sum()))[:-1][:_MOST_PAIRS]
        for k, one in enumerate(small):
            pairs += [torch.stack([one, other]) for other in small[:k]]
            anchors += [point] * k
    return _stacked(pairs, (2, number)), torch.tensor(anchors, dtype=torch.long)


def _exchanges(distances: Tensor, branches: list[list[Tensor]]) -> Tensor:
    """Points of branches of the same form in each other's place, children of the same form matched at random.

    Seen from the middle of the tree, the branch that holds the middle is larger than all others at a point: those of
    the same form are children. Without recursion, since a branch may be as long as there are points.
    """
    number = len(distances)
    middle = min(range(number), key=lambda point: max((int(b.sum()) for b in branches[point]), default=0))
    order, parents = spanning_tree(distances, middle)
    children: list[list[int]] = [[] for _ in range(number)]
    for point in order[1:]:
        children[parents[point]].append(point)
    numbers: dict[tuple[int, ...], int] = {}  # of forms
    form = [0] * number
    for point in reversed(order):
        form[point] = numbers.setdefault(tuple(sorted(form[child] for child in children[point])), len(numbers))
    generator, found = random.Random(0), set()
    for some in children:
        some = some[:_MOST_PAIRS]
        for one, other in (
            (one, other) for k, one in enumerate(some) for other in some[:k] if form[one] == form[other]
        ):
            for _ in range(_MATCHES):
                source, twins = list(range(number)), [(one, other)]
                while twins:
                    a, b = twins.pop()
                    source[a], source[b] = b, a
                    keys = {child: (form[child], generator.random()) for child in children[b]}
                    own = sorted(children[a], key=form.__getitem__)
                    twins += zip(own, sorted(keys, key=keys.__getitem__), strict=True)
                found.add(tuple(source))
    return torch.tensor(sorted(found), dtype=torch.long).reshape(-1, number)


def _stacked(sets: list[Tensor], shape: tuple[int, ...]) -> Tensor:
    return torch.stack(sets) if sets else torch.zeros(0, *shape, dtype=torch.bool)
