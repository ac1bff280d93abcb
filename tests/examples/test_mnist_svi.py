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
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pytest
import torch
from mnist_parts import library_model

from tests.examples.comparing import equal
from tests.examples.conftest import EXAMPLES

TINY = "--hidden-dim 16 --batch-size 50 --learning-rate 1e-2 --num-epochs 2 --iwae-samples 4 --device cpu --threads 1"
FILES = ["checkpoint.pt", "digits.png", "latent.html", "latent.png", "loss.png", "metrics.json"]
ROW = {"epoch", "train_loss", "test_loss", "test_reconstruction", "test_kl", "seconds"}

# Each choice of each option occurs at least once.
RUNS = [
    "--loss meanfield --prior riemannian --posterior wrapped --decoder logmap",
    "--loss iwae --particles 3 --prior wrapped --posterior riemannian --curvature 0.7 --gyroplanes 20 --space h2",
    "--loss trace --curvature learn --decoder mobius --space p3 --iwae-samples 0",
    "--space e2 --posterior-scale diagonal --decoder mlp",
    "--space h2,s2,e1 --curvature learn --fast --iwae-samples 0",
]

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("mnist_svi")


@pytest.fixture
def run(example: ModuleType, digits: Path) -> Run:
    def run(folder: Path, options: str = "") -> dict[str, Any]:
        return example.main(arguments(folder, digits, options))

    return run


def arguments(folder: Path, data: Path, options: str) -> list[str]:
    return [*TINY.split(), "--data-dir", str(data), "--output-dir", str(folder), *options.split()]


