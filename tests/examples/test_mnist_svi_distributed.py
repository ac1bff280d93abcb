"""``torchrun examples/mnist_svi.py --distributed``: one model, or a sweep, in two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.examples.conftest import EXAMPLES
from tests.examples.test_mnist_svi import FILES, arguments, checkpoint

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SECONDS = 120  # far more than any of these takes
Place = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("mnist_svi")


@pytest.fixture
def place(example: ModuleType, digits: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Run one process of several in this one."""

    def run(folder: Path, rank: int, world: int, options: str) -> dict[str, Any]:
        values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        return example.main(example.parse(arguments(folder, digits, f"--distributed {options}")))

    return run


def launch(folder: Path | None, digits: Path, options: str, **how: Any) -> subprocess.Popen[str]:
    given = arguments(folder or Path(), digits, f"--distributed {options}")
    if folder is None:
        at = given.index("--output-dir")
        del given[at : at + 2]
    command = [*TORCHRUN, str(EXAMPLES / "mnist_svi.py"), *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)


def finish(process: subprocess.Popen[str]) -> str:
    with process:
        try:
            return process.communicate(timeout=SECONDS)[0]
        finally:
            process.kill()


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun started, by rank."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    found = {}
    for child in map(int, text.split()):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [int(entry[5:]) for entry in variables if entry.startswith(b"RANK=")]
        found |= dict.fromkeys(ranks, child)
    return [found[rank] for rank in sorted(found)]


def epochs_done(folder: Path) -> int:
    path = folder / "metrics.json"
    return len(json.loads(path.read_text())["history"]) if path.exists() else 0


