"""Confusion matrices of the classifiers of Table 3."""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.figures.mnist import EUCLIDEAN, HYPERBOLIC, TITLES
from experiments.figures.source import Source
from experiments.figures.style import INK, subplots
from experiments.table3 import ClassifierCell


def confusion(source: Source) -> Figure:
    """How often a digit is taken for which, in per cent, averaged over all classifiers of a model's embeddings."""
    figure, axes = subplots(1, 2, size=3.6)
    for ax, row in zip(axes[0], (HYPERBOLIC, EUCLIDEAN), strict=True):
        runs = source.metrics(source.table3, ClassifierCell(row)).values()
        counts = torch.tensor([metrics["confusion"] for metrics in runs], dtype=torch.float64)
        percent = 100 * (counts / counts.sum(-1, keepdim=True)).mean(0)
        _draw_matrix(percent, ax)
        average = percent.diagonal().mean()  # over classes, as in the paper's table
        ax.set_title(f"{TITLES[row]}\n{average:.1f} % correct, mean of {len(runs)} classifiers")
    axes[0, 0].set_ylabel("digit")
    return figure


def _draw_matrix(percent: Tensor, ax: Axes) -> None:
    ax.imshow(percent.numpy(), cmap="Blues", vmin=0, vmax=100)
    for true, row in enumerate(percent.tolist()):
        for guess, value in enumerate(row):
            if round(value):
                colour = "white" if value > 55 else INK
                ax.text(guess, true, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    numbers = range(len(percent))
    ax.set(xticks=numbers, yticks=numbers, xlabel="classified as")
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_color("0.75")
