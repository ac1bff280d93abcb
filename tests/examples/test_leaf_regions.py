"""``examples/bayesian_tree.py`` and ``leaf_regions.py``: places of leaves, their regions, and what these hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import load_checkpoint, save_checkpoint
from tests.helpers import same

TINY = "--chains 2 --warmup 20 --num-samples 8 --seed 3"
BALL = PoincareBall(1.0)


@pytest.fixture(autouse=True)
def _double() -> None:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    """With fewer places, and a coarse grid."""
    module = load_example("leaf_regions")
    module.CANDIDATES, module.KEPT, module.RESOLUTION = 200, 100, 20  # type: ignore[attr-defined]
    return module


# The chains are compiled.
@pytest.mark.slow
def test_runs(
    example: ModuleType,
    load_example: Callable[[str], ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refusal: Callable[..., str],
) -> None:
    tree = load_example("bayesian_tree")
    folder = tmp_path / "tree"
    result = tree.main([*TINY.split(), "--output-dir", str(folder)])
    files = ["embedding.png", "metrics.json", "posterior.pt"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert all((folder / name).stat().st_size > 500 for name in files)
    assert json.loads((folder / "metrics.json").read_text())["length"] == result["length"]
    found = load_checkpoint(folder / "posterior.pt")["state"]
    assert found["points"].shape == (16, 14, 2)
    assert found["points"][:, 0].abs().max() == 0
    assert found["length"].mean().item() == pytest.approx(result["length"][0])
    # The chains begin around a good fit: no arrangement of fourteen nodes by chance explains the distances so well.
    assert result["noise"][0] < 0.6
    printed = capsys.readouterr().out
    assert "z: 13 points of PoincareBall, orientation free" in printed
    assert "c, deterministic" in printed

    posterior = ["--posterior", str(folder / "posterior.pt"), "--output-dir", str(tmp_path / "regions")]
    result = example.main([*posterior, "--observed", "5"])
    files = ["calibration.png", "latent.html", "metrics.json", "regions.png"]
    assert sorted(path.name for path in (tmp_path / "regions").iterdir()) == files
    assert json.loads((tmp_path / "regions" / "metrics.json").read_text())["n_eff"] == result["n_eff"] > 1
    printed = capsys.readouterr().out
    assert f"{27 * (14 - 5)} unseen distances of 27 leaves" in printed
    for name, (share, error) in result["coverage"].items():
        assert 0 <= share <= 1
        assert f"{name}: {100 * share:.0f} ± {100 * error:.0f}%" in printed
    assert "--observed must be less than the 14 inner nodes, got 14" in refusal(
        example.main, [*posterior, "--observed", "14"]
    )
    save_checkpoint({"state": {}}, tmp_path / "other.pt")
    said = refusal(example.main, ["--posterior", str(tmp_path / "other.pt")])
    assert "other.pt is not one of bayesian_tree.py; run that example first" in said


def leaf_of(
    example: ModuleType, points: Tensor, z: Tensor, length: Any = 0.6, noise: Any = 0.3, shift: float = 0.0
) -> Any:
    """A leaf at ``z`` whose distances to the nodes ``(S, R, 2)`` are exact but for a shift; three are known."""
    draws = len(points)
    y = 0.6 * BALL.dist(z, points[0]) + shift
    inner = {name: torch.as_tensor(value).expand(draws) for name, value in (("length", length), ("noise", noise))}
    return example.Leaf(inner | {"points": points}, y, torch.tensor([0, 2, 3]))


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
    tree, example = load_example("bayesian_tree"), load_example("leaf_regions")
    inner, leaves, replicas = 8, 3, 30
    first, second = torch.triu_indices(inner + leaves, inner + leaves, 1)
    known = second < inner
    levels = []
    for seed in range(replicas):
        pyro.set_rng_seed(seed)
        observed = pyro.poutine.trace(tree.model).get_trace(inner + leaves).nodes["y"]["value"]
        settings = {"num_chains": 8, "num_samples": 100, "warmup": 200, "progress": False}
        found = tree.sample_posterior(tree.model, inner, observed[known], **settings)
        draws = {name: found.samples[name].flatten(0, 1)[::4] for name in ("length", "noise")}
        draws["points"] = tree.with_root(found.samples["z"].flatten(0, 1)[::4])
        y = torch.zeros(inner + leaves, inner + leaves).index_put((second, first), observed)
        levels += [example.Leaf(draws, row[:inner], torch.randperm(inner)[:3]).levels() for row in y[inner:]]
    at = torch.tensor([0.5, 0.8, 0.9])
    share, error = example.coverage(torch.stack(levels), at)
    assert ((share - at).abs() < 4 * error.clamp(min=0.02)).all()
