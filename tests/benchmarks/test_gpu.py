"""``benchmarks.gpu`` and ``benchmarks.growth`` on the CPU, with tiny sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, growth
from benchmarks.gpu_rows import BOUNDS, GROUPS, RATIOS, Row, Work, rows

DOCS = Path(__file__).parents[2] / "docs"
TINY = ["--device", "cpu", "--tiny", "--repeats", "2"]
# One row of every subject and kind.
FEW = [
    Row("step", "stock"),
    Row("step", "captured"),
    Row("step", "captured", "riemannian"),
    Row("graph", "captured", nodes=256),
    Row("ensemble", "compiled", "euclidean", members=90),
    Row("ensemble", "captured", members=90, space="h1,s1"),
    Row("evaluation", "compiled"),
    Row("density", "stock", "flow", space="s2"),
]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "few", FEW)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Work that takes the time that its sizes say; the names of what was measured."""
    now = 0.0
    measured: list[str] = []

    def prepare(row: Row, device: str, tiny: bool) -> Work:
        measured.append(row.name)
        if row.dim == 64:
            raise RuntimeError("out of memory")

        def run() -> None:
            nonlocal now
            now += 1e-3 * row.dim * row.batch / 128 + 1e-6 * row.nodes + 2e-6 * row.members

        return Work(run, run, share=row.members)

    monkeypatch.setattr(gpu, "prepare", prepare)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    return measured


def test_sizes_of_the_groups() -> None:
    sizes = {
        ("dimension", "dim"): {2, 5, 10, 20, 50, 64},
        ("batch", "batch"): {128, 512, 2048, 8192},
        ("ensemble", "members"): {1, 4, 16, 90, 360},
        ("graph", "nodes"): {256, 512, 1024, 2048, 4096, 8192},
    }
    for (group, axis), expected in sizes.items():
        assert {getattr(row, axis) for row in GROUPS[group]} == expected
    every = rows(list(GROUPS))
    assert len({row.name for row in every}) == len(every)
    # What has a bound is measured first: a run that is cut short has it.
    assert set(BOUNDS) <= set(every[: len(GROUPS["bounds"])])
    assert {row for _, a, b, _ in RATIOS for row in (a, b)} <= set(GROUPS["bounds"])


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_every_kind_of_row_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    gpu.main([*TINY, "few", "--json", str(file)])
    result = read(file)
    assert [row["name"] for row in result["rows"]] == [row.name for row in FEW]
    for row in result["rows"]:
        assert row["error"] is None
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["repeats"] == 2
    (ratio,) = result["ratios"]
    assert ratio["name"] == "Riemannian / wrapped, step, captured"
    medians = {row["name"]: row["median"] for row in result["rows"]}
    assert ratio["median"] == pytest.approx(medians[FEW[2].name] / medians[FEW[1].name])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(FEW) + 1


def test_times_are_per_step_and_per_member(clock: list[str], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    gpu.main([*TINY, "--json", str(file)])
    values = {row["name"]: row["median"] for row in read(file)["rows"]}
    assert values["step, captured, wrapped, d=20, batch 128"] == pytest.approx(20.002)
    assert values["step, captured, wrapped, d=10, batch 512"] == pytest.approx(40.002)
    assert values["ensemble of 90, captured, wrapped, d=10, batch 128"] == pytest.approx(1e4 / 90 + 2)
    assert len(clock) == len(set(clock)) == len(rows(list(GROUPS)))


def test_status_is_that_of_the_bounds(clock: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow, failing = Row("step", "captured", dim=1), Row("step", "captured", dim=3), Row("step", "stock", dim=64)
    for row, bound, status in ((quick, 1.1, 0), (slow, 2.9, 1), (failing, 1.0, 1), (failing, None, 0)):
        monkeypatch.setattr(gpu, "BOUNDS", {} if bound is None else {row: bound})
        monkeypatch.setitem(GROUPS, "few", [row])
        assert gpu.main([*TINY, "few"]) == status
    monkeypatch.setattr(gpu, "RATIOS", [("slow / quick", slow, quick, 2.0)])
    monkeypatch.setattr(gpu, "BOUNDS", {})
    monkeypatch.setitem(GROUPS, "few", [quick, slow])
    assert gpu.main([*TINY, "few"]) == 1


def test_a_killed_run_goes_on_where_it_was(
    clock: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results.json"
    measure, names = gpu._measure, [row.name for row in rows(["dimension"])]
    count = 0

    def killed(*args: Any) -> dict[str, Any]:
        nonlocal count
        count += 1
        if count > 4:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(gpu, "_measure", killed)
    with pytest.raises(SystemExit, match=r"^130$"):
        gpu.main([*TINY, "dimension", "--json", str(file)])
    assert (
        "interrupted; with --json, what was measured is kept: go on with the same options and --resume\n"
        in capsys.readouterr().err
    )
    assert [row["name"] for row in read(file)["rows"]] == names[:4]

    clock.clear()
    monkeypatch.setattr(gpu, "_measure", measure)
    gpu.main([*TINY, "dimension", "--json", str(file), "--resume"])
    assert clock == names[4:]
    result = read(file)
    assert [row["name"] for row in result["rows"]] == names
    failed = [row["name"] for row in result["rows"] if row["error"] is not None]
    assert failed == [name for name in names if "d=64" in name]

    clock.clear()
    gpu.main([*TINY, "dimension", "--json", str(file), "--resume"])
    assert clock == failed
    assert len(read(file)["rows"]) == len(names)

    file.write_text(json.dumps(result | {"torch": "1.0"}))
    with pytest.raises(SystemExit, match=r"^2$"):
        gpu.main([*TINY, "dimension", "--json", str(file), "--resume"])
    assert "has the torch 1.0, here it is" in capsys.readouterr().err


@pytest.mark.usefixtures("clock")
def test_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "results.json"
    gpu.main([*TINY, "batch", "--json", str(file), "--time-limit", "0.3"])
    done = len(read(file)["rows"])
    assert 0 < done < len(GROUPS["batch"])
    assert f"{len(GROUPS['batch']) - done} rows left" in capsys.readouterr().out


@pytest.mark.usefixtures("clock")
def test_growth_draws_and_tabulates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figure = tmp_path / "results.json", tmp_path / "growth.png"
    gpu.main([*TINY, "--json", str(file)])
    capsys.readouterr()
    growth.main([str(file), str(figure), "--rst"])
    assert figure.stat().st_size > 10_000
    text = capsys.readouterr().out
    assert text.count(".. list-table::") == 5
    assert "   * - 20\n     - 20 (20 to 20)\n     - 20 (20 to 20)\n     - 20 (20 to 20)\n" in text
    assert "   * - 4\n     - 2,502 (2,502 to 2,502)\n     -\n" in text

    result = read(file)
    for panel in growth.PANELS.values():
        assert all(len(points) > 1 for points in growth.series(result, panel).values())
    (stock, captured, riemannian) = growth.series(result, growth.PANELS["dimension"])
    assert (stock, captured, riemannian) == (
        ("stock", "wrapped"),
        ("captured", "wrapped"),
        ("captured", "riemannian"),
    )


def test_growth_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    growth.main([str(DOCS / "figures" / "growth.json"), "--rst"])
    text = capsys.readouterr().out
    assert text.count(".. list-table::") == 5
    assert "     - compiled and captured, wrapped\n" in text
