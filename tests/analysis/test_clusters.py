"""Clusters on every space, against all partitions."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_hyperbolic import PoincareBall, Sphere
from pyro_hyperbolic.analysis import clusters, k_means
from pyro_hyperbolic.geometry import frechet_mean
from pyro_hyperbolic.nn import ManifoldModule
from tests.analysis.cases import spaces
from tests.geometry.spaces import SPACES, SpaceCase
from tests.helpers import DTYPES, same


def partitions(n: int, k: int) -> Tensor:
    """All partitions of n points into k clusters that are not empty, as labels in the order of first points."""
    rows = [
        labels
        for labels in itertools.product(range(k), repeat=n)
        if all(label <= max((-1, *labels[:i])) + 1 for i, label in enumerate(labels)) and max(labels) == k - 1
    ]
    return torch.tensor(rows)


@spaces
def test_best_of_all_partitions(case: SpaceCase) -> None:
    k, coords, space = 3, case.coords(7, size=0.4), case.space
    coords[:3, 0] += 0.6
    coords[3:5, 0] -= 0.6
    x = space.from_normal_coords(None, coords)
    rows = partitions(7, k)
    weights = one_hot(rows, k).mT.double()
    means = frechet_mean(space, x, weights)
    costs = (weights * space.pairwise_dist(means, x).square()).sum((-1, -2))
    found = k_means(x, space, k, restarts=10)
    assert found.converged
    same(found.cost, costs.min(), 1e-9)
    assert torch.equal(found.labels, rows[costs.argmin()])
    same(space.dist(found.centres, means[costs.argmin()]), torch.zeros(k), 1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@spaces
def test_clusters_that_are_apart(case: SpaceCase, dtype: torch.dtype) -> None:
    space = case.space
    places = torch.zeros(3, case.dim, dtype=torch.float64)
    places[:, 0] = torch.tensor([-1.2, 0.1, 1.3])
    centres = space.from_normal_coords(None, places)
    x = space.from_normal_coords(centres.unsqueeze(1), case.coords(3, 20, size=0.05)).flatten(0, 1)
    found = k_means(space.projx(x.to(dtype)), space, 3, restarts=2)
    assert found.centres.dtype == dtype
    assert space.contains(found.centres).all()
    assert found.labels.tolist() == [i for i in range(3) for _ in range(20)]
    assert space.dist(found.centres.double(), centres).max() < 0.1
    same(found.cost, k_means(x, space, 3, restarts=2).cost, 1e-4 if dtype == torch.float32 else 1e-12)


def test_a_centre_without_points_goes_to_the_farthest() -> None:
    # From the starts 0 and 10 of three clusters in {0, 1, 10, 11} and 100, whichever third is drawn, all are filled.
    x = torch.tensor([0.0, 1.0, 10.0, 11.0, 100.0, 100.0, 100.0]).unsqueeze(-1)
    for seed in range(5):
        found = k_means(x, PoincareBall(0.0), 4, restarts=1, seed=seed)
        assert len(found.labels.unique()) == 4


def test_two_groups_at_opposite_poles() -> None:
    # A Fréchet mean of a sphere is a local minimum: from its start the sum must not rise all the same.
    sphere = Sphere(1.0)
    north = sphere.from_normal_coords(None, 0.2 * torch.randn(30, 2, generator=torch.Generator().manual_seed(0)))
    found = k_means(torch.cat([north, -north]), sphere, 2, restarts=3)
    assert found.labels.tolist() == [0] * 30 + [1] * 30


def test_function_of_the_seed_alone() -> None:
    x, ball = SPACES[0].points(30), SPACES[0].space
    before = torch.get_rng_state()
    first, second = (k_means(x, ball, 5, restarts=1, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.centres, second.centres)
    # One stream of starts: more of them are never worse.
    costs = [k_means(x, ball, 5, restarts=restarts).cost for restarts in (1, 3, 6)]
    assert costs[0] > costs[-1]
    assert costs == sorted(costs, reverse=True)


def test_starts_at_once_are_those_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, ball = SPACES[0].points(30), SPACES[0].space
    starts = clusters.batches(x, ball, 7, 6, torch.Generator().manual_seed(0))
    assert len(starts) == 1
    monkeypatch.setattr(clusters, "_COORDINATES", 1)
    few = clusters.batches(x, ball, 7, 6, torch.Generator().manual_seed(0))
    assert len(few) == 6
    assert torch.equal(torch.cat(few), starts[0])
    # Some start with a centre that no point is nearest to.
    starts[0][::2, 1] = starts[0][::2, 0]
    runs = clusters.lloyd(x, ball, starts[0], 100)
    assert len({round(run.cost, 6) for run in runs}) > 2
    for run, start in zip(runs, starts[0], strict=True):
        (alone,) = clusters.lloyd(x, ball, start.unsqueeze(0), 100)
        assert run.converged
        assert torch.equal(run.labels, alone.labels)
        same(run.centres, alone.centres, 1e-12)
        same(run.cost, alone.cost, 1e-12)


def test_steps_are_limited() -> None:
    x = SPACES[0].points(200)
    assert not k_means(x, SPACES[0].space, 5, restarts=1, max_steps=2).converged


@pytest.mark.parametrize("c", [torch.tensor([1.0]), torch.tensor(1.0, requires_grad=True), torch.tensor(1.0).double()])
def test_one_curvature_of_any_kind(c: Tensor) -> None:
    x = PoincareBall(1.0).from_normal_coords(None, torch.randn(20, 2, generator=torch.Generator().manual_seed(0)))
    found, expected = (k_means(x.requires_grad_(), ball, 3) for ball in (PoincareBall(c), PoincareBall(1.0)))
    assert torch.equal(found.labels, expected.labels)
    assert not found.centres.requires_grad
    assert found.centres.shape == (3, 2)


@pytest.mark.parametrize(
    ("points", "manifold", "options", "message"),
    [
        (torch.zeros(5), PoincareBall(1.0), {}, r"points must be a floating tensor of shape \(N, D\)"),
        (torch.zeros(5, 2).long(), PoincareBall(1.0), {}, "points must be a floating tensor"),
        (torch.zeros(5, 2).numpy(), PoincareBall(1.0), {}, r"got ndarray; make one with torch.as_tensor\(points\)"),
        (torch.zeros(5, 2).half(), PoincareBall(1.0), {}, "points must be float32 or float64"),
        (torch.eye(3), PoincareBall(1.0), {}, "3 of 3 that do not, the first in row 0; project them"),
        (torch.full((4, 2), torch.nan), PoincareBall(1.0), {}, "points must lie on"),
        (torch.zeros(0, 2), PoincareBall(1.0), {}, "points must be at least 1"),
        (torch.rand(4, 2), PoincareBall(torch.ones(4)), {}, "manifold must have one curvature"),
        (torch.rand(4, 2), None, {}, "manifold must be a Manifold, got None"),
        (torch.rand(4, 2), 3, {"k": PoincareBall(1.0)}, "k_means: manifold must be a Manifold, got 3; pass"),
        (
            torch.rand(4, 2),
            ManifoldModule(PoincareBall(1.0)),
            {},
            r"got a module, ManifoldModule; .* call it: module\(\)",
        ),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"k": 0}, "k must be an integer from 1 to 4, got 0"),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"k": 5}, "k must be an integer from 1 to 4, got 5"),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"k": 2.0}, "k must be an integer"),
        (torch.zeros(4, 2), PoincareBall(1.0), {"k": 2}, "number of different points, 1, got 2"),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"restarts": 0}, "restarts must be a positive integer"),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"max_steps": -1}, "max_steps must be a positive integer"),
        (torch.rand(4, 2) / 2, PoincareBall(1.0), {"seed": 1.5}, "k_means: seed must be an integer, got 1.5"),
    ],
)
def test_errors(points, manifold, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        k_means(points, manifold, **({"k": 2} | options))
