"""The report on networks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.networks import BINS, EVIDENCE, HELD_OUT, MODELS, NETWORKS, SAMPLED, NetworkCell
from experiments.report.results import NOT_RUN, Results, listed, number, table
from pyro_hyperbolic.plotting.canvas import PALETTE

TITLES = {
    "florentine": "Florentine families",
    "davis": "Davis' women",
    "karate": "karate club",
    "les_miserables": "Les Misérables",
    "phylogenetic": "phylogenetic tree",
    "csphd": "CS PhDs",
    "diseases": "diseases",
    "drawn e2": "drawn on e2",
    "drawn h2": "drawn on h2",
}
_DECISIVE = math.log(20.0)


def networks(results: Results) -> tuple[str, Figure]:
    """Scores of held-out pairs, calibration and evidence of every model."""
    head = ["", "model", "AUC", "log score", "gain over no space", "minus that of e2", "converged"]
    rows = [_row(results, data, model) for data in NETWORKS for model in MODELS if _is_run(results, data)]
    text = _finding(results) + "## Held-out pairs\n\n" + table(head, rows)
    text += (
        "\nMean and 95% interval over splits, which all models share. The log score is the mean logarithm of the"
        " probability of what a held-out pair is, in thousandths of a nat. Its gain is over the density of the network,"
        " and its difference to the flat model is between runs of one split. Posteriors of the larger networks are"
        " those of mean-field guides, which may be far from what chains would find. Two networks of 5000 nodes are"
        " drawn from the model itself, on the space of their name.\n\n"
    )
    text += "## Calibration\n\n" + table(["predicted", "pairs", "mean prediction", "share of edges"], _bins(results))
    text += "\nAll held-out pairs of all models and splits, by their predicted probability. The interval is 95%.\n\n"
    head = ["", "model", "log evidence", "difference to the best", "curvature", "converged"]
    rows = [row for data in NETWORKS if _is_run(results, data) for row in _evidence(results, data)]
    text += "## Evidence\n\n" + table(head, rows)
    text += (
        "\nOf the whole network: mean over runs, ± 1.96 standard errors of the mean, each run's own or their spread,"
        " whichever is larger. The curvature is the median of its posterior, and its 90% interval, in units of the"
        " scale of the positions. Chains that did not converge may have missed mass: the evidence is then too low.\n"
    )
    return text, _draw(results)


def _cell(data: str, model: tuple[str, bool], task: str) -> NetworkCell:
    return NetworkCell(data, *model, task)


def _is_run(results: Results, data: str) -> bool:
    tasks = (HELD_OUT, EVIDENCE) if data in SAMPLED else (HELD_OUT,)
    return any(results.runs[_cell(data, model, task)] for model in MODELS for task in tasks)


def _row(results: Results, data: str, model: tuple[str, bool]) -> list[str]:
    cell = _cell(data, model, HELD_OUT)
    scores = [results.text(cell, metric, factor, digits) for metric, factor, digits in _SCORES]
    gain = _gain(results, data, model)
    return [
        TITLES[data],
        cell.model,
        *scores,
        NOT_RUN if gain is None else number(gain, 1000.0, 1),
        _share(results, cell),
    ]


_SCORES = (("auc", 1.0, 3), ("log_score", 1000.0, 1), ("gain", 1000.0, 1))


def _gain(results: Results, data: str, model: tuple[str, bool]) -> tuple[float, float | None] | None:
    ours, flat = (results.values(_cell(data, kind, HELD_OUT), "log_score") for kind in (model, MODELS[0]))
    both = [ours[seed] - flat[seed] for seed in sorted(ours.keys() & flat.keys())]
    return mean_interval(both) if both else None


def _share(results: Results, cell: NetworkCell) -> str:
    runs = results.runs[cell]
    if cell.data not in SAMPLED:
        return "by SVI" if runs else NOT_RUN
    good = sum(record["metrics"]["converged"] for record in runs.values())
    worst = max((record["metrics"]["r_hat"] for record in runs.values()), default=math.nan)
    return f"{good} of {len(runs)} (R-hat {worst:.2f})" if runs else NOT_RUN


def _binned(results: Results, model: tuple[str, bool] | None = None) -> list[tuple[str, int, float, float, float]]:
    """Range, number, mean prediction, share of edges and its interval, of those bins that hold some."""
    cells = [_cell(data, kind, HELD_OUT) for data in NETWORKS for kind in MODELS if model is None or kind == model]
    runs = [record["metrics"]["bins"] for cell in cells for record in results.runs[cell].values()]
    out = []
    for place, (low, high) in enumerate(itertools.pairwise((0.0, *BINS, 1.0))):
        count, total, edges = (sum(run[place][k] for run in runs) for k in range(3))
        if count:
            # Of a share of 0 or 1 too: two edges and two others are added, as Agresti and Coull do.
            middle = (edges + 2) / (count + 4)
            half = 1.96 * math.sqrt(middle * (1 - middle) / (count + 4))
            out.append((f"{low:g} to {high:g}", round(count), total / count, edges / count, half))
    return out


def _bins(results: Results) -> list[list[str]]:
    return [[name, str(n), f"{p:.4f}", number((share, half), 1.0, 4)] for name, n, p, share, half in _binned(results)]


def _of_evidence(results: Results, cell: NetworkCell) -> tuple[float, float] | None:
    """Mean and 1.96 standard errors over runs."""
    runs = [record["metrics"] for record in results.runs[cell].values()]
    if not runs:
        return None
    values = [run["log_evidence"] for run in runs]
    own = math.sqrt(sum(run["standard_error"] ** 2 for run in runs)) / len(runs)
    mean = sum(values) / len(values)
    spread = 0.0
    if len(values) > 1:
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    return mean, 1.96 * max(own, spread)


def _evidences(results: Results, data: str) -> dict[NetworkCell, tuple[float, float]]:
    """Of the models that were run, the best first."""
    cells = [_cell(data, model, EVIDENCE) for model in MODELS if data in SAMPLED]
    found = {cell: value for cell in cells if (value := _of_evidence(results, cell)) is not None}
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def _evidence(results: Results, data: str) -> list[list[str]]:
    found = _evidences(results, data)
    rows = []
    for cell, value in found.items():
        best = next(iter(found.values()))
        apart = (value[0] - best[0], math.hypot(value[1], best[1])) if value is not best else (0.0, 0.0)
        runs = [record["metrics"] for record in results.runs[cell].values()]
        curvature = "flat"
        if "curvature" in runs[0]:
            low, middle, high = (sum(run["curvature"][k] for run in runs) / len(runs) for k in range(3))
            curvature = f"{middle:.2g} ({low:.2g} to {high:.2g})"
        rows.append([TITLES[data], cell.model, number(value), number(apart), curvature, _share(results, cell)])
    return rows


def _finding(results: Results) -> str:
    """In plain words, network by network: what predicts best, and what the evidence prefers."""
    lines = []
    for data in NETWORKS:
        parts = []
        gains = {model: _gain(results, data, model) for model in MODELS[1:]}
        known = {model: gain for model, gain in gains.items() if gain is not None and gain[1] is not None}
        if known:
            better, worse = (
                [_cell(data, m, HELD_OUT).model for m, (mean, half) in known.items() if sign * mean > (half or 0.0)]
                for sign in (1, -1)
            )
            parts.append(f"of held-out pairs {listed(better) or 'no other model'} has a better log score than flat e2")
            if worse:
                parts.append(f"e2 is better than {listed(worse)}")
        found = list(_evidences(results, data).items())
        if len(found) > 1:
            (best, top), rest = found[0], found[1:]
            near = [
                cell.model for cell, value in rest if top[0] - value[0] < max(_DECISIVE, math.hypot(top[1], value[1]))
            ]
            words = f"the evidence prefers {best.model}"
            words += f", but does not rule out {listed(near)}" if near else ", and rules out all others at 20 to 1"
            parts.append(words + (": the flat model wins" if best.space == "e2" else ""))
            doubtful = [
                c.model for c, _ in found if not all(r["metrics"]["converged"] for r in results.runs[c].values())
            ]
            if doubtful:
                parts.append(f"not all chains of {listed(doubtful)} converged, so this is not certain")
        if parts:
            lines.append(f"* {TITLES[data]}: {'; '.join(parts)}.\n")
    return "".join(lines) + "\n"


def _draw(results: Results) -> Figure:
    """Evidence beside that of flat e2, log scores beside that of e2, and calibration."""
    figure, axes = plt.subplots(1, 3, figsize=(11.0, 3.4), layout="constrained")
    titles = ("log evidence minus that of e2 (nats)", "log score minus that of e2 (nats per pair)")
    shown = [data for data in NETWORKS if _is_run(results, data)]
    for ax, title in zip(axes, titles, strict=False):
        ax.axhline(0.0, color="0.7", linewidth=0.8)
        for colour, data in zip(PALETTE, shown, strict=False):
            for x, model in enumerate(MODELS[1:]):
                value = _apart(results, data, model) if ax is axes[0] else _gain(results, data, model)
                if value is not None:
                    place = x + 0.12 * (shown.index(data) - 0.5 * (len(shown) - 1))
                    ax.errorbar(place, value[0], value[1] or 0.0, color=colour, marker="o", capsize=2.5)
        ax.set_xticks(range(len(MODELS) - 1), [_cell("", m, "").model.replace(" with ", "\n") for m in MODELS[1:]])
        ax.set_title(title, fontsize="small")
    for colour, data in zip(PALETTE, shown, strict=False):
        axes[0].plot([], [], "o", color=colour, label=TITLES[data])
    axes[0].legend(frameon=False, fontsize="x-small")
    ax = axes[2]
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    for colour, model in zip(PALETTE, (("e2", False), ("h2", False)), strict=False):
        rows = _binned(results, model)
        if rows:
            ends = ([row[2] for row in rows], [row[3] for row in rows], [row[4] for row in rows])
            ax.errorbar(*ends, color=colour, marker="o", capsize=2.5, linewidth=0.8, label=model[0])
    ax.legend(frameon=False, fontsize="x-small")
    ax.set(xlabel="predicted probability", ylabel="share of edges", xlim=(0, 1), ylim=(0, 1))
    ax.set_title("calibration of held-out pairs", fontsize="small")
    for ax in axes:
        ax.tick_params(labelsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    return figure


def _apart(results: Results, data: str, model: Any) -> tuple[float, float] | None:
    found = _evidences(results, data)
    ours, flat = (found.get(_cell(data, kind, EVIDENCE)) for kind in (model, MODELS[0]))
    return None if ours is None or flat is None else (ours[0] - flat[0], math.hypot(ours[1], flat[1]))
