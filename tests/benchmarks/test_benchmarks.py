from __future__ import annotations

import gc
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import run
from benchmarks.timing import Ratio, Settings, compare, compare_memory, peak_memory

ROW = re.compile(r"^(\w+) +(\S.*\S) +(\d+\.\d\d) +(\d+\.\d\d)  (ok  |over) (\S.*)$")
TINY = ["--tiny", "--seconds", "1e-9"]


def _fake(*ratios: float) -> object:
    def group(settings: Settings) -> Iterator[Ratio]:
        for ratio in ratios:
            yield Ratio("a / b", ratio, 2.0, "1 ms / 1 ms")

    return group


@pytest.mark.slow
def test_every_group_prints_its_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    status = run.main([*TINY, "--json", str(file)])
    _, header, *lines, summary = capsys.readouterr().out.splitlines()
    assert header == run.HEADER
    rows = [ROW.match(line) for line in lines]
    assert all(rows)
    verdicts = [row[5].strip() for row in rows if row]
    assert {row[1] for row in rows if row} == set(run.GROUPS)
    assert status == int("over" in verdicts)
    assert summary == f"{verdicts.count('ok')} of {len(verdicts)} within their bounds"

    results = json.loads(file.read_text())["results"]
    assert [result["ok"] for result in results] == [verdict == "ok" for verdict in verdicts]
    assert len({result["name"] for result in results}) == len(results)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("ratios", "status"), [((1.0, 2.0), 0), ((1.0, 2.001), 1), ((math.nan,), 1), ((math.inf,), 1), ((), 0)]
)
def test_exit_status(monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, ...], status: int) -> None:
    monkeypatch.setattr(run, "GROUPS", {"fake": _fake(*ratios)})
    assert run.main([]) == status


def test_only_the_groups_named_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run, "GROUPS", {"good": _fake(1.0), "bad": _fake(9.0)})
    assert run.main(["good"]) == 0
    assert "bad" not in capsys.readouterr().out
    assert run.main(["bad"]) == 1


def test_ratio_of_times_is_that_of_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock of our own, on a machine that gets slower by a hundredth with every call.
    clock, slowness = 0.0, 1.0

    def work(seconds: float) -> None:
        nonlocal clock, slowness
        clock += seconds * slowness
        slowness *= 1.01

    monkeypatch.setattr("time.perf_counter", lambda: clock)
    result = compare("2 / 1", lambda: work(0.2), lambda: work(0.1), 2.5, Settings(seconds=30))
    assert result.ratio == pytest.approx(2, rel=0.011)
    assert result.ok
    assert gc.isenabled()


def test_peak_of_memory() -> None:
    x = torch.zeros(1 << 20)
    # The two temporaries of 4 MiB live together.
    assert peak_memory(lambda: ((x + 1) * 2).sum()) == pytest.approx(2 * 4 * 2**20, rel=1e-3)
    assert compare_memory("x", lambda: x + 1, 1.0).ratio == pytest.approx(1, rel=1e-3)
