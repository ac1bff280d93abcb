"""The report of what was chosen on held-out training images."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.choices import CURVATURES, GAINS, RATES, SPREADS, ChoiceCell
from experiments.report.results import GREY_LEVELS, Results, compared, interval, listed, number, table
from experiments.table2 import DIMENSIONS
from pyro_hyperbolic.nn.linear import GAIN, SPREAD
from pyro_hyperbolic.plotting.canvas import PALETTE

METRIC = "negative_iwae"


class Setting(NamedTuple):
    """What is chosen, for all dimensions and curvatures together."""

    gain: float
    spread: float
    rate: float

    def __str__(self) -> str:
        return f"gain {self.gain:g}, spread {self.spread:g}, learning rate {self.rate:g}"

    def cells(self) -> list[ChoiceCell]:
        """The cells that have it."""
        return [ChoiceCell(d, c, self.rate, self.gain, self.spread) for d in DIMENSIONS for c in CURVATURES]


def choices(results: Results) -> tuple[str, Figure]:
    """One row for every setting, what each is worth beside the one in use, and the Euclidean model."""
    usual = results.experiment.learning_rate
    used = Setting(GAIN, SPREAD, usual)
    settings = [Setting(gain, SPREAD, rate) for rate in RATES for gain in GAINS]
    settings += [Setting(GAIN, spread, usual) for spread in SPREADS if spread != SPREAD]
    losses = {setting: _losses(results, setting.cells()) for setting in settings}
    known = {setting: interval(values) for setting, values in losses.items() if values}
    means = {setting: found[0] for setting, found in known.items() if found is not None}
    best = min(means, key=lambda setting: means[setting]) if means else None
    base = _losses(results, used.cells())
    rows = []
    for setting in settings:
        values = [f"**{value:g}**" if setting == best else f"{value:g}" for value in setting]
        better = _text(_better(base, losses[setting]))
        rows.append([*values, better, *(results.text(cell, METRIC, digits=2) for cell in setting.cells())])
    for rate in RATES:
        flat = [ChoiceCell(d, 0.0, rate) for d in DIMENSIONS]
        texts = [results.text(cell, METRIC, digits=2) for cell in flat]
        rows.append(["euclidean", "", f"{rate:g}", "", *(text for own in texts for text in (own, ""))])
    head = ["gain", "spread", "learning rate", "better than Table 2's"]
    head += [f"d = {d}, c = {c:g}" for d in DIMENSIONS for c in CURVATURES]
    finding = "No setting has all of its runs yet.\n\n"
    if best is not None:
        complete = "The" if len(means) == len(settings) else f"Of the {len(means)} settings with all of their runs, the"
        finding = f"{complete} best on held-out training images is {best}. The library uses gain {GAIN:g} and spread"
        finding += f" {SPREAD:g}."
        own = [setting for rate in dict.fromkeys((best.rate, usual)) if (setting := used._replace(rate=rate)) != best]
        gaps = [(setting.rate, _better(losses[best], losses[setting])) for setting in own]
        told = [f"{compared(gap)} with the learning rate {rate:g}" for rate, gap in gaps if gap]
        if told:
            finding += f" On average this is {listed(told)}."
        finding += "\n\n"
    notes = (
        f"\nNegative IWAE in nats on {results.experiment.held_out} held-out training images, with mean and 95% interval"
        f" over runs; lower is better. {GREY_LEVELS} Gain and spread set the initial values of a gyroplane layer: the"
        " size of the normals, and how far the planes lie from the origin. The fourth column says how much lower the"
        f" loss is than with {used}, as in Table 2; it is a mean over dimensions and curvatures, with its interval"
        " over runs. The best setting, in bold, has the lowest mean loss over all dimensions and curvatures. The"
        " Euclidean model has no gyroplanes, so it has one number for each dimension.\n"
    )
    return finding + table(head, rows) + notes + _gains(results) + _leads(results), _draw(results)


def _gains(results: Results) -> str:
    """What another gain is worth, whatever the learning rate."""
    pooled = {gain: [cell for rate in RATES for cell in Setting(gain, SPREAD, rate).cells()] for gain in GAINS}
    losses = {gain: _losses(results, cells) for gain, cells in pooled.items()}
    base = losses.pop(GAIN)
    told = [f"gain {gain:g} is {compared(found)}" for gain, own in losses.items() if (found := _better(base, own))]
    if not told:
        return ""
    return (
        f"\nAs a mean over the {len(RATES)} learning rates with spread {SPREAD:g}, and compared with gain {GAIN:g},"
        f" {listed(told)}.\n"
    )


def _leads(results: Results) -> str:
    """What the layers and the curvature are worth with each learning rate."""
    rows = []
    for rate in RATES:
        flat = _losses(results, [ChoiceCell(d, 0.0, rate) for d in DIMENSIONS])
        curved = [_losses(results, [ChoiceCell(d, c, rate) for d in DIMENSIONS]) for c in CURVATURES]
        rows.append([f"{rate:g}", *(_text(_better(flat, own)) for own in curved)])
    if not any(text for _, *leads in rows for text in leads):
        return ""
    return (
        f"\nHow much lower the loss of the hyperbolic model with gain {GAIN:g} and spread {SPREAD:g} is than that of"
        " the Euclidean one with the same learning rate, in nats and as a mean over dimensions:\n\n"
    ) + table(["learning rate", *(f"c = {c:g}" for c in CURVATURES)], rows)


def _losses(results: Results, cells: Iterable[ChoiceCell]) -> list[float]:
    """The mean over the cells of every seed, in order; none if a run is missing or not finite."""
    values = [results.values(cell, METRIC) for cell in cells]
    seeds = range(results.experiment.seeds)
    if not all(seed in own and math.isfinite(own[seed]) for own in values for seed in seeds):
        return []
    return [sum(own[seed] for own in values) / len(values) for seed in seeds]


def _better(base: list[float], other: list[float]) -> tuple[float, float | None] | None:
    """How much lower the other losses are, over seeds; none if either are missing."""
    return mean_interval([one - two for one, two in zip(base, other, strict=True)]) if base and other else None


def _text(found: tuple[float, float | None] | None) -> str:
    return "" if found is None else number(found, digits=2)


def _draw(results: Results) -> Figure:
    """A panel for each dimension and curvature: the loss over the gain, a line for each learning rate."""
    figure, axes = plt.subplots(
        len(CURVATURES), len(DIMENSIONS), figsize=(11, 5.4), layout="constrained", sharex=True, squeeze=False
    )
    for line, c in zip(axes, CURVATURES, strict=True):
        for ax, d in zip(line, DIMENSIONS, strict=True):
            for rate, colour in zip(RATES, PALETTE, strict=False):
                found = [(gain, results.shown(ChoiceCell(d, c, rate, gain), METRIC)) for gain in GAINS]
                ours = [(gain, *value) for gain, value in found if value is not None]
                x, mean, half = zip(*ours, strict=True) if ours else ((), (), ())
                style: Any = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2.5, "linewidth": 1.2}
                ax.errorbar(x, mean, half, label=f"learning rate {rate:g}", **style)
                flat = results.shown(ChoiceCell(d, 0.0, rate), METRIC)
                if flat is not None:
                    ax.axhline(flat[0], color=colour, linewidth=1.0, linestyle=(0, (2, 2)))
            ax.set_title(f"$d = {d}$, $c = {c:g}$", fontsize="medium")
            ax.set_xscale("log", base=2)
            ax.set_xticks(GAINS, [f"{gain:g}" for gain in GAINS])
            ax.minorticks_off()
            ax.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("held-out negative IWAE (nats)", fontsize="small")
    for ax in axes[-1]:
        ax.set_xlabel("gain of the normals")
    axes[0, 0].plot([], [], color="0.35", linewidth=1.0, linestyle=(0, (2, 2)), label="euclidean")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize="small")
    return figure
