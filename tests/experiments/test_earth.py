"""Densities on the globe: the data, the splits and the kernels."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.earth import (
    FILES,
    Earth,
    EarthCell,
    Matched,
    is_repeated,
    kernel_densities,
    log_density,
    log_kernels,
    mixed,
    moved,
    places,
    split,
)
from experiments.job import Job
from pyro_hyperbolic.distributions import HypersphericalUniform
from pyro_hyperbolic.ops.special import unit


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
    grid, areas = _grid()
    (validation, everywhere), setting, widths = kernel_densities(train[:40], [train[40:], grid])
    torch.testing.assert_close((everywhere.exp() * areas).sum(), torch.ones((), dtype=torch.float64), rtol=1e-6, atol=0)
    assert validation.mean() > -math.log(4 * math.pi) + 0.3
    assert setting.keys() == {"neighbours", "factor", "uniform"}
    assert widths.shape == (40,)


def test_noise_is_drawn_from_the_kernels() -> None:
    centre, width = (
        unit(torch.tensor([[0.2, -0.5, 0.7]], dtype=torch.float64)),
        torch.tensor([0.4], dtype=torch.float64),
    )
    grid, areas = _grid()
    expected = (log_kernels(grid, centre, width).exp() * areas * (grid @ centre[0])).sum()
    draws = moved(centre.expand(10_000, 3), width.expand(10_000), torch.Generator().manual_seed(0)) @ centre[0]
    assert abs(draws.mean() - expected) < 4 * draws.std() / 100
    still = moved(centre, torch.zeros_like(width), torch.Generator().manual_seed(0))
    torch.testing.assert_close(still, centre)


def test_repeated_places_are_found() -> None:
    train = unit(torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    assert is_repeated(torch.stack([train[3], -train[0]]), train).tolist() == [True, False]


def _grid() -> tuple[torch.Tensor, torch.Tensor]:
    """Points of the sphere and their areas: Gauss's heights, and even longitudes."""
    heights, weights = map(torch.from_numpy, np.polynomial.legendre.leggauss(300))
    angles = torch.arange(600, dtype=torch.float64) * (2 * math.pi / 600)
    side = (1 - heights.square()).sqrt().unsqueeze(-1)
    points = torch.stack([side * angles.cos(), side * angles.sin(), heights.unsqueeze(-1).expand(-1, 600)], -1)
    return points.flatten(0, 1), (weights * 2 * math.pi / 600).repeat_interleave(600)


def test_mixtures_and_flows() -> None:
    one, other = torch.tensor([0.0, -1.0]).log1p().nan_to_num(neginf=-9.0), torch.tensor([-3.0, -2.0])
    torch.testing.assert_close(mixed(one, other, 0.25).exp(), 0.75 * one.exp() + 0.25 * other.exp())
    assert mixed(one, other, 1.0) is other
    x = HypersphericalUniform(3, torch.float64).sample((5,))
    expected = torch.full((5,), -math.log(4 * math.pi), dtype=torch.float64)
    for part in (Earth(layers=1, hidden_dim=4, bins=4), Matched(hidden_dim=4, waves=2)):
        torch.testing.assert_close(log_density(part.density(), x), expected, rtol=1e-5, atol=0)


def test_runs_of_couplings_have_the_settings_that_they_had() -> None:
    """Those that are stored count on."""
    assert Job(Earth(), EarthCell("volcano"), 0).key == "34b7389fc429b7c4"
