"""``examples/mnist_svi.py --ensemble``: many models at once."""

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

from tests.examples.test_mnist_svi import FILES, ROW, arguments, checkpoint, same_run

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("mnist_svi")


@pytest.fixture(scope="module")
def run(example: ModuleType, digits: Path) -> Run:
    def run(folder: Path, options: str = "") -> dict[str, Any]:
        return example.main(example.parse(arguments(folder, digits, options)))

    return run


@pytest.fixture(scope="module")
def whole(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of three epochs: its folder and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, "--ensemble 2,0-1 --num-epochs 3 --curvature learn")


def test_members_and_their_mean(whole: tuple[Path, dict[str, Any]]) -> None:
    folder, result = whole
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert json.loads((folder / "metrics.json").read_text()) == result
    assert result["finished"]
    members = result["members"]
    assert [member["seed"] for member in members] == [2, 0, 1]
    for member in members:
        assert [row["epoch"] for row in member["history"]] == [1, 2, 3]
        assert all(set(row) == ROW for row in member["history"])
        assert member["history"][-1]["train_loss"] < member["history"][0]["train_loss"]
        assert member["negative_iwae"] < member["history"][-1]["test_loss"] + 1
        assert 0 < member["negative_iwae_error"] < 1
    for key in ("negative_iwae", "curvature"):
        assert len({member[key] for member in members}) == 3
    values = [member["negative_iwae"] for member in members]
    summary = result["summary"]["negative_iwae"]
    low, high = scipy.stats.t.interval(0.95, 2, statistics.mean(values), statistics.stdev(values) / 3**0.5)
    assert summary["mean"] == pytest.approx(statistics.mean(values))
    assert 2 * summary["half_width"] == pytest.approx(high - low, rel=1e-3)


def test_a_member_starts_as_a_model_of_its_seed(run: Run, tmp_path: Path) -> None:
    # A learning rate this small leaves models where they were.
    slow = "--num-epochs 1 --learning-rate 1e-30 --iwae-samples 0"
    run(tmp_path / "ensemble", f"{slow} --ensemble 0,3")
    run(tmp_path / "single", f"{slow} --seed 3")
    other, member = checkpoint(tmp_path / "ensemble")["models"]
    for key, value in checkpoint(tmp_path / "single")["models"][0].items():
        torch.testing.assert_close(member[key], value)
    assert not torch.equal(other["encoder.loc.weight"], member["encoder.loc.weight"])


def test_resumes_bit_for_bit(
    run: Run, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mnist_parts.pictures.draw", lambda *_: None)
    folder, result = whole
    options = "--ensemble 2,0-1 --curvature learn"
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
    with pytest.raises(SystemExit, match=r"other options: --ensemble \(was \[2, 0, 1\], is \[0, 1\]\)"):
        run(tmp_path, "--ensemble 0,1 --curvature learn --resume")


def test_one_member_has_no_interval(run: Run, tmp_path: Path) -> None:
    result = run(tmp_path, "--ensemble 4 --num-epochs 1 --curvature 0 --latent-dim 1")
    assert result["summary"]["negative_iwae"] == {"mean": result["members"][0]["negative_iwae"], "half_width": None}
    assert "curvature" not in result["members"][0]


def test_seeds(example: ModuleType) -> None:
    def seeds(text: str) -> Any:
        return example.parse(["--ensemble", text]).ensemble

    assert seeds("0-3") == [0, 1, 2, 3]
    assert seeds("7") == [7]
    assert seeds("5,1-2,9") == [5, 1, 2, 9]
