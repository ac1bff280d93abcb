"""``examples/bayesian_tree.py`` with tiny settings: its data, its posterior, its calibration and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.helpers import same

TINY = "--chains 2 --warmup 3 --num-samples 6 --max-tree-depth 2 --start-steps 3 --num-steps 3 --threads 1"
SMALL = "--data balanced --height 2 --held-out 2 --observed 2"
BALL = PoincareBall(1.0)
DOUBLE: Any = {"dtype": torch.float64}


@pytest.fixture(scope="module")
def tree(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("bayesian_tree")


@pytest.fixture
def placing(tree: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that places nodes, with fewer candidates; pictures with coarser contours."""
    from tree_parts import pictures, placing

    monkeypatch.setattr(pictures, "GRID", 20)
    monkeypatch.setattr(placing, "CANDIDATES", 200)
    monkeypatch.setattr(placing, "KEPT", 60)
    return placing


def data_of(tree: ModuleType, options: str) -> Any:
    args = tree.parse(options.split())
    pyro.set_rng_seed(0)
    return tree.DATA[args.data](args)


@pytest.mark.parametrize(
    "options",
    [
        f"{SMALL} --inference nuts",
        f"{SMALL} --inference svi --chains 1 --branching 3 --seed 3",
        "--data prior --num-nodes 6 --replicas 3 --held-out 2",
    ],
)
def test_runs(
    options: str, tree: ModuleType, placing: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = tree.parse([*TINY.split(), *options.split(), "--output-dir", str(tmp_path)])
    result = tree.main(args)
    files = ["calibration.png", "embedding.png", "latent.html", "metrics.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 1000 for name in files)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["coverage"] == result["coverage"]
    assert stored["options"]["held_out"] == 2
    assert args.inference in stored
    assert ("r_hat" in stored["posterior"]) == (args.chains > 1)
    assert ("positions" in stored["coverage"]) == (args.data == "prior")
    nodes = {"prior": 6, "balanced": 4 if args.branching == 2 else 8}[args.data]
    assert stored["coverage"]["distances"]["nodes"] == nodes
    assert stored["effective_placings"] > 1
    printed = capsys.readouterr().out
    for level in ("50%", "80%", "90%"):
        share, _ = stored["coverage"]["distances"][level]
        assert 0 <= share <= 1
        assert f"{level}: {100 * share:.0f}" in printed


class TestData:
    def test_taxonomy(self, tree: ModuleType) -> None:
        data = data_of(tree, "--noise 1e-9")
        assert len(data.names) == len(set(data.names)) == 41
        graph = networkx.Graph(data.edges.tolist())
        assert networkx.is_tree(graph)
        hops = dict(networkx.all_pairs_shortest_path_length(graph))
        expected = torch.tensor([[hops[i][j] for j in range(41)] for i in range(41)], **DOUBLE)
        assert (data.y - expected).abs().max() < 1e-7
        assert data.names[0] == "animal"
        at = data.names.index
        assert hops[at("wolf")][at("cat")] == 2
        assert hops[at("wolf")][at("squid")] == 6

    @pytest.mark.parametrize("options", ["", "--data balanced", "--held-out 5 --observed 4"])
    def test_each_leaf_is_held_out_once(self, options: str, tree: ModuleType) -> None:
        data = data_of(tree, options)
        graph = networkx.Graph(data.edges.tolist())
        leaves = {node for node in graph if graph.degree[node] == 1}
        nodes = data.held_out.flatten().tolist()
        assert len(set(nodes)) == len(nodes) > len(leaves) - data.held_out.shape[1]
        assert set(nodes) <= leaves
        for reference, held_out in zip(data.reference.tolist(), data.held_out.tolist(), strict=True):
            assert sorted(reference + held_out) == list(range(len(data.names)))
            assert reference[:3] == [0, 1, 2]
        for row in data.seen.flatten(0, 1).tolist():
            assert len(set(row)) == data.seen.shape[-1]

    @pytest.mark.parametrize("options", ["--seed 0", "--data prior --num-nodes 5 --held-out 2 --replicas 4"])
    def test_distances_are_symmetric_and_noisy(self, options: str, tree: ModuleType) -> None:
        data = data_of(tree, options)
        assert torch.equal(data.y, data.y.mT)
        among, beside = data.among_reference(), data.of_held_out()
        fold, i, j = 1, 3 if among.shape[1] > 3 else 2, 1
        assert among[fold, i, j] == data.y[fold, data.reference[fold, i], data.reference[fold, j]]
        assert beside[fold, 1, i] == data.y[fold, data.held_out[fold, 1], data.reference[fold, i]]
        if data.truth is None:
            first, second = torch.triu_indices(41, 41, 1)
            noise = (data.y - data.y.round())[:, first, second]
            # Rounded noise of deviation 0.3: what is beyond half an edge has been folded in.
            assert 0.2 < noise.std() < 0.3

    def test_start_is_the_tree_in_the_gauge(self, tree: ModuleType) -> None:
        data = data_of(tree, "--data balanced")
        for fold, points in enumerate(data.start):
            place = {node: i for i, node in enumerate(data.reference[fold].tolist())}
            for first, second in data.edges.tolist():
                if first in place and second in place:
                    assert BALL.dist(points[place[first]], points[place[second]]).item() == pytest.approx(2.0)
            assert points[0].abs().max() == 0
            assert points[1, 0] > 0
            assert points[1, 1].abs() < 1e-12
            assert points[2, 1] > 0
        # The children of a node are spread around it: no two nodes in one place.
        distances = BALL.pairwise_dist(data.start, data.start) + 9 * torch.eye(data.start.shape[1])
        assert distances.min() > 1

    def test_mistakes(self, tree: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(ValueError, match="--held-out 30 is more than the 27 leaves"):
            data_of(tree, "--held-out 30")
        with pytest.raises(ValueError, match="--observed 39 is more than the 38 reference nodes"):
            data_of(tree, "--observed 39")
        for options, message in (
            ("--data prior --num-nodes 5 --held-out 3", "--held-out must leave three"),
            ("--data balanced --height 1", "--branching and --height must be at least 2"),
            ("--num-samples 3", "--num-samples must be at least 4"),
            ("--noise 0", "--noise: must be a positive float"),
        ):
            with pytest.raises(SystemExit):
                tree.parse(options.split())
            assert message in capsys.readouterr().err


class TestModel:
    def test_radius_has_the_law_of_the_prior(self, tree: ModuleType) -> None:
        trace = pyro.poutine.trace(tree.model).get_trace(4000, 3, 3.0)
        radius = trace.nodes["radius"]["value"]
        others = BALL.dist0(trace.nodes["z"]["value"]).flatten()
        levels = torch.tensor([0.1, 0.5, 0.9], **DOUBLE)
        expected = 3.0 * torch.sqrt(-2 * torch.log1p(-levels))
        for sample in (radius, others):
            same(sample.quantile(levels), expected, 0.1)
        points = trace.nodes["_RETURN"]["value"]
        assert points.shape == (4000, 3, 2)
        assert points[:, 0].abs().max() == 0
        same(BALL.dist0(points[:, 1]), radius, 1e-9)

    def test_fits_are_independent(self, tree: ModuleType) -> None:
        """The density of all fits is the product of theirs."""
        trace = pyro.poutine.trace(tree.model).get_trace(3, 5, 2.0)
        y = trace.nodes["y"]["value"]
        values = {name: trace.nodes[name]["value"] for name in ("length", "noise", "radius", "z")}

        def density(rows: slice) -> torch.Tensor:
            program = pyro.condition(tree.model, {name: value[rows] for name, value in values.items()})
            return pyro.poutine.trace(program).get_trace(len(y[rows]), 5, 2.0, y[rows]).log_prob_sum()

        same(density(slice(None)), sum(density(slice(i, i + 1)) for i in range(3)), 1e-9)
        # Every pair counts once.
        points = trace.nodes["_RETURN"]["value"]
        mean = values["length"][:, None, None] * BALL.pairwise_dist(points, points)
        first, second = torch.triu_indices(5, 5, 1)
        pairs = dist.Normal(mean, values["noise"][:, None, None]).log_prob(y)[:, first, second]
        same(trace.nodes["y"]["fn"].log_prob(y), pairs.sum(-1), 1e-9)

    def test_coordinates_of_nuts_do_not_change_the_posterior(self, tree: ModuleType, monkeypatch: Any) -> None:
        """The potential energy plus the Jacobian is the density, in the chart of the start as in that of the origin."""
        energies = []
        original = tree.MCMC.run

        def record(chain: Any, *arguments: Any) -> Any:
            kernel = chain.kernel
            kernel.setup(1, *arguments)
            v = {name: 0.1 + 0 * value for name, value in kernel.initial_params.items()}
            values = {name: kernel.transforms[name].inv(value) for name, value in v.items()}
            jacobian = sum(kernel.transforms[name].inv.log_abs_det_jacobian(v[name], values[name]).sum() for name in v)
            density = pyro.poutine.trace(pyro.condition(tree.model, values)).get_trace(*arguments).log_prob_sum()
            energies.append((kernel.potential_fn(v) + jacobian + density).item())
            kernel.cleanup()
            return original(chain, *arguments)

        monkeypatch.setattr(tree.MCMC, "run", record)
        args = tree.parse(f"{TINY} {SMALL}".split())
        pyro.set_rng_seed(0)
        data = tree.DATA[args.data](args)
        y = data.among_reference().repeat_interleave(2, 0)
        arguments = (len(y), y.shape[-1], args.prior_scale, y)
        start = tree.starting_point(data, arguments, args)
        samples, _ = tree.nuts(arguments, start, args)
        assert energies == pytest.approx([0.0], abs=1e-8)
        assert samples["z"].shape == (6, len(y), y.shape[-1] - 2, 2)
        assert BALL.contains(samples["z"]).all()

    def test_start_nears_a_mode(self, tree: ModuleType) -> None:
        found = []
        for steps in (0, 60):
            args = tree.parse(f"{SMALL} --chains 1 --start-steps {steps}".split())
            pyro.set_rng_seed(0)
            data = tree.DATA[args.data](args)
            y = data.among_reference()
            arguments = (len(y), y.shape[-1], args.prior_scale, y)
            start = tree.starting_point(data, arguments, args)
            program = pyro.condition(tree.model, start)
            found.append(pyro.poutine.trace(program).get_trace(*arguments).log_prob_sum())
        assert found[1] > found[0] + 5


class TestPlacing:
    def test_as_an_integral_on_a_grid(
        self, tree: ModuleType, placing: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(placing, "CANDIDATES", 400_000)
        monkeypatch.setattr(placing, "KEPT", 4000)
        data = data_of(tree, "--data prior --num-nodes 6 --replicas 1 --held-out 1 --prior-scale 2")
        # Reference nodes that are known for certain: one sample.
        points = data.truth[:, data.reference[0]][None, None]
        samples = {name: torch.full((1, 1, 1), value, **DOUBLE) for name, value in (("length", 0.6), ("noise", 0.3))}
        placed = placing.place(data, 0, 0, samples, points, 2.0)
        axis = torch.linspace(-8, 8, 401, **DOUBLE)
        v = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).flatten(0, 1)
        x = points[0, 0, 0, data.seen[0, 0]]
        mean = 0.6 * BALL.pairwise_dist(BALL.from_normal_coords(None, v), x)
        likelihood = dist.Normal(mean, 0.3).log_prob(data.of_held_out()[0, 0, data.seen[0, 0]]).sum(-1)
        # In normal coordinates the wrapped normal at the origin is a Gaussian.
        weights = (likelihood + dist.Normal(0.0, 2.0).log_prob(v).sum(-1)).softmax(0)[:, None]
        mean_of_grid = (weights * v).sum(0)
        deviation = (weights * (v - mean_of_grid).square()).sum(0).sqrt()
        found = BALL.to_normal_coords(None, placed.z)
        assert placed.effective > 500
        error = 5 * deviation / math.sqrt(min(placed.effective, 4000))
        assert ((found.mean(0) - mean_of_grid).abs() < error).all()
        same(found.std(0), deviation, 0.2)

    def test_nodes_that_fit_the_distances_have_more_weight(self, tree: ModuleType, placing: ModuleType) -> None:
        """Of two draws of the reference nodes, that which is far from the observed distances is hardly chosen."""
        data = data_of(tree, "--data prior --num-nodes 6 --replicas 1 --held-out 1 --prior-scale 2")
        right = data.truth[0, data.reference[0]]
        far = BALL.mobius_scalar_mul(3.0, right)
        points = torch.stack([right, far])[None, :, None]
        samples = {name: torch.full((1, 2, 1), value, **DOUBLE) for name, value in (("length", 0.6), ("noise", 0.3))}
        samples["length"][0, 1] = 6.0
        placed = placing.place(data, 0, 0, samples, points, 2.0)
        assert ((placed.length == 0.6) == (placed.points == right).all(-1).all(-1)).all()
        assert (placed.length == 0.6).double().mean() > 0.9

        # Two that are as good as each other are chosen alike, each with its own values.
        points = torch.stack([right, right.flip(-1)])[None, :, None]
        samples["length"][0, 1] = 0.6
        samples["noise"][0, 1] = 0.3001
        placed = placing.place(data, 0, 0, samples, points, 2.0)
        first = (placed.points == right).all(-1).all(-1)
        assert 0.25 < first.double().mean() < 0.75
        assert torch.equal(placed.noise == 0.3, first)


class TestCalibration:
    def test_levels_of_distances(self, tree: ModuleType, placing: ModuleType) -> None:
        data = data_of(tree, "--data prior --num-nodes 6 --replicas 1 --held-out 1")
        points = data.truth[0, data.reference[0]].expand(50, -1, -1)
        z = data.truth[0, 5].expand(50, -1)
        exact = BALL.dist(z[:1], points[0])
        for shift, level in ((0.0, 0.0), (0.5, 0.6827), (-1.0, 0.9545)):
            data.y[0, 5, data.reference[0]] = 0.6 * exact + shift
            placed = placing.Placed(z, points, torch.full((50,), 0.6, **DOUBLE), torch.full((50,), 0.5, **DOUBLE), 50.0)
            levels = tree.distance_levels(data, 0, 0, placed)
            assert levels.isnan().nonzero().flatten().tolist() == sorted(data.seen[0, 0].tolist())
            assert (levels[levels.isfinite()] - level).abs().max() < 1e-4

    def test_levels_of_positions(self, tree: ModuleType, placing: ModuleType) -> None:
        centre = torch.tensor([0.5, 0.2], **DOUBLE)
        law = hdist.WrappedNormal(centre, 0.5, BALL)
        one = torch.ones(2000, **DOUBLE)
        placed = placing.Placed(law.sample((2000,)), one[:, None, None], one, one, 2000.0)
        # The share of a Gaussian within r deviations of its mean is 1 - exp(-r^2 / 2).
        for radius in (0.0, 0.5, 1.2, 2.0, 9.0):
            v = torch.tensor([0.6, -0.8], **DOUBLE) * radius * 0.5
            level = tree.position_level(placed, BALL.from_normal_coords(centre, v))
            assert level.shape == (1,)
            assert abs(level.item() - (1 - math.exp(-(radius**2) / 2))) < 0.15

    @pytest.mark.parametrize("pieces", [1, 2])
    def test_regions_hold_what_they_say(self, pieces: int, tree: ModuleType) -> None:
        from tree_parts.calibration import region

        centres = torch.tensor([[0.9, 0.0], [0.0, -0.95]], **DOUBLE)[torch.arange(500) % pieces]
        law = hdist.WrappedNormal(centres, torch.tensor([0.3, 1.0], **DOUBLE), BALL)
        density, values = region(law.sample()[torch.randperm(500)])
        assert values.shape == (250,)
        fresh = density(law.sample())
        for level in (0.5, 0.8, 0.9):
            share = (fresh > values.quantile(1 - level)).double().mean()
            assert abs(share - level) < 0.1
        # The middle between two pieces belongs to none.
        middle = density(BALL.frechet_mean(centres)[None])
        assert (middle < values.quantile(0.1)).item() == (pieces == 2)

    def test_coverage(self, tree: ModuleType) -> None:
        nan = math.nan
        levels = torch.tensor([[0.1, 0.6, nan], [0.85, 0.95, 0.2]], **DOUBLE)
        result = tree.coverage(levels)
        assert (result["count"], result["nodes"]) == (5, 2)
        assert [result[name][0] for name in ("50%", "80%", "90%")] == pytest.approx([0.4, 0.6, 0.8])
        # One half and one third: their deviation over the root of two.
        assert result["50%"][1] == pytest.approx(abs(1 / 2 - 1 / 3) / 2)


@pytest.mark.slow
def test_posterior_is_calibrated(tree: ModuleType, tmp_path: Path) -> None:
    """On data of the model itself the regions hold the truth as often as they say."""
    options = "--data prior --replicas 20 --num-nodes 8 --warmup 150 --num-samples 150 --max-tree-depth 5 --threads 1"
    result = tree.main(tree.parse([*options.split(), "--output-dir", str(tmp_path)]))
    assert result["posterior"]["r_hat"]["99%"] < 1.1
    for row in result["coverage"].values():
        for name, level in (("50%", 0.5), ("80%", 0.8), ("90%", 0.9)):
            share, error = row[name]
            assert abs(share - level) < 4 * max(error, 0.02)
