"""``torchrun examples/mnist_distributed.py``: one model in two processes."""

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
    return load_example("mnist_distributed")


@pytest.fixture
def place(example: ModuleType, digits: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Run one process of several in this one."""

    def run(folder: Path, rank: int, world: int, options: str) -> dict[str, Any]:
        values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        return example.main(arguments(folder, digits, options))

    return run


def launch(name: str, folder: Path, digits: Path, options: str) -> subprocess.Popen[str]:
    command = [*TORCHRUN, str(EXAMPLES / f"{name}.py"), *arguments(folder, digits, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


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
    for row, other in zip(ours["history"], theirs["history"], strict=True):
        for key in ("train_loss", "test_loss", "test_kl"):
            assert row[key] == pytest.approx(other[key], rel=1e-5)
    assert ours["model"].keys() == theirs["model"].keys()
    for key, value in theirs["model"].items():
        torch.testing.assert_close(ours["model"][key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_two_processes_train_as_one_until_one_is_killed(
    place: Place, load_example: Callable[[str], ModuleType], digits: Path, tmp_path: Path
) -> None:
    single = load_example("mnist_svi")
    # The last batch of an epoch has one image, which leaves a process without any.
    options = "--batch-size 23 --learning-rate 1e-3 --loss iwae --particles 2 --num-epochs"
    two, one = tmp_path / "two", tmp_path / "one"
    process = launch("mnist_distributed", two, digits, f"{options} 100000")
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
    assert f"the last checkpoint, {two / 'checkpoint.pt'}, is whole: go on with --resume" in output, output
    assert "has ended or does not answer" in output or "another process has ended" in output
    assert "SIGKILL" in output  # torchrun says which process, and how it ended
    # Only one process speaks and writes.
    assert output.count("epoch 2/100000:") == 1
    assert sorted(path.name for path in two.iterdir()) == ["checkpoint.pt", "metrics.json"]
    assert json.loads((two / "metrics.json").read_text())["processes"] == 2

    done = len(checkpoint(two)["history"])
    single.main(arguments(one, digits, f"{options} {done} --iwae-samples 0"))
    assert_same_training(two, one)
    # It goes on, here with another number of processes.
    place(two, 0, 1, f"{options} {done + 1} --resume")
    single.main(arguments(one, digits, f"{options} {done + 1} --resume"))
    assert_same_training(two, one)
    assert sorted(path.name for path in two.iterdir()) == FILES
    a, b = (json.loads((folder / "metrics.json").read_text()) for folder in (two, one))
    # The estimate has noise of its own in each process.
    assert a["negative_iwae"] == pytest.approx(b["negative_iwae"], abs=6 * 2**0.5 * b["negative_iwae_error"])


def test_without_torchrun(
    example: ModuleType, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert "start the program with `torchrun" in refusal(example.main, arguments(tmp_path, digits, ""))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_a_silent_worker_is_given_up(digits: Path, tmp_path: Path) -> None:
    process = launch(
        "mnist_distributed", tmp_path, digits, "--batch-size 6 --num-epochs 100000 --iwae-samples 0 --timeout 4"
    )
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
    assert checkpoint(tmp_path)["history"]
