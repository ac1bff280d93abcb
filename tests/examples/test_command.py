"""Parsers, types of arguments, and how programs end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import examples.command as commands
from examples.command import add_common, command, fraction, make_parser, natural, positive
from examples.runs import load_run, record, save_json, save_run
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.infer import save_checkpoint

DOCUMENTATION = """Count to a number.

    python count.py --number 3
"""

# type, text, its value
VALUES: list[tuple[Callable[[str], Any], str, Any]] = [
    (positive(int), "3", 3),
    (positive(float), "1e-3", 0.001),
    (natural, "0", 0),
    (commands.at_least(2), "2", 2),
    (fraction, "0.5", 0.5),
    (fraction, "0", 0.0),
    (natural, "2147483647", 2147483647),
    (commands.seeds, "5,1-2,9", [5, 1, 2, 9]),
    (commands.signature, " h2, s2", "h2,s2"),
    (commands.device, "cpu", "cpu"),
    (commands.folder, "here", Path("here")),
    (commands.folder, "new", Path("new")),
    (commands.input_file, "full", Path("full")),
    (commands.picture_file, "here/picture.png", Path("here/picture.png")),
]

# type, text, what is said
MISTAKES: list[tuple[Callable[[str], Any], str, str]] = [
    (positive(int), "0", "must be a positive whole number, got '0'"),
    (positive(int), "1.5", "must be a positive whole number, got '1.5'"),
    (positive(float), "inf", "must be a positive number, got 'inf'"),
    (positive(float), "nan", "must be a positive number, got 'nan'"),
    (natural, "-1", "must be a whole number of at least 0, got '-1'"),
    (commands.at_least(2), "1", "must be a whole number of at least 2, got '1'"),
    (fraction, "1.5", "must be a fraction of at least 0 and less than 1, got '1.5'"),
    (fraction, "-0.1", "must be a fraction of at least 0 and less than 1, got '-0.1'"),
    (positive(float), "1e400", "must be a positive number, got '1e400'"),
    (natural, "9" * 400, "must be less than 2147483648"),
    (natural, "2147483648", "must be less than 2147483648, got 2147483648"),
    (commands.seeds, "0-99999999999", "must be less than 2147483648, got 99999999999"),
    (commands.seeds, "1-", "must be seeds such as 0,1,5 or 0-9, got '1-'"),
    (commands.seeds, "a", "must be seeds such as 0,1,5 or 0-9, got 'a'"),
    (commands.seeds, "3-1", "must be seeds that differ, got '3-1'"),
    (commands.seeds, "0-3,2", "must be seeds that differ, got '0-3,2'"),
    (commands.signature, "h2,x3", "got 'x3' in 'h2,x3'; write for example 'h2,s2,e2'"),
    (commands.device, "gpu", "must be cpu, cuda or a device such as cuda:1, got 'gpu'"),
    (commands.device, "meta", "must be cpu, cuda or a device such as cuda:1, got 'meta'"),
    (commands.folder, "missing/a/b", "missing/a is not a folder; make it first, or check the path"),
    (commands.folder, "full", "full is not a folder; make it first, or check the path"),
    (commands.folder, "full/a", "full is not a folder; make it first, or check the path"),
    (commands.data_folder, "full", "full is not a folder; make it first, or check the path"),
    (positive(int), "99999999999", "must be less than 2147483648, got 99999999999"),
    (commands.input_file, "missing", "must be a file that can be read and is not empty, got 'missing'"),
    (commands.input_file, "here", "must be a file that can be read and is not empty, got 'here'"),
    (commands.input_file, "empty", "must be a file that can be read and is not empty, got 'empty'"),
    (commands.picture_file, "here", "got 'here'; for example figure.pdf"),
    (commands.picture_file, "here/picture.txt", "got 'here/picture.txt'; for example figure.pdf"),
    (commands.picture_file, "missing/picture.png", "missing is not a folder; make it first"),
]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "full").write_text("1 2\n")
    (tmp_path / "empty").touch()


@pytest.mark.parametrize(("kind", "text", "value"), VALUES)
def test_values(kind: Callable[[str], Any], text: str, value: Any) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(("kind", "text", "message"), MISTAKES)
def test_mistakes(kind: Callable[[str], Any], text: str, message: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(argparse.ArgumentTypeError) as error:
        kind(text)
    assert message in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [commands.folder, commands.picture_file])
def test_places_without_permission(kind: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # The user who runs the tests may be allowed everything.
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert commands.data_folder("here") == Path("here")
    for text in ("here/new.png", "new.png"):
        with pytest.raises(argparse.ArgumentTypeError, match="cannot be written to; choose another folder"):
            kind(text)


def test_files_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(argparse.ArgumentTypeError, match="must be a file that can be read"):
        commands.input_file("full")


@pytest.mark.parametrize(("count", "text", "message"), [(0, "cuda", "0 CUDA devices"), (2, "cuda:2", "2 CUDA devices")])
def test_devices_that_are_not_there(count: int, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        commands.device(text)


def test_a_signature_is_what_a_space_is_made_of() -> None:
    assert str(from_signature(commands.signature("h2, s1"))) == str(from_signature("h2,s1"))


def parser() -> argparse.ArgumentParser:
    p = make_parser(DOCUMENTATION, "/a/folder/count.py")
    p.add_argument("--number", type=positive(int), default=3, help="to count to, 100%% sure")
    p.add_argument("--words", nargs="+", default=["a", "b"], help="to say")
    p.add_argument("--fast", action="store_true", help="do not wait")
    p.add_argument("name", help="of the count")
    add_common(p, *commands.COMMON)
    return p


def test_help_shows_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        parser().parse_args(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Count to a number." in text
    assert text.endswith("examples: python count.py --number 3")
    for words in (
        "to count to, 100% sure (default: 3)",
        "to say (default: ['a', 'b'])",
        "do not wait (default: False)",
        "random seed (default: 0)",
        f"cuda:1 (default: {'cuda' if torch.cuda.is_available() else 'cpu'})",
        "CPU threads (default: torch's choice)",
        "(default: p2)",
        "(default: PYRO_HYPERBOLIC_DATA, then a per-user cache)",
        "(default: a new one in outputs/)",
        "continue the run in --output-dir (default: False)",
    ):
        assert words in text
    assert "of the count (default" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--number 0 x", "argument --number: must be a positive whole number, got '0'"),
        ("x --numbers 0", "unrecognized arguments: --numbers 0"),
        ("x --num 1", "unrecognized arguments: --num 1"),  # no abbreviation that a new option would break
        ("x --resume", "--resume needs --output-dir, the folder of the run to continue"),
        (
            "x --resume --output-dir here",
            "--resume: there is no run to continue in here (no *.pt); check --output-dir, or leave out --resume to"
            " start a new run",
        ),
        (
            "x --resume --output-dir new",
            "--resume: there is no run to continue in new (no *.pt); check --output-dir, or leave out --resume to"
            " start a new run",
        ),
        (
            "x --output-dir begun",
            "begun/a.pt exists; continue that run with --resume, or choose another --output-dir",
        ),
    ],
)
def test_errors_are_one_line(arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "a.pt").touch()
    with pytest.raises(SystemExit, match=r"^2$"):
        program("pass")(arguments.split())
    assert capsys.readouterr().err == f"count.py: error: {message}\n"
    assert not (tmp_path / "new").exists()


def test_output_folder_is_new_by_default(tmp_path: Path) -> None:
    output_dir = program("return args.output_dir")(["x"])
    assert output_dir.parent == Path("outputs")
    assert output_dir.name.startswith("count-2")
    assert not (tmp_path / "outputs").exists()


# what a program does, what is said about it
USER_ERRORS = [
    ('raise ValueError("--a must be\\n  small.")', "--a must be small"),
    ('raise ImportError("install anndata")', "install anndata"),
    ('raise ConnectionError("a process is lost")', "a process is lost"),
    ('Path("missing").read_text()', "missing: No such file or directory"),
    ('Path("full/a").mkdir()', "full/a: Not a directory"),
    ('Path("here").read_text()', "here: Is a directory"),
    ("PoincareBall(-1.0)", "c must be"),
    ('load_checkpoint("empty")', "empty is not a checkpoint of this package, or is damaged"),
    ("torch.distributions.Normal(0.0, -torch.ones(99, 9))", "Expected parameter scale (Tensor of shape (99, 9))"),
]
BUGS = [
    'raise RuntimeError("no")',
    'raise KeyError("no")',
    "torch.zeros(2) @ torch.zeros(3)",
]


def program(body: str) -> Callable[..., Any]:
    """A program as one of its own file would be."""
    names: dict[str, Any] = {"__name__": "count", "command": command, "parser": parser}
    imports = "import json, signal, torch\nfrom pathlib import Path\nfrom pyro_hyperbolic import PoincareBall\n"
    imports += "from pyro_hyperbolic.infer import load_checkpoint\n"
    exec(
        f"{imports}def run(args):\n{textwrap.indent(body, '    ')}\nmain = command(parser, run, checkpoint='*.pt')",
        names,
    )
    return names["main"]


@pytest.mark.parametrize(("body", "message"), USER_ERRORS)
def test_user_errors_are_one_line(body: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        program(body)(["x"])
    said = capsys.readouterr().err
    assert said.startswith(f"count.py: error: {message}")
    assert len(said) < 400
    assert said.count("\n") == 1


@pytest.mark.parametrize("body", BUGS)
def test_bugs_keep_their_traceback(body: str) -> None:
    with pytest.raises((RuntimeError, KeyError)):
        program(body)(["x"])


def test_a_program_returns_its_result() -> None:
    before = torch.get_num_threads()
    try:
        assert program("return args.number + torch.get_num_threads()")(["x", "--number", "7", "--threads", "3"]) == 10
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("signal.raise_signal(signal.SIGINT)", "nothing is saved yet; start again"),
        (
            '(args.output_dir / "a.pt").touch()\nraise KeyboardInterrupt',
            "go on with the same options and --resume --output-dir here",
        ),
    ],
)
def test_interruptions_say_how_to_go_on(body: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background may ignore it
    try:
        with pytest.raises(SystemExit, match=r"^130$"):
            program(body)(["x", "--output-dir", "here"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == f"\ncount.py: interrupted; {words}\n"


def test_development_mode_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = types.SimpleNamespace(dev_mode=True)
    monkeypatch.setattr(commands, "sys", types.SimpleNamespace(flags=flags))
    with pytest.raises(ValueError, match="too small"):
        program('raise ValueError("too small")')(["x"])


def options(**values: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"number": 1, "device": "cpu", "output_dir": Path("here")} | values)


def test_runs_go_on_with_their_random_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    assert load_run(path, options(), images=3) is None
    save_run({"weights": torch.ones(2)}, path, options(), images=3)
    expected = torch.rand(3)
    state = load_run(path, options(device="cuda", output_dir=Path("new")), images=3)
    assert state is not None
    assert torch.equal(state["weights"], torch.ones(2))
    assert torch.equal(torch.rand(3), expected)
    assert load_run(path, options(number=2), ["number"], images=3)
    with pytest.raises(ValueError, match=r"run\.pt belongs to other options: --number \(was 1, is 2\)"):
        load_run(path, options(number=2), images=3)
    with pytest.raises(ValueError, match=r"run\.pt belongs to other data: images was 3, is 4"):
        load_run(path, options(), images=4)


def test_checkpoints_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    save_checkpoint({"model": {}}, path)
    with pytest.raises(ValueError, match=r"run\.pt is not a checkpoint of this program; choose another"):
        load_run(path, options())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"run\.pt is not a checkpoint of this package, or is damaged"):
        load_run(path, options())


def test_records_are_json() -> None:
    found = record(options())
    assert json.loads(json.dumps(found)) == found
    assert found["options"] == {"number": 1, "device": "cpu", "output_dir": "here"}
    assert set(found["versions"]) == {"pyro_hyperbolic", "torch", "pyro", "python"}


@pytest.mark.parametrize("value", [{"loss": 1.5, "seeds": [0, 1]}, [1, "a", None], "text", 3.0], ids=str)
def test_json_is_what_was_given(value: Any) -> None:
    path = Path("deep", "record.json")
    for content in (0, value):
        save_json(content, path)
    assert json.loads(path.read_text()) == value
    assert os.listdir("deep") == ["record.json"]


def test_numbers_that_json_lacks_are_null() -> None:
    save_json({"losses": [1.0, float("nan"), (float("inf"),)]}, Path("record.json"))
    assert json.loads(Path("record.json").read_text()) == {"losses": [1.0, None, [None]]}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_the_old_json(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("here", "record.json")
    save_json({"epoch": 1}, path)

    def fail(*args: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(RuntimeError):
        save_json({"epoch": 2}, path)
    with pytest.raises(TypeError):
        save_json({"epoch": torch.zeros(2)}, path)
    assert os.listdir("here") == ["record.json"]
    assert json.loads(path.read_text()) == {"epoch": 1}