@pytest.fixture(scope="module")
def finished(example: ModuleType, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody changes, without its pictures."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "draw", lambda *_: None)
        example.main(arguments(folder, digits, ""))
    return folder


def checkpoint(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["state"]["state"]


@pytest.mark.parametrize("options", RUNS)
def test_runs(options: str, example: ModuleType, digits: Path, tmp_path: Path) -> None:
    args = example.parser().parse_args(arguments(tmp_path, digits, options))
    result = example.main(arguments(tmp_path, digits, options))
    factors = args.space.count(",") + 1
    pages = ["latent.html"] if factors == 1 else [f"latent{i + 1}.html" for i in range(factors)]
    files = sorted({*FILES, *pages} - ({"latent.html"} - {*pages}))
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert all((tmp_path / name).stat().st_size > 1000 for name in files)

    assert json.loads((tmp_path / "metrics.json").read_text()) == result
    assert result["options"]["hidden_dim"] == 16
    assert set(result["versions"]) == {"pyro_hyperbolic", "torch", "pyro", "python"}
    assert (result["train_size"], result["test_size"], result["data"]) == (300, 100, str(digits))
    assert ("negative_iwae" in result) == (args.iwae_samples > 0)
    assert len(result["curvatures"]) == sum(letter in "hps" for letter in args.space)
    for c in result["curvatures"]:
        assert 0.5 < c < 2.0
        assert (c == args.curvature) == (args.curvature != "learn") or c == pytest.approx(args.curvature)

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


def test_checkpoint_is_the_model_that_was_scored(example: ModuleType, digits: Path, finished: Path) -> None:
    result = json.loads((finished / "metrics.json").read_text())
    state = checkpoint(finished)
    assert state["history"] == result["history"]
    vae = example.VAE(example.parser().parse_args(TINY.split()))
    test = example.datasets.mnist(digits, train=False).images
    before = example.evaluate(vae, test)["test_reconstruction"]
    vae.load_state_dict(state["model"])
    after = example.evaluate(vae, test)["test_reconstruction"]
    expected = result["history"][-1]["test_reconstruction"]
    assert after == pytest.approx(expected, abs=1.0)  # the noise of one sample per image
    assert before > expected + 50


@pytest.mark.slow
def test_killed_run_resumes_bit_for_bit(run: Run, digits: Path, tmp_path: Path) -> None:
    options = "--curvature learn"
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
    done = len(checkpoint(killed)["history"])

    options += f" --num-epochs {max(3, done + 1)}"
    resumed, whole = run(killed, f"{options} --resume"), run(tmp_path / "whole", options)
    assert same_run(killed, tmp_path / "whole")
    assert resumed["negative_iwae"] == whole["negative_iwae"]
    assert [row["epoch"] for row in resumed["history"]] == [row["epoch"] for row in whole["history"]]


def test_finished_run_is_extended_bit_for_bit(run: Run, finished: Path, tmp_path: Path) -> None:
    # Neither the estimate of the marginal likelihood nor the pictures leave a trace in the random numbers.
    run(tmp_path / "parts", "--num-epochs 1")
    run(tmp_path / "other", "--num-epochs 1 --seed 1 --iwae-samples 0")
    assert not same_run(tmp_path / "parts", tmp_path / "other")
    assert not same_run(finished, tmp_path / "parts")
    run(tmp_path / "parts", "--num-epochs 2 --resume --iwae-samples 0 --gyroplanes 5")
    assert same_run(finished, tmp_path / "parts")


def test_other_options_are_refused(
    example: ModuleType, digits: Path, finished: Path, refusal: Callable[..., str]
) -> None:
    before = (finished / "checkpoint.pt").read_bytes()
    said = refusal(example.main, arguments(finished, digits, ""))
    assert "checkpoint.pt exists; continue that run with --resume" in said
    said = refusal(example.main, arguments(finished, digits, "--resume --hidden-dim 17 --prior riemannian"))
    assert "other options: --prior (was wrapped, is riemannian), --hidden-dim (was 16, is 17)" in said
    assert (finished / "checkpoint.pt").read_bytes() == before


def test_other_data_are_refused(
    example: ModuleType, digits: Path, finished: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    for path in digits.glob("t10k-*"):
        shutil.copy(path, fewer)
        shutil.copy(path, fewer / path.name.replace("t10k", "train"))
    said = refusal(example.main, arguments(finished, digits, f"--resume --data-dir {fewer}"))
    assert "belongs to other data: training images was 300, is 100" in said


def test_an_interruption_says_how_to_go_on(
    example: ModuleType,
    digits: Path,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original, calls = example.evaluate, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(example, "evaluate", interrupted)
    monkeypatch.setattr(example, "draw", lambda *_: None)
    with pytest.raises(SystemExit, match=r"^130$"):
        example.main(arguments(tmp_path, digits, ""))
    said = capsys.readouterr().err
    assert f"interrupted; go on with the same options and --resume --output-dir {tmp_path}" in said
    assert len(example.main(arguments(tmp_path, digits, "--resume"))["history"]) == 2
    assert same_run(finished, tmp_path)


@pytest.mark.parametrize("far", [0.0, 50.0])  # such an encoder would leave what float32 can hold of the ball
@pytest.mark.parametrize("options", RUNS)
def test_its_model_is_that_of_the_library(options: str, far: float, example: ModuleType, digits: Path) -> None:
    args = example.parser().parse_args(["--hidden-dim", "8", *options.split()])
    own = example.VAE(args)
    torch.nn.init.constant_(own.encoder.loc.bias, far)
    x = example.datasets.mnist(digits, train=False).images[:5]
    losses = []
    for vae in (own, library_model(own, args)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        losses.append(pyro.infer.Trace_ELBO().loss(vae.model, vae.guide, x))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("options", ["", "--fast"])
def test_a_run_that_diverges_ends_with_one_line(
    options: str, example: ModuleType, digits: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trainers warn before
        refusal(example.main, arguments(tmp_path, digits, f"--learning-rate 1e30 {options}"))
    assert not list(tmp_path.iterdir())


def test_output_folder_is_new_by_default(
    example: ModuleType, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [*TINY.split(), "--num-epochs", "1", "--data-dir", str(digits), "--iwae-samples", "0"]
    example.main(options)
    (folder,) = (tmp_path / "outputs").iterdir()
    assert folder.name.startswith("mnist_svi-")
    assert sorted(path.name for path in folder.iterdir()) == FILES


def same_run(first: Path, second: Path) -> bool:
    """Whether two runs ended in the same state: model, optimiser, random generator and history, bit for bit."""
    a, b = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (first, second))
    for payload in (a, b):
        del payload["state"]["options"]
        state = payload["state"]["state"]
        for row in (row for history in state.get("histories", [state.get("history")]) for row in history):
            del row["seconds"]
    return equal(a, b)
