"""``examples/bayesian_tree.py`` with tiny settings: its data, its posterior, its calibration and its files."""

from __future__ import annotations

import argparse
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
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.helpers import same

TINY = "--chains 2 --warmup 3 --num-samples 6 --num-steps 3"
BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def _double() -> None:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    """With fewer steps, places and draws."""
    module = load_example("bayesian_tree")
    module.START_STEPS, module.TREE_DEPTH, module.CANDIDATES, module.KEPT = 3, 2, 200, 100  # type: ignore[attr-defined]
    module.RESOLUTION = 20  # type: ignore[attr-defined]
    return module


def arguments_of(tree: Any, chains: int) -> tuple[int, int, Tensor]:
    return chains, tree.inner, tree.y[: tree.inner, : tree.inner].expand(chains, -1, -1)


@pytest.mark.parametrize("options", ["--inference nuts", "--observed 5 --chains 1 --seed 3"])
def test_runs(options: str, example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main([*TINY.split(), *options.split(), "--output-dir", str(tmp_path)])
    files = ["calibration.png", "embedding.png", "latent.html", "metrics.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 1000 for name in files)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["n_eff of placing"] == result["n_eff of placing"] > 1
    printed = capsys.readouterr().out
    unseen = 27 * (14 - stored["options"]["observed"])
    assert f"{unseen} unseen distances of 27 leaves" in printed
    for name, (share, error) in stored["coverage"].items():
        assert 0 <= share <= 1
        assert f"{name}: {100 * share:.0f} ± {100 * error:.0f}%" in printed


def test_taxonomy(example: ModuleType) -> None:
    tree = example.taxonomy(noise=1e-9)
    assert len(tree.names) == len(set(tree.names)) == 41
    graph = networkx.Graph([(i, p) for i, p in enumerate(tree.parents.tolist()) if p >= 0])
    assert networkx.is_tree(graph)
    hops = torch.from_numpy(networkx.floyd_warshall_numpy(graph, nodelist=range(41)))
    assert (tree.y - hops).abs().max() < 1e-7
    assert [tree.names[i] for i in range(3)] == example.FIXED
    assert {i for i in graph if graph.degree[i] == 1} == set(range(tree.inner, 41))
    at = tree.names.index
    assert hops[at("wolf"), at("cat")] == 2
    assert hops[at("wolf"), at("squid")] == 6
    noisy = example.taxonomy(noise=0.3).y
    assert torch.equal(noisy, noisy.mT)
    first, second = torch.triu_indices(41, 41, 1)
    assert 0.27 < (noisy - hops)[first, second].std() < 0.33


def test_points_are_put_in_place_by_an_isometry(example: ModuleType) -> None:
    points = hdist.WrappedNormal(torch.zeros(50, 5, 2), 1.0, BALL).sample()
    points[:, 0] = 0
    placed = example.in_place(points)
    same(BALL.pairwise_dist(placed, placed), BALL.pairwise_dist(points, points), 1e-9)
    same(placed[:, 1], torch.stack([points[:, 1].norm(dim=-1), torch.zeros(50)], -1), 1e-12)
    assert (placed[:, 2, 1] > 0).all()


class TestModel:
    def test_radius_has_the_distribution_of_the_prior(self, example: ModuleType) -> None:
        trace = pyro.poutine.trace(example.model).get_trace(4000, 3)
        radius = trace.nodes["radius"]["value"]
        others = BALL.dist0(trace.nodes["z"]["value"]).flatten()
        levels = torch.tensor([0.1, 0.5, 0.9])
        expected = 3.0 * torch.sqrt(-2 * torch.log1p(-levels))
        for sample in (radius, others):
            same(sample.quantile(levels), expected, 0.1)
        points = trace.nodes["_RETURN"]["value"]
        assert points[:, 0].abs().max() == 0
        same(BALL.dist0(points[:, 1]), radius, 1e-9)

    def test_chains_are_independent(self, example: ModuleType) -> None:
        """The density of all chains is the product of theirs."""
        trace = pyro.poutine.trace(example.model).get_trace(3, 5)
        y = trace.nodes["y"]["value"]
        values = {name: trace.nodes[name]["value"] for name in ("length", "noise", "radius", "z")}

        def density(rows: slice) -> Tensor:
            program = pyro.condition(example.model, {name: value[rows] for name, value in values.items()})
            return pyro.poutine.trace(program).get_trace(len(y[rows]), 5, y[rows]).log_prob_sum()

        same(density(slice(None)), sum(density(slice(i, i + 1)) for i in range(3)), 1e-9)
        # Every pair counts once.
        points = trace.nodes["_RETURN"]["value"]
        mean = values["length"][:, None, None] * BALL.pairwise_dist(points, points)
        first, second = torch.triu_indices(5, 5, 1)
        pairs = dist.Normal(mean, values["noise"][:, None, None]).log_prob(y)[:, first, second]
        same(trace.nodes["y"]["fn"].log_prob(y), pairs.sum(-1), 1e-9)

    def test_coordinates_of_nuts_do_not_change_the_posterior(self, example: ModuleType, monkeypatch: Any) -> None:
        """The potential energy plus the Jacobian is the density, in the chart of the start as in that of the origin."""
        energies = []
        original = example.MCMC.run

        def check(chain: Any, *arguments: Any) -> Any:
            kernel = chain.kernel
            kernel.setup(1, *arguments)
            v = {name: 0.1 + 0 * value for name, value in kernel.initial_params.items()}
            values = {name: kernel.transforms[name].inv(value) for name, value in v.items()}
            jacobian = sum(kernel.transforms[name].inv.log_abs_det_jacobian(v[name], values[name]).sum() for name in v)
            density = pyro.poutine.trace(pyro.condition(example.model, values)).get_trace(*arguments).log_prob_sum()
            energies.append((kernel.potential_fn(v) + jacobian + density).item())
            kernel.cleanup()
            return original(chain, *arguments)

        monkeypatch.setattr(example.MCMC, "run", check)
        tree = example.taxonomy(0.3)
        arguments = arguments_of(tree, 2)
        args = argparse.Namespace(num_samples=4, warmup=2)
        samples = example.nuts(arguments, example.starting_point(tree, arguments), args)
        assert energies == pytest.approx([0.0], abs=1e-7)
        assert samples["z"].shape == (4, 2, tree.inner - 2, 2)
        assert BALL.contains(samples["z"]).all()

    def test_start_nears_a_mode(self, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        tree, found = example.taxonomy(0.3), []
        arguments = arguments_of(tree, 1)
        for steps in (1, 60):
            monkeypatch.setattr(example, "START_STEPS", steps)
            pyro.set_rng_seed(0)
            program = pyro.condition(example.model, example.starting_point(tree, arguments))
            found.append(pyro.poutine.trace(program).get_trace(*arguments).log_prob_sum())
        assert found[1] > found[0] + 5


def leaf_of(
    example: ModuleType, points: Tensor, z: Tensor, length: Any = 0.6, noise: Any = 0.3, shift: float = 0.0
) -> Any:
    """A leaf at ``z`` whose distances to the nodes ``(S, R, 2)`` are exact but for a shift; three are known."""
    draws = len(points)
    y = 0.6 * BALL.dist(z, points[0]) + shift
    length, noise = (torch.as_tensor(value).expand(draws) for value in (length, noise))
    return example.Leaf(y, torch.tensor([0, 2, 3]), points, length, noise)


class TestLeaf:
    def test_as_an_integral_on_a_grid(self, example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(example, "CANDIDATES", 400_000)
        monkeypatch.setattr(example, "KEPT", 4000)
        # Inner nodes that are known for certain: one draw.
        points = hdist.WrappedNormal(torch.zeros(1, 6, 2), 2.0, BALL).sample()
        leaf = leaf_of(example, points, torch.tensor([0.5, -0.4]))
        axis = torch.linspace(-8, 8, 401)
        v = torch.cartesian_prod(axis, axis)
        z = BALL.from_normal_coords(None, v)
        # In normal coordinates the wrapped normal at the origin is a Gaussian.
        likelihood = dist.Normal(0.6 * BALL.pairwise_dist(z, points[0, leaf.seen]), 0.3).log_prob(leaf.y[leaf.seen])
        log_joint = likelihood.sum(-1) + dist.Normal(0.0, 3.0).log_prob(v).sum(-1)
        weights = log_joint.softmax(0)[:, None]
        mean = (weights * v).sum(0)
        deviation = (weights * (v - mean).square()).sum(0).sqrt()
        found = BALL.to_normal_coords(None, leaf.z)
        assert leaf.n_eff > 500
        assert ((found.mean(0) - mean).abs() < 5 * deviation / math.sqrt(min(leaf.n_eff, 4000))).all()
        same(found.std(0), deviation, 0.2)
        some = torch.arange(0, len(z), 1001)
        jacobian = hdist.ExpMapTransform(BALL).log_abs_det_jacobian(v[some], z[some])
        gaps = leaf.log_density(z[some]) + jacobian - log_joint[some]
        assert (gaps - gaps[0]).abs().max() < 1e-6

    def test_draws_that_fit_the_distances_have_more_weight(self, example: ModuleType) -> None:
        """Of two draws of the inner nodes, that which is far from the known distances is hardly chosen."""
        right = hdist.WrappedNormal(torch.zeros(5, 2), 1.0, BALL).sample()
        z = torch.tensor([0.3, 0.3])
        far = torch.stack([right, BALL.mobius_scalar_mul(3.0, right)])
        leaf = leaf_of(example, far, z, length=torch.tensor([0.6, 6.0]))
        assert (leaf.draw == 0).double().mean() > 0.9
        # Two that are as good as each other are chosen alike.
        leaf = leaf_of(example, torch.stack([right, right]), z)
        assert 0.25 < (leaf.draw == 0).double().mean() < 0.75

    @pytest.mark.parametrize(("shift", "level"), [(0.0, 0.0), (0.5, 0.6827), (-1.0, 0.9545)])
    def test_levels(self, shift: float, level: float, example: ModuleType) -> None:
        points = hdist.WrappedNormal(torch.zeros(5, 2), 1.0, BALL).sample().expand(50, -1, -1)
        z = torch.tensor([0.3, 0.3])
        leaf = leaf_of(example, points, z, noise=0.5, shift=shift)
        leaf.z = z.expand_as(leaf.z)
        levels = leaf.levels()
        assert levels.isnan().nonzero().flatten().tolist() == [0, 2, 3]
        assert (levels[levels.isfinite()] - level).abs().max() < 1e-4


def test_coverage(example: ModuleType) -> None:
    levels = torch.tensor([[0.1, 0.6, math.nan], [0.85, 0.95, 0.2]])
    share, error = example.coverage(levels, torch.tensor([0.5, 0.8, 0.9]))
    assert share.tolist() == pytest.approx([0.4, 0.6, 0.8])
    # One half and one third: their deviation over the root of two.
    assert error[0].item() == pytest.approx(abs(1 / 2 - 1 / 3) / 2)


@pytest.mark.slow
def test_posterior_is_calibrated(load_example: Callable[[str], ModuleType]) -> None:
    """Positions and distances that the model itself draws, 30 times: intervals hold the truth as often as they say."""
    example = load_example("bayesian_tree")
    inner, leaves, replicas = 8, 3, 30
    trace = pyro.poutine.trace(example.model).get_trace(replicas, inner + leaves)
    truth, y = (trace.nodes[name]["value"] for name in ("_RETURN", "y"))
    y = y.triu(1) + y.triu(1).mT
    arguments = (replicas, inner, y[:, :inner, :inner])
    start = {name: trace.nodes[name]["value"] for name in ("length", "noise", "radius")}
    start["z"] = truth[:, 2:inner]
    samples = example.nuts(arguments, start, argparse.Namespace(num_samples=200, warmup=200))
    points = example.in_place(example.positions(samples["radius"], samples["z"]))
    levels = torch.stack(
        [
            example.Leaf(
                y[i, inner + k, :inner],
                torch.randperm(inner)[:3],
                points[:, i],
                samples["length"][:, i],
                samples["noise"][:, i],
            ).levels()
            for i in range(replicas)
            for k in range(leaves)
        ]
    )
    at = torch.tensor([0.5, 0.8, 0.9])
    share, error = example.coverage(levels, at)
    assert ((share - at).abs() < 4 * error.clamp(min=0.02)).all()
