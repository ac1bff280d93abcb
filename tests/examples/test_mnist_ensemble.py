"""``examples/mnist_ensemble.py``: many models at once."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scipy.stats
import torch

from tests.examples.test_mnist_svi import ROW, arguments, checkpoint, same_run

FILES = ["checkpoint.pt", "latent.png", "loss.png", "metrics.json"]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("mnist_ensemble")


@pytest.fixture(scope="module")
def run(example: ModuleType, digits: Path) -> Run:
    def run(folder: Path, options: str = "") -> dict[str, Any]:
        return example.main(arguments(folder, digits, options))

    return run


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of three epochs: its folder and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, "--seeds 2,0-1 --num-epochs 3 --curvature learn")


def test_members_and_their_mean(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / "metrics.json").read_text()) == result
    members = result["members"]
    assert [member["seed"] for member in members] == [2, 0, 1]
    for member in members:
        assert [row["epoch"] for row in member["history"]] == [1, 2, 3]
        assert all(set(row) == ROW for row in member["history"])
        assert member["history"][-1]["train_loss"] < member["history"][0]["train_loss"]
        assert member["negative_iwae"] < member["history"][-1]["test_loss"] + 1
        assert 0 < member["negative_iwae_error"] < 1
    assert len({member["negative_iwae"] for member in members}) == 3
    assert len({member["curvatures"][0] for member in members}) == 3
    values = [member["negative_iwae"] for member in members]
    summary = result["summary"]["negative_iwae"]
    low, high = scipy.stats.t.interval(0.95, 2, statistics.mean(values), statistics.stdev(values) / 3**0.5)
    assert summary["mean"] == pytest.approx(statistics.mean(values))
    assert 2 * summary["half_width"] == pytest.approx(high - low, rel=1e-3)


@pytest.mark.slow
def test_a_member_starts_as_a_model_of_its_seed(
    run: Run, load_example: Callable[[str], ModuleType], digits: Path, tmp_path: Path
) -> None:
    # A learning rate this small leaves models where they were.
    slow = "--num-epochs 1 --learning-rate 1e-30 --iwae-samples 0"
    run(tmp_path / "ensemble", f"{slow} --seeds 0,3")
    other, member = checkpoint(tmp_path / "ensemble")["models"]
    one = load_example("mnist_svi")
    one.main(arguments(tmp_path / "single", digits, f"{slow} --seed 3"))
    for key, value in checkpoint(tmp_path / "single")["model"].items():
        torch.testing.assert_close(member[key], value)
    assert not torch.equal(other["encoder.loc.weight"], member["encoder.loc.weight"])


def test_resumes_bit_for_bit(
    run: Run,
    example: ModuleType,
    digits: Path,
    whole: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Callable[..., str],
) -> None:
    monkeypatch.setattr(example, "draw", lambda *_: None)
    folder, result = whole
    options = "--seeds 2,0-1 --curvature learn"
    first = run(tmp_path, f"{options} --num-epochs 1 --iwae-samples 0")
    assert "negative_iwae" not in first["summary"]
    assert "negative_iwae" not in first["members"][0]
    resumed = run(tmp_path, f"{options} --num-epochs 3 --resume")
    assert same_run(tmp_path, folder)
    assert [member["negative_iwae"] for member in resumed["members"]] == [
        member["negative_iwae"] for member in result["members"]
    ]
    # Nothing is left to be trained, and the estimate is the same.
    again = run(tmp_path, f"{options} --num-epochs 3 --resume")
    assert again["members"] == resumed["members"]
    said = refusal(example.main, arguments(tmp_path, digits, "--seeds 0,1 --curvature learn --resume"))
    assert "other options: --seeds (was [2, 0, 1], is [0, 1])" in said


def test_one_member_has_no_interval(run: Run, tmp_path: Path) -> None:
    result = run(tmp_path, "--seeds 4 --num-epochs 1 --space e1")
    assert result["summary"]["negative_iwae"] == {"mean": result["members"][0]["negative_iwae"], "half_width": None}
    assert result["members"][0]["curvatures"] == []
