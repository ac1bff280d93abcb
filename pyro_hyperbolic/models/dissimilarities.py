"""How the distances of points are observed: with noise of several kinds, or by their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.transforms import OrderedTransform
from torch import Tensor
from torch.distributions import Distribution
from torch.nn import functional as F

from pyro_hyperbolic.distributions import TruncatedNormal
from pyro_hyperbolic.models.positions import MeanField, in_support
from pyro_hyperbolic.ops.checks import checked_integer

LEAST = 1e-3  # noise of a start, in units of length


class Observation(Protocol):
    """What is observed of distances: the latents that this takes, and the distribution of a measurement."""

    def guides(self) -> MeanField:
        """Of the latents."""

    def unit(self, mean_square: Tensor) -> Tensor:
        """The unit of length, from the mean square of the measurements."""

    def draw(self, unit: Tensor) -> Tensor:
        """The latents, from their prior."""

    def distribution(self, d: Tensor, latent: Tensor) -> Any:
        """Of measurements of distances ``(..., M)``."""

    def check(self, x: Tensor) -> None:
        """Refuse measurements ``(M,)`` that cannot be."""

    def lengths(self, x: Tensor) -> Tensor:
        """Distances that such measurements may be of, to begin with."""

    def start(self, d: Tensor, x: Tensor) -> dict[str, Tensor]:
        """Values of the latents for measurements ``x`` of distances ``d``, both ``(M,)``."""


class Noise:
    """Measurements with noise, of which one number ``"noise"`` says how much.

    :param distribution: from the distances and the noise to that of a measurement.
    :param prior: of the noise, or ``None`` for the logarithm with mean -2 and standard deviation 1 in units of length.
    :param relative: whether the noise has no unit, and measurements are positive.
    """

    def __init__(self, distribution: Callable[..., Any], prior: Any, relative: bool = False) -> None:
        self.distribution, self.prior, self.relative = distribution, prior, relative

    def guides(self) -> MeanField:
        return MeanField({"noise": (constraints.positive if self.prior is None else self.prior.support, ())})

    def unit(self, mean_square: Tensor) -> Tensor:
        return mean_square.sqrt()

    def draw(self, unit: Tensor) -> Tensor:
        length = torch.zeros_like(unit) if self.relative else unit.log()
        prior = dist.LogNormal(length - 2, torch.ones_like(unit)) if self.prior is None else self.prior
        return pyro.sample("noise", prior).to(unit.dtype)

    def check(self, x: Tensor) -> None:
        if self.relative and bool((x == 0).any()):
            raise ValueError(
                "distances of different points must be positive for the likelihood 'log_normal', got 0; use"
                " 'truncated_normal', or one point for those that cannot be told apart."
            )

    def lengths(self, x: Tensor) -> Tensor:
        return x

    def start(self, d: Tensor, x: Tensor) -> dict[str, Tensor]:
        away = d.log() - x.log() if self.relative else d - x
        least = LEAST * (1.0 if self.relative else x.square().mean().sqrt())
        noise = away.square().mean().sqrt().clamp(min=least)
        return {"noise": noise if self.prior is None else in_support(self.prior.support, noise)}


class Order:
    """Measurements that are levels 0, 1, ..., higher for larger distances; the noise is the unit of length.

    :param num_levels: how many levels.
    """

    def __init__(self, num_levels: int) -> None:
        self.num_levels = num_levels

    def guides(self) -> MeanField:
        return MeanField({"cuts": (constraints.ordered_vector, (self.num_levels - 1,))})

    def unit(self, mean_square: Tensor) -> Tensor:
        return torch.full_like(mean_square, self.num_levels)

    def draw(self, unit: Tensor) -> Tensor:
        zeros = unit.new_zeros(self.num_levels - 1)
        prior = dist.TransformedDistribution(dist.Normal(zeros, 1.0).to_event(1), [OrderedTransform()])
        return pyro.sample("cuts", prior)

    def distribution(self, d: Tensor, latent: Tensor) -> Any:
        """Differences of sigmoids as products, which keep their digits however far the distance is from the cuts."""
        below = F.logsigmoid(F.pad(latent - d.unsqueeze(-1), (0, 1), value=torch.inf))
        above = F.logsigmoid(F.pad(d.unsqueeze(-1) - latent, (1, 0), value=torch.inf))
        between = F.pad(torch.log(-torch.expm1(-latent.diff(dim=-1))), (1, 1))
        return dist.Categorical(logits=below + above + between)

    def check(self, x: Tensor) -> None:
        if bool((x != x.round()).any()) or bool((x >= self.num_levels).any()):
            raise ValueError(
                f"distances must be levels 0, 1, ..., {self.num_levels - 1} for the likelihood 'ordinal', got"
                f" {x[(x != x.round()) | (x >= self.num_levels)][0].item():g}; sort them into as many levels as"
                " num_levels, with torch.bucketize for example."
            )

    def lengths(self, x: Tensor) -> Tensor:
        return x + 0.5

    def start(self, d: Tensor, x: Tensor) -> dict[str, Tensor]:
        return {"cuts": torch.arange(1, self.num_levels, dtype=d.dtype, device=d.device)}


def observation(likelihood: str, noise: Distribution | None, num_levels: int | None) -> Observation:
    """What a name of :data:`OBSERVATIONS` stands for."""
    if (num_levels is None) == (likelihood == "ordinal"):
        raise ValueError(
            f"num_levels must be given for the likelihood 'ordinal' and for no other, got {num_levels!r} for"
            f" {likelihood!r}."
        )
    return OBSERVATIONS[likelihood](noise, num_levels)


def _ordinal(noise: Distribution | None, num_levels: Any) -> Observation:
    if noise is not None:
        raise ValueError("noise must be None for the likelihood 'ordinal', where it is the unit of length.")
    return Order(checked_integer("num_levels", num_levels, least=2))


OBSERVATIONS: dict[str, Callable[[Distribution | None, Any], Observation]] = {
    "normal": lambda noise, _: Noise(dist.Normal, noise),
    "log_normal": lambda noise, _: Noise(lambda d, s: dist.LogNormal(d.log(), s), noise, relative=True),
    "truncated_normal": lambda noise, _: Noise(TruncatedNormal, noise),
    "ordinal": _ordinal,
}
"""Likelihoods of distances, by name."""
