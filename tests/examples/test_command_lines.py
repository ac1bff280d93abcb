"""What users get wrong ends every program with one line that says what and the remedy, and exit code 2."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from examples.runs import save_run

EXPERIMENTS = "experiments.cli"

# Every program, and what it must be given in any case.
PROGRAMS = {
    "bayesian_tree": "",
    "experiments.branching_diffusion": "",
    "branching_diffusion": "",
    "conv_vae": "",
    "link_prediction": "",
    "mixture_prior_vae": "",
    "single_cell": "",
    "storms": "",
    "experiments.hierarchy": "",
    "leaf_regions": "--posterior file",
    "experiments.link_prediction": "",
    "experiments.mixture_prior": "",
    "mnist_distributed": "--output-dir folder",
    "mnist_ensemble": "",
    "mnist_svi": "",
    "curvature_of_data": "",
    "network_geometry": "",
    "densities": "",
    "distance_map": "",
    "inference_swaps": "",
    "experiments.single_cell": "",
    "experiments.storms": "",
    "tree_embedding": "",
    EXPERIMENTS: "table1",
}

# What is wrong for every program that has the option, and what is said about it.
MISTAKES = [
    ("--device", "gpu", "argument --device: must be cpu, cuda or a device such as cuda:1, got 'gpu'"),
    ("--device", "cuda:99", "argument --device: t"),  # torch finds no CUDA device, or there is no such one
    ("--output-dir", "missing/run", "missing is not a folder; make it first, or check the path"),
    ("--output-dir", "file", "argument --output-dir: file is not a folder; make it first, or check the path"),
    ("--output", "missing/run.png", "missing is not a folder; make it first, or check the path"),
    ("--results", "missing/run", "missing is not a folder; make it first, or check the path"),
    ("--data-dir", "missing/data", "missing is not a folder; make it first, or check the path"),
    ("--data-dir", "file", "argument --data-dir: file is not a folder; make it first, or check the path"),
    ("--space", "h2,x2", "argument --space: a factor of a signature is one of the letters"),
    ("--seed", "-1", "argument --seed: must be a whole number of at least 0, got '-1'"),
    ("--seed", "2147483648", "argument --seed: must be less than 2147483648, got 2147483648"),
    ("--threads", "0", "argument --threads: must be a positive whole number, got '0'"),
    ("--num-epochs", "0", "argument --num-epochs: must be a positive whole number, got '0'"),
    ("--curvature", "nan", "argument --curvature: must be a "),
    ("--learning-rate", "0", "argument --learning-rate: must be a positive number, got '0'"),
    ("--latent-dim", "1.5", "argument --latent-dim: must be a positive whole number, got '1.5'"),
    ("--hidden-dim", "x", "argument --hidden-dim: must be a positive whole number, got 'x'"),
    ("--prior", "flat", "argument --prior: invalid choice: 'flat'"),
    ("--resume", "", "error: --resume"),
    ("--resume", "--output-dir folder", "there is no run to continue in folder"),
    ("--resume", "--output-dir new", "there is no run to continue in new"),
    ("--resume", "--output-dir other", "there is no run to continue in other"),
    ("--nonsense", "", "unrecognized arguments: --nonsense"),
]

# program, arguments, what is said
OWN_MISTAKES = [
    ("bayesian_tree", "--num-samples 3", "argument --num-samples: must be a whole number of at least 4, got '3'"),
    (
        "experiments.branching_diffusion",
        "--resume --output-dir damaged",
        "hyperbolic.pt is not a checkpoint of this package",
    ),
    (
        "experiments.branching_diffusion",
        "--resume --output-dir foreign",
        "belongs to other options: --curvature (was 7, is 1.2)",
    ),
    ("conv_vae", "--data-dir empty --num-epochs 1", "expected a header of 16 bytes, found 0; the file is damaged"),
    ("experiments.hierarchy", "--num-points 3", "--num-points must be at least 4, got 3"),
    ("experiments.hierarchy", "--graph no/such.edges", "--graph no/such.edges: "),
    (
        "experiments.hierarchy",
        "--points missing.npy",
        "argument --points: must be a file that can be read and is not empty, got 'missing.npy'",
    ),
    (
        "experiments.hierarchy",
        "--points nothing.edges",
        "argument --points: must be a file that can be read and is not empty, got 'nothing.edges'",
    ),
    ("experiments.hierarchy", "--points file", "--points file is no array of numpy.save"),
    (
        "experiments.hierarchy",
        "--points flat.npy",
        "flat.npy must hold an array (N, ...) of at least 4 points, got (5,)",
    ),
    ("experiments.hierarchy", "--points nan.npy", "--points nan.npy must hold finite numbers"),
    (
        "experiments.hierarchy",
        "--points same.npy",
        "--points same.npy holds one point many times; give points that differ",
    ),
    ("experiments.hierarchy", "--output folder", "argument --output: must end in one of"),
    ("experiments.hierarchy", "--output tree.txt", "argument --output: must end in one of"),
    (
        "leaf_regions",
        "--posterior no.pt",
        "argument --posterior: must be a file that can be read and is not empty, got 'no.pt'",
    ),
    ("leaf_regions", "", "file is not a checkpoint of this package, or is damaged"),
    ("experiments.mixture_prior", "--components 0", "argument --components: must be a positive whole number, got '0'"),
    ("experiments.mixture_prior", "--space e2", "--space must have a curved factor, got e2; take for example p2"),
    (
        "experiments.mixture_prior",
        "--resume --output-dir damaged",
        "single.pt is not a checkpoint of this package, or is dam",
    ),
    (
        "experiments.mixture_prior",
        "--resume --output-dir foreign",
        "belongs to other options: --curvature (was 7, is 1.4)",
    ),
    ("experiments.link_prediction", "--posterior riemannian", "--posterior-scale diagonal needs --posterior wrapped"),
    (
        "experiments.link_prediction",
        "--test 1.5",
        "argument --test: must be a fraction of at least 0 and less than 1, got '1.5'",
    ),
    ("experiments.link_prediction", "--test 0.001", "error: test=0.001 of 78 edges holds out none"),
    (
        "experiments.link_prediction",
        "--test 0.6 --validation 0.6",
        "error: test=0.6 and validation=0.6 leave none of 78 edges",
    ),
    ("experiments.link_prediction", "--graph no/such.edges", "--graph no/such.edges: "),
    ("experiments.link_prediction", "--graph ./nothing.edges", "--graph ./nothing.edges: nothing.edges"),
    (
        "experiments.link_prediction",
        "--resume --output-dir damaged",
        "metrics.json is not a record of this example, or is damaged",
    ),
    ("experiments.link_prediction", "--output-dir damaged", "metrics.json exists; continue that run with --resume"),
    (
        "experiments.link_prediction",
        "--resume --output-dir foreign",
        "belongs to other options: --curvature (was 7, is 1.0)",
    ),
    ("mnist_svi", "--loss iwae", "--loss iwae needs --particles of at least 2"),
    (
        "mnist_svi",
        "--posterior-scale diagonal --posterior riemannian",
        "--posterior-scale diagonal needs --posterior wrapped",
    ),
    ("mnist_svi", "--curvature learn --space e0", "got 'e0' in 'e0'; write for example 'h2,s2,e2'"),
    ("mnist_svi", "--resume --output-dir damaged", "checkpoint.pt is not a checkpoint of this package, or is damaged"),
    ("mnist_svi", "--resume --output-dir foreign", "belongs to other options: --curvature (was 7, is 1.4)"),
    ("mnist_svi", "--data-dir empty", "expected a header of 16 bytes, found 0; the file is damaged"),
    ("mnist_ensemble", "--seeds 0-3,2", "argument --seeds: must be seeds that differ, got '0-3,2'"),
    ("mnist_ensemble", "--loss iwae", "--loss iwae needs --particles of at least 2"),
    ("mnist_ensemble", "--resume --output-dir damaged", "checkpoint.pt is not a checkpoint of this package"),
    ("mnist_distributed", "--num-epochs 3", "start the program with `torchrun --nproc-per-node N`"),
    ("curvature_of_data", "--leaves 5 --dims 2 5", "--dims must be less than the number of --leaves, got 5 and 5"),
    ("densities", "--resolution 1", "argument --resolution: must be a whole number of at least 2, got '1'"),
    ("densities", "--format gif", "argument --format: invalid choice: 'gif'"),
    ("inference_swaps", "--methods magic", "argument --methods: invalid choice: 'magic'"),
    ("inference_swaps", "--num-draws 1", "argument --num-draws: must be a whole number of at least 100, got '1'"),
    ("inference_swaps", "--resolution 1", "argument --resolution: must be a whole number of at least 2, got '1'"),
    ("inference_swaps", "--methods nuts-tangent --prior riemannian", "nuts-tangent needs --prior wrapped"),
    (
        "experiments.single_cell",
        "--data nowhere.h5ad",
        "must be a file that can be read and is not empty, got 'nowhere.h5ad', or paul15 or branching",
    ),
    (
        "experiments.single_cell",
        "--data nothing.h5ad",
        "argument --data: must be a file that can be read and is not empty, got 'nothing.h5ad'",
    ),
    ("experiments.single_cell", "--data file", "--data file "),  # is not a .h5ad file, or needs the package anndata
    (
        "experiments.single_cell",
        "--num-cells 50",
        "argument --num-cells: must be a whole number of at least 100, got '50'",
    ),
    ("experiments.single_cell", "--models linear", "argument --models: invalid choice: 'linear'"),
    (
        "experiments.single_cell",
        "--resume --output-dir damaged --models hyperbolic",
        "is not a checkpoint of this package",
    ),
    (
        "experiments.single_cell",
        "--resume --output-dir foreign --models hyperbolic",
        "other options: --curvature (was 7, is None)",
    ),
    ("experiments.storms", "--components 2 0", "argument --components: must be a positive whole number, got '0'"),
    ("experiments.storms", "--components 99999", "--components must not exceed the days to train on, "),
    ("tree_embedding", "--depth 100000", "is a tree of more than 3000 nodes; take fewer levels"),
    ("tree_embedding", "--branching 1", "argument --branching: must be a whole number of at least 2, got '1'"),
    ("tree_embedding", "--edge-length -1", "argument --edge-length: must be a positive number, got '-1'"),
    ("tree_embedding", "--edge-length 9", "take shorter edges or fewer levels"),
    ("tree_embedding", "--branching 9 --edge-length 1", "take fewer levels"),
    ("tree_embedding", "--depth 1 --output tree.txt", "argument --output: must end in one of"),
    (EXPERIMENTS, "--cells c=7 --results new", "no cell of table1 is called 'c=7'"),
    (EXPERIMENTS, "--results /proc/nothing", "/proc"),
]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, a file, data without content, weights of something else, damaged and foreign checkpoints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", str(digits))
    for name in ("folder", "damaged", "foreign", "empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("1 2\n")
    torch.save({}, tmp_path / "other" / "weights.pt")
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / "empty" / f"{part}-{kind}-ubyte").touch()
    (tmp_path / "nothing.h5ad").touch()
    for name in ("hyperbolic", "hyperbolic-0", "single", "checkpoint"):
        (tmp_path / "damaged" / f"{name}.pt").write_bytes(b"no checkpoint")
        save_run({}, tmp_path / "foreign" / f"{name}.pt", argparse.Namespace(curvature=7))
    (tmp_path / "damaged" / "metrics.json").write_text('{"options": ')
    (tmp_path / "foreign" / "metrics.json").write_text('{"options": {"curvature": 7}, "runs": []}')
    (tmp_path / "nothing.edges").touch()
    np.save(tmp_path / "flat.npy", np.zeros(5))
    np.save(tmp_path / "nan.npy", np.full((5, 2), np.nan))
    np.save(tmp_path / "same.npy", np.ones((5, 2)))


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
    for action in program.parser()._actions:
        if action.type is not None and action.type.__name__ not in ("folder", "data_folder"):
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
    actions = [action for action in program.parser()._actions if action.option_strings and not action.required]
    shown = [action for action in actions if action.dest != "help"]
    assert shown
    assert " ".join(text.split()).count("(default: ") == len(shown)
    assert "(default: None)" not in text
