"""Results on disk."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from experiments import Job, RunStore
from tests.experiments.conftest import Toy, ToyCell


def job(toy: Toy, size: int = 1, seed: int = 0) -> Job:
    return Job(toy, ToyCell(size), seed)


def test_a_run_comes_back(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy), metrics={"value": 1.5}, seconds=2.0)
    (record,) = store.records("toy").values()
    assert record["metrics"] == {"value": 1.5}
    assert record["cell"] == {"size": 1}
    assert record["key"] == job(toy).key


def test_what_is_missing(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy, 1, 0), metrics={})
    store.append(job(toy, 2, 1), metrics={})
    jobs = [job(toy, size, seed) for size in (1, 2) for seed in (0, 1)]
    assert store.missing(jobs) == [jobs[1], jobs[2]]


def test_other_settings_are_other_runs(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy), metrics={})
    longer = Job(Toy(epochs=5, log=[]), ToyCell(1), 0)
    assert store.missing([longer]) == [longer]
    more_seeds = Job(Toy(seeds=9, log=[]), ToyCell(1), 0)
    assert store.missing([more_seeds]) == []


def test_every_process_writes_its_own_file(tmp_path: Path, toy: Toy) -> None:
    for rank in (0, 1):
        RunStore(tmp_path, rank).append(job(toy, seed=rank), metrics={})
    assert [path.name for path in RunStore(tmp_path).files("toy")] == ["toy.jsonl", "toy.rank1.jsonl"]
    assert len(RunStore(tmp_path).records("toy")) == 2


def _cut(line: str) -> str:
    return line[: len(line) // 2]


def _another_cell(line: str) -> str:
    record = json.loads(line)
    record["cell"]["size"] = 7
    return json.dumps(record)


@pytest.mark.parametrize("damage", [_cut, _another_cell, lambda line: "[1, 2]", lambda line: "\ufffd"])
def test_a_corrupt_record_is_reported_and_run_again(tmp_path: Path, toy: Toy, damage: Any) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy, seed=0), metrics={})
    store.append(job(toy, seed=1), metrics={})
    path = tmp_path / "toy.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{damage(first)}\n{second}\n")
    with pytest.warns(UserWarning, match=r"toy\.jsonl:1 is not the record of a run"):
        missing = store.missing([job(toy, seed=0), job(toy, seed=1)])
    assert missing == [job(toy, seed=0)]


def test_a_torn_line_does_not_spoil_the_next(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy, seed=0), metrics={})
    path = tmp_path / "toy.jsonl"
    path.write_text(path.read_text()[:-20])  # a process that was killed while it wrote
    store.append(job(toy, seed=1), metrics={})
    with pytest.warns(UserWarning, match=r"toy\.jsonl:1"):
        assert store.missing([job(toy, seed=0), job(toy, seed=1)]) == [job(toy, seed=0)]


def test_sound_files_are_silent(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    store.append(job(toy), metrics={})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store.records("toy")) == 1


def test_nothing_yet(tmp_path: Path) -> None:
    assert RunStore(tmp_path / "none").records("toy") == {}
