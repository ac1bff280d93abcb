"""``examples/distance_map.py`` with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

TINY = "--warmup 20 --num-samples 10 --chains 2 --device cpu --missing 0.1"


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("distance_map")


@pytest.mark.slow
def test_it_runs(example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = example.main([*TINY.split(), "--output-dir", str(tmp_path)])
    names = ["distance_map.html", "distance_map.json", "distance_map.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert json.loads((tmp_path / names[1]).read_text()).keys() == result.keys()
    low, middle, high = result["c"]
    assert 0 < low < middle < high
    assert 0 < sum(result["in the middle"].values()) <= 1 + 1e-6
    page = (tmp_path / names[0]).read_text("utf-8")
    assert "Medici" in page
    assert '"regions": [' in page
    printed = capsys.readouterr().out
    assert "z: 15 points of PoincareBall, orientation free" in printed
    assert "is in the middle with probability" in printed
