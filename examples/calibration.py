"""How often credible regions hold the truth: shares by level, and their picture."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from pyro_hyperbolic import plotting
from pyro_hyperbolic.plotting.canvas import PALETTE


def coverage(levels: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the truths lie in regions of the levels ``at``, with standard errors; levels are ``(leaves, R)``."""
    hits = (levels[..., None] <= at).to(levels).masked_fill(levels[..., None].isnan(), math.nan)
    # Distances of one leaf are not independent: the error is that of a mean over leaves.
    return hits.flatten(0, 1).nanmean(0), hits.nanmean(1).std(0) / math.sqrt(len(hits))


def draw_calibration(levels: Tensor, path: Path) -> None:
    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    at = torch.linspace(0, 1, 101)
    share, error = coverage(levels, at)
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
    ax.plot(at, share, color=PALETTE[0])
    ax.fill_between(at, share - 1.96 * error, share + 1.96 * error, color=PALETTE[0], alpha=0.2, linewidth=0)
    ax.set(xlabel="level of the interval", ylabel="share of unseen distances inside", xlim=(0, 1), ylim=(0, 1))
    plotting.save(figure, path)
    plt.close(figure)
