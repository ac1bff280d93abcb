"""The documentation: its code runs, its pages are linked, and it names everything public."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

import pyro_hyperbolic

matplotlib.use("agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*")
    if path.suffix in (".rst", ".md", ".ipynb") and "_build" not in path.relative_to(DOCS).parts
)
NOTEBOOKS = [path for path in PAGES if path.suffix == ".ipynb"]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def page_name(path: Path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix()


def code_of_readme() -> str:
    """All of its code."""
    text = (ROOT / "README.md").read_text("utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def code_of_docs(name: str) -> Any:
    """A module of the folder of the documentation."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    plt.close("all")
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "path", [path for path in PAGES if path not in NOTEBOOKS and ">>> " in path.read_text()], ids=page_name
)
def test_doctests(path: Path) -> None:
    examples = doctest.DocTestParser().get_doctest(path.read_text(), {}, page_name(path), str(path), 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=report.append)
    assert not report, "".join(report)


# Chains are compiled for every model.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path, marks=[pytest.mark.slow] * bool(re.search(r"sample_posterior|infer\.compare", path.read_text()))
        )
        for path in NOTEBOOKS
    ],
    ids=page_name,
)
def test_notebooks_run(path: Path) -> None:
    """At the small size that the notebook names for its parameters."""
    notebook = json.loads(path.read_text("utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shrunk = 0
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)
        if "parameters" in cell["metadata"].get("tags", []):
            assert notebook["metadata"]["small"].keys() <= namespace.keys()
            namespace |= notebook["metadata"]["small"]
            shrunk += 1
    assert shrunk == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page_name)
def test_notebooks_are_kept_with_what_their_code_gave(path: Path) -> None:
    notebooks = code_of_docs("notebooks")
    notebook = json.loads(path.read_text("utf-8"))
    assert notebooks.is_current(notebook), "the code has changed: run `make notebooks`"
    shown = [output for cell in notebooks.code_cells(notebook) for output in cell["outputs"]]
    assert not [output for output in shown if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert path.stat().st_size < 600_000


def shortened(code: str) -> str:
    """With a third of the steps, which are enough to see that it learns."""
    assert code.count("range(200)") == 1
    return code.replace("range(200)", "range(70)")


# The mean of the data alone explains them to (1 + log 2 pi)/2 per feature, which is 70.9.
def assert_learned(losses: list[float], size: int) -> None:
    assert losses[-1] / size < 60 < losses[0] / size


def test_readme_trains_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(shortened(code_of_readme()), "README.md", "exec"), namespace)
    assert_learned(namespace["losses"], len(namespace["data"].train))
    assert (tmp_path / "tree.png").stat().st_size > 10_000


def test_first_model_trains_and_draws() -> None:
    namespace: dict[str, Any] = {}
    code = shortened((DOCS / "first_model.py").read_text("utf-8"))
    exec(compile(code, "first_model.py", "exec"), namespace)
    assert_learned(namespace["losses"], len(namespace["data"].train))
    assert namespace["ball"].contains(namespace["z"]).all()


def listed_pages() -> set[str]:
    """Pages that a ``toctree`` names."""
    found = set()
    for path in (path for path in PAGES if path not in NOTEBOOKS):
        for body in re.findall(r"^\.\. toctree::\n((?:[ \t]+\S.*\n|\s*\n)+)", path.read_text() + "\n", re.MULTILINE):
            entries = [line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith(":")]
            found |= {page_name(path.parent / f"{entry}.rst") for entry in entries}
    return found


def test_every_page_is_in_a_toctree() -> None:
    assert listed_pages() | {"index"} == {page_name(path) for path in PAGES}


def test_nothing_is_left_to_be_filled_in() -> None:
    text = {page_name(path): path.read_text("utf-8") for path in PAGES}
    assert not [name for name, words in text.items() if re.search(r"@[A-Z]{3,}@|TODO|FIXME", words)]


def documented() -> dict[int, str]:
    """Objects that a page of the API has an entry for, by identity."""
    found = {}
    for path in sorted((DOCS / "api").glob("*.rst")):
        module = ""
        for kind, name in re.findall(r"^\.\. (?:auto|py:)(\w+):: ([\w.]+)", path.read_text(), re.MULTILINE):
            if kind == "module":
                module = name
                found[id(importlib.import_module(name))] = name
                continue
            home, _, attribute = name.rpartition(".")
            found[id(getattr(importlib.import_module(home or module), attribute))] = name
    return found


def modules() -> Iterator[Any]:
    yield pyro_hyperbolic
    for info in pkgutil.walk_packages(pyro_hyperbolic.__path__, "pyro_hyperbolic."):
        if not info.name.endswith("_kernel") or importlib.util.find_spec("triton"):
            yield importlib.import_module(info.name)


def test_every_public_name_is_in_the_api_pages() -> None:
    entries = documented()
    public = [(module, name) for module in modules() for name in getattr(module, "__all__", ())]
    assert len(public) > 50
    missing = {
        f"{module.__name__}.{name}"
        for module, name in public
        if name != "__version__" and id(getattr(module, name)) not in entries
    }
    assert not missing, f"give these an entry in docs/api: {sorted(missing)}"


COMMAND = re.compile(
    r"(?:\$ |`)(?:python|torchrun [-\w ]+) (?:-m |examples/)(experiments\.\w+|\w+(?=\.py))(?:\.py)?([^`#\n]*)"
)
COMMANDS = sorted(
    {found for path in [ROOT / "README.md", *PAGES] for found in COMMAND.findall(path.read_text("utf-8"))}
)


@pytest.mark.parametrize(("example", "options"), COMMANDS, ids=["".join(command) for command in COMMANDS])
def test_commands_have_options_that_the_example_knows(
    example: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "tree"):
        (tmp_path / folder).mkdir()
    for name in ("my.edges", "my_points.npy", "cells.h5ad", "tree/posterior.pt"):  # the reader's own
        (tmp_path / name).write_text("0 1\n")
    arguments = shlex.split(options.replace("--device cuda", "--device cpu"))
    importlib.import_module(example).parser().parse_args(arguments)


def test_every_example_is_on_its_page() -> None:
    page = (DOCS / "examples.rst").read_text()
    texts = {path.name: path.read_text("utf-8") for path in (ROOT / "examples").glob("*.py")}
    names = [name for name, text in texts.items() if "__main__" in text]  # the others are parts of these
    assert names
    assert not [name for name in names if not re.search(rf"\$ (python|torchrun .*) examples/{name}", page)]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", text) + re.findall(r'src="([^"]+)"', text)
    assert not [target for target in targets if not (ROOT / target).exists()]


def test_versions_agree() -> None:
    version = pyro_hyperbolic.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_formulas_need_no_network() -> None:
    configuration = (DOCS / "conf.py").read_text()
    assert '"sphinx-mathjax-offline"' in configuration
    assert "mathjax_path" not in configuration
