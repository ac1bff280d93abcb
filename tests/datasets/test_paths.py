from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyro_hyperbolic.datasets import graph, mnist
from pyro_hyperbolic.datasets.paths import data_root


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PYRO_HYPERBOLIC_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path


def test_argument_comes_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", str(home / "environment"))
    assert data_root(home / "argument") == home / "argument"
    assert data_root() == home / "environment"


def test_home_is_expanded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_root("~/data") == home / "data"
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", "~/other")
    assert data_root() == home / "other"


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, ".cache"),
        ("linux", {"XDG_CACHE_HOME": "{home}/xdg"}, "xdg"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache"),
        ("linux", {"PYRO_HYPERBOLIC_DATA": ""}, ".cache"),
        ("darwin", {}, "Library/Caches"),
        ("win32", {}, "AppData/Local"),
        ("win32", {"LOCALAPPDATA": "{home}/local"}, "local"),
    ],
)
def test_default(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    variables: dict[str, str],
    expected: str,
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(home=home))
    assert data_root() == home / expected / "pyro_hyperbolic"
    assert list(home.iterdir()) == []  # to ask for the folder does not make it


@pytest.mark.parametrize(("load", "name"), [(mnist, "root"), (graph, "name")], ids=["mnist", "graph"])
def test_no_path(load: Callable[..., object], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a string or a path, got 3; write for example"):
        load(3)


def test_file_in_place_of_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "file"
    file.touch()
    with pytest.raises(ValueError, match="root must be a folder"):
        data_root(file)
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", str(file))
    with pytest.raises(ValueError, match="PYRO_HYPERBOLIC_DATA must be a folder"):
        data_root()