def wait_for_epochs(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    start = time.monotonic()
    while epochs_done(folder) < count and process.poll() is None and time.monotonic() - start < SECONDS:
        time.sleep(0.02)


def assert_same_training(two: Path, one: Path) -> None:
    """The same losses and parameters, but for the order of sums."""
    ours, theirs = checkpoint(two), checkpoint(one)
    for row, other in zip(ours["histories"][0], theirs["histories"][0], strict=True):
        for key in ("train_loss", "test_loss", "test_kl"):
            assert row[key] == pytest.approx(other[key], rel=1e-5)
    (model,), (other,) = ours["models"], theirs["models"]
    assert model.keys() == other.keys()
    for key, value in other.items():
        torch.testing.assert_close(model[key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_two_processes_train_as_one_until_one_is_killed(
    place: Place, example: ModuleType, digits: Path, tmp_path: Path
) -> None:
    # The last batch of an epoch has one image, which leaves a process without any.
    options = "--batch-size 23 --learning-rate 1e-3 --loss iwae --particles 2 --num-epochs"
    two, one = tmp_path / "two", tmp_path / "one"
    process = launch(two, digits, f"{options} 100000")
    try:
        wait_for_epochs(process, two, 2)
        os.kill(workers(process)[1], signal.SIGKILL)
        killed = time.monotonic()
    except BaseException:
        process.kill()
        raise
    output = finish(process)
    # Half a minute would be torchrun's patience, half an hour torch's.
    assert time.monotonic() - killed < 25
    assert process.returncode not in (0, -signal.SIGKILL)
    assert f"the last checkpoint, {two / 'checkpoint.pt'}, is whole: go on with --resume." in output, output
    assert "has ended or does not answer" in output or "another process has ended" in output
    assert "SIGKILL" in output  # torchrun says which process, and how it ended
    # Only one process speaks and writes.
    assert output.count("epoch 2/100000:") == 1
    assert sorted(path.name for path in two.iterdir()) == ["checkpoint.pt", "metrics.json"]
    assert json.loads((two / "metrics.json").read_text())["processes"] == 2

    done = checkpoint(two)["epoch"]
    example.main(example.parse(arguments(one, digits, f"{options} {done} --iwae-samples 0")))
    assert_same_training(two, one)
    # It goes on, here with another number of processes.
    place(two, 0, 1, f"{options} {done + 1} --resume")
    example.main(example.parse(arguments(one, digits, f"{options} {done + 1} --resume")))
    assert_same_training(two, one)
    assert sorted(path.name for path in two.iterdir()) == FILES
    a, b = (json.loads((folder / "metrics.json").read_text()) for folder in (two, one))
    # The estimate has noise of its own in each process.
    assert a["negative_iwae"] == pytest.approx(b["negative_iwae"], abs=6 * 2**0.5 * b["negative_iwae_error"])


@pytest.mark.slow
def test_the_first_process_chooses_the_folder(place: Place, example: ModuleType, digits: Path, tmp_path: Path) -> None:
    output = finish(process := launch(None, digits, "--num-epochs 1 --iwae-samples 0", cwd=tmp_path))
    assert process.returncode == 0, output
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.startswith("mnist_svi-")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["processes"] == 2
    assert metrics["options"]["output_dir"] == str(folder.relative_to(tmp_path))
    # It goes on as any other.
    assert len(place(folder, 0, 1, "--num-epochs 2 --iwae-samples 0 --resume")["history"]) == 2
    with pytest.raises(SystemExit, match="--resume needs --output-dir"):
        example.main(example.parse(["--distributed", "--resume"]))


def test_without_torchrun(example: ModuleType, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for options in ("--distributed", "--distributed --ensemble 0,1"):
        with pytest.raises(SystemExit, match=r"--distributed: .* start the program with `torchrun"):
            example.main(example.parse(arguments(tmp_path, digits, options)))
    assert not list(tmp_path.iterdir())


def test_a_sweep_is_brought_together(place: Place, tmp_path: Path) -> None:
    options = "--ensemble 5-7 --num-epochs 1"
    first = place(tmp_path, 0, 2, options)
    assert [member["seed"] for member in first["members"]] == [5, 7]
    assert not (tmp_path / "metrics.json").exists()
    last = place(tmp_path, 1, 2, options)
    names = {path.name for path in tmp_path.iterdir()}
    parts = {f"{Path(name).stem}.rank{rank}{Path(name).suffix}" for name in FILES for rank in (0, 1)}
    assert names == parts | {"metrics.json"}
    merged = json.loads((tmp_path / "metrics.json").read_text())
    assert merged == last
    assert [member["seed"] for member in merged["members"]] == [5, 6, 7]
    assert merged["members"][::2] == first["members"]
    values = [member["negative_iwae"] for member in merged["members"]]
    assert merged["summary"]["negative_iwae"]["mean"] == pytest.approx(sum(values) / 3)

    # A longer run: its first process does not take the other's old file for a new one.
    (tmp_path / "metrics.json").unlink()
    longer = options.replace("epochs 1", "epochs 2") + " --resume --iwae-samples 0"
    place(tmp_path, 0, 2, longer)
    assert not (tmp_path / "metrics.json").exists()
    assert all(len(member["history"]) == 2 for member in place(tmp_path, 1, 2, longer)["members"])

    with pytest.raises(SystemExit, match=r"has the seeds \[5, 7\], but the share of this process is \[5\] now"):
        place(tmp_path, 0, 3, longer)
    with pytest.raises(SystemExit, match="3 seeds are too few for 4 processes"):
        place(tmp_path, 3, 4, longer)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_silent_worker_is_given_up(digits: Path, tmp_path: Path) -> None:
    process = launch(tmp_path, digits, "--batch-size 6 --num-epochs 100000 --iwae-samples 0 --timeout 4")
    try:
        wait_for_epochs(process, tmp_path, 1)
        os.kill(workers(process)[1], signal.SIGSTOP)
        start = time.monotonic()
    except BaseException:
        process.kill()
        raise
    output = finish(process)
    assert process.returncode != 0
    assert "does not answer" in output
    assert time.monotonic() - start < 60  # torchrun itself waits half a minute before it kills
    assert checkpoint(tmp_path)["epoch"] >= 1


@pytest.mark.slow
def test_two_processes_share_a_sweep(digits: Path, tmp_path: Path) -> None:
    output = finish(process := launch(None, digits, "--ensemble 0-2 --num-epochs 1", cwd=tmp_path))
    assert process.returncode == 0, output
    (folder,) = (tmp_path / "outputs").iterdir()
    merged = json.loads((folder / "metrics.json").read_text())
    assert [member["seed"] for member in merged["members"]] == [0, 1, 2]
