"""Whether credible regions hold the truth as often as they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from tree_parts.data import BALL, Data
from tree_parts.placing import Placed

# The kernels' scale is the median distance to this neighbour, a point itself being the first.
NEIGHBOURS = 12
LEVELS = {"50%": 0.5, "80%": 0.8, "90%": 0.9}


def distance_levels(data: Data, fold: int, node: int, placed: Placed) -> Tensor:
    """For every distance ``(R,)`` of the node: the level of the smallest central predictive interval with it.

    nan for those that were observed.
    """
    mean = placed.length[:, None] * BALL.dist(placed.z[:, None], placed.points)
    below = dist.Normal(mean, placed.noise[:, None]).cdf(data.of_held_out()[fold, node]).mean(0)
    levels = (2 * below - 1).abs()
    levels[data.seen[fold, node]] = math.nan
    return levels


def position_level(placed: Placed, truth: Tensor) -> Tensor:
    """The level ``(1,)`` of the smallest credible region that contains the true position ``(2,)``."""
    density, values = region(placed.z)
    return (values > density(truth[None])).double().mean(0, keepdim=True)


def region(samples: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A kernel density of half of the samples ``(S, 2)``, as a function, and its values at the other half.

    The points whose density is above the quantile 1 - a of these values are a credible region of level a, in one piece
    or in several.
    """
    inside, outside = samples[::2], samples[1::2]
    # Nearest neighbours know the scale of a piece; the spread of all would be the distance between the pieces.
    near = BALL.pairwise_dist(inside, inside).kthvalue(min(NEIGHBOURS, len(inside)), -1).values
    kernels = hdist.WrappedNormal(inside, near.median(), BALL)

    def density(x: Tensor) -> Tensor:
        return torch.cat([kernels.log_prob(part.unsqueeze(-2)).logsumexp(-1) for part in x.split(1000)])

    return density, density(outside)


def coverage(levels: Tensor) -> dict[str, Any]:
    """How often the region of a level holds the truth, with standard errors; levels are ``(nodes, truths)``."""
    result: dict[str, Any] = {"count": int(levels.isfinite().sum()), "nodes": len(levels)}
    for name, level in LEVELS.items():
        hits = (levels <= level).double().masked_fill(levels.isnan(), math.nan)
        # Distances of one node are not independent: the error is that of a mean over nodes.
        result[name] = [hits.nanmean().item(), hits.nanmean(-1).std().item() / math.sqrt(len(levels))]
    return result
