"""``examples/network_geometry.py`` with tiny settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

TINY = "--spaces e2 h2 --degrees --warmup 20 --num-samples 8 --chains 4 --links 2 --device cpu"


@pytest.mark.slow
def test_it_compares_and_predicts(
    load_example: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.edges"
    path.write_text("0 1\n1 2\n2 3\n3 0\n0 4\n4 5\n")
    result = load_example("network_geometry").main(
        ["--network", str(path), *TINY.split(), "--output-dir", str(tmp_path / "out")]
    )
    names = ["network_geometry.json", "network_geometry.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert json.loads((tmp_path / "out" / names[0]).read_text()) == result
    low, middle, high = result["h2"]["c"]
    assert 0 < low < middle < high
    assert "c" not in result["e2"]
    edges = {("0", "1"), ("1", "2"), ("2", "3"), ("0", "3"), ("0", "4"), ("4", "5")}
    assert len(result["links"]) == 2
    for link in result["links"]:
        assert tuple(link["pair"]) not in edges
        assert 0 <= link["interval"][0] <= link["interval"][1] <= 1
    assert "log evidence" in capsys.readouterr().out


def test_links_are_the_likeliest_pairs(load_example: Callable[[str], ModuleType]) -> None:
    import torch

    from pyro_hyperbolic.models import LatentSpaceNetwork, Network

    example = load_example("network_geometry")
    network = Network(4, torch.tensor([[0, 1], [2, 3]]), names=("a", "b", "c", "d"))

    class Draws:
        samples: ClassVar = {
            "z": torch.tensor([0.0, 1.0, 1.2, 3.0]).reshape(1, 4, 1).expand(5, 4, 1),
            "intercept": torch.zeros(5),
            "temperature": torch.ones(5),
        }

    (first, second) = example.likely_links(LatentSpaceNetwork("e1", 4), Draws, network, 2)
    assert (first["pair"], second["pair"]) == (["b", "c"], ["a", "c"])
    assert first["probability"] == pytest.approx(1 / (1 + 2.718281828**0.2), rel=1e-5)
