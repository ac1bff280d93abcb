"""What sites of points are judged by."""

from __future__ import annotations

import torch

from pyro_hyperbolic import PoincareBall, Sphere
from pyro_hyperbolic.geometry import Euclidean
from pyro_hyperbolic.infer.posterior.points import distances, inner_products
from tests.infer.posterior.records import F64, posterior, rotations

CHAINS, DRAWS = 4, 20


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(CHAINS, DRAWS, *shape, dtype=F64)


def test_distances_are_those_of_all_pairs_with_the_curvature_of_their_draw(monkeypatch):
    monkeypatch.setattr("pyro_hyperbolic.infer.posterior.diagnostics._BLOCK", 500)
    c = drawn(1).exp()
    ball = PoincareBall(c)
    z = ball.from_normal_coords(None, drawn(7, 3))
    found = distances(z, ball)
    i, j = torch.triu_indices(7, 7, 1)
    torch.testing.assert_close(found.means, ball.pairwise_dist(z, z)[..., i, j].mean((0, 1)))
    assert found.count == found.total == 21


def test_of_many_pairs_2000_are_judged_in_which_every_point_is():
    x = torch.randn(100, 3, dtype=F64)
    found = distances(x.expand(2, 4, 100, 3), Euclidean())
    assert (found.count, found.total) == (2000, 4950)
    pairs = torch.triu_indices(100, 100, 1)
    away = (found.means[:, None] - (x[pairs[0]] - x[pairs[1]]).norm(dim=-1)).abs().min(-1)
    assert away.values.max() < 1e-12
    assert len(away.indices.unique()) == 2000
    assert len(pairs[:, away.indices].unique()) == 100


def test_plates_are_points_and_one_point_has_no_distances():
    c = drawn().exp()
    flat, single = drawn(2, 3, 2), drawn(2)
    found = posterior(
        {"z": PoincareBall(c[..., None, None]).from_normal_coords(None, flat), "y": single},
        manifolds={"z": PoincareBall(c[..., None, None]), "y": Euclidean()},
    ).diagnostics()
    counts = {name: d.count for name, d in found.items()}
    assert counts == {
        "distances of z": 15,
        "radii of z": 6,
        "coordinates of z": 12,
        "radii of y": 1,
        "coordinates of y": 2,
    }
    torch.testing.assert_close(found["radii of z"].means, flat.norm(dim=-1).mean((0, 1)).flatten())


def test_points_of_different_spaces_have_no_distances():
    """The curvatures of a plate are fixed, or drawn."""
    v = drawn(3, 2)
    for c in (torch.tensor([0.5, 1.0, 2.0], dtype=F64), drawn(3).exp()):
        ball = PoincareBall(c)
        found = posterior({"z": ball.from_normal_coords(None, v)}, manifolds={"z": ball}, gauges=[["z"]]).diagnostics()
        assert list(found) == ["radii of z"]
        torch.testing.assert_close(found["radii of z"].means, v.norm(dim=-1).mean((0, 1)))


def test_coordinates_are_judged_only_if_they_are_determined():
    """Chains that are rotated against each other agree about all that is judged."""
    v = (torch.randn(6, 2, dtype=F64) + 0.1 * drawn(6, 2)) @ rotations(CHAINS, 1, 2).mT
    sphere = Sphere(1.0)
    draws = {"z": sphere.from_normal_coords(None, v)}
    free = posterior(draws, manifolds={"z": sphere}, gauges=[["z"]]).diagnostics()
    fixed = posterior(draws, manifolds={"z": sphere}).diagnostics()
    assert "coordinates of z" not in free
    assert max(d.r_hat for d in free.values()) < 1.5 < fixed["coordinates of z"].r_hat


def test_sites_that_rotate_together_are_judged_by_their_relative_orientation():
    """A site of a gauge that has no manifold is one of points of flat space."""
    v = torch.randn(6, 2, dtype=F64) + 0.1 * drawn(6, 2)
    turned = rotations(CHAINS, 1, 2).mT
    together = posterior({"z": v @ turned, "w": v[..., :3, :] @ turned}, gauges=[["z", "w"]]).diagnostics()
    apart = posterior({"z": v, "w": v[..., :3, :] @ turned}, gauges=[["z", "w"]]).diagnostics()
    name = "inner products of z and w"
    assert together[name].count == 18
    assert together[name].r_hat < 1.5 < apart[name].r_hat
    assert apart["distances of w"].r_hat < 1.5


def test_inner_products_of_many_points_are_spread():
    v, w = torch.randn(100, 1, dtype=F64), torch.randn(50, 1, dtype=F64)
    found = inner_products(v.expand(2, 4, 100, 1), w.expand(2, 4, 50, 1))
    assert (found.count, found.total) == (2000, 5000)
    away = (found.means[:, None] - (v * w.mT).flatten()).abs().min(-1)
    assert away.values.max() < 1e-12
    assert len(away.indices.unique()) == 2000
