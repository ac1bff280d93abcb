"""The isometry that brings two sets of points together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.analysis import Alignment, procrustes
from pyro_hyperbolic.geometry import Euclidean, Manifold, Product, Sphere, Stereographic
from tests.helpers import in_turns

DOUBLE = torch.float64
SPACES: list[Manifold] = [
    PoincareBall(1.0),
    PoincareBall(torch.tensor(0.3)),
    Lorentz(2.0),
    Euclidean(),
    PoincareBall(0.0),
    Sphere(0.5),
    Stereographic(-1.5),
    Stereographic(0.5),
]


def sample(manifold: Manifold, count: int, dim: int, scale: float = 0.8) -> Tensor:
    return manifold.from_normal_coords(None, scale * torch.randn(count, dim, dtype=DOUBLE))


def random_isometry(manifold: Manifold, dim: int, reflected: bool) -> Alignment:
    rotation = torch.linalg.qr(torch.randn(dim, dim, dtype=DOUBLE))[0]
    if (float(rotation.det()) < 0) != reflected:
        rotation = torch.cat([-rotation[:1], rotation[1:]])
    source, target = sample(manifold, 2, dim, 0.4)
    return Alignment(manifold, source, target, rotation, 0.0)


@pytest.mark.parametrize(("manifold", "case"), in_turns(SPACES, [(2, True), (4, False)]), ids=str)
def test_isometric_sets_fall_together(manifold: Manifold, case: tuple[int, bool]) -> None:
    dim, reflected = case
    x = sample(manifold, 12, dim)
    y = random_isometry(manifold, dim, reflected)(x)
    align = procrustes(x, y, manifold)
    assert align.error < 1e-7
    torch.testing.assert_close(align(x), y, rtol=0, atol=1e-7)
    assert (float(align.rotation.det()) < 0) == reflected
    eye = torch.eye(dim, dtype=DOUBLE)
    torch.testing.assert_close(align.rotation @ align.rotation.mT, eye, rtol=0, atol=1e-12)
    new = sample(manifold, 5, dim)  # an isometry of the whole space
    torch.testing.assert_close(
        manifold.pairwise_dist(align(new), align(new)), manifold.pairwise_dist(new, new), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("manifold", [PoincareBall(1.0), Sphere(0.5)], ids=str)
def test_no_isometry_of_a_fine_grid_is_better(manifold: Manifold) -> None:
    # Isometries of a surface by brute force: where the source goes, the angle, and the orientation.
    x = sample(manifold, 9, 2)
    y = random_isometry(manifold, 2, True)(x)
    y = manifold.from_normal_coords(y, 0.3 * torch.randn(9, 2, dtype=DOUBLE))
    align = procrustes(x, y, manifold)
    assert align.error == pytest.approx(float(manifold.dist(align(x), y).square().mean().sqrt()))
    assert align.error > 0.05

    def search(width: float, turn: float, around: Alignment, flips: tuple[float, ...]) -> tuple[float, Alignment]:
        best = (math.inf, around)
        steps = torch.linspace(-width, width, 9, dtype=DOUBLE)
        for flip in flips:
            for angle in torch.linspace(-turn, turn, 13, dtype=DOUBLE).tolist():
                r = torch.tensor(
                    [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=DOUBLE
                )
                r = r @ around.rotation @ torch.diag(torch.tensor([1.0, flip], dtype=DOUBLE))
                shifts = torch.cartesian_prod(steps, steps)
                targets = manifold.from_normal_coords(around.target.expand(len(shifts), -1), shifts)
                coords = manifold.to_normal_coords(around.source, x) @ r.mT
                moved = manifold.from_normal_coords(targets.unsqueeze(1), coords)
                errors = manifold.dist(moved, y).square().mean(-1).sqrt()
                i = int(errors.argmin())
                if float(errors[i]) < best[0]:
                    best = (float(errors[i]), Alignment(manifold, around.source, targets[i], r, 0.0))
        return best

    mean_x, mean_y = manifold.frechet_mean(x), manifold.frechet_mean(y)
    start = Alignment(manifold, mean_x, mean_y, torch.eye(2, dtype=DOUBLE), 0.0)
    error, found = search(0.6, math.pi, start, (1.0, -1.0))
    for k in range(1, 5):
        error, found = search(0.3 / 3**k, math.pi / 4**k, found, (1.0,))
    assert align.error <= error + 1e-9
    assert align.error == pytest.approx(error, rel=1e-3)


def test_without_reflections() -> None:
    ball = PoincareBall(1.0)
    x = sample(ball, 10, 2)
    align = procrustes(x, x.flip(-1), ball, reflections=False)
    assert float(align.rotation.det()) > 0
    assert align.error > procrustes(x, x.flip(-1), ball).error + 0.1


def test_single_precision_and_one_point() -> None:
    ball = PoincareBall(1.0)
    x = sample(ball, 1, 3).float()
    align = procrustes(x, -x, ball)
    assert align(x).dtype == torch.float32
    torch.testing.assert_close(align(x), -x)


@pytest.mark.parametrize(
    ("x", "y", "manifold", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(4, 2), PoincareBall(1.0), "of the same shape"),
        (torch.zeros(0, 2), torch.zeros(0, 2), PoincareBall(1.0), "of the same shape"),
        (torch.ones(3, 2), torch.zeros(3, 2), PoincareBall(1.0), "x must be points of PoincareBall"),
        (torch.zeros(3, 2), torch.zeros(3, 2), PoincareBall(torch.ones(3)), "must have one curvature"),
        (torch.zeros(3, 2), torch.zeros(3, 2), 3, "procrustes: manifold must be a Manifold, got 3"),
        (
            torch.zeros(3, 2),
            torch.zeros(3, 2),
            Product((Euclidean(), 1), (Euclidean(), 1)),
            "must be of constant curvature, and no product",
        ),
    ],
)
def test_mistakes(x: Tensor, y: Tensor, manifold: Manifold, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        procrustes(x, y, manifold)
