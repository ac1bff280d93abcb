"""Every example is run by a test, and looks like the others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES

# A new example is a new row here, and a test of it in the file that the row names.
TESTED_IN = {
    "branching_diffusion": "test_other_examples.py",
    "link_prediction": "test_other_examples.py",
    "mixture_prior_vae": "test_other_examples.py",
    "single_cell": "test_other_examples.py",
    "storms": "test_other_examples.py",
    "bayesian_tree": "test_bayesian_tree.py",
    "conv_vae": "test_other_examples.py",
    "curvature_of_data": "test_curvature_of_data.py",
    "densities": "test_drawing_examples.py",
    "distance_map": "test_distance_map.py",
    "inference_swaps": "test_inference_swaps.py",
    "leaf_regions": "test_leaf_regions.py",
    "network_geometry": "test_network_geometry.py",
    "mnist_distributed": "test_mnist_distributed.py",
    "mnist_ensemble": "test_mnist_ensemble.py",
    "mnist_svi": "test_mnist_svi.py",
    "tree_embedding": "test_drawing_examples.py",
}

# Files of that folder that are no programs.
PARTS = {
    "__init__",
    "calibration",
    "command",
    "curvature_parts",
    "inference_methods",
    "inference_report",
    "intervals",
    "mnist_parts",
    "regular_tree",
    "runs",
    "taxonomy",
}


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - PARTS == set(TESTED_IN)


@pytest.mark.parametrize(("name", "file"), TESTED_IN.items())
def test_every_listed_example_is_in_its_tests(name: str, file: str) -> None:
    module = ast.parse((Path(__file__).parent / file).read_text())
    named = {node.value for node in ast.walk(module) if isinstance(node, ast.Constant)}
    assert name in named


@pytest.mark.parametrize("name", TESTED_IN)
def test_examples_are_alike(name: str) -> None:
    module = ast.parse((EXAMPLES / f"{name}.py").read_text())
    documentation = ast.get_docstring(module) or ""
    assert documentation.split("\n")[0].endswith(".")
    assert f"python examples/{name}.py" in documentation
    functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
    assert {"run", "parser"} <= functions
    assert any(ast.unparse(node).startswith("main = command(parser, run") for node in module.body)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_stand_alone(path: Path) -> None:
    """A clone runs them by their path, from which ``experiments`` is not to be found."""
    text = path.read_text("utf-8")
    assert "experiments" not in {word for node in ast.walk(ast.parse(text)) for word in imported(node)}
    if path.stem != "command":
        assert len(text.splitlines()) <= 180


def imported(node: ast.AST) -> list[str]:
    """The first parts of the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "").split(".")[0]]
    return [alias.name.split(".")[0] for alias in node.names] if isinstance(node, ast.Import) else []
