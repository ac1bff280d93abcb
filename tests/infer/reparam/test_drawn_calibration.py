"""Simulation-based calibration of a drawn curvature: the run behind the figure of the docs."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

FIGURES = Path(__file__).parents[3] / "docs" / "figures"


@pytest.fixture(autouse=True)
def _dtype() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("curvature_calibration", FIGURES / "curvature_calibration.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


def test_the_record_of_the_figure(script: ModuleType) -> None:
    record = json.loads((FIGURES / "curvature_calibration.json").read_text())
    assert len(record["curvature"]) == 200
    for name in ("curvature", "misfit"):
        p = script.p_value(torch.tensor(record[name]), record["draws"])
        assert p == pytest.approx(record[f"p_{name}"])
        assert p > 0.01


def test_ranks_that_are_not_uniform_are_found(script: ModuleType) -> None:
    assert script.p_value(torch.arange(200) % 32, 64) < 1e-6


@pytest.mark.slow
def test_ranks_are_uniform(script: ModuleType) -> None:
    ranks = script.calibrate()
    assert script.p_value(ranks.curvature, ranks.draws) > 0.001
    assert script.p_value(ranks.misfit, ranks.draws) > 0.001
