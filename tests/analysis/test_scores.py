"""Scores on cases whose answer is known."""

from __future__ import annotations

import itertools
import math

import pyro.distributions as dist
import pytest
import torch

from pyro_hyperbolic import Euclidean, PoincareBall, Product, Sphere
from pyro_hyperbolic.analysis import batch_mixing, knn_accuracy, lineage_correlation, posterior_coverage
from pyro_hyperbolic.analysis.scores import _mean_entropy, _ranks
from pyro_hyperbolic.distributions import PowerSpherical, RiemannianNormal, VonMisesFisher, WrappedNormal
from tests.analysis.cases import spaces
from tests.geometry.spaces import SPACES, SpaceCase
from tests.helpers import same

LINE = torch.tensor([0.0, 1.0, 2.1, 3.3, 10.0]).unsqueeze(-1)


@spaces
def test_neighbours_vote(case: SpaceCase) -> None:
    x = case.points(60)
    labels = torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    distance = case.space.pairwise_dist(x, x).fill_diagonal_(math.inf)
    right = 0
    for i in range(60):
        near = labels[distance[i].argsort()[:5]].tolist()
        votes = [near.count(c) for c in range(3)]
        tied = [c for c in range(3) if votes[c] == max(votes)]
        # Of two labels with two votes each the one with the smaller sum of ranks.
        won = min(tied, key=lambda c: sum(r for r, label in enumerate(near) if label == c))
        right += won == labels[i]
    assert knn_accuracy(x, labels, case.space, k=5) == right / 60


def test_neighbours_of_a_reference() -> None:
    reference = (LINE, torch.tensor([7, 7, -1, -1, 3]))
    points = torch.tensor([[0.4], [2.6], [9.0], [9.5]])
    assert knn_accuracy(points, torch.tensor([7, -1, 3, 8]), Euclidean(), k=1, reference=reference) == 0.75
    # Its own neighbour if it is in the reference, and not otherwise.
    labels = torch.tensor([0, 1, 2, 3, 4])
    assert knn_accuracy(LINE, labels, Euclidean(), k=1, reference=(LINE, labels)) == 1
    assert knn_accuracy(LINE, labels, Euclidean(), k=1) == 0


def test_many_rows_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, space = SPACES[0].points(50), SPACES[0].space
    labels = (x[:, 0] > 0).long()
    whole = knn_accuracy(x, labels, space, k=3), batch_mixing(x, labels, space, k=3)
    monkeypatch.setattr("pyro_hyperbolic.analysis.scores._ROWS", 7)
    assert (knn_accuracy(x, labels, space, k=3), batch_mixing(x, labels, space, k=3)) == pytest.approx(whole)


@spaces
def test_correlation_of_own_distances_is_one(case: SpaceCase) -> None:
    x = case.points(20)
    distance = case.space.pairwise_dist(x, x)
    same(lineage_correlation(x, 3 * distance, case.space), 1.0, 1e-9)
    same(lineage_correlation(x, distance.square(), case.space, method="spearman"), 1.0, 1e-9)
    assert lineage_correlation(x, distance.square(), case.space) < 1


def test_correlation_by_hand() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    given = torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 0.0]], dtype=torch.float64)
    pairs = torch.tensor([[1.0, 3.0, 2.0], [2.0, 1.0, 2.0]])
    same(lineage_correlation(x, given, Euclidean()), torch.corrcoef(pairs)[0, 1], 1e-6)
    ranks = torch.tensor([[1.0, 3.0, 2.0], [2.5, 1.0, 2.5]])
    same(lineage_correlation(x, given, Euclidean(), method="spearman"), torch.corrcoef(ranks)[0, 1], 1e-6)
    assert _ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0.0, 2.5, 1.0]


