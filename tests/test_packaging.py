"""What is published: its data, its texts, and the Pythons that it says it runs on."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_hyperbolic"
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
CODE = sorted(PACKAGE.rglob("*.py"))
PROGRAMS = [path for part in ("experiments", "examples", "benchmarks") for path in (ROOT / part).rglob("*.py")]


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    (line,) = re.findall(r"^pyro_hyperbolic = \[(.*)\]$", PROJECT, re.MULTILINE)
    patterns = re.findall(r'"([^"]+)"', line)
    data = [name(p) for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")]
    assert {"py.typed", "datasets/data/README.md"} <= set(data)
    assert not [path for path in data if not any(fnmatch(path, pattern) for pattern in patterns)]
    without = {path.parent for path in CODE} - {path.parent for path in CODE if path.name == "__init__.py"}
    assert not without, "setuptools takes folders that have an __init__.py"


def test_the_wheel_holds_the_library_alone() -> None:
    (line,) = re.findall(r"^include = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert line == '"pyro_hyperbolic*"'
    assert not [name(path) for path in PACKAGE.iterdir() if path.name in ("experiments", "commands", "examples")]
    manifest = (ROOT / "MANIFEST.in").read_text("utf-8")
    data = {path.suffix for path in (ROOT / "experiments").rglob("*") if path.is_file()} - {".pyc"}
    assert data == {".py", ".json"}
    assert "recursive-include experiments *.py *.json\n" in manifest


def test_pythons_are_those_of_the_metadata() -> None:
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert f'requires-python = ">={pythons[0]}"' in PROJECT
    (tried,) = re.findall(r"^PYTHONS = \[(.*)\]$", (ROOT / "noxfile.py").read_text("utf-8"), re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (run,) = re.findall(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert re.findall(r"[\d.]+", tried) == re.findall(r"[\d.]+", run) == pythons


def texts_without_encoding(code: str) -> list[int]:
    """Lines that read or write a text in whatever encoding the machine has, which on Windows is not UTF-8."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        said = {"read_text": "utf-8", "write_text": "utf-8", "open": r"[rwax]?\+?b\+?"}.get(called, "")
        if said and not any(re.fullmatch(said, word) for word in words):
            found.append(node.lineno)
    return found


def test_texts_without_encoding_are_found() -> None:
    right = 'a.read_text("utf-8")\na.write_text(b, "utf-8")\na.open("rb")\na.open("r+b")\nopen(a, encoding="utf-8")\n'
    assert texts_without_encoding(right) == []
    assert texts_without_encoding('a.read_text()\na.write_text("b")\na.open("w")\nopen(a)') == [1, 2, 3, 4]


def test_texts_are_utf_8_on_every_machine() -> None:
    found = {path.name: texts_without_encoding(path.read_text("utf-8")) for path in [*CODE, *PROGRAMS]}
    assert not {path: lines for path, lines in found.items() if lines}
