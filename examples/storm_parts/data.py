"""Directions in which storms move, from their positions on the globe."""

from __future__ import annotations

import csv
import itertools
import math
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from pyro_hyperbolic import Sphere

FILE = Path(__file__).parent / "storms.csv"
MIDDLE, UNIT = 25.0, 10.0
"""Latitudes are given in tens of degrees from here."""


@dataclass(frozen=True)
class Days:
    """One row for every day of a storm.

    :param heading: direction of motion in radians from north, clockwise, in ``(-pi, pi]``.
    :param latitude: in units of ``UNIT`` degrees from ``MIDDLE``.
    :param storm: number of the storm.
    """

    heading: Tensor
    latitude: Tensor
    storm: Tensor

    def __len__(self) -> int:
        return len(self.heading)

    def of(self, storms: Tensor) -> Days:
        """The days of some of the storms."""
        chosen = torch.isin(self.storm, storms)
        return Days(self.heading[chosen], self.latitude[chosen], self.storm[chosen])


def read_days(path: Path = FILE) -> Days:
    """Where each storm went within a day, seen from where it was.

    Every second day of a storm is left out: neighbours are much alike.
    """
    with path.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    here, there, storms = [], [], []
    for number, (_, track) in enumerate(itertools.groupby(rows, key=lambda row: row["storm"])):
        for one, other in itertools.islice(itertools.pairwise(track), 0, None, 2):
            step = date.fromisoformat(other["date"]) - date.fromisoformat(one["date"])
            places = [[float(row["latitude"]), float(row["longitude"])] for row in (one, other)]
            if step.days == 1 and places[0] != places[1]:
                here.append(places[0])
                there.append(places[1])
                storms.append(number)
    latitude = torch.tensor(here)[:, 0]
    return Days(heading(torch.tensor(here), torch.tensor(there)), (latitude - MIDDLE) / UNIT, torch.tensor(storms))


def heading(here: Tensor, there: Tensor) -> Tensor:
    """The direction of the great circle from places ``(N, 2)``, latitude and longitude in degrees, to others."""
    globe = Sphere(1.0)
    way = globe.logmap(on_globe(here), on_globe(there))
    latitude, longitude = torch.deg2rad(here).T
    zero = torch.zeros_like(latitude)
    east = torch.stack([-longitude.sin(), longitude.cos(), zero], -1)
    north = torch.stack([-latitude.sin() * longitude.cos(), -latitude.sin() * longitude.sin(), latitude.cos()], -1)
    return torch.atan2((way * east).sum(-1), (way * north).sum(-1))


def on_globe(places: Tensor) -> Tensor:
    """Latitude and longitude ``(N, 2)`` in degrees as points of the unit sphere."""
    latitude, longitude = torch.deg2rad(places).T
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], -1)


def split(days: Days, seed: int) -> tuple[Days, Days, Days]:
    """Whole storms for training (60%), validation and test (20% each)."""
    storms = days.storm.unique()
    order = storms[torch.randperm(len(storms), generator=torch.Generator().manual_seed(seed))]
    first, second = math.floor(0.6 * len(order)), math.floor(0.8 * len(order))
    return days.of(order[:first]), days.of(order[first:second]), days.of(order[second:])