def test_mixing_of_random_batches_is_one() -> None:
    x = SPACES[0].points(1500)
    batches = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), 1500, True, generator=torch.Generator().manual_seed(0))
    assert batch_mixing(x, batches, SPACES[0].space) == pytest.approx(1, abs=0.01)
    # With all other points as neighbours there is nothing left to chance.
    same(batch_mixing(x[:50], batches[:50], SPACES[0].space, k=49), 1.0, 1e-9)


def test_mixing_by_hand() -> None:
    x, batches = torch.tensor([[0.0], [1.0], [2.1], [3.2]]), torch.tensor([0, 0, 0, 1])
    entropy = [0.0, 0.0, math.log(2), 0.0]  # neighbours 1 2, 0 2, 1 3, 2 1
    # Out of the three others two at random: for a 0 two thirds are mixed, for the 1 none.
    same(batch_mixing(x, batches, Euclidean(), k=2), sum(entropy) / (3 * 2 / 3 * math.log(2)), 1e-9)


def test_entropy_of_random_neighbours() -> None:
    draws = list(itertools.combinations([1, 1, 1, 0, 0, 0, 0], 4))
    expected = torch.special.entr(torch.tensor([sum(draw) / 4 for draw in draws], dtype=torch.float64)).mean()
    same(_mean_entropy(7, 3, 4), expected, 1e-12)
    assert _mean_entropy(7, 0, 4) == 0


@pytest.mark.parametrize(("distribution", "level"), [(WrappedNormal, 0.5), (RiemannianNormal, 0.9)])
def test_coverage_is_the_level(distribution, level: float) -> None:
    torch.manual_seed(0)
    ball = PoincareBall(1.4)
    posterior = distribution(ball.from_normal_coords(None, torch.randn(4000, 3)), 0.5 * torch.rand(4000, 1) + 0.1, ball)
    z = posterior.sample()
    assert posterior_coverage(posterior, z, level=level) == pytest.approx(level, abs=0.02)
    narrow = distribution(posterior.loc, posterior.scale / 2, ball)
    assert posterior_coverage(narrow, z, level=level) < level - 0.2


@pytest.mark.parametrize(("level", "count"), [(0.5, 9), (0.9, 39)])
def test_coverage_of_draws_is_the_level(level: float, count: int) -> None:
    torch.manual_seed(0)
    for space in (PoincareBall(1.4), Sphere(0.5)):
        centre = space.from_normal_coords(None, torch.randn(2000, 2))
        exact, narrow = (WrappedNormal(centre, scale * torch.tensor([0.2, 1.0]), space) for scale in (1.0, 0.5))
        z = exact.sample()
        found = posterior_coverage(exact.sample((count,)), z, level=level, manifold=space)
        assert found == pytest.approx(level, abs=0.03)
        assert posterior_coverage(narrow.sample((count,)), z, level=level, manifold=space) < level - 0.15


def test_coverage_of_ellipsoids_and_gaussians() -> None:
    torch.manual_seed(0)
    scale = torch.tensor([0.1, 1.0]).expand(4000, 2)
    for posterior in (
        WrappedNormal(torch.zeros(4000, 2), scale, PoincareBall(1.0)),
        dist.Normal(torch.zeros(4000, 2), scale).to_event(1),
    ):
        assert posterior_coverage(posterior, posterior.sample()) == pytest.approx(0.9, abs=0.02)


def on(space, dim, count=4000):
    return space.origin(dim).expand(count, -1)


SPHERE, PRODUCT = Sphere(1.0), Product((Sphere(1.0), 2), (Sphere(4.0), 1), (PoincareBall(1.0), 2))
COUPLED = torch.eye(5) + 0.4 * torch.ones(5, 5).tril(-1)


