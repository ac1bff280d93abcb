"""The benchmark of a million cells, at a tiny size: from memory, from files, and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import cells

ROOT = Path(__file__).parents[2]
TINY = ["--num-cells", "300", "--num-genes", "20", "--batch-size", "32", "--hidden-dim", "8", "--epochs", "3"]
TINY += ["--save-every", "4"]


def test_counts_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    result = cells.main(TINY)
    assert result["losses"][-1] < result["losses"][0] - 0.5
    assert result["steps"] == 3 * (300 // 32)
    out = capsys.readouterr().out
    assert "300 cells of 20 genes, " in out
    assert "GB on the host" in out


def test_files_hold_the_same_counts(tmp_path: Path) -> None:
    cells.Files.write(tmp_path / "counts", 50, 20, seed=1)
    rows = torch.arange(50)
    expected = cells.on_device(50, 20, 1, "cpu").take(rows)
    files = cells.Files(tmp_path / "counts")
    assert torch.equal(files[0:50].take(rows), expected)
    assert torch.equal(files[13:20].take(torch.arange(7)), expected[13:20])
    assert (expected.sum(-1) > 0).all()
    assert 0.02 < (expected > 0).float().mean() < 0.5


# The second epoch is saved after its fourth batch, the 13th of all. On Windows any signal is the end.
KILLED_AT_STEP_15 = """
import os, signal, sys
from benchmarks import cells
from pyro_hyperbolic.infer import FastSVI

step = FastSVI.step

def dying(svi, *args, **kwargs):
    if svi.steps == 15:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return step(svi, *args, **kwargs)

FastSVI.step = dying
cells.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_killed_and_resumed_without_loss(tmp_path: Path) -> None:
    whole = cells.main([*TINY, "--folder", str(tmp_path / "whole")])
    command = [*TINY, "--folder", str(tmp_path / "killed")]
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_STEP_15, *command], cwd=ROOT, capture_output=True)
    assert killed.returncode != 0
    assert not killed.stderr  # no traceback: there was no time for one
    resumed = cells.main([*command, "--resume"])
    assert resumed["losses"] == whole["losses"]
    assert resumed["steps"] == 27 - 13
    assert cells.main([*command, "--resume"])["steps"] == 0  # nothing is left
    ends = [torch.load(tmp_path / name / "checkpoint.pt")["state"] for name in ("whole", "killed")]
    for name, value in ends[0]["trainer"]["parameters"].items():
        assert torch.equal(value, ends[1]["trainer"]["parameters"][name])
