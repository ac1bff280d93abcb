"""``examples/inference_swaps.py`` with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

TINY = "--num-steps 3 --num-draws 400 --num-samples 4 --resolution 16"


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("inference_report.GRID", 81)
        monkeypatch.setattr("inference_methods.PARTICLES", 4)
        monkeypatch.setattr("inference_methods.WARMUP", 2)
        yield load_example("inference_swaps")


def run(example: ModuleType, folder: Path, options: str) -> dict[str, Any]:
    return example.main([*TINY.split(), *options.split(), "--output-dir", str(folder)])


def test_every_method_runs(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The Hessian of the approximation of Laplace has to be taken near the mode, which takes some steps.
    names = [name for name in example.METHODS if name != "auto-laplace"]
    result = run(example, tmp_path, f"--num-chains 1 --methods {' '.join(names)}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inference_swaps.json", "inference_swaps.png"]
    assert json.loads((tmp_path / "inference_swaps.json").read_text()) == result
    assert [entry["method"] for entry in result["rows"]] == ["grid", *names]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["method", "grid", *names]
    for entry in result["rows"]:
        assert 0 <= entry["distance_of_means"] < 4
        if entry["bound"] is not None:
            assert entry["bound"] < entry["log_evidence"]


def test_laplace_approximation_and_two_chains(example: ModuleType, tmp_path: Path) -> None:
    rows = run(example, tmp_path, "--methods auto-laplace nuts --num-steps 60")["rows"]
    assert rows[1]["log_evidence"] == pytest.approx(rows[0]["log_evidence"], abs=0.5)
    assert "r_hat" in rows[2]["note"]
    assert rows[2]["log_evidence"] is None


@pytest.mark.parametrize("options", ["--manifold lorentz", "--prior riemannian --curvature 0.5"])
def test_evidence_is_that_of_the_grid(example: ModuleType, options: str, tmp_path: Path) -> None:
    rows = run(example, tmp_path, f"--methods importance smc --num-draws 4000 {options}")["rows"]
    exact = rows[0]["log_evidence"]
    for entry in rows[1:]:
        assert 0 < entry["log_evidence_error"] < 0.2
        assert entry["log_evidence"] == pytest.approx(exact, abs=4 * entry["log_evidence_error"])
        assert entry["distance_of_means"] < 0.2
        assert entry["spread"] == pytest.approx(rows[0]["spread"], rel=0.15)


def test_the_page_shows_the_table_of_its_record(example: ModuleType) -> None:
    docs = Path(__file__).parents[2] / "docs"
    record = json.loads((docs / "figures" / "inference_swaps.json").read_text())
    page = (docs / "inference.rst").read_text()
    assert [entry["method"] for entry in record["rows"]] == ["grid", *example.METHODS]
    assert all(f"   {example.line(entry)}\n" in page for entry in record["rows"])


def test_grid_does_not_depend_on_the_chart(example: ModuleType) -> None:
    torch.set_default_dtype(torch.float64)
    ball, hyperboloid = (example.grid(example.Program(chart(1.0), "riemannian")) for chart in example.CHARTS.values())
    assert ball.evidence == pytest.approx(hyperboloid.evidence)
    torch.testing.assert_close(ball.log_weights, hyperboloid.log_weights)


def test_grid_is_fine_enough(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float64)
    program = example.Program(example.PoincareBall(1.0), "wrapped")
    evidences = []
    for size in (151, 301):
        monkeypatch.setattr("inference_report.GRID", size)
        evidences.append(example.grid(program).evidence[0])
    assert evidences[0] == pytest.approx(evidences[1], abs=1e-4)
