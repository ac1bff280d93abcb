"""``experiments/single_cell.py`` with tiny settings: its scores, its files, and that it resumes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import load_checkpoint
from tests.examples.comparing import equal

# A study; its short example is tested in every run.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("coarse_pictures")]
TINY = "--num-cells 150 --hidden-dim 8 --num-epochs 2 --iwae-samples 2 --batch-size 50"
FILES = {"disc.png", "embedding.npz", "latent.html", "metrics.json"}


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("experiments.single_cell")


@pytest.fixture
def run(example: ModuleType) -> Callable[..., dict[str, Any]]:
    def run(folder: Path, options: str = "--data branching") -> dict[str, Any]:
        return example.main([*TINY.split(), "--output-dir", str(folder), *options.split()])

    return run


@pytest.fixture(scope="module")
def begun(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one model and one epoch."""
    folder = tmp_path_factory.mktemp("begun")
    options = "--data branching --models euclidean --num-epochs 1"
    example.main([*TINY.split(), "--output-dir", str(folder), *options.split()])
    return folder


def test_simulated_lineage(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, "--data branching --seeds 0,3 --models euclidean hyperbolic")
    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert [(entry["model"], entry["seed"]) for entry in result["runs"]] == [
        (name, seed) for seed in (0, 3) for name in ("euclidean", "hyperbolic")
    ]
    for entry in result["runs"]:
        first, last = entry["history"]["train_loss"]
        assert last < first
        assert -600 < entry["iwae"] < -200
        assert -1 <= entry["correlation"] <= 1
        assert all(0 <= entry[score] <= 1 for score in ("knn_accuracy", "coverage", "exact_coverage"))
        assert 0 < entry["batch_mixing"] < 1.5
    files = {path.name for path in tmp_path.iterdir()}
    assert files == FILES | {f"{entry['model']}-{entry['seed']}.pt" for entry in result["runs"]}
    written = np.load(tmp_path / "embedding.npz")
    assert written["z"].shape == (150, 2)
    assert PoincareBall(1.0).contains(torch.from_numpy(written["z"])).all()
    assert written["scale"].shape == (150, 1)
    assert written["is_test"].sum() == 30
    assert written["pseudotime"].min() == 0
    table = capsys.readouterr().out.splitlines()[-3:]
    assert table[0].split() == ["IWAE", "k-NN", "lineage", "mixing", "coverage", "exact"]
    mean = sum(entry["iwae"] for entry in result["runs"] if entry["model"] == "hyperbolic") / 2
    assert table[2].startswith("hyperbolic")
    assert f"{mean:.2f} ±" in table[2]


def test_bundled_cells(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path, "--num-epochs 1 --models hyperbolic --latent-dim 3 --batch-size 500")
    assert {path.name for path in tmp_path.iterdir()} == (FILES - {"disc.png", "latent.html"}) | {"hyperbolic-0.pt"}
    assert "batch_mixing" not in result["runs"][0]
    assert "2660 cells, 240 genes" in capsys.readouterr().out


def test_plane(run: Any, tmp_path: Path) -> None:
    run(tmp_path, "--data branching --models euclidean")
    assert (tmp_path / "disc.png").stat().st_size > 1000


def test_resumed_run_ends_where_an_uninterrupted_one_does(run: Any, tmp_path: Path) -> None:
    models = "--data branching --models hyperbolic"
    whole = run(tmp_path / "whole", models)
    run(tmp_path / "parts", f"{models} --num-epochs 1")
    parts = run(tmp_path / "parts", f"{models} --resume")
    again = run(tmp_path / "parts", f"{models} --resume")
    for other in (parts, again):
        for mine, theirs in zip(whole["runs"], other["runs"], strict=True):
            assert {**mine, "history": mine["history"]["train_loss"]} == {
                **theirs,
                "history": theirs["history"]["train_loss"],
            }
    states = [load_checkpoint(tmp_path / folder / "hyperbolic-0.pt")["state"]["model"] for folder in ("whole", "parts")]
    assert equal(*states)


def test_a_run_that_is_there_is_continued_only_if_it_is_asked_for(
    example: ModuleType, begun: Path, refusal: Callable[..., str]
) -> None:
    same = [*TINY.split(), "--output-dir", str(begun), "--models", "euclidean", "--data", "branching"]
    assert "euclidean-0.pt exists; continue that run with --resume" in refusal(example.main, same)
    said = refusal(example.main, [*same, "--resume", "--hidden-dim", "9"])
    assert "belongs to other options: --hidden-dim (was 8, is 9)" in said
    said = refusal(example.main, [*same, "--resume", "--num-cells", "160"])
    assert "belongs to other options: --num-cells (was 150, is 160)" in said


def test_files_need_their_package(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    (tmp_path / "cells.h5ad").write_text("cells")
    monkeypatch.setitem(sys.modules, "anndata", None)
    said = refusal(example.main, ["--data", str(tmp_path / "cells.h5ad"), "--output-dir", str(tmp_path / "out")])
    assert "needs the package anndata" in said


def test_file_of_the_user(run: Any, example: ModuleType, tmp_path: Path, refusal: Callable[..., str]) -> None:
    anndata = pytest.importorskip("anndata")
    counts = np.random.default_rng(0).poisson(3.0, (120, 12)).astype(np.float32)
    obs = {"plate": ["a", "b", "c"] * 40, "kind": ["x", "y"] * 60}
    anndata.AnnData(counts, obs=obs).write_h5ad(tmp_path / "cells.h5ad")
    keys = "--batch-key plate --label-key kind --models hyperbolic"
    result = run(tmp_path / "out", f"--data {tmp_path / 'cells.h5ad'} {keys} --root-label y")
    assert {"batch_mixing", "knn_accuracy"} <= result["runs"][0].keys()
    written = anndata.read_h5ad(tmp_path / "out" / "embedding.h5ad")
    assert written.obsm["X_hyperbolic"].shape == (120, 2)
    assert np.load(tmp_path / "out" / "embedding.npz")["pseudotime"].shape == (120,)
    for wrong, message in (
        ("--label-key no", "--label-key must be one of"),
        (f"{keys} --root-label z", "--root-label"),
    ):
        options = [*TINY.split(), "--output-dir", str(tmp_path / "other"), "--data", str(tmp_path / "cells.h5ad")]
        assert message in refusal(example.main, [*options, *wrong.split()])
