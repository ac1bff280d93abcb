"""The picture of the report on networks."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.networks import SAMPLED, TRAINED
from experiments.report.network_scores import (
    DECISIVE,
    FLAT,
    GROUPS,
    OTHERS,
    THOUSANDTHS,
    TITLES,
    ahead,
    binned,
    gain,
    name_of,
)
from experiments.report.results import NOT_RUN, Results
from pyro_hyperbolic.plotting.canvas import PALETTE

_SCORE = "log score of held-out pairs minus that of e2, in thousandths of a nat"


def draw(results: Results) -> Figure:
    """Evidence and log scores beside those of flat e2, a panel for each network, and calibration."""
    figure = plt.figure(figsize=(10.0, 9.5), layout="constrained")
    parts: Any = figure.subfigures(4, 1, height_ratios=(1.0, 1.0, 1.0, 1.5))
    rows: Any = (
        ("log evidence minus that of e2, in nats (grey: odds below 20 to 1)", SAMPLED, ahead, 1.0),
        (f"{_SCORE}, by chains", SAMPLED, gain, THOUSANDTHS[0]),
        (f"{_SCORE}, by guides", TRAINED, gain, THOUSANDTHS[0]),
    )
    for part, (title, shown, difference, factor) in zip(parts, rows, strict=False):
        part.suptitle(title, fontsize="medium")
        for ax, data in zip(part.subplots(1, len(shown), sharey=True), shown, strict=True):
            values = [difference(results, data, model) for model in OTHERS]
            _draw_differences(ax, TITLES[data], values, factor)
            if difference is ahead and any(values):
                ax.axvspan(-DECISIVE, DECISIVE, color="0.92")
    parts[-1].suptitle("calibration of predicted probabilities of held-out pairs", fontsize="medium")
    for ax, (name, group) in zip(parts[-1].subplots(1, len(GROUPS)), GROUPS.items(), strict=True):
        _draw_calibration(ax, results, name, group)
    return figure


def _draw_differences(ax: Any, title: str, values: list[tuple[float, float | None] | None], factor: float) -> None:
    for row, value in enumerate(values):
        if value is not None:
            half = factor * (value[1] or 0.0)
            ax.errorbar(factor * value[0], -row, xerr=half, color=PALETTE[row], marker="o", capsize=2.5)
    if any(values):
        ax.axvline(0.0, color="0.5", linewidth=0.8)
        ax.locator_params(axis="x", nbins=4)
    else:
        ax.text(0.5, 0.5, NOT_RUN, transform=ax.transAxes, ha="center", va="center", color="0.5")
        ax.set_xticks([])
    ax.set_yticks([-row for row in range(len(OTHERS))], map(name_of, OTHERS))
    ax.set_ylim(0.6 - len(OTHERS), 0.4)
    ax.set_title(title, fontsize="small")
    _plain(ax)


def _draw_calibration(ax: Any, results: Results, name: str, group: tuple[str, ...]) -> None:
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    for colour, model in zip(PALETTE, (FLAT, ("h2", False)), strict=False):
        rows = binned(results, group, [model])
        if rows:
            places, shares = [row.mean for row in rows], [row.share for row in rows]
            ax.plot(places, shares, "o-", color=colour, lw=0.8, label=name_of(model))
            ax.vlines(places, *zip(*(row.interval for row in rows), strict=True), color=colour)
            ax.legend(frameon=False, fontsize="small")
    ax.set(xlabel="predicted", ylabel="share of edges", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    ax.set_title(name, fontsize="small")
    _plain(ax)


def _plain(ax: Any) -> None:
    ax.tick_params(labelsize="small")
    ax.spines[["top", "right"]].set_visible(False)
