"""Where tropical storms of the North Atlantic were, and where they went next."""

from __future__ import annotations

import csv
import importlib.resources
import itertools
from dataclasses import dataclass
from datetime import date

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import Sphere

_FILE = "storms.csv"


@dataclass(frozen=True, eq=False)
class StormDays:
    """What :func:`storms` returns: ``N`` days of storms, those of one storm in their order.

    Attributes:
        heading: direction from the place of this day to that of the next, in radians from north, clockwise, from
            :math:`-\\pi` to :math:`\\pi`, float64 ``(N,)``.
        latitude: of the place, in degrees north, float64 ``(N,)``.
        longitude: of the place, in degrees east, float64 ``(N,)``.
        storm: the number of the storm, int64 ``(N,)``.
        day: the number of the day in the record of its storm, int64 ``(N,)``.
    """

    heading: Tensor
    latitude: Tensor
    longitude: Tensor
    storm: Tensor
    day: Tensor

    def __len__(self) -> int:
        return len(self.heading)

    def __getitem__(self, rows: Tensor) -> StormDays:
        """Some of the days, by their numbers or by a mask."""
        return StormDays(
            self.heading[rows], self.latitude[rows], self.longitude[rows], self.storm[rows], self.day[rows]
        )


def storms() -> StormDays:
    """Tropical cyclones of the North Atlantic, 2008 to 2022, at 00:00 UTC of each day; comes with the package.

    A day is left out if the record of its storm has a gap before the next one, or if the storm did not move.

    The positions are the best tracks (HURDAT2) of the National Hurricane Center, a work of the U.S. government in the
    public domain, as they are in the data set ``storms`` of the R package dplyr (MIT licence).

    References:
        C. W. Landsea and J. L. Franklin: Atlantic hurricane database uncertainty and presentation of a new database
        format. Monthly Weather Review 141, 2013.

    Example:
        >>> days = storms()
        >>> len(days), len(days.storm.unique())
        (1649, 249)
        >>> south = days[days.latitude < 20]
        >>> bool((south.heading < 0).double().mean() > 0.9)  # the trade winds take them west
        True
    """
    file = importlib.resources.files("pyro_hyperbolic.datasets") / "data" / _FILE
    rows = list(csv.DictReader(line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")))
    places, numbers = [], []
    for storm, (_, track) in enumerate(itertools.groupby(rows, key=lambda row: row["storm"])):
        for day, (one, other) in enumerate(itertools.pairwise(track)):
            step = date.fromisoformat(other["date"]) - date.fromisoformat(one["date"])
            pair = [[float(row["latitude"]), float(row["longitude"])] for row in (one, other)]
            if step.days == 1 and pair[0] != pair[1]:
                places.append(pair)
                numbers.append([storm, day])
    here, there = torch.tensor(places, dtype=torch.float64).unbind(1)
    return StormDays(heading(here, there), *here.unbind(1), *torch.tensor(numbers).unbind(1))


def heading(here: Tensor, there: Tensor) -> Tensor:
    """The direction of the great circle from places ``(N, 2)``, latitude and longitude in degrees, to others."""
    way = Sphere(1.0).logmap(_on_globe(here), _on_globe(there))
    latitude, longitude = torch.deg2rad(here).T
    east = torch.stack([-longitude.sin(), longitude.cos(), torch.zeros_like(latitude)], -1)
    north = torch.stack([-latitude.sin() * longitude.cos(), -latitude.sin() * longitude.sin(), latitude.cos()], -1)
    return torch.atan2((way * east).sum(-1), (way * north).sum(-1))


def _on_globe(places: Tensor) -> Tensor:
    """Latitude and longitude ``(N, 2)`` in degrees as points of the unit sphere."""
    latitude, longitude = torch.deg2rad(places).T
    return torch.stack([latitude.cos() * longitude.cos(), latitude.cos() * longitude.sin(), latitude.sin()], -1)
