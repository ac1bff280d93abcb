"""Trees in the plane, and times along lineages."""

from __future__ import annotations

import math
import re

import networkx
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.analysis import pseudotime, sarkar_embedding
from pyro_hyperbolic.geometry import Manifold, from_signature
from tests.helpers import same

# Of nodes in no order: 5 is the root.
PARENTS = torch.tensor([5, 3, 0, 5, 0, -1, 5, 2, 3])


def hops(parents: torch.Tensor) -> torch.Tensor:
    tree = networkx.Graph([(i, p) for i, p in enumerate(parents.tolist()) if p >= 0])
    return torch.from_numpy(networkx.floyd_warshall_numpy(tree, nodelist=range(len(parents))))


@pytest.mark.parametrize(
    "manifold", [PoincareBall(1.0), PoincareBall(0.2), Lorentz(2.0), Stereographic(-0.7), Euclidean()], ids=repr
)
def test_edges_have_one_length_and_are_spread(manifold: Manifold) -> None:
    points = sarkar_embedding(PARENTS, manifold, length=1.5)
    same(points[5], manifold.from_normal_coords(None, torch.zeros(2, dtype=torch.float64)), 1e-12)
    count = hops(PARENTS)
    for node in range(len(PARENTS)):
        near = (count[node] == 1).nonzero().squeeze(-1)
        v = manifold.to_normal_coords(points[node].expand(len(near), -1), points[near])
        same(v.norm(dim=-1), torch.full((len(near),), 1.5, dtype=torch.float64), 1e-9)
        angles = torch.atan2(v[:, 1], v[:, 0]).sort().values
        gaps = torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
        same(gaps, torch.full_like(gaps, 2 * math.pi / len(near)), 1e-6)


def test_longer_edges_have_less_distortion() -> None:
    ball, count = PoincareBall(1.0), hops(PARENTS)
    pairs = count.triu(1) > 0
    errors = []
    for length in (1.0, 2.0, 4.0, 8.0):
        points = sarkar_embedding(PARENTS, ball, length=length)
        ratio = (ball.pairwise_dist(points, points) / (length * count))[pairs]
        assert ratio.max() < 1 + 1e-9
        errors.append(1 - ratio.min().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] * 8 == pytest.approx(errors[-2] * 4, rel=0.1)  # of the order of 1 / length


@pytest.mark.parametrize(("branching", "unit"), [(1, 0.5), (1, 2.0), (2, 3.0)])
@pytest.mark.parametrize(
    "manifold", [PoincareBall(1.0), PoincareBall(torch.tensor([0.2])), Lorentz(4.0), Stereographic(-2.0)], ids=repr
)
def test_edges_are_right_or_refused(manifold: Manifold, branching: int, unit: float) -> None:
    def tree(depth: int) -> Tensor:
        forks = [0] + [1 + branching * level for level in range(depth - 1)]  # one node of each level has children
        return torch.tensor([-1] + [fork for fork in forks for _ in range(branching)])

    length = unit / math.sqrt(float(manifold.c))
    with pytest.raises(ValueError, match=f"length = {length:.6g} is too long") as refused:
        sarkar_embedding(tree(round(48 / unit)), manifold, length=length)
    found = re.search(r"down to level (\d+) of", str(refused.value))
    assert found is not None
    depth = int(found[1]) - 1
    assert depth * unit > (31 if isinstance(manifold, Lorentz) else 24)
    parents = tree(depth)
    points = sarkar_embedding(parents, manifold, length=length)
    assert manifold.contains(points).all()
    for node in range(1, len(parents)):
        assert exact_distance(manifold, points[node], points[parents[node]]) == pytest.approx(length, rel=2e-5)


def exact_distance(manifold: Manifold, x: Tensor, y: Tensor) -> float:
    """From the coordinates as they are, in 60 digits."""
    with mp.workdps(60):
        c = mpf(float(manifold.c))
        a, b = ([mpf(t) for t in point.tolist()] for point in (x, y))
        if isinstance(manifold, Lorentz):
            a, b = a[1:], b[1:]
            heights = [mp.sqrt(1 / c + sum(t * t for t in p)) for p in (a, b)]
            return float(
                mp.acosh(c * (heights[0] * heights[1] - sum(s * t for s, t in zip(a, b, strict=True)))) / mp.sqrt(c)
            )
        square = c * sum((s - t) ** 2 for s, t in zip(a, b, strict=True))
        inside = [1 - c * sum(t * t for t in p) for p in (a, b)]
        return float(2 * mp.asinh(mp.sqrt(square / (inside[0] * inside[1]))) / mp.sqrt(c))


@pytest.mark.parametrize(
    ("parents", "length", "message"),
    [
        ([0.0, -1.0], 1.0, "parents must be integers of shape"),
        ([-1, -1], 1.0, "with 2 roots"),
        ([-1, 7], 1.0, "got values from -1 to 7"),
        ([-1, 2, 1], 1.0, "go in circles"),
        ([-1, 0], 0.0, "length must be positive"),
        (
            range(-1, 20),
            2.0,
            r"length = 2 is too long .* of PoincareBall\(c=1.0\): the edges down to level 1\d of 20 would",
        ),
        ([-1, 0], 1e3, "down to level 1 of 1 .*; take shorter edges or fewer levels, or Lorentz"),
    ],
)
def test_mistakes(parents: list[float], length: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sarkar_embedding(torch.tensor(list(parents)), PoincareBall(1.0), length=length)


@pytest.mark.parametrize(
    ("manifold", "message"),
    [
        (PoincareBall(torch.ones(2)), "must have one curvature"),
        (Sphere(1.0), "must be hyperbolic or flat, and no product, got Sphere"),
        (Stereographic(0.1), "must be hyperbolic or flat"),
        (from_signature("e1,e1"), "must be hyperbolic or flat, and no product"),
    ],
    ids=repr,
)
def test_other_spaces(manifold: Manifold, message: str) -> None:
    with pytest.raises(ValueError, match=f"sarkar_embedding: manifold {message}"):
        sarkar_embedding(torch.tensor([-1, 0]), manifold, length=1.0)


def test_pseudotime_counts_from_the_middle_of_the_candidates() -> None:
    ball = PoincareBall(1.0)
    z = torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.2, 0.0], [0.9, 0.0]])
    same(pseudotime(z, torch.tensor([0, 1, 2]), ball), ball.dist(z, z[1]), 1e-6)
    same(pseudotime(z, torch.tensor([3]), ball), ball.dist(z, z[3]), 1e-5)
    same(pseudotime(z, torch.ones(len(z), dtype=torch.uint8), ball), ball.dist(z, z[1]), 1e-6)  # an index, no mask
    for roots, message in (([], "at least one index"), ([0.5], "at least one index"), ([-1], "indices of the 4")):
        with pytest.raises(ValueError, match=message):
            pseudotime(z, torch.tensor(roots), ball)
