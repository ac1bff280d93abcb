"""What users get wrong ends every program with one line that says what and the remedy, and exit code 2."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pyro_hyperbolic import commands
from pyro_hyperbolic.commands import save_run

EXPERIMENTS = "pyro_hyperbolic.experiments.cli"

# Every program, and what it must be given in any case.
PROGRAMS = {
    "branching_diffusion": "",
    "conv_vae": "",
    EXPERIMENTS: "table1",
}

# What is wrong for every program that has the option, and what is said about it.
MISTAKES = [
    ("--device", "gpu", "argument --device: must be cpu, cuda or a device such as cuda:1, got 'gpu'"),
    ("--device", "cuda:99", "argument --device: t"),  # torch finds no CUDA device, or there is no such one
    ("--output-dir", "missing/run", "missing to make missing/run in; make it first, or check the path"),
    ("--output-dir", "file", "argument --output-dir: file is a file; give a folder"),
    ("--output", "missing/run.png", "missing to make missing/run.png in; make it first, or check the path"),
    ("--results", "missing/run", "missing to make missing/run in; make it first, or check the path"),
    ("--data-dir", "missing/data", "missing to make missing/data in; make it first, or check the path"),
    ("--data-dir", "file", "argument --data-dir: file is a file; give a folder"),
    ("--space", "h2,x2", "argument --space: a factor of a signature is one of the letters"),
    ("--seed", "-1", "argument --seed: must be a whole number of at least 0, got '-1'"),
    ("--threads", "0", "argument --threads: must be a positive whole number, got '0'"),
    ("--num-epochs", "0", "argument --num-epochs: must be a positive whole number, got '0'"),
    ("--curvature", "nan", "argument --curvature: must be a "),
    ("--learning-rate", "0", "argument --learning-rate: must be a positive number, got '0'"),
    ("--latent-dim", "1.5", "argument --latent-dim: must be a positive whole number, got '1.5'"),
    ("--hidden-dim", "x", "argument --hidden-dim: must be a positive whole number, got 'x'"),
    ("--prior", "flat", "argument --prior: invalid choice: 'flat'"),
    ("--resume", "", "--resume needs --output-dir, the folder of the run to continue"),
    ("--resume", "--output-dir folder", "there is no run to continue in folder"),
    ("--resume", "--output-dir new", "there is no run to continue in new"),
    ("--nonsense", "", "unrecognized arguments: --nonsense"),
]

# program, arguments, what is said
OWN_MISTAKES = [
    ("branching_diffusion", "--resume --output-dir damaged", "hyperbolic.pt is not a checkpoint of this package"),
    ("branching_diffusion", "--resume --output-dir foreign", "belongs to other options: --curvature (was 7, is 1.2)"),
    ("conv_vae", "--data-dir empty --num-epochs 1", "expected a header of 16 bytes, found 0; the file is damaged"),
    (EXPERIMENTS, "--cells c=7 --results folder", "no cell of table1 is called 'c=7'"),
    (EXPERIMENTS, "--results /proc/nothing", "/proc"),
]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a file, data without content, a damaged checkpoint and one of other options."""
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "damaged", "foreign", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("1 2\n")
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / "empty" / f"{part}-{kind}-ubyte").touch()
    for name in ("hyperbolic", "single", "checkpoint"):
        (tmp_path / "damaged" / f"{name}.pt").write_bytes(b"no checkpoint")
        save_run({}, tmp_path / "foreign" / f"{name}.pt", argparse.Namespace(curvature=7))
    (tmp_path / "damaged" / "metrics.json").write_text('{"options": ')


@pytest.fixture
def load(load_example: Callable[[str], ModuleType]) -> Callable[[str], ModuleType]:
    return lambda name: importlib.import_module(name) if "." in name else load_example(name)


def options(program: ModuleType) -> Iterator[str]:
    return iter(program.parser()._option_string_actions)


@pytest.mark.parametrize("name", PROGRAMS)
def test_mistakes_are_one_line(
    name: str, load: Callable[[str], ModuleType], tmp_path: Path, refusal: Callable[..., str]
) -> None:
    program = load(name)
    own = [(f"{key} {value}", words) for key, value, words in MISTAKES if key in {*options(program), "--nonsense"}]
    own += [(arguments, words) for other, arguments, words in OWN_MISTAKES if other == name]
    assert len(own) > 3
    before = sorted(tmp_path.rglob("*"))
    for arguments, words in own:
        assert words in refusal(program.main, [*PROGRAMS[name].split(), *arguments.split()])
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_is_checked(
    name: str, load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(name)
    places = (commands.folder, commands.output_file)
    for action in program.parser()._actions:
        if action.type is not None and action.type not in places:
            with pytest.raises(SystemExit, match=r"^2$"):
                program.main([*PROGRAMS[name].split(), action.option_strings[0], "non sense"])
            assert f"argument {action.option_strings[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_shows_every_default(
    name: str, load: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(name)
    with pytest.raises(SystemExit, match=r"^0$"):
        program.main(["--help"])
    text = capsys.readouterr().out
    assert "examples:\n" in text
    shown = [action for action in program.parser()._actions if action.option_strings and action.dest != "help"]
    assert shown
    assert " ".join(text.split()).count("(default: ") == len(shown)
    assert "(default: None)" not in text
