"""Which runs are trained, together with which, and from where."""

from __future__ import annotations

import io
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import Job, RunStore, Settings, Table1, Table3, sweep
from experiments import session as session_module
from experiments.progress import Progress, duration
from experiments.sweep import group, select, share, wait_for_others
from pyro_hyperbolic import datasets
from pyro_hyperbolic.infer import EnsembleSVI
from tests.experiments.conftest import TINY, Toy


def test_finished_runs_are_not_repeated(tmp_path: Path, toy: Toy) -> None:
    store = RunStore(tmp_path)
    sweep(toy, store, patterns=["size 2"])
    assert toy.log == [[(2, 0), (2, 1), (2, 2)]]
    toy.log.clear()
    sweep(toy, store)
    assert sorted(toy.log) == [[(1, 0), (1, 1), (1, 2)], [(3, 0), (3, 1), (3, 2)]]
    toy.log.clear()
    sweep(toy, store)
    assert toy.log == []
    sweep(replace(toy, seeds=4), store)
    assert sorted(toy.log) == [[(1, 3)], [(2, 3), (3, 3)]]


def test_what_was_finished_before_an_error_is_kept(tmp_path: Path, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Toy.run

    def fails_on_flat(self: Toy, jobs: Any, session: Any) -> Any:
        if jobs[0].cell.size == 1:
            raise RuntimeError("out of memory")
        return run(self, jobs, session)

    monkeypatch.setattr(Toy, "run", fails_on_flat)
    with pytest.raises(RuntimeError, match="out of memory"):
        sweep(toy, RunStore(tmp_path))
    assert len(RunStore(tmp_path).records("toy")) == 6


def test_groups_have_one_shape_and_a_largest_size(toy: Toy) -> None:
    jobs = [Job(toy, cell, seed) for cell in toy.cells() for seed in range(3)]
    assert [len(same) for same in group(jobs, 100)] == [3, 6]
    assert [len(same) for same in group(jobs, 4)] == [3, 4, 2]
    assert all(len({toy.shape(job.cell) for job in same}) == 1 for same in group(jobs, 4))


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_processes_share_the_groups(toy: Toy, world: int) -> None:
    jobs = [Job(toy, cell, seed) for cell in toy.cells() for seed in range(3)]
    groups = group(jobs, 2)
    shares = [share(groups, rank, world) for rank in range(world)]
    taken = [job for part in shares for same in part for job in same]
    assert sorted(job.key for job in taken) == sorted(job.key for job in jobs)
    loads = [sum(map(len, part)) for part in shares]
    assert max(loads) - min(loads) <= 2


def test_waiting_ends_when_the_others_have_finished(tmp_path: Path, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = RunStore(tmp_path), RunStore(tmp_path, rank=1)
    jobs = [Job(toy, toy.cells()[0], seed) for seed in range(3)]
    waits = []

    def another_finishes(seconds: float) -> None:
        other.append(jobs[len(waits)], metrics={})
        waits.append(seconds)

    monkeypatch.setattr(time, "sleep", another_finishes)
    wait_for_others(store, jobs)
    assert len(waits) == 3


def test_names_select_cells(toy: Toy) -> None:
    assert [cell.name for cell in select(toy, ["size 1", "*3"])] == ["size 1", "size 3"]
    with pytest.raises(ValueError, match="no cell of toy is called 'size 9'; there are 'size 1', 'size 2', 'size 3'"):
        select(toy, ["size 9"])


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="epochs must be positive, got 0"):
        Table1(epochs=0)
    with pytest.raises(ValueError, match=r"seeds must be trainings \* embedding.seeds = 5 \* 10, got 3"):
        Table3(seeds=3)


CELLS = ["c=0.3, sigma0=1.0"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a sweep without interruption finds."""
    store = RunStore(tmp_path_factory.mktemp("whole"))
    sweep(TINY["table1"], store, patterns=CELLS)
    return {key: run["metrics"] for key, run in store.records("table1").items()}


@pytest.mark.parametrize("stop", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupted_group_goes_on_where_it_was(
    whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    """Bit for bit: the results are those of a sweep without interruption."""
    table = TINY["table1"]
    eager = Settings(checkpoint_seconds=0.0)
    save = session_module.save_checkpoint

    def save_and_die(state: dict[str, Any], path: Path) -> None:
        save(state, path)
        if state.get("epoch") == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "save_checkpoint", save_and_die)
    store = RunStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        sweep(table, store, eager, CELLS)
    assert store.records("table1") == {}
    monkeypatch.setattr(session_module, "save_checkpoint", save)

    steps = []
    step = EnsembleSVI.step
    monkeypatch.setattr(EnsembleSVI, "step", lambda *args, **kwargs: steps.append(1) or step(*args, **kwargs))
    sweep(table, store, eager, CELLS)
    assert len(steps) == (table.epochs - stop) * 7  # 444 observations in batches of 64
    assert {key: run["metrics"] for key, run in store.records("table1").items()} == whole
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.usefixtures("bundled")
def test_models_that_are_needed_are_trained_first(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    sweep(TINY["table3"], store, patterns=["euclidean"])
    assert [run["cell"]["distribution"] for run in store.records("table2").values()] == ["euclidean"]
    runs = store.records("table3")
    assert [run["seed"] for run in runs.values()] == [0, 1]
    for run in runs.values():
        assert sum(map(sum, run["metrics"]["confusion"])) == 256
    again = []
    original = type(TINY["table2"]).run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(TINY["table2"]), "run", lambda *args: again.append(1) or original(*args))
        sweep(TINY["table3"], store, patterns=["euclidean"])
    assert again == []


def test_a_member_that_diverges_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Table1.build
    count = []

    def one_is_broken(self: Table1, *args: Any) -> Any:
        vae = build(self, *args)
        count.append(vae)
        if len(count) == 2:
            with torch.no_grad():
                vae.decoder.output.bias.fill_(1e30)
        return vae

    monkeypatch.setattr(Table1, "build", one_is_broken)
    store = RunStore(tmp_path)
    with pytest.warns(UserWarning, match="the loss of member 1 is not finite"):
        sweep(TINY["table1"], store, Settings(max_members=2), ["euclidean, sigma0=1.0"])
    good, bad = (run["metrics"]["negative_iwae"] for run in store.records("table1").values())
    assert good < 100
    assert not bad < 1e6


def test_diverged_graphs_have_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    karate, train = datasets.graph("karate"), session_module.Session.train

    def second_diverges(self: Any, jobs: Any, members: Any, *args: Any) -> Any:
        svi = train(self, jobs, members, *args)
        with torch.no_grad():
            members[1].encoder.loc.weight.fill_(torch.nan)
        return svi

    monkeypatch.setattr(datasets, "graph", lambda name: karate)
    monkeypatch.setattr(session_module.Session, "train", second_diverges)
    store = RunStore(tmp_path)
    sweep(replace(TINY["table4"], seeds=1), store, patterns=["diseases, hyperbolic*"])
    first, second, third = (run["metrics"]["auc"] for run in store.records("table4").values())
    assert math.isnan(second)
    assert 0 <= first <= 1
    assert 0 <= third <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_members": 0}, "max_members must be a positive"), ({"rank": 2, "world": 2}, "got rank 2 of world 2")],
)
def test_settings_of_a_sweep_are_checked(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


@pytest.mark.usefixtures("bundled")
def test_models_that_are_gone_are_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    sweep(TINY["table2"], store, patterns=["euclidean, d=2"])
    for path in (tmp_path / "models").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="the parameters of table2, euclidean, d=2, seed 0, are not in"):
        sweep(TINY["table3"], store, patterns=["euclidean"])


def test_progress_tells_the_time_left() -> None:
    out = io.StringIO()
    progress = Progress(10, "sweep", file=out, every=0.0)
    progress.advance(5, "first")
    progress.advance(5, "second")
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("sweep, first: 50%, ")
    assert lines[1] == "sweep, second: 100%, 0 s left"
    assert [duration(s) for s in (5, 65, 7300, float("nan"))] == ["5 s", "1 min 05 s", "2 h 01 min", "unknown time"]
