"""Points that may move together: balls around each of them, and branches of their shortest tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.ops.spanning import spanning_tree

_MOST_PAIRS = 10  # branches of a point that are joined in pairs


@dataclass
class Sets:
    """Sets of points, and for each one all points, those in it first and the others by their distance from its anchor.

    :ivar members: ``(S, N)``.
    :ivar order: ``(S, N)``.
    :ivar weights: how often each is to be chosen at first, ``(S,)``.
    """

    members: Tensor
    order: Tensor
    weights: Tensor

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
            found, at = _branches(distances.cpu())
            anchors = torch.cat([torch.arange(number).repeat(len(sizes)), at]).to(balls.device)
        members = torch.cat([balls, found.to(balls.device)])
        order = torch.where(members, -2.0, distances[anchors]).argsort(-1)  # an anchor is at -1 from itself
        others = torch.full_like(members[len(balls) :, 0], 1 / max(1, len(found)), dtype=shares.dtype)
        return cls(members, order, torch.cat([shares / shares.sum(), others]) / (2 if len(found) else 1))


def _branches(distances: Tensor) -> tuple[Tensor, Tensor]:
    """One or two branches of the shortest tree at each of its points, or else all but these; and the points."""
    number = len(distances)
    order, parents = spanning_tree(distances)
    below = torch.eye(number, dtype=torch.bool)  # for each point those on its side of the edge to its parent
    for point in reversed(order[1:]):
        below[parents[point]] |= below[point]
    sets, anchors = [], []
    for point in range(number):
        branches = [below[child] for child in order[1:] if parents[child] == point]
        if point != order[0]:
            branches.append(~below[point])
        own = torch.arange(number) == point
        pairs = [
            one | other for k, one in enumerate(branches[:_MOST_PAIRS]) for other in branches[:k] if len(branches) > 2
        ]
        for branch in branches + pairs:
            sets.append(branch if branch.sum() <= number / 2 else ~(branch | own))
            anchors.append(point)
    kept = [k for k, branch in enumerate(sets) if branch.any()]
    if not kept:
        return torch.zeros(0, number, dtype=torch.bool), torch.zeros(0, dtype=torch.long)
    return torch.stack([sets[k] for k in kept]), torch.tensor([anchors[k] for k in kept])
