"""What users get wrong ends every benchmark with one line that says what and the remedy, and exit code 2."""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import cells, gpu
from benchmarks.gpu_rows import GROUPS, Row
from pyro_hyperbolic.infer import save_checkpoint

# Arguments without which a program refuses to work, or would work for long.
PROGRAMS = {
    "run": "--tiny --seconds 1e-9",
    "gpu": "--device cpu --tiny --repeats 1",
    "growth": "whole.json",
    "accuracy": "--samples 1 --output folder",
    "cells": "--num-cells 8 --num-genes 3 --batch-size 4 --hidden-dim 2 --latent-dim 1 --epochs 1",
    "networks": "--nodes 40 --edges 60 --steps 2 --repeats 1",
    "numpyro": "--no-nothing --no-evaluation --no-nuts",
}
DAMAGED = "is damaged, or is not a result of this program; name another, or delete it"
# An option, a wrong value of it, and what the line says.
MISTAKES = [
    ("--seconds", "0", "argument --seconds: must be a positive number, got '0'"),
    ("--seconds", "nan", "argument --seconds: must be a positive number, got 'nan'"),
    ("--time-limit", "-1", "argument --time-limit: must be a positive number, got '-1'"),
    ("--repeats", "0", "argument --repeats: must be a positive whole number, got '0'"),
    ("--jobs", "many", "argument --jobs: must be a positive whole number, got 'many'"),
    ("--samples", "0", "argument --samples: must be a positive whole number, got '0'"),
    ("--num-cells", "-3", "argument --num-cells: must be a positive whole number, got '-3'"),
    ("--curvature", "nan", "argument --curvature: must be a positive number, got 'nan'"),
    ("--seed", "-1", "argument --seed: must be a whole number of at least 0, got '-1'"),
    ("--threads", "0", "argument --threads: must be a positive whole number, got '0'"),
    ("--members", "0", "argument --members: must be a positive whole number, got '0'"),
    ("--train", "5", "argument --train: must be a whole number of at least 128, got '5'"),
    ("--device", "gpu", "argument --device: must be cpu, cuda or a device such as cuda:1, got 'gpu'"),
    ("--device", "cuda", "argument --device: torch finds 0 CUDA devices, so none is cuda; use cpu"),
    ("--json", "folder", "argument --json: must be a file that can be written, got 'folder'"),
    ("--json", "missing/x.json", "missing is not a folder; make it first, or check the path"),
    ("--json", "file/x.json", "argument --json: "),
    ("--output", "file", "argument --output: file is not a folder; make it first, or check the path"),
    ("--output", "missing/tables", "missing is not a folder; make it first"),
    ("--folder", "file", "argument --folder: file is not a folder; make it first, or check the path"),
    ("--folder", "missing/run", "missing is not a folder; make it first"),
    ("--nonsense", "", "--nonsense"),
]
OWN_MISTAKES = [
    ("run", "normals", "argument group: must be one of distributions, training, charts, spaces, got 'normals'"),
    ("gpu", "sizes", "argument group: must be one of bounds, "),
    ("gpu", "--json whole.json", "--json whole.json exists; go on with --resume, or name another file"),
    ("gpu", "--resume --json whole.json", "--resume: whole.json has the torch 0, here it is"),
    ("numpyro", "--rst", "--rst needs --json, the file with the results"),
    (
        "numpyro",
        "--rst --json no.json",
        "argument --json: must be a file that can be read and is not empty, got 'no.json'",
    ),
    ("numpyro", "--rst --json row.json", DAMAGED),
    ("numpyro", "--json row.json", "--json row.json exists; go on with --resume, or name another file"),
    *(
        (name, arguments, words)
        for name in ("gpu", "numpyro")
        for arguments, words in [
            ("--resume", "--resume needs --json, the file with the results"),
            (
                "--resume --json no.json",
                "argument --json: must be a file that can be read and is not empty, got 'no.json'",
            ),
            (
                "--resume --json empty.json",
                "argument --json: must be a file that can be read and is not empty, got 'empty.json'",
            ),
            ("--resume --json half.json", f"argument --json: half.json {DAMAGED}"),
            ("--resume --json list.json", f"argument --json: list.json {DAMAGED}"),
        ]
    ),
    ("growth", "", "there is nothing to do; name a figure, or ask for --rst"),
    ("growth", "folder", "argument figure: must end in one of "),
    ("growth", "figure.txt", "argument figure: must end in one of "),
    ("growth", "missing/figure.png", "missing is not a folder; make it first"),
    (
        "accuracy",
        "--output taken",
        "argument --output: must be a file that can be written, got 'taken/accuracy_hyperboloid.csv'",
    ),
    ("cells", "--batch-size 9", "--batch-size must be at most --num-cells, 8, got 9"),
    ("cells", "--num-genes 32769", "--num-genes must be at most 32768, got 32769"),
    ("cells", "--resume", "--resume needs --folder, the folder of the run to continue"),
    ("cells", "--resume --folder folder", "--resume: there is no run to continue in folder (no checkpoint.pt); check"),
    ("cells", "--folder damaged", "checkpoint.pt exists; continue that run with --resume, or choose another --folder"),
    ("cells", "--resume --folder damaged", "is not a checkpoint of this package, or is damaged"),
    ("cells", "--resume --folder foreign", "is not a checkpoint of this program; choose another --folder"),
]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and files that are empty, damaged or whole, and no CUDA device."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name in ("folder", "damaged", "foreign", "taken"):
        (tmp_path / name).mkdir()
    (tmp_path / "taken" / "accuracy_hyperboloid.csv").mkdir()
    (tmp_path / "file").write_text("1 2\n")
    (tmp_path / "empty.json").touch()
    (tmp_path / "half.json").write_text('{"device": "CPU", "rows"')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "row.json").write_text('{"device": "CPU", "versions": {}, "rows": {"a": {"wrapped": 1}}}')
    (tmp_path / "whole.json").write_text(json.dumps(result()))
    (tmp_path / "damaged" / "checkpoint.pt").write_bytes(b"no checkpoint")
    save_checkpoint({"options": {}}, tmp_path / "foreign" / "checkpoint.pt")


