"""Densities on the globe: the data, the splits and the kernels."""

import math
from pathlib import Path

import pytest
import torch

from experiments.earth import FILES, FlowDensity, kernel_densities, log_density, mixed, places, split
from pyro_hyperbolic.distributions import HypersphericalUniform


def test_places_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYRO_HYPERBOLIC_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"flood.csv is missing; put the four files"):
        places("flood")
    (tmp_path / "earth").mkdir()
    (tmp_path / "earth" / FILES["flood"]).write_text("# source\nlat,long\n90,0\n0,90\n-30,180\n")
    expected = [[0, 0, 1], [0, 1, 0], [-math.sqrt(0.75), 0, -0.5]]
    torch.testing.assert_close(places("flood"), torch.tensor(expected, dtype=torch.float64))


def test_splits_share_no_place() -> None:
    x = torch.arange(50.0).unsqueeze(-1)
    parts = split(x, 1, torch.device("cpu"))
    assert [len(part) for part in parts] == [40, 5, 5]
    assert sorted(torch.cat(parts).flatten().tolist()) == x.flatten().tolist()
    assert not torch.equal(split(x, 2, torch.device("cpu"))[2], parts[2])


def test_kernels_are_a_density_and_beat_the_uniform() -> None:
    uniform = HypersphericalUniform(3, torch.float64)
    train = torch.nn.functional.normalize(uniform.sample((60,)) + torch.tensor([2.0, 0.0, 0.0]), dim=-1)
    grid = uniform.sample((40_000,))
    (validation, everywhere), setting, _ = kernel_densities(train[:40], [train[40:], grid])
    weights = everywhere.exp() * 4 * math.pi
    assert abs(weights.mean() - 1) < 5 * weights.std() / 200
    assert validation.mean() > -math.log(4 * math.pi) + 0.3
    assert setting.keys() == {"neighbours", "factor", "uniform"}


def test_mixtures_and_flows() -> None:
    one, other = torch.tensor([0.0, -1.0]).log1p().nan_to_num(neginf=-9.0), torch.tensor([-3.0, -2.0])
    torch.testing.assert_close(mixed(one, other, 0.25).exp(), 0.75 * one.exp() + 0.25 * other.exp())
    assert mixed(one, other, 1.0) is other
    x = HypersphericalUniform(3, torch.float64).sample((5,))
    expected = torch.full((5,), -math.log(4 * math.pi), dtype=torch.float64)
    torch.testing.assert_close(log_density(FlowDensity(1, 4, 4), x), expected, rtol=1e-5, atol=0)
