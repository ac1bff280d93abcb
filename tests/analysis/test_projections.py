"""Projections to fewer dimensions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.analysis import HoroPCA, Projection, TangentPCA, horo_pca
from pyro_hyperbolic.analysis.horo_pca import horospherical
from pyro_hyperbolic.geometry import Euclidean, Manifold, Product, Sphere, Stereographic

DOUBLE = torch.float64
HYPERBOLIC: list[Manifold] = [PoincareBall(1.0), PoincareBall(torch.tensor(0.3)), Lorentz(2.0), Stereographic(-0.5)]
KINDS: dict[str, Any] = {"tangent": TangentPCA, "horo": lambda dim: HoroPCA(dim, num_steps=30)}
CASES = [(kind, space) for kind in KINDS for space in HYPERBOLIC] + [
    ("tangent", space) for space in (Euclidean(), PoincareBall(0.0), Sphere(0.5))
]


def flat_set(manifold: Manifold, scale: float = 0.25) -> tuple[Tensor, Tensor]:
    """Points of a surface, away from the origin, inside of a space of five dimensions; and the surface's axes."""
    radius = 1 / math.sqrt(abs(float(manifold.c)) or 1)
    axes = torch.linalg.qr(torch.randn(5, 2, dtype=DOUBLE))[0].mT
    v = scale * radius * torch.randn(40, 2, dtype=DOUBLE) @ axes
    base = manifold.from_normal_coords(None, 0.5 * radius * torch.randn(5, dtype=DOUBLE))
    return manifold.from_normal_coords(base.expand(40, -1), v), axes


@pytest.mark.parametrize(("kind", "manifold"), CASES, ids=str)
def test_a_surface_keeps_its_distances(kind: str, manifold: Manifold) -> None:
    x, _ = flat_set(manifold)
    projection: Projection = KINDS[kind](2)
    y = projection.fit_transform(x, manifold)
    assert y.shape == (40, manifold.ambient_dim(2))
    assert bool(manifold.contains(y).all())
    before, after = manifold.pairwise_dist(x, x), manifold.pairwise_dist(y, y)
    if kind == "tangent":
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)
        assert projection.explained_variance_ratio == pytest.approx(1)
    else:
        # Adam comes near to the plane; within it all is kept, but for what is folded.
        kept = manifold.to_normal_coords(projection.mean, x) @ projection.directions.mT
        axis = kept.sum(-1) * math.sqrt(float(manifold.c) / 2)
        near = axis < 0.5
        assert int(near.sum()) > 30
        torch.testing.assert_close(after[near][:, near], before[near][:, near], rtol=1e-2, atol=1e-2)
        assert projection.explained_variance_ratio > 0.9
    center = manifold.frechet_mean(y)
    assert float(manifold.dist0(center)) < 0.2


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_horospheres_stay(dim: int) -> None:
    h = Lorentz(1.0)
    x = h.from_normal_coords(None, 1.5 * torch.randn(20, 5, dtype=DOUBLE))
    directions = torch.linalg.qr(torch.randn(5, dim, dtype=DOUBLE))[0].mT
    y = horospherical(x, directions)
    assert bool(h.contains(y).all())
    whole = torch.cat([y[:, :1], y[:, 1:] @ directions], -1)
    for p in directions:
        # The Busemann function: how much nearer a point is to one that runs along p, in the limit.
        far = h.from_normal_coords(None, 12 * p)
        torch.testing.assert_close(h.dist(whole, far), h.dist(x, far), rtol=0, atol=1e-6)
    # Distances never grow, and the nearer of two points to the origin is taken.
    assert bool((h.pairwise_dist(y, y) <= h.pairwise_dist(x, x) + 1e-9).all())
    if dim == 2:
        middle = directions.sum(0) / math.sqrt(2)
        near, beyond = (h.from_normal_coords(None, r * middle) for r in (0.5, math.atanh(1 / math.sqrt(2)) + 0.3))
        torch.testing.assert_close(horospherical(near, directions)[1:], (near[1:] @ directions.mT))
        folded = h.dist0(horospherical(beyond, directions))
        assert float(folded) == pytest.approx(math.atanh(1 / math.sqrt(2)) - 0.3)


@pytest.mark.slow
def test_horo_pca_takes_the_best_of_its_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    ball = PoincareBall(1.0)
    v = torch.randn(30, 4, dtype=DOUBLE) * torch.tensor([1.2, 1.0, 0.8, 0.3])
    x = ball.expmap0(v + 0.5 * v.abs())
    found = HoroPCA(2, num_steps=40).fit(x, ball).explained_variance_ratio
    alone = []
    for signs in itertools.product((1.0, -1.0), repeat=2):
        start = torch.tensor(signs, dtype=DOUBLE).diag() @ torch.eye(4, dtype=DOUBLE)[:2]
        monkeypatch.setattr(horo_pca, "_starts", lambda x, dim, start=start: [start])
        alone.append(HoroPCA(2, num_steps=40).fit(x, ball).explained_variance_ratio)
    assert found >= max(alone) - 0.01
    assert found > min(alone) + 0.02


