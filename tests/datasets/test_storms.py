from __future__ import annotations

import math

import pytest
import torch

from pyro_hyperbolic.datasets import storms
from pyro_hyperbolic.datasets.storms import heading


def test_storms_are_what_was_published() -> None:
    days = storms()
    assert (len(days), len(days.storm.unique())) == (1649, 249)
    assert days.heading.dtype == torch.float64
    assert 5 < days.latitude.min() < days.latitude.max() < 70
    assert -140 < days.longitude.min() < days.longitude.max() < 10
    # Sandy of 2012 went north-east before it turned to the coast, on its eighth day.
    (last,) = ((days.latitude == 33.9) & (days.longitude == -71.0)).nonzero().flatten().tolist()
    assert days.day[last] == 7
    assert days.heading[last - 1] > 0 > days.heading[last]


def test_days_of_a_storm_stand_together() -> None:
    days = storms()
    steps = days.storm.diff()
    assert (steps >= 0).all()
    assert (days.day.diff()[steps == 0] > 0).all()
    some = days[days.storm < 3]
    assert len(some) == (days.storm < 3).sum()
    assert torch.equal(some.heading, days.heading[: len(some)])


@pytest.mark.parametrize(
    ("here", "there", "degrees"),
    [
        ((20.0, -60.0), (25.0, -60.0), 0.0),
        ((0.0, -60.0), (0.0, -55.0), 90.0),
        ((20.0, -60.0), (15.0, -60.0), 180.0),
        ((0.0, 179.0), (0.0, -179.0), 90.0),  # across the date line
        ((0.0, -60.0), (0.0, -61.0), -90.0),
    ],
)
def test_heading(here: tuple[float, float], there: tuple[float, float], degrees: float) -> None:
    found = torch.rad2deg(heading(torch.tensor([here]), torch.tensor([there])))
    assert math.cos(math.radians(found.item() - degrees)) == pytest.approx(1.0, abs=1e-6)
