"""Points from their distances."""

import math

import networkx
import pytest
import torch

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.analysis import hyperbolic_mds, mds
from pyro_hyperbolic.datasets import graph_distances
from pyro_hyperbolic.geometry import from_signature
from tests.helpers import same


def points(space, dim, count=20, spread=0.8):
    generator = torch.Generator().manual_seed(dim)
    return space.from_normal_coords(None, spread * torch.randn(count, dim, dtype=torch.float64, generator=generator))


def misfit(space, found, distances):
    return (space.pairwise_dist(found, found) - distances).square().mean().sqrt().item()


EQUAL = torch.ones(5, 5).fill_diagonal_(0)


def exact_distances(v, c):
    """Between points with normal coordinates ``v`` at the origin, by a law of cosines without a difference."""
    r, root = v.norm(dim=-1), math.sqrt(c)
    a, b = root * r, root * r.unsqueeze(-1)
    apart = (v / r.unsqueeze(-1)).unsqueeze(-2) - v / r.unsqueeze(-1)
    square = ((a - b) / 2).sinh().square() + a.sinh() * b.sinh() * apart.square().sum(-1) / 4
    return 2 * square.sqrt().asinh() / root


CURVATURES = [1e-16, 1e-14, 1e-12, 1e-8, 1e-4, 1e-2, 0.05, 0.2, 1.0, 5.0, 1e2]


@pytest.mark.parametrize("chart", [PoincareBall, Lorentz, lambda c: Stereographic(-c)])
@pytest.mark.parametrize("c", [*CURVATURES, torch.tensor([0.7], dtype=torch.float64)])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_exact_distances(chart, c, dim):
    space = chart(c)
    v = points(Euclidean(), dim, spread=0.8 if c < 10 else 0.2)
    distances = exact_distances(v, float(c))
    found = hyperbolic_mds(distances, dim, space)
    assert found.shape == (20, space.ambient_dim(dim))
    same(space.pairwise_dist(found, found), distances, 1e-8 if c > 10 else 1e-11)
    # The centre of the hyperboloid's points is the origin.
    x = found if chart is Lorentz else Lorentz(c).from_poincare(found)
    same(x.mean(0)[1:], torch.zeros(dim), 1e-9)


@pytest.mark.parametrize("c", [1e-3, 0.05])
def test_small_curvatures_are_no_other_method(c):
    """Of distances that fit no space, too: the eigenvectors are the same, with fewer digits."""
    noise = torch.rand(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).triu(1)
    distances, curvature = noise + noise.mT, torch.tensor(c, dtype=torch.float64)
    found = [method(distances, 2, curvature) for method in (mds._nearly_flat, mds._curved)]
    same(*[torch.cdist(v, v) for v in found], 1e-9)


@pytest.mark.parametrize("space", [PoincareBall(0.0), Stereographic(0.0), Euclidean()], ids=repr)
def test_flat_space(space):
    x = points(space, 3)
    distances = space.pairwise_dist(x, x)
    same(space.pairwise_dist(*[hyperbolic_mds(distances, 3, space)] * 2), distances, 1e-9)


def test_noise_is_passed_on_but_not_blown_up():
    space = PoincareBall(1.0)
    x = points(space, 2)
    distances = space.pairwise_dist(x, x)
    noise = 0.05 * torch.randn(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).triu(1)
    noisy = (distances + noise + noise.mT).clamp(min=0)
    assert misfit(space, hyperbolic_mds(noisy, 2, space), distances) < 0.1


def test_a_tree_fits_a_curved_space_better():
    # Three legs: both eigenvalues of the pair that their symmetry makes are taken. In a binary tree the second and the
    # third are equal, and rounding would choose among their eigenvectors.
    tree = networkx.Graph()
    for leg in range(3):
        networkx.add_path(tree, [0, *range(1 + 4 * leg, 5 + 4 * leg)])
    distances = graph_distances(tree)
    curved, flat = PoincareBall(1.0), PoincareBall(0.0)
    errors = [misfit(space, hyperbolic_mds(distances, 2, space), distances) for space in (curved, flat)]
    assert errors[0] < 0.25 * errors[1]


def test_dtypes():
    space = PoincareBall(1.0)
    x = points(space, 2)
    distances = space.pairwise_dist(x, x)
    assert hyperbolic_mds(distances.float(), 2, space).dtype == torch.float32
    assert hyperbolic_mds(graph_distances(networkx.path_graph(5)).long(), 2, space).dtype == torch.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 2), 2, PoincareBall(1.0)), "distances must be a square tensor"),
        ((EQUAL[:1, :1], 1, PoincareBall(1.0)), "distances must be of at least 2 points, got 1"),
        ((EQUAL, 5, PoincareBall(1.0)), "dim must be less than the number of points, 5, got 5; take a smaller dim or"),
        ((EQUAL, 0, PoincareBall(1.0)), "dim must be a positive integer, got 0"),
        ((EQUAL, 2, PoincareBall(torch.ones(2))), "manifold must have one curvature"),
        ((EQUAL, 2, 1.0), "manifold must be a Manifold, got 1.0"),
        ((EQUAL, 2, Sphere(1.0)), r"manifold must be hyperbolic or flat, and no product, got Sphere\(c=1.0\)"),
        (
            (EQUAL, 2, Stereographic(torch.tensor(0.5))),
            r"hyperbolic or flat, and no product, got Stereographic\(k=0.5\)",
        ),
        (
            (60 * EQUAL, 2, PoincareBall(1.0)),
            r"distances must be smaller for torch.float32 .* end at 15.25 .*double\(\)",
        ),
        ((torch.tensor([[0.0, 80.0], [80.0, 0.0]]).double(), 1, PoincareBall(1.0)), "end at 35.3.*, got points at 40;"),
        ((EQUAL, 2, from_signature("h1,e1")), "hyperbolic or flat, and no product, got Product"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        hyperbolic_mds(*arguments)
