"""The report on single cells."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.cells import CURVATURES, CellsCell
from experiments.report.results import NOT_RUN, Results, listed, number, table
from experiments.table1 import NEARLY_FLAT
from pyro_hyperbolic.plotting.canvas import PALETTE

TITLES = {"paul15": "Paul15", "branching": "simulated lineage"}
METRICS = {
    "negative_iwae": ("negative IWAE per cell (nats)", 2),
    "knn_accuracy": ("k-NN accuracy", 3),
    "correlation": ("correlation with lineage", 3),
    "rank_correlation": ("rank correlation", 3),
    "batch_mixing": ("batch mixing", 3),
    "coverage": ("coverage of 90% regions", 3),
    "exact_coverage": ("coverage of exact 90% regions", 3),
}
"""What is shown of a run, with a title and the number of digits."""

MODELS = {c: "Euclidean" if c == 0 else f"c = {c:g}" for c in CURVATURES}
CURVED = 1.0
OTHERS = (0.0, NEARLY_FLAT)  # what the curved model is compared with


def cells(results: Results) -> tuple[str, Figure]:
    """Scores of every model, and what curvature changes on the same cells."""
    head = ["", "score", *MODELS.values(), *(f"c = 1 minus {MODELS[c]}" for c in OTHERS)]
    rows = []
    for data, title in TITLES.items():
        for metric, (name, digits) in METRICS.items():
            if not _is_known(results, data, metric):
                continue
            own = [results.text(CellsCell(data, c), metric, digits=digits) for c in CURVATURES]
            gains = [_gain(results, data, metric, other) for other in OTHERS]
            rows.append(
                [title, name, *own, *(NOT_RUN if gain is None else number(gain, 1.0, digits) for gain in gains)]
            )
    notes = (
        "\nMean and 95% interval over runs. Each run has its own split (and its own simulated lineage), which all"
        " models share. Differences are between models on the same cells. A smaller negative IWAE is better. Mixing is"
        " best at 1, coverage at 0.9; exact regions are those of draws from the posterior itself, by resampling from"
        f" the encoder. The column c = {NEARLY_FLAT:g} is the hyperbolic model with next to no"
        " curvature. The picture shows the differences.\n"
    )
    return _finding(results) + table(head, rows) + notes, _draw(results)


def _finding(results: Results) -> str:
    """Which scores differ by more than the interval of the difference."""
    lines = []
    for data, title in TITLES.items():
        for other in OTHERS:
            found = []
            for metric, (name, digits) in METRICS.items():
                gain = _gain(results, data, metric, other) if _is_known(results, data, metric) else None
                if gain is not None and gain[1] is not None and abs(gain[0]) > gain[1]:
                    found.append(f"{name} {number(gain, 1.0, digits)}")
            lines.append(f"* {title}, c = {CURVED:g} minus {MODELS[other]}: {listed(found) or 'none'}.\n")
    return (
        f"Over {results.experiment.seeds} runs, the model with c = {CURVED:g} and the models without curvature differ"
        f" by more than the interval in these scores:\n\n{''.join(lines)}\n"
    )


def _is_known(results: Results, data: str, metric: str) -> bool:
    """Whether the runs on the data have the score; without a run, all have."""
    found = [run["metrics"] for c in CURVATURES for run in results.runs[CellsCell(data, c)].values()]
    return not found or all(metric in metrics for metrics in found)


def _gain(results: Results, data: str, metric: str, other: float) -> tuple[float, float | None] | None:
    ours, theirs = (results.values(CellsCell(data, c), metric) for c in (CURVED, other))
    gains = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    finite = [gain for gain in gains if math.isfinite(gain)]
    return mean_interval(finite) if finite else None


def _draw(results: Results) -> Figure:
    """What curvature changes: one panel for each score, one colour for each data set."""
    figure, axes = plt.subplots(1, len(METRICS), figsize=(2.1 * len(METRICS), 2.9), layout="constrained")
    for ax, (metric, (title, _)) in zip(axes, METRICS.items(), strict=True):
        ax.axhline(0.0, color="0.7", linewidth=0.8)
        for shift, (data, colour) in enumerate(zip(TITLES, PALETTE, strict=False)):
            for x, other in enumerate(OTHERS):
                gain = _gain(results, data, metric, other) if _is_known(results, data, metric) else None
                if gain is not None:
                    label = TITLES[data] if x == 0 else None
                    place = x + 0.15 * (shift - 0.5)
                    ax.errorbar(place, gain[0], gain[1] or 0.0, color=colour, marker="o", capsize=2.5, label=label)
        ax.set_title(title, fontsize="small")
        ax.set_xticks(range(len(OTHERS)), [f"minus {MODELS[c]}" for c in OTHERS], rotation=20, fontsize="small")
        ax.set_xlim(-0.5, len(OTHERS) - 0.5)
        ax.tick_params(axis="y", labelsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("score with c = 1")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure
