"""Gromov's delta: known spaces, brute force, invariances, samples, and bad input."""

from __future__ import annotations

import itertools
import math
import sys

import networkx
import pytest
import torch

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import delta_hyperbolicity, four_point_deltas
from tests.helpers import DTYPES, ROUNDING, LargestStorage

gromov = sys.modules[delta_hyperbolicity.__module__]


def hops(graph):
    return torch.from_numpy(networkx.floyd_warshall_numpy(graph))


def euclidean(x):
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def cloud(count=40, dim=3, dtype=torch.float64, seed=0):
    return torch.randn(count, dim, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def by_definition(distances):
    """The delta of every quadruple, from the three sums."""
    d = distances.tolist()
    deltas = []
    for x, y, z, w in itertools.combinations(range(len(d)), 4):
        sums = sorted([d[x][y] + d[z][w], d[x][z] + d[y][w], d[x][w] + d[y][z]])
        deltas.append(0.5 * (sums[2] - sums[1]))
    return deltas


@pytest.mark.parametrize("n", range(4, 18))
def test_cycles(n):
    p, rest = divmod(n, 4)
    assert delta_hyperbolicity(hops(networkx.cycle_graph(n))).delta == (p - 0.5 if rest == 1 else p)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 3), (5, 5), (3, 6), (1, 8)])
def test_grids_grow(rows, columns):
    result = delta_hyperbolicity(hops(networkx.grid_2d_graph(rows, columns)))
    assert result.delta == min(rows, columns) - 1
    assert result.diameter == rows + columns - 2
    assert result.relative == 2 * result.delta / result.diameter


@pytest.mark.parametrize("seed", range(5))
def test_trees_are_0_whatever_the_lengths_of_their_edges(seed):
    tree = networkx.random_labeled_tree(25, seed=seed)
    result = delta_hyperbolicity(hops(tree))
    assert result.delta == result.mean == result.relative == 0
    generator = torch.Generator().manual_seed(seed)
    for *_, data in tree.edges(data=True):
        data["weight"] = torch.rand((), generator=generator, dtype=torch.float64).item()
    result = delta_hyperbolicity(hops(tree))
    assert result.relative <= ROUNDING[torch.float64]


@pytest.mark.parametrize(
    "graph", [networkx.complete_graph(9), networkx.star_graph(9), networkx.windmill_graph(4, 5)], ids=str
)
def test_block_graphs_are_0(graph):
    assert delta_hyperbolicity(hops(graph)).delta == 0


def test_a_graph_has_the_delta_of_its_worst_block():
    graph = networkx.gnm_random_graph(45, 52, seed=3)
    graph = graph.subgraph(max(networkx.connected_components(graph), key=len))
    blocks = [graph.subgraph(block) for block in networkx.biconnected_components(graph) if len(block) > 3]
    assert blocks
    assert len(blocks[0]) < len(graph)
    assert delta_hyperbolicity(hops(graph)).delta == max(delta_hyperbolicity(hops(block)).delta for block in blocks) > 0


@pytest.mark.parametrize("distances", [euclidean(cloud(15)), hops(networkx.petersen_graph())], ids=["cloud", "graph"])
def test_every_quadruple_once(distances):
    deltas = by_definition(distances)
    result = delta_hyperbolicity(distances)
    assert result.num_quadruples == len(deltas)
    assert result.delta == pytest.approx(max(deltas), rel=1e-12)
    assert result.mean == pytest.approx(math.fsum(deltas) / len(deltas), rel=1e-12)
    assert result.is_exact
    assert result.standard_error == 0
    pairs = [distances[i, j].item() for i, j in itertools.combinations(range(len(distances)), 2)]
    assert result.diameter == max(pairs)
    assert result.mean_distance == pytest.approx(math.fsum(pairs) / len(pairs), rel=1e-12)
    assert result.relative_mean == pytest.approx(2 * result.mean / result.mean_distance)


def test_the_square_is_farthest_from_a_tree():
    result = delta_hyperbolicity(hops(networkx.cycle_graph(4)))
    assert (result.relative, result.relative_mean) == (1.0, 1.5)
    for seed in range(50):
        result = delta_hyperbolicity(hops(networkx.connected_watts_strogatz_graph(6, 2, 0.5, seed=seed)))
        assert result.relative <= 1
        assert result.relative_mean <= 1.5


def test_four_points():
    for seed in range(50):
        distances = euclidean(cloud(4, 2, seed=seed))
        (delta,) = by_definition(distances)
        assert delta_hyperbolicity(distances).delta == pytest.approx(delta, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("c", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
def test_hyperbolic_space_is_bounded_by_log_2(chart, c):
    # B. Nica, J. Spakula, Strongly hyperbolic spaces (2016): log 2 is the least bound at curvature -1.
    manifold = chart(c)
    for seed, spread in enumerate((0.5, 2.0, 4.0)):
        x = manifold.from_normal_coords(None, spread / math.sqrt(c) * cloud(30, 2, seed=seed))
        assert 0 < delta_hyperbolicity(manifold.pairwise_dist(x, x)).delta * math.sqrt(c) < math.log(2)
    axes = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
    corners = manifold.from_normal_coords(None, 8 / math.sqrt(c) * axes)
    delta = delta_hyperbolicity(manifold.pairwise_dist(corners, corners)).delta
    assert delta * math.sqrt(c) == pytest.approx(math.log(2), abs=1e-6)


def test_the_euclidean_plane_has_no_bound():
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    for side in (1.0, 1000.0):
        result = delta_hyperbolicity(euclidean(side * square))
        assert result.delta == pytest.approx(side * (math.sqrt(2) - 1))
        assert result.relative == pytest.approx(2 - math.sqrt(2))


@pytest.mark.parametrize("num_samples", [None, 2000])
def test_relative_values_have_no_unit(num_samples):
    distances = euclidean(cloud())
    one, other = (delta_hyperbolicity(unit * distances, num_samples) for unit in (1.0, 1e3))
    assert other.delta == pytest.approx(1e3 * one.delta)
    assert other.mean == pytest.approx(1e3 * one.mean)
    assert other.relative == pytest.approx(one.relative)
    assert other.relative_mean == pytest.approx(one.relative_mean)


def test_the_order_of_the_points_does_not_matter():
    distances = euclidean(cloud())
    order = torch.randperm(len(distances), generator=torch.Generator().manual_seed(0))
    one, other = delta_hyperbolicity(distances), delta_hyperbolicity(distances[order][:, order])
    assert other.delta == pytest.approx(one.delta, rel=1e-12)
    assert other.mean == pytest.approx(one.mean, rel=1e-12)


@pytest.mark.parametrize("num_samples", [None, 5000])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16, torch.int64], ids=str)
def test_dtypes(dtype, num_samples):
    distances = euclidean(cloud())
    if not dtype.is_floating_point:
        distances = (100 * distances).round()
    expected = delta_hyperbolicity(distances, num_samples)
    result = delta_hyperbolicity(distances.to(dtype), num_samples)
    error = 8 * torch.finfo(dtype).eps if dtype.is_floating_point else 1e-12
    assert result.delta == pytest.approx(expected.delta, rel=error)
    assert result.mean == pytest.approx(expected.mean, rel=error)


@pytest.mark.parametrize("distances", [euclidean(cloud(30)), hops(networkx.cycle_graph(21))], ids=["cloud", "graph"])
def test_sample_estimates_the_mean_within_its_error(distances):
    exact = delta_hyperbolicity(distances)
    scores = []
    for seed in range(40):
        result = delta_hyperbolicity(distances, num_samples=500, seed=seed)
        assert not result.is_exact
        assert result.num_quadruples == 500
        assert 0 < result.delta <= exact.delta * (1 + 1e-12)
        scores.append((result.mean - exact.mean) / result.standard_error)
    scores = torch.tensor(scores)
    assert scores.mean().abs() < 3 / math.sqrt(40)
    assert 0.7 < scores.std() < 1.3


def test_sample_finds_all_quadruples_equally_often():
    chosen = gromov._different_points(6, 60_000, torch.Generator().manual_seed(0))
    assert chosen.shape == (60_000, 4)
    found, counts = chosen.sort(-1).values.unique(dim=0, return_counts=True)
    assert found.tolist() == [list(q) for q in itertools.combinations(range(6), 4)]
    expected = 60_000 / 15
    # 14 degrees of freedom: 36.1 is the 99.9% quantile.
    assert ((counts - expected).square() / expected).sum() < 36.1


def test_sample_is_a_function_of_its_seed():
    distances = euclidean(cloud())
    torch.manual_seed(7)
    state = torch.get_rng_state()
    one = four_point_deltas(distances, 300, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, four_point_deltas(distances, 300, seed=1))
    assert not torch.equal(one, four_point_deltas(distances, 300, seed=2))
    summary = delta_hyperbolicity(distances, 300, seed=1)
    assert summary.delta == one.max().item()
    assert summary.mean == one.mean().item()
    assert summary.standard_error == pytest.approx(one.std().item() / math.sqrt(300))


def test_deltas_of_a_sample_are_those_of_the_definition():
    distances = euclidean(cloud(8))
    known = torch.tensor(by_definition(distances), dtype=torch.float64)
    gap = (four_point_deltas(distances, 500).unsqueeze(-1) - known).abs().amin(-1)
    assert gap.max() <= ROUNDING[torch.float64] * distances.max()


def test_memory_does_not_grow_with_the_quadruples(monkeypatch):
    distances = euclidean(cloud(12))
    with LargestStorage() as exact:
        delta_hyperbolicity(distances)
    assert exact.numel <= 12**2
    whole = four_point_deltas(distances, 20_003)
    monkeypatch.setattr(gromov, "_CHUNK", 1000)
    with LargestStorage() as sampled:
        deltas = four_point_deltas(distances, 20_003)
    assert deltas.shape == whole.shape == (20_003,)
    assert sampled.numel == 20_003  # the result; every piece is smaller


def test_one_sample_has_no_error_bar():
    assert delta_hyperbolicity(euclidean(cloud()), num_samples=1).standard_error == math.inf


def test_many_points_need_a_sample():
    line = torch.arange(gromov._MOST_POINTS + 1.0)
    distances = (line.unsqueeze(-1) - line).abs()
    with pytest.raises(ValueError, match=r"num_samples must be given for more than 600 points.*num_samples=1_000_000"):
        delta_hyperbolicity(distances)
    assert delta_hyperbolicity(distances, num_samples=100).delta == 0


def changed(row, column, value):
    distances = euclidean(cloud(6))
    distances[row, column] = value
    return distances


@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (torch.zeros(3, 4), r"square tensor of all pairs, got \(3, 4\); for points x use torch.cdist"),
        (torch.zeros(2, 4, 4), r"square tensor.*got \(2, 4, 4\)"),
        ([[0.0, 1.0], [1.0, 0.0]], "square tensor.*got list"),
        (torch.ones(5, 5, dtype=torch.bool), "real numbers, got torch.bool"),
        (torch.ones(5, 5, dtype=torch.complex64), "real numbers, got torch.complex64"),
        (euclidean(cloud(3)), "at least 4 points, got 3"),
        (changed(1, 2, math.nan), "finite, got 1 entries that are not"),
        (changed(1, 2, math.inf), "finite.*one component of a graph"),
        (changed(1, 2, -1.0), "not be negative, got -1"),
        (changed(2, 2, 0.5), "0 on the diagonal, got 0.5"),
        (changed(1, 2, 9.0), "symmetric, got a difference of"),
        (torch.zeros(5, 5), "not all be 0"),
    ],
)
def test_bad_distances(distances, message):
    for call in (delta_hyperbolicity, lambda d: four_point_deltas(d, 10)):
        with pytest.raises(ValueError, match=f"distances must .*{message}"):
            call(distances)


@pytest.mark.parametrize("num_samples", [0, -1, 2.5, True])
def test_bad_num_samples(num_samples):
    with pytest.raises(ValueError, match="num_samples must be a positive integer, got"):
        delta_hyperbolicity(euclidean(cloud(6)), num_samples=num_samples)


def test_bad_seed():
    with pytest.raises(ValueError, match="seed must be an integer, got 'a'"):
        four_point_deltas(euclidean(cloud(6)), 10, seed="a")


def test_rounding_is_no_asymmetry():
    distances = euclidean(cloud(6, dtype=torch.float32))
    distances[1, 2] *= 1 + 1e-4
    assert delta_hyperbolicity(distances).delta > 0
    with pytest.raises(ValueError, match="symmetric"):
        delta_hyperbolicity(distances.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_distances_from_a_matrix_product_will_do(dtype):
    # Their diagonal is not 0, but the root of a rounding error.
    x = 3 + cloud(60, 5, dtype)
    distances = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist")
    assert distances.diagonal().max() > 0
    assert delta_hyperbolicity(distances).delta == pytest.approx(delta_hyperbolicity(euclidean(x)).delta, rel=1e-3)
