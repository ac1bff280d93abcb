"""The models of a day, and what their densities say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import space
from storm_parts.data import MIDDLE, UNIT, Days

Values = dict[str, Tensor]
LATITUDES = torch.linspace(-1.6, 3.9, 56, dtype=torch.float64)
"""Where storms are followed, in units of ``UNIT`` degrees from ``MIDDLE``."""
HEADINGS = 2 * math.pi * (torch.arange(72, dtype=torch.float64) + 0.5) / 72 - math.pi


@dataclass(frozen=True)
class Setup:
    """One of the models.

    :param signature: the space of a day.
    :param coupled: whether covariances couple direction and latitude.
    :param cut: where a flat space cuts the circle, in radians from north.
    """

    signature: str
    coupled: bool = True
    cut: float = math.pi

    def points(self, heading: Tensor, latitude: Tensor) -> Tensor:
        """Directions and latitudes as points of the space."""
        if self.signature == "e2":
            return torch.stack([torch.remainder(heading - self.cut, 2 * math.pi) - math.pi, latitude], -1)
        return torch.stack([heading.cos(), heading.sin(), latitude], -1)


SETUPS = {
    "circle, coupled": Setup("s1,e1"),
    "circle, independent": Setup("s1,e1", coupled=False),
    "flat, cut at south": Setup("e2"),
    "flat, cut at north": Setup("e2", cut=0.0),
}
MAIN = "circle, coupled"


def mixture(setup: Setup, values: Values) -> Any:
    """The distribution of a day given parameters, with the batch shape of the weights without their last dimension."""
    root = values["scale"].diag_embed()
    if setup.coupled:
        root = values["scale"].unsqueeze(-1) * values["correlation"]
    components = WrappedNormal(values["centre"], manifold=space(setup.signature), scale_tril=root)
    return dist.MixtureSameFamily(dist.Categorical(values["weights"]), components)


@torch.no_grad()
def log_density(setup: Setup, draws: Values, days: Days) -> Tensor:
    """Log-densities ``(days, draws)``."""
    points = setup.points(days.heading, days.latitude)
    return mixture(setup, draws).log_prob(points.unsqueeze(-2))


def log_predictive(setup: Setup, draws: Values, days: Days) -> Tensor:
    """Log-densities of days, averaged over draws of the parameters."""
    return log_density(setup, draws, days).logsumexp(-1) - math.log(len(draws["weights"]))


@torch.no_grad()
def on_grid(setup: Setup, draws: Values) -> Tensor:
    """Densities ``(latitudes, headings, draws)`` on the grid of ``LATITUDES`` and ``HEADINGS``."""
    latitude, heading = torch.meshgrid(LATITUDES, HEADINGS, indexing="ij")
    return mixture(setup, draws).log_prob(setup.points(heading, latitude).unsqueeze(-2)).exp()


def mean_heading(setup: Setup, draws: Values) -> Tensor:
    """The mean direction at every latitude in every draw, ``(latitudes, draws)``."""
    density = on_grid(setup, draws)
    sine, cosine = ((density * f(HEADINGS).unsqueeze(-1)).sum(-2) for f in (torch.sin, torch.cos))
    return torch.atan2(sine, cosine)


def turning_latitude(setup: Setup, draws: Values) -> Tensor:
    """Where the mean direction turns from the west of north to the east, in degrees; ``nan`` if it never does."""
    heading = mean_heading(setup, draws)
    before, after = heading[:-1], heading[1:]
    turns = (before < 0) & (after >= 0) & (after - before < math.pi)
    step = (LATITUDES[1] - LATITUDES[0]).item()
    at = LATITUDES[:-1].unsqueeze(-1) - before / (after - before) * step
    first = turns.to(torch.uint8).argmax(0)
    place = at.gather(0, first.unsqueeze(0)).squeeze(0)
    return torch.where(turns.any(0), MIDDLE + UNIT * place, torch.nan)