def result(**changes: Any) -> dict[str, Any]:
    """What ``benchmarks.gpu`` writes, with one row that has these changes."""
    row = {"name": "a", "subject": "step", "kind": "stock", "distribution": "wrapped", "dim": 2, "batch": 8}
    row |= {"members": 1, "nodes": 0, "unit": "ms", "bound": None, "median": 2.0, "min": 1.0, "max": 3.0, "over": False}
    return {"device": platform.machine(), "torch": "0", "tiny": True, "rows": [row | changes], "ratios": []}


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a program says in the one line with which it refuses to work; it has printed and left nothing else."""

    def line(program: ModuleType, arguments: str) -> str:
        capsys.readouterr()
        before = sorted(Path().rglob("*"))
        with pytest.raises(SystemExit) as stop:
            program.main(arguments.split())
        out, said = capsys.readouterr()
        assert (stop.value.code, said.count("\n"), out) == (2, 1, ""), said
        assert sorted(Path().rglob("*")) == before
        return said

    return line


def load(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_mistakes_are_one_line(name: str, refusal: Callable[..., str]) -> None:
    program = load(name)
    known = {*program.parser()._option_string_actions, "--nonsense"}
    own = [(f"{key} {value}", words) for key, value, words in MISTAKES if key in known]
    own += [(arguments, words) for other, arguments, words in OWN_MISTAKES if other == name]
    assert len(own) > 3
    for arguments, words in own:
        assert words in refusal(program, f"{PROGRAMS[name]} {arguments}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_is_checked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = load(name)
    for action in program.parser()._actions:
        if action.option_strings and action.type is not None:
            with pytest.raises(SystemExit, match=r"^2$"):
                program.main([*PROGRAMS[name].split(), action.option_strings[0], "no/such/non sense"])
            assert f"argument {action.option_strings[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_shows_every_default_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = load(name)
    with pytest.raises(SystemExit, match=r"^0$"):
        program.main(["--help"])
    text = capsys.readouterr().out
    assert "examples:\n" in text
    shown = [action for action in program.parser()._actions if not action.required and action.dest != "help"]
    assert " ".join(text.split()).count("(default: ") == len(shown)
    assert "(default: None)" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"median": "2"},
        {"median": 4.0},
        {"min": None},
        {"kind": "other"},
        {"distribution": "other"},
        {"dim": None},
        {"bound": "1"},
        {"name": None},
    ],
    ids=str,
)
def test_rows_are_checked(changes: dict[str, Any], refusal: Callable[..., str]) -> None:
    Path("row.json").write_text(json.dumps(result(**changes)))
    assert DAMAGED in refusal(load("growth"), "row.json --rst")
    Path("row.json").write_text(json.dumps(result() | {"ratios": [changes]}))
    assert DAMAGED in refusal(gpu, f"{PROGRAMS['gpu']} --resume --json row.json")


def test_interruptions_say_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(GROUPS, "few", [Row("step", "stock")])
    monkeypatch.setattr(gpu, "_measure", interrupted)
    with pytest.raises(SystemExit, match=r"^130$"):
        gpu.main([*PROGRAMS["gpu"].split(), "few", "--json", "new.json"])
    assert "interrupted; with --json, what was measured is kept" in capsys.readouterr().err


def test_a_run_of_cells_is_kept(refusal: Callable[..., str]) -> None:
    tiny = f"{PROGRAMS['cells']} --folder folder"
    cells.main(tiny.split())
    for arguments, words in [
        ("", "checkpoint.pt exists; continue that run with --resume, or choose another --folder"),
        ("--hidden-dim 3 --resume", "belongs to other options: --hidden-dim (was 2, is 3). Use the same, or another"),
    ]:
        assert words in refusal(cells, f"{tiny} {arguments}")
    checkpoint = Path("folder/checkpoint.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert "is not a checkpoint of this package, or is damaged" in refusal(cells, f"{tiny} --resume")

    checkpoint.unlink()
    for arguments in ("--num-genes 4", "--seed 1"):
        assert "holds 8 cells of 3 genes from seed 0; delete it, or give the same" in refusal(
            cells, f"{tiny} {arguments}"
        )
    for name, content in {"values": b"", "starts.npy": b"x", "about.json": b"{"}.items():
        Path("folder/counts", name).write_bytes(content)
        assert "are damaged; delete it, and they are drawn again" in refusal(cells, tiny)
