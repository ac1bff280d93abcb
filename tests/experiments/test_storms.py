"""``experiments/storms.py`` with tiny settings, and what it computes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pyro_hyperbolic.datasets import storms

# A study; its short example is tested in every run.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("coarse_pictures")]
TINY = "--components 1 2 --num-steps 3 --starts 1 --warmup 20 --num-samples 8 --chains 2"


@pytest.fixture(scope="module")
def example(load_example: Callable[[str], ModuleType]) -> ModuleType:
    return load_example("experiments.storms")


def test_it_runs(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "DRAWS", 3)
    result = example.main([*TINY.split(), "--output-dir", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["storms.json", "storms.png"]
    assert json.loads((tmp_path / "storms.json").read_text()).keys() == result.keys()
    assert set(example.SETUPS) < result.keys()
    assert result["circle, coupled"]["gain"] == [0.0, 0.0]
    assert "turn, deterministic" in capsys.readouterr().out


def test_parts_have_whole_storms(example: ModuleType) -> None:
    days = storms()
    parts = example.split(days, seed=1)
    names = [set(part.storm.tolist()) for part in parts]
    assert sum(map(len, parts)) == len(days)
    assert len(set.union(*names)) == sum(map(len, names))
    assert [round(len(some) / 249, 1) for some in names] == [0.6, 0.2, 0.2]


@pytest.mark.parametrize("cut", [0.0, math.pi])
def test_densities_of_all_models_have_one_measure(example: ModuleType, cut: float) -> None:
    """A narrow component far from the cut: circle and plane are the same."""
    heading, latitude = torch.tensor([1.3, 1.6, 1.5]).double(), torch.tensor([26.0, 23.0, 25.0]).double()
    values = {"weights": torch.ones(1), "scale": torch.tensor([[0.1, 0.3]])}
    values |= {"tilt": torch.tensor([0.8])}
    found = []
    for setup in (example.Setup("s1,e1"), example.Setup("e2", cut=cut)):
        centre = setup.points(torch.tensor([1.5]).double(), torch.tensor([25.0]).double())
        own = {name: value.double() for name, value in (values | {"centre": centre}).items()}
        found.append(example.mixture(setup, own).log_prob(setup.points(heading, latitude)))
    torch.testing.assert_close(found[0], found[1])


def test_turning_latitude_of_a_known_turn(example: ModuleType) -> None:
    """One component whose direction is north at 28 degrees and turns with the latitude."""
    setup = example.Setup("s1,e1")
    centre = setup.points(torch.tensor([0.0]).double(), torch.tensor([28.0]).double())
    draws = {"weights": torch.ones(1, 1), "centre": centre.unsqueeze(0), "scale": torch.tensor([[[0.6, 0.8]]])}
    draws |= {"tilt": torch.tensor([[0.9]])}
    turn = example.turning_latitude(setup, {name: value.double() for name, value in draws.items()})
    assert turn.item() == pytest.approx(28.0, abs=0.05)
    backwards = draws | {"tilt": torch.tensor([[0.1]])}
    assert example.turning_latitude(setup, {name: value.double() for name, value in backwards.items()}).isnan()


def test_interval_counts_storms_not_days(example: ModuleType) -> None:
    """Days that repeat within their storm tell nothing new."""
    gains = torch.tensor([0.3, -0.1, 0.2, 0.5])
    zero, storm = torch.zeros(4), torch.arange(4)
    mean, half = example.difference(gains, zero, storm)
    repeated = example.difference(gains.repeat_interleave(3), zero.repeat(3), storm.repeat_interleave(3))
    assert repeated == pytest.approx((mean, half))
    assert half == pytest.approx(1.96 * gains.std(correction=0).item() / 2)
