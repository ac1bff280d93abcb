"""The benchmark of networks, tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import networks


def test_simulated_networks_have_their_sizes() -> None:
    edges = networks.simulated(300, 1000)
    assert edges.shape == (1000, 2)
    assert len(edges.unique(dim=0)) == 1000
    assert (edges[:, 0] < edges[:, 1]).all()
    assert int(edges.max()) < 300
    # Near in the order of angles, where neighbours of a random pair would be 100 apart.
    apart = (edges[:, 1] - edges[:, 0]).float()
    assert apart.minimum(300 - apart).median() < 30


@pytest.mark.slow
def test_it_measures_and_fits(tmp_path: Path) -> None:
    path = tmp_path / "networks.json"
    sizes = "--nodes 400 --edges 1600 --steps 60 --repeats 2"
    result = networks.main([*sizes.split(), "--json", str(path)])
    assert json.loads(path.read_text()) == result
    assert [(row["nodes"], row["edges"]) for row in result["rows"]] == [(400, 1600), (400, 100), (400, 400)]
    assert all(row["step_seconds"] > 0 for row in result["rows"])
    assert result["fit"]["auc"] > 0.8