@pytest.mark.slow
def test_horo_pca_improves_on_its_start() -> None:
    # A tree: three far branches and noise in three more dimensions.
    h = Lorentz(1.0)
    v = torch.cat([3 * torch.eye(6)[torch.arange(90) % 3, :], torch.zeros(1, 6)]).double()
    x = h.from_normal_coords(None, v + 0.3 * torch.randn(91, 6, dtype=DOUBLE))
    start = HoroPCA(2, num_steps=1, learning_rate=1e-12).fit(x, h)
    fitted = HoroPCA(2, num_steps=25).fit(x, h)
    assert fitted.explained_variance_ratio > start.explained_variance_ratio
    first, again, other = (HoroPCA(2, num_steps=4, seed=seed).fit(x, h).directions for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


FRAMES = {
    "one axis reflected": torch.diag(torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=DOUBLE)),
    "all axes reflected": -torch.eye(4, dtype=DOUBLE),
    "axes exchanged": torch.eye(4, dtype=DOUBLE).flip(0),
    "rotated": torch.linalg.qr(torch.randn(4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)))[0],
}
OF_A_FRAME: dict[str, Any] = {"tangent": TangentPCA, "horo": lambda dim: HoroPCA(dim, num_steps=20, batch_size=15)}


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("kind", OF_A_FRAME)
def test_the_frame_does_not_matter(kind: str, dim: int) -> None:
    ball = PoincareBall(0.7)
    v = torch.randn(25, 4, dtype=DOUBLE) * torch.tensor([1.5, 1.2, 0.8, 0.4])
    x = ball.expmap0(v + 0.5 * v.abs())
    plain = OF_A_FRAME[kind](dim)
    distances = ball.pairwise_dist(*[plain.fit_transform(x, ball)] * 2)
    # A search takes long, so that it has one permutation and one rotation.
    for name in FRAMES if kind == "tangent" else ("axes exchanged", "rotated"):
        frame = FRAMES[name]
        other = OF_A_FRAME[kind](dim)
        y = other.fit_transform(x @ frame.mT, ball)
        torch.testing.assert_close(
            ball.pairwise_dist(y, y), distances, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert other.explained_variance_ratio == pytest.approx(plain.explained_variance_ratio)


SHORT: dict[str, Any] = {"tangent": TangentPCA, "horo": lambda dim: HoroPCA(dim, num_steps=10)}


@pytest.mark.parametrize("kind", SHORT)
def test_both_charts_agree(kind: str) -> None:
    ball, h = PoincareBall(0.7), Lorentz(0.7)
    x = ball.expmap0(0.4 * torch.randn(30, 4, dtype=DOUBLE))
    a, b = SHORT[kind](2), SHORT[kind](2)
    y, z = a.fit_transform(x, ball), b.fit_transform(h.from_poincare(x), h)
    torch.testing.assert_close(h.to_poincare(z), y, rtol=1e-5, atol=1e-5)
    assert a.explained_variance_ratio == pytest.approx(b.explained_variance_ratio)
    assert a.transform(x[:3].float()).dtype == torch.float32


@pytest.mark.parametrize("kind", SHORT)
def test_far_points_in_single_precision(kind: str) -> None:
    # Float32 leaves the hyperboloid by its rounding, which is large in double precision.
    h = Lorentz(1.0)
    v = 3 * torch.randn(30, 4, dtype=DOUBLE)
    exact, rough = h.from_normal_coords(None, v), h.from_normal_coords(None, v.float())
    y = SHORT[kind](2).fit_transform(rough, h)
    assert y.dtype == torch.float32
    expected = SHORT[kind](2).fit_transform(exact, h)
    torch.testing.assert_close(h.dist0(y).double(), h.dist0(expected), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: TangentPCA(0), "dim must be a positive integer, got 0"),
        (lambda x: TangentPCA(2, seed=None), "TangentPCA: seed must be an integer, got None"),
        (lambda x: HoroPCA(2, num_steps=0), "num_steps must be positive"),
        (lambda x: TangentPCA(2).transform(x), "call fit before transform"),
        (lambda x: TangentPCA(9).fit(x, PoincareBall(1.0)), "more than dim = 9"),
        (lambda x: TangentPCA(2).fit(x[:2], PoincareBall(1.0)), "more than dim = 2"),
        (lambda x: TangentPCA(2).fit(9 * x, PoincareBall(1.0)), "points must be"),
        (
            lambda x: TangentPCA(2).fit(x, Product((Euclidean(), 2), (Euclidean(), 3))),
            "must be of constant curvature, and no product.*one by one",
        ),
        (lambda x: TangentPCA(2).fit(x, None), "TangentPCA: manifold must be a Manifold, got None"),
        (lambda x: HoroPCA(2).fit(x, Euclidean()), "must be hyperbolic.*TangentPCA"),
        (lambda x: HoroPCA(2).fit(x, Stereographic(1.0)), "must be hyperbolic"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(PoincareBall(1.0).expmap0(0.3 * torch.randn(20, 5)))
