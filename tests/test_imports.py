"""Imports point one way, between folders and between the files of one.

infer, plotting, datasets -> models -> nn -> distributions -> geometry -> ops
infer, datasets, models -> accelerate -> ops.checks
plotting, models -> analysis -> distributions
accelerate: processes -> trainers -> bounds -> programs
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pyro_hyperbolic

ROOT = Path(pyro_hyperbolic.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Each folder and what it may import, besides itself and other packages.
BELOW_MODELS = {"nn", "distributions", "geometry", "ops"}
MAY_IMPORT = {
    "ops": set(),
    "accelerate": {"ops"},
    "geometry": {"ops"},
    "distributions": {"geometry", "ops"},
    "analysis": {"distributions", "geometry", "ops"},
    "nn": {"distributions", "geometry", "ops"},
    "models": {"accelerate", "analysis"} | BELOW_MODELS,
    "infer": {"accelerate", "models"} | BELOW_MODELS,
    "plotting": {"models", "analysis"} | BELOW_MODELS,
    "datasets": {"accelerate", "models"} | BELOW_MODELS,
    # The package's own __init__ and files beside it.
    "": {"accelerate", "infer", "models"} | BELOW_MODELS,
}
# Likewise the rooms of a folder; its own files may import all of them.
ROOMS_MAY_IMPORT = {
    ("accelerate", "compiler"): set(),
    ("accelerate", "programs"): {"compiler"},
    ("accelerate", "bounds"): {"programs"},
    ("accelerate", "trainers"): {"bounds", "programs", "compiler"},
    ("accelerate", "processes"): {"trainers", "bounds", "programs"},
    ("infer", "reparam"): set(),
    ("infer", "posterior"): {"reparam"},
}
WITHOUT_PYRO = ("ops", "geometry")
# Only what needs them may load them; each takes as long as the package itself.
HEAVY = ("torchvision", "matplotlib", "networkx")


@functools.cache
def imports(file: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as absolute dotted names."""
    package = (ROOT.name, *file.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # ``from package import name`` may name a module.
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return found


def folder(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join((ROOT.name, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def import_graph() -> dict[str, set[str]]:
    """Every module of the package and those that it names in an import, wherever in it and for whatever purpose.

    That importing a module runs the ``__init__`` of its folder is not one of them.
    """
    modules = {module_name(file): imports(file) for file in FILES}

    def owner(imported: str) -> str:
        """The module itself, or that in which the imported name is."""
        return imported if imported in modules else imported.rpartition(".")[0]

    return {module: {owner(m) for m in found} & modules.keys() for module, found in modules.items()}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules each of which imports the next one, and the last one the first; none where there is no such cycle."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module not in done:
            for other in sorted(graph[module]):
                if found := visit(other, [*path, module]):
                    return found
            done.add(module)
        return []

    return next(filter(None, (visit(module, []) for module in sorted(graph))), [])


def test_imports_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path / "package")
    file = tmp_path / "package" / "ops" / "example.py"
    file.parent.mkdir(parents=True)
    file.write_text("import a.b\nfrom c import d\ndef f():\n    from . import e\n    from ..g.h import i\n")
    assert imports(file) == {"a.b", "c.d", "package.ops.e", "package.g.h.i"}


def test_every_folder_has_its_place():
    assert {folder(file) for file in FILES} <= MAY_IMPORT.keys()


def test_imports_point_one_way():
    wrong = {}
    for file in FILES:
        # ``import package`` and ``from package import Name`` go through the package's __init__, above them all.
        inside = {f"{m}.".split(".")[1] for m in imports(file) if m.split(".")[0] == ROOT.name}
        wrong[name(file)] = inside - MAY_IMPORT[folder(file)] - {folder(file), "_version", "private"}
    assert not {file: others for file, others in wrong.items() if others}


def test_accelerators_know_no_geometry():
    """They work on any Pyro program: of the rest of the package they import small helpers alone."""
    ours = {m for file in FILES if folder(file) == "accelerate" for m in imports(file) if m.startswith(f"{ROOT.name}.")}
    allowed = tuple(f"{ROOT.name}.{module}." for module in ("accelerate", "ops.checks", "ops.nested", "private"))
    assert {m for m in ours if not m.startswith(allowed)} == set()


def test_a_cycle_is_found():
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}) == ["b", "c"]


def test_no_module_imports_one_that_imports_it():
    """Neither at its head nor late, inside of a function, nor for its types alone."""
    assert cycle(import_graph()) == []


@pytest.mark.parametrize(("part", "room"), ROOMS_MAY_IMPORT)
def test_rooms_import_one_way(part, room):
    rooms = {r for p, r in ROOMS_MAY_IMPORT if p == part}
    here = f"{ROOT.name}.{part}.{room}"
    graph = import_graph()
    inside = {
        m.split(".")[2]
        for module in graph
        if f"{module}.".startswith(f"{here}.")
        for m in graph[module]
        if m.startswith(f"{ROOT.name}.{part}.")
    }
    assert inside & rooms <= ROOMS_MAY_IMPORT[part, room] | {room}


def test_every_room_has_its_place():
    packages = {file.relative_to(ROOT).parent.parts for file in FILES if file.name == "__init__.py"}
    placed = {part for part, _ in ROOMS_MAY_IMPORT}
    assert {parts for parts in packages if len(parts) == 2 and parts[0] in placed} == ROOMS_MAY_IMPORT.keys()


def test_geometry_does_not_know_pyro():
    below = [file for file in FILES if folder(file) in WITHOUT_PYRO]
    assert [name(file) for file in below if "pyro" in {m.split(".")[0] for m in imports(file)}] == []


@pytest.mark.parametrize("part", sorted({folder(file) for file in FILES}))
def test_no_module_hides_a_public_name(part):
    """A file called as a public function or class of another file takes its place whenever it is imported late."""
    package = importlib.import_module(f"{ROOT.name}.{part}".rstrip("."))
    public = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
    for name, value in public.items():
        if (ROOT / part / f"{name}.py").exists() and not inspect.ismodule(value):
            assert value.__module__ == f"{package.__name__}.{name}"
        assert inspect.ismodule(value) or not (ROOT / part / name / "__init__.py").exists()


LAZY = ["datasets", "analysis", "plotting"]


class FirstImport(NamedTuple):
    """What the import of the package after Pyro does in a process of its own."""

    modules: list[str]  # that it adds
    lazy: dict[str, list[bool]]  # whether a part is there already, and whether it is listed
    found: dict[str, list[Any]]  # its name once it is loaded, and the packages that have come until then


def import_in_a_fresh_process() -> FirstImport:
    script = (
        "import json, sys\n"
        "import pyro\n"
        "known = set(sys.modules)\n"
        "import pyro_hyperbolic\n"
        "modules = sorted(set(sys.modules) - known)\n"
        f"lazy = {{name: (name in vars(pyro_hyperbolic), name in dir(pyro_hyperbolic)) for name in {LAZY}}}\n"
        "packages = lambda: {m.split('.')[0] for m in sys.modules}\n"
        "before = packages()\n"
        "found = {name: (getattr(pyro_hyperbolic, name).__name__, sorted(packages() - before)) for name in lazy}\n"
        "print(json.dumps([modules, lazy, found]))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return FirstImport(*json.loads(out.stdout))


@pytest.fixture(scope="module")
def first_import():
    return import_in_a_fresh_process()


@pytest.mark.parametrize("heavy", HEAVY)
def test_import_leaves_heavy_packages_alone(first_import, heavy):
    assert heavy not in {m.split(".")[0] for m in first_import.modules}


def test_import_loads_the_package(first_import):
    assert {"pyro_hyperbolic.distributions", "pyro_hyperbolic.geometry.poincare"} <= set(first_import.modules)


def test_lazy_parts_are_attributes(first_import: FirstImport) -> None:
    assert first_import.lazy == {name: [False, True] for name in LAZY}
    assert {name: found for name, (found, _) in first_import.found.items()} == {
        name: f"pyro_hyperbolic.{name}" for name in LAZY
    }


def test_data_sets_leave_heavy_packages_alone(first_import: FirstImport) -> None:
    _, packages = first_import.found["datasets"]
    assert not {"torchvision", "networkx", "pandas", "scipy", "matplotlib"} & {*packages}


def test_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pyro_hyperbolic.nothing  # noqa: B018
