"""The shortest tree that joins points."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spanning_tree(distances: Tensor, root: int = 0) -> tuple[list[int], list[int]]:
    """The points in an order in which each comes after its parent, and their parents (Prim's algorithm).

    The root is its own parent.

    :param distances: of all pairs ``(N, N)``; the diagonal is not looked at.
    :param root: the first point.

    >>> line = torch.tensor([0.0, 3.0, 1.0])
    >>> spanning_tree((line - line.unsqueeze(-1)).abs())
    ([0, 2, 1], [0, 2, 0])
    """
    device, number = distances.device, len(distances)
    near, parents = distances[root].clone(), torch.full((number,), root, device=device)
    done = torch.zeros(number, dtype=torch.bool, device=device)
    order, point = [root], root
    for _ in range(number - 1):
        done[point] = True
        closer = distances[point] < near
        near, parents = torch.where(closer, distances[point], near), torch.where(closer & ~done, point, parents)
        point = int(torch.where(done, math.inf, near).argmin())
        order.append(point)
    return order, parents.tolist()