@pytest.mark.parametrize(
    "make",
    [
        lambda width: WrappedNormal(on(SPHERE, 2), 1.5 * width, SPHERE),
        lambda width: WrappedNormal(on(SPHERE, 3), width * torch.tensor([0.3, 1.0, 2.0]), SPHERE),
        lambda width: WrappedNormal(on(PRODUCT, 5), width, PRODUCT),
        lambda width: WrappedNormal(on(PRODUCT, 5, 1500), manifold=PRODUCT, scale_tril=width * COUPLED),
        lambda width: VonMisesFisher(on(SPHERE, 3), 2.0 / width**2),
        pytest.param(lambda width: PowerSpherical(on(SPHERE, 2), 2.0 / width**2), marks=pytest.mark.slow),
    ],
    ids=["isotropic", "diagonal", "product", "coupled", "fisher", "power"],
)
def test_coverage_where_geodesics_close(make) -> None:
    torch.manual_seed(0)
    z = make(1.0).sample()
    for level in (0.1, 0.9):
        assert posterior_coverage(make(1.0), z, level=level) == pytest.approx(level, abs=0.03)
        assert posterior_coverage(make(0.4), z, level=level) < level - 0.05


BALL = PoincareBall(1.0)
POINTS = torch.linspace(-0.5, 0.5, 8).unsqueeze(-1).repeat(1, 2)
LABELS = torch.arange(8) % 2
DISTANCES = BALL.pairwise_dist(POINTS, POINTS)


@pytest.mark.parametrize(
    ("score", "arguments", "options", "message"),
    [
        (knn_accuracy, (torch.eye(2), LABELS[:2], BALL), {"k": 1}, "knn_accuracy: points must lie on"),
        (knn_accuracy, (POINTS, LABELS[:2], BALL), {}, "labels must be a tensor of 8 integers"),
        (knn_accuracy, (POINTS, LABELS.float(), BALL), {}, "got torch.float32 of shape"),
        (knn_accuracy, (POINTS, ["a"] * 8, BALL), {}, "got list; number the classes with numpy.unique"),
        (knn_accuracy, (POINTS, LABELS, BALL), {"k": 8}, "k must be an integer from 1 to 7, got 8"),
        (knn_accuracy, (POINTS, LABELS, BALL), {"reference": (POINTS, LABELS[1:])}, r"reference\[1\] must be a tensor"),
        (lineage_correlation, (POINTS, DISTANCES[:3, :3], BALL), {}, r"a matrix of all pairs, \(8, 8\), got \(3, 3\)"),
        (lineage_correlation, (POINTS, -DISTANCES, BALL), {}, "distances must not be negative"),
        (lineage_correlation, (POINTS, DISTANCES, BALL), {"method": "kendall"}, r"one of \['pearson', 'spearman'\]"),
        (lineage_correlation, (POINTS, 1 - torch.eye(8), BALL), {}, "all distances are equal"),
        (batch_mixing, (POINTS, torch.zeros(8).long(), BALL), {"k": 2}, "there must be at least two batches, got one"),
        (batch_mixing, (POINTS, LABELS, BALL), {}, "k must be an integer from 2 to 7, got 30"),
        (batch_mixing, (POINTS, LABELS, BALL), {"k": 1}, "k must be an integer from 2 to 7, got 1"),
        (
            posterior_coverage,
            (WrappedNormal(POINTS, 1.0, BALL), POINTS),
            {"level": 1.0},
            "level must be between 0 and 1",
        ),
        (posterior_coverage, (WrappedNormal(POINTS, 1.0, BALL), POINTS[1:]), {}, r"the shape \(8, 2\) of a sample"),
        (posterior_coverage, (dist.Cauchy(POINTS, 1.0).to_event(1), POINTS), {}, "got Cauchy"),
        (posterior_coverage, (POINTS[None], POINTS), {}, "give a manifold with draws"),
        (
            posterior_coverage,
            (WrappedNormal(POINTS, 1.0, BALL), POINTS),
            {"manifold": BALL},
            "none with a distribution",
        ),
        (posterior_coverage, (POINTS[None], POINTS[1:]), {"manifold": BALL}, r"the shape \(8, 2\) of a sample"),
        (posterior_coverage, (3 * POINTS[None], POINTS), {"manifold": BALL}, "points must lie on"),
    ],
)
def test_errors(score, arguments, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        score(*arguments, **options)
