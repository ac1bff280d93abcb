"""``examples/mnist_svi.py`` with tiny settings: its options, its files, and that it resumes bit for bit."""

from __future__ import annotations

import json
import math
import random
import shutil
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

from tests.examples.comparing import equal
from tests.examples.conftest import EXAMPLES

TINY = "--hidden-dim 16 --batch-size 50 --learning-rate 1e-2 --num-epochs 2 --iwae-samples 4 --device cpu --threads 1"
FILES = ["checkpoint.pt", "latent.html", "latent.png", "loss.png", "metrics.json", "reconstructions.png", "samples.png"]
ROW = {"epoch", "train_loss", "test_loss", "test_reconstruction", "test_kl", "seconds"}

# Each choice of each option occurs at least once.
RUNS = [
    "--loss trace --prior wrapped --posterior wrapped --gyroplanes",
    "--loss meanfield --prior riemannian --posterior wrapped --decoder logmap",
    "--loss iwae --particles 3 --prior wrapped --posterior riemannian",
    "--loss trace --prior riemannian --posterior riemannian --curvature 0.7 --latent-precision 64",
    "--curvature learn --decoder mobius --latent-dim 3",
    "--curvature 0 --posterior-scale diagonal",
    "--curvature 0 --loss meanfield --latent-dim 1",
    "--decoder mlp --posterior-scale diagonal --iwae-samples 0",
]

MISTAKES = [
    ("--curvature -1", "--curvature: must be a number >= 0 or 'learn', got '-1'"),
    ("--curvature nan", "--curvature: must be a number >= 0 or 'learn', got 'nan'"),
    ("--curvature flat", "--curvature: must be a number >= 0 or 'learn', got 'flat'"),
    ("--prior normal", "--prior: invalid choice: 'normal'"),
    ("--loss elbo", "--loss: invalid choice: 'elbo'"),
    ("--loss iwae", "--loss iwae needs --particles of at least 2"),
    ("--particles 0", "--particles: must be a positive int, got '0'"),
    ("--num-epochs 1.5", "--num-epochs: must be a positive int, got '1.5'"),
    ("--learning-rate inf", "--learning-rate: must be a positive float, got 'inf'"),
    ("--prior-scale 0", "--prior-scale: must be a positive float, got '0'"),
    ("--iwae-samples -1", "--iwae-samples: must be"),
    ("--seed -1", "--seed: must be"),
    ("--posterior-scale diagonal --posterior riemannian", "--posterior-scale diagonal needs --posterior wrapped"),
    ("--epochs 3", "unrecognized arguments: --epochs 3"),
    ("--ensemble 0,1 --seed 3", "not allowed with argument"),
    ("--ensemble 0,1 --fast", "--fast is for one model"),
    ("--ensemble 1-", "--ensemble: must be seeds such as 0,1,5 or 0-9, got '1-'"),
    ("--ensemble a", "--ensemble: must be seeds such as 0,1,5 or 0-9, got 'a'"),
    ("--ensemble 3-1", "--ensemble: must be seeds that differ, got '3-1'"),
    ("--ensemble 0-3,2", "--ensemble: must be seeds that differ, got '0-3,2'"),
    ("--compile", "--compile needs --fast or --ensemble"),
    ("--distributed --fast", "--fast is for one process"),
    ("--distributed --compile", "--compile needs --fast or --ensemble"),
    ("--timeout 0", "--timeout: must be a positive float, got '0'"),
]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("mnist_svi")


@pytest.fixture
def run(example: ModuleType, digits: Path) -> Run:
    def run(folder: Path, options: str = "") -> dict[str, Any]:
        return example.main(example.parse(arguments(folder, digits, options)))

    return run


def arguments(folder: Path, data: Path, options: str) -> list[str]:
    return [*TINY.split(), "--data-dir", str(data), "--output-dir", str(folder), *options.split()]


