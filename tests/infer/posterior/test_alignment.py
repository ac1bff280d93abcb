"""Draws that are laid on each other by isometries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from docs.skeletons.manifold import FlatTorus
from pyro_hyperbolic import Lorentz, PoincareBall, Sphere
from pyro_hyperbolic.geometry import Euclidean, Manifold, Product, Stereographic, from_signature
from tests.infer.posterior.records import F64, posterior, rotations

CHAINS, DRAWS, POINTS = 3, 30, 6
NOISE = 0.05


def curvatures(low: float = 0.5, high: float = 2.0) -> Tensor:
    """One for each draw."""
    return torch.rand(CHAINS, DRAWS, 1, dtype=F64) * (high - low) + low


# Each space and its dimension.
SPACES = {
    "ball": lambda: (PoincareBall(1.0), 3),
    "ball, drawn": lambda: (PoincareBall(curvatures()), 2),
    "ball, flat": lambda: (PoincareBall(0.0), 2),
    "hyperboloid, drawn": lambda: (Lorentz(curvatures()), 3),
    "sphere": lambda: (Sphere(1.0), 2),
    "sphere, drawn": lambda: (Sphere(curvatures()), 3),
    "either sign, drawn": lambda: (Stereographic(curvatures(-1.0, 1.0)), 2),
    "positive, drawn": lambda: (Stereographic(curvatures(0.2, 1.0)), 2),
    "flat": lambda: (Euclidean(), 3),
    "one dimension": lambda: (PoincareBall(1.0), 1),
    "product": lambda: (from_signature("h2,s2,e1"), 5),
    "product, drawn": lambda: (Product((Product((PoincareBall(curvatures()), 2)), 2), (Sphere(curvatures()), 2)), 4),
}


def noisy(dim: int) -> Tensor:
    """Draws of one set, by their normal coordinates at the origin; no point comes near to its antipode."""
    return torch.randn(POINTS, dim, dtype=F64).clamp(-1, 1) + NOISE * torch.randn(CHAINS, DRAWS, POINTS, dim, dtype=F64)


def turned(space: Manifold, v: Tensor) -> Tensor:
    """Each draw by a rotation of its own, in every leaf."""
    parts = v.split([dim for _, dim in space.leaves(v.shape[-1])], -1)
    return torch.cat([part @ rotations(CHAINS, DRAWS, part.shape[-1]).mT for part in parts], -1)


def shifted(space: Manifold, v: Tensor) -> Tensor:
    """Each draw by a translation of its own; in a chart of a sphere that leads all over it."""
    parts, leaves = [], space.leaves(v.shape[-1])
    for (leaf, dim), part in zip(leaves, v.split([dim for _, dim in leaves], -1), strict=True):
        m = torch.randn(CHAINS, DRAWS, 1, dim, dtype=F64).clamp(-1, 1)
        parts.append(leaf.recentre(m, part) @ rotations(CHAINS, DRAWS, dim).mT)
    return torch.cat(parts, -1)


def spread(space: Manifold, points: Tensor) -> float:
    """The root mean squared deviation of normal coordinates, where a space may differ from draw to draw."""
    return space.to_normal_coords(None, points).flatten(0, 1).std(0).square().mean().sqrt().item()


def check_isometric(space: Manifold, before: Tensor, after: Tensor) -> None:
    one, other = torch.triu_indices(POINTS, POINTS, 1)
    expected, found = (space.dist(x[:, :, one], x[:, :, other]) for x in (before, after))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", SPACES)
def test_every_space(name):
    space, dim = SPACES[name]()
    v = noisy(dim)
    for isometries, blur in (("rotations", turned), ("all", shifted)):
        draws = space.from_normal_coords(None, blur(space, v))
        result = posterior({"z": draws}, manifolds={"z": space}, gauges=[["z"]])
        aligned = result.aligned("z", "gauge" if isometries == "rotations" else "all")
        assert aligned.isometries == isometries
        assert aligned.points.shape == draws.shape
        check_isometric(space, draws, aligned.points)
        assert spread(space, aligned.points) < 2 * NOISE < 6 * NOISE < spread(space, draws)


def test_points_all_over_a_sphere_have_no_mean_and_are_aligned():
    sphere = Sphere(1.0)
    x = torch.nn.functional.normalize(torch.randn(20, 3, dtype=F64), dim=-1)
    noise = NOISE * torch.randn(CHAINS, DRAWS, 20, 3, dtype=F64)
    draws = sphere.projx(x + noise) @ rotations(CHAINS, DRAWS, 3).mT
    found = posterior({"z": draws}, manifolds={"z": sphere}).aligned("z", "all").points
    assert found.flatten(0, 1).std(0).mean() < 2 * NOISE < 0.3 < draws.flatten(0, 1).std(0).mean()


def test_sites_of_one_gauge_are_rotated_together():
    """Where one of them is a single point the others say how; spaces and plates may differ."""
    ball = PoincareBall(curvatures())
    q = rotations(CHAINS, DRAWS, 2)
    v, w = noisy(2), NOISE * torch.randn(CHAINS, DRAWS, 1, 1, 2, dtype=F64) + torch.tensor([1.0, 0.0])
    draws = {"z": ball.from_normal_coords(None, v @ q.mT), "w": w @ q.unsqueeze(2).mT}
    result = posterior(draws, manifolds={"z": ball}, gauges=[["z", "w"]])
    a, b = result.aligned("z").points, result.aligned("w").points
    assert b.shape == draws["w"].shape
    products = [(v[:, :, :1] * w[:, :, 0]).sum(-1), (ball.to_normal_coords(None, a)[:, :, :1] * b[:, :, 0]).sum(-1)]
    torch.testing.assert_close(*products)
    assert b.flatten(0, 1).std(0).max() < 2 * NOISE


def test_sites_of_one_space_are_moved_together():
    ball = PoincareBall(1.0)
    draws = ball.from_normal_coords(None, shifted(ball, noisy(2)))
    parts = {"z": draws[:, :, :4], "w": draws[:, :, 4:], "other": torch.randn(CHAINS, DRAWS, 2, 2, dtype=F64)}
    result = posterior(parts, manifolds={"z": ball, "w": ball}, gauges=[["z", "w", "other"]])
    whole = torch.cat([result.aligned(name, "all").points for name in ("z", "w")], 2)
    check_isometric(ball, draws, whole)


@pytest.mark.parametrize("isometries", ["rotations", "all"])
def test_draws_that_are_not_finite_stay_so_and_disturb_no_other(isometries):
    for space, dim in ((PoincareBall(1.0), 2), (Sphere(1.0), 2)):
        draws = space.from_normal_coords(None, turned(space, noisy(dim)))
        broken = draws.clone()
        broken[0, 0] = torch.nan
        found = posterior({"z": broken}, manifolds={"z": space}).aligned("z", isometries).points
        assert found[0, 0].isnan().all()
        assert spread(space, found.flatten(0, 1)[None, 1:]) < 2 * NOISE
        nothing = posterior({"z": torch.full_like(draws, torch.nan)}, manifolds={"z": space})
        assert nothing.aligned("z", isometries).points.isnan().all()


def test_an_orientation_that_is_determined_is_left_alone():
    draws = noisy(2)
    result = posterior({"z": draws}, manifolds={"z": Euclidean()})
    assert torch.equal(result.aligned("z").points, draws)
    assert result.aligned("z").isometries == "none"


def test_bad_requests_are_refused():
    ball = PoincareBall(curvatures().expand(CHAINS, DRAWS, POINTS))
    draws = ball.from_normal_coords(None, noisy(2))
    result = posterior(
        {"z": draws, "a": draws[..., 0], "t": draws}, manifolds={"z": ball, "t": FlatTorus(1.0)}, gauges=[["z"]]
    )
    assert result.aligned("z").isometries == "rotations"
    for arguments, message in (
        (("z", "all"), "curvatures of their own"),
        (("z", "translations"), "isometries must be one of"),
        (("a",), r"name must be a site of points, \['z', 't'\], got 'a'"),
        (("t", "rotations"), "constant curvature"),
    ):
        with pytest.raises(ValueError, match=message):
            result.aligned(*arguments)
