"""``examples/curvature_of_data.py`` with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TINY = "--leaves 6 --dims 2 --warmup 20 --num-samples 30 --chains 2 --device cpu"


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("curvature_of_data")


# The chains are compiled.
@pytest.mark.slow
def test_it_runs(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main([*TINY.split(), "--output-dir", str(tmp_path)])
    names = ["curvature_of_data.json", "curvature_of_data.png", "curvature_predicted.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / names[0]).read_text()).keys() == result.keys()
    found = result["d=2"]
    assert found.keys() > {"converged", "modes", "in_90%", "c", "spread", "noise", "distances of z", "radii of z"}
    low, middle, high = found["c"]["quantiles"]
    assert 0 < low < middle < high
    assert 0.5 < found["in_90%"] <= 1
    printed = capsys.readouterr().out
    assert "z: 6 points of PoincareBall, orientation free" in printed
    assert "elieve it" in printed


def test_distances_are_those_of_a_tree(example: ModuleType) -> None:
    distances = example.leaf_distances(12, 0)
    assert distances.shape == (12, 12)
    from pyro_hyperbolic.geometry import delta_hyperbolicity

    assert delta_hyperbolicity(distances).delta < 1e-9
