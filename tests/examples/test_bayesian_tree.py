"""``examples/bayesian_tree.py`` with tiny settings: its data, its posterior and its files."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import networkx
import pyro
import pyro.distributions as dist
import pytest
import torch
from taxonomy import FIRST
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import load_checkpoint
from tests.helpers import same

TINY = "--chains 2 --warmup 3 --num-samples 6 --num-steps 3"
BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def _double() -> None:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    """With fewer steps."""
    module = load_example("bayesian_tree")
    module.START_STEPS, module.TREE_DEPTH = 3, 2  # type: ignore[attr-defined]
    return module


def arguments_of(tree: Any, chains: int) -> tuple[int, int, Tensor]:
    return chains, tree.inner, tree.y[: tree.inner, : tree.inner].expand(chains, -1, -1)


@pytest.mark.parametrize("options", ["--inference nuts", "--chains 1 --seed 3 --noise 0.1"])
def test_runs(options: str, example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main([*TINY.split(), *options.split(), "--output-dir", str(tmp_path)])
    files = ["embedding.png", "metrics.json", "posterior.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 500 for name in files)
    assert json.loads((tmp_path / "metrics.json").read_text())["length"] == result["length"]
    chains = result["options"]["chains"]
    found = load_checkpoint(tmp_path / "posterior.pt")["state"]
    assert found["points"].shape == (6 * chains, 14, 2)
    assert found["length"].mean().item() == pytest.approx(result["length"][0])
    assert "R-hat of 93 values" in capsys.readouterr().out


def test_taxonomy(example: ModuleType) -> None:
    tree = example.taxonomy(noise=1e-9)
    assert len(tree.names) == len(set(tree.names)) == 41
    graph = networkx.Graph([(i, p) for i, p in enumerate(tree.parents.tolist()) if p >= 0])
    assert networkx.is_tree(graph)
    hops = torch.from_numpy(networkx.floyd_warshall_numpy(graph, nodelist=range(41)))
    assert (tree.y - hops).abs().max() < 1e-7
    assert [tree.names[i] for i in range(3)] == FIRST
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
