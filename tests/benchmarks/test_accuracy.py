"""Every operation is as exact as its arguments allow, far from the origin."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks import accuracy
from benchmarks.accuracy import CHARTS, DTYPES, OPERATIONS, Errors, Operation, measure


@pytest.mark.parametrize(
    ("operation", "chart", "dtype"),
    [
        (operation, chart, DTYPES[(i + j) % 2])
        for i, operation in enumerate(OPERATIONS)
        for j, chart in enumerate(CHARTS)
    ],
    ids=lambda value: f"{value.name}-{value.place}" if isinstance(value, Operation) else str(value),
)
def test_errors_are_at_most_ten_times_the_rounding_limit(operation: Operation, chart: str, dtype: torch.dtype) -> None:
    errors = measure(operation, chart, dtype, 8.0, samples=12)
    assert errors.ok, f"median, worst and rounding limit: {errors}"


def test_an_error_beyond_its_rounding_limit_is_found() -> None:
    def rounded(manifold, x, y):
        return manifold.dist(x.float(), y.float()).double()

    exact = next(op for op in OPERATIONS if op.name == "dist")
    poor = Operation(exact.name, exact.place, exact.arguments, rounded, exact.truth, exact.result)
    assert not measure(poor, "ball", torch.float64, 4.0, samples=5).ok
    assert not Errors(0.0, float("inf"), 1.0).ok
    lost = Operation(
        exact.name, exact.place, exact.arguments, lambda m, x, y: m.dist(x, y) * torch.nan, exact.truth, "number"
    )
    assert not measure(lost, "ball", torch.float64, 4.0, samples=5).ok


def test_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(accuracy, "OPERATIONS", OPERATIONS[:2])
    assert accuracy.main(["--samples", "3", "--check", "--output", str(tmp_path)]) == 0
    assert "0 of the errors" in capsys.readouterr().out
    for chart in CHARTS:
        header, *rows = csv.reader((tmp_path / f"accuracy_{chart}.csv").read_text().splitlines())
        assert header[:4] == ["operation", "points", "dtype", "s = 2"]
        assert [row[0] for row in rows] == ["dist0", "dist0", "dist", "dist"]
        # A float32 ball ends before the last distance.
        assert [row[-1] == "" for row in rows] == [chart == "ball" and row[2] == "float32" for row in rows]