def checkpoint(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["state"]


@pytest.mark.parametrize("options", RUNS)
def test_runs(options: str, example: ModuleType, digits: Path, tmp_path: Path) -> None:
    args = example.parse(arguments(tmp_path, digits, options))
    result = example.main(args)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert all((tmp_path / name).stat().st_size > 1000 for name in FILES)

    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert result["options"]["hidden_dim"] == 16
    assert set(result["versions"]) == {"pyro_hyperbolic", "torch", "pyro"}
    assert (result["train_size"], result["test_size"], result["data"]) == (300, 100, str(digits))
    assert ("negative_iwae" in result) == (args.iwae_samples > 0)
    assert ("curvature" in result) == (args.curvature != 0)
    if args.curvature == "learn":
        assert result["curvature"] != 1.0
        assert 0.5 < result["curvature"] < 2.0

    history = result["history"]
    assert [row["epoch"] for row in history] == [1, 2]
    for row in history:
        assert set(row) == ROW
        assert all(math.isfinite(value) for value in row.values())
        assert row["test_loss"] == pytest.approx(row["test_reconstruction"] + row["test_kl"], abs=1e-9)
        assert 100 < row["test_reconstruction"] < 300  # the mean digit costs about 206
    assert history[1]["train_loss"] < history[0]["train_loss"]
    if args.iwae_samples:
        # Four samples are better than one, but for the noise of both.
        assert result["negative_iwae"] < history[-1]["test_loss"] + 1


def test_checkpoint_is_the_model_that_was_scored(run: Run, example: ModuleType, digits: Path, tmp_path: Path) -> None:
    result = run(tmp_path)
    state = checkpoint(tmp_path)
    assert (state["epoch"], state["histories"], state["options"]) == (2, [result["history"]], result["options"])
    vae = example.build_model(example.parse(arguments(tmp_path, digits, "")))
    test = example.datasets.mnist(digits, train=False).images
    before = example.evaluate(vae, test)["test_reconstruction"]
    vae.load_state_dict(state["models"][0])
    after = example.evaluate(vae, test)["test_reconstruction"]
    expected = result["history"][-1]["test_reconstruction"]
    assert after == pytest.approx(expected, abs=1.0)  # the noise of one sample per image
    assert before > expected + 50


def test_killed_run_resumes_bit_for_bit(run: Run, digits: Path, tmp_path: Path) -> None:
    options = "--batch-size 6 --curvature learn --prior riemannian"
    killed = tmp_path / "killed"
    # More epochs than it has time for, so that a stalled machine cannot let it finish first.
    given = arguments(killed, digits, f"{options} --num-epochs 100000")
    process = subprocess.Popen([sys.executable, str(EXAMPLES / "mnist_svi.py"), *given], stdout=subprocess.DEVNULL)
    try:
        while not (killed / "metrics.json").exists() and process.poll() is None:
            time.sleep(0.01)
        epoch_seconds = json.loads((killed / "metrics.json").read_text())["history"][0]["seconds"]
        time.sleep(random.random() * epoch_seconds)  # anywhere within the second epoch
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    done = checkpoint(killed)["epoch"]

    options += f" --num-epochs {max(4, done + 1)}"
    resumed, whole = run(killed, f"{options} --resume"), run(tmp_path / "whole", options)
    assert same_run(killed, tmp_path / "whole")
    assert resumed["negative_iwae"] == whole["negative_iwae"]
    assert [row["epoch"] for row in resumed["history"]] == [row["epoch"] for row in whole["history"]]


def test_finished_run_is_extended_bit_for_bit(run: Run, tmp_path: Path) -> None:
    run(tmp_path / "whole", "--num-epochs 3")
    # Neither the estimate of the marginal likelihood nor the pictures leave a trace in the random numbers.
    run(tmp_path / "parts", "--num-epochs 1")
    assert not same_run(tmp_path / "whole", tmp_path / "parts")
    run(tmp_path / "parts", "--num-epochs 3 --resume --iwae-samples 0 --gyroplanes")
    assert same_run(tmp_path / "whole", tmp_path / "parts")

    run(tmp_path / "other", "--num-epochs 3 --seed 1 --iwae-samples 0")
    assert not same_run(tmp_path / "whole", tmp_path / "other")


def test_other_options_are_refused(run: Run, tmp_path: Path) -> None:
    run(tmp_path, "--num-epochs 1")
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(SystemExit, match=r"checkpoint\.pt exists: continue that run with --resume"):
        run(tmp_path)
    with pytest.raises(SystemExit, match=r"other options: --prior \(was wrapped, is riemannian\), --hidden-dim \(was"):
        run(tmp_path, "--resume --hidden-dim 17 --prior riemannian")
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_other_data_are_refused(run: Run, digits: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", "--num-epochs 1 --iwae-samples 0")
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    for path in digits.glob("t10k-*"):
        shutil.copy(path, fewer)
        shutil.copy(path, fewer / path.name.replace("t10k", "train"))
    with pytest.raises(SystemExit, match="trained on 300 images, but there are 100 now"):
        run(tmp_path / "run", f"--resume --data-dir {fewer}")


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"no checkpoint" * 99])
def test_damaged_checkpoint_is_named(damage: Callable[[bytes], bytes], run: Run, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    whole = tmp_path / "whole.pt"
    torch.save({"state": {}, "rng": {}}, whole)
    path.write_bytes(damage(whole.read_bytes()))
    with pytest.raises(ValueError, match=r"checkpoint\.pt is not a checkpoint of this package, or is damaged"):
        run(tmp_path, "--resume")


def test_resume_needs_a_folder(example: ModuleType, digits: Path) -> None:
    with pytest.raises(SystemExit, match="--resume needs --output-dir"):
        example.main(example.parse(["--data-dir", str(digits), "--resume"]))


def test_output_folder_is_new_by_default(
    example: ModuleType, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*TINY.split(), "--num-epochs", "1", "--data-dir", str(digits), "--iwae-samples", "0"]
    example.main(example.parse(options))
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.startswith("mnist_svi-")
    assert sorted(path.name for path in folder.iterdir()) == FILES


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_end_with_a_message(
    options: str, message: str, example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        example.parse(options.split())
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def same_run(first: Path, second: Path) -> bool:
    """Whether two runs ended in the same state: model, optimiser, random generator and history, bit for bit."""
    a, b = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (first, second))
    for payload in (a, b):
        del payload["state"]["options"]
        for row in (row for history in payload["state"]["histories"] for row in history):
            del row["seconds"]
    return equal(a, b)
