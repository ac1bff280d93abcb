"""The report on networks."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from experiments.networks import EVIDENCE, HELD_OUT, MODELS, NETWORKS, SAMPLED
from experiments.report.network_picture import draw
from experiments.report.network_scores import (
    DECISIVE,
    FLAT,
    GROUPS,
    OTHERS,
    THOUSANDTHS,
    TITLES,
    Bin,
    best,
    binned,
    cell_of,
    curvature,
    evidences,
    gain,
    missing,
    name_of,
    runs_of,
)
from experiments.report.results import NOT_RUN, Results, apart, exceeds, listed, number, table

TASKS = {HELD_OUT: "held-out pairs", EVIDENCE: "evidence"}
CURVED = [model for model in MODELS if model[0] != "e2"]
_CHAINS = "converged", "R-hat", "least ESS"
_SCORES = (("auc", 1.0, 3), ("log_score", 1000.0, 1), ("gain", 1000.0, 1))


def networks(results: Results) -> tuple[str, Figure]:
    """Scores of held-out pairs, calibration, evidence and curvatures of every model."""
    parts = {
        "Held-out pairs": _held_out(results),
        "Calibration": _calibration(results),
        "Evidence": _evidence(results),
        "Curvature": _curvature(results),
    }
    text = _finding(results) + "\n".join(f"## {title}\n\n{part}" for title, part in parts.items() if part)
    return text, draw(results)


def _finding(results: Results) -> str:
    """In plain words, network by network; and what is not there to be said."""
    lines = []
    for data in NETWORKS:
        parts = [words for words in (_predicted(results, data), _preferred(results, data)) if words]
        if parts:
            lines.append(f"* {TITLES[data]}: {'; '.join(parts)}.\n")
    absent = []
    for task, title in TASKS.items():
        found = {data: missing(results, data, task) for data in NETWORKS}
        told = [f"{TITLES[data]} ({models})" for data, models in found.items() if models]
        absent += [f"\nMissing runs of {title}: {'; '.join(told)}.\n"] if told else []
    return "".join(lines) + "".join(absent) + "\n"


def _predicted(results: Results, data: str) -> str:
    """Which models predict better than the flat one, and than no space at all."""
    known = {model: value for model in OTHERS if (value := gain(results, data, model)) and value[1] is not None}
    if not known:
        return ""
    better, worse = (
        [name_of(model) for model, (mean, half) in known.items() if exceeds((sign * mean, half), *THOUSANDTHS)]
        for sign in (1, -1)
    )
    verb = "have" if len(better) > 1 else "has"
    words = f"of held-out pairs {listed(better) or 'no other model'} {verb} a better log score than flat e2"
    if len(better) > 1 and (winner := best(results, data)) is not None:
        words += f", {name_of(winner)} the best"
    if worse:
        words += f", and e2 has a better one than {listed(worse)}"
        words += "" if better else ": the flat model wins"
    over = {model: results.summary(cell_of(data, model, HELD_OUT), "gain") for model in MODELS}
    useful = [model for model, value in over.items() if value is not None and exceeds(value, *THOUSANDTHS)]
    if not useful:
        words += "; no model is better than the density of the network by more than the splits differ"
    return words


def _preferred(results: Results, data: str) -> str:
    """Which model has the greatest evidence, and which others are possible."""
    found = evidences(results, data)
    if len(found) < 2:
        return ""
    (first, top), *rest = found.items()
    near = [model for model, value in rest if top[0] - value[0] < max(DECISIVE, apart(top, value)[1])]
    words = f"the evidence prefers {name_of(first)}"
    if near:
        words += f", but does not rule out {listed([name_of(model) for model in near])} at 20 to 1"
    else:
        words += ", and rules out all others at 20 to 1"
    if first == FLAT:
        words += ": the flat model wins" if not near else ": nothing is gained by another space"
    elif FLAT in near:
        words += ": the flat model will do"
    doubtful = [
        name_of(model)
        for model in found
        if not any(run["converged"] for run in runs_of(results, data, model, EVIDENCE))
    ]
    return f"{words}; no chains of {listed(doubtful)} converged, so this is not certain" if doubtful else words


def _held_out(results: Results) -> str:
    head = ["", "model", "edges of pairs", "AUC", "log score", "gain over no space", "minus that of e2", *_CHAINS]
    rows = []
    for data in NETWORKS:
        winner = best(results, data)
        for model in MODELS:
            cell = cell_of(data, model, HELD_OUT)
            runs = runs_of(results, data, model, HELD_OUT)
            if runs:
                name = f"**{cell.model}**" if model == winner else cell.model
                scores = [results.text(cell, metric, factor, digits) for metric, factor, digits in _SCORES]
                ahead = gain(results, data, model)
                beside = "" if model == FLAT else NOT_RUN if ahead is None else number(ahead, *THOUSANDTHS)
                rows.append([TITLES[data], name, _size(runs), *scores, beside, *_convergence(runs)])
    if not rows:
        return ""
    return table(head, rows) + (
        "\nMean and 95% interval over splits, which all models share: by Student's t, and wide where there are three"
        " or fewer and each holds out few edges (their number, and that of all pairs of a split). The log score is the"
        " mean logarithm of the probability of what a held-out pair is, in thousandths of a nat; bold is the greatest"
        " of a network of which all models have been run. Its gain is over the density of the network, and its"
        " difference to the flat model is between runs of one split. Posteriors of the larger networks are those of"
        " mean-field guides (SVI), which may be far from what chains would find. Two networks of 5000 nodes are drawn"
        " from the model itself, on the space of their name. Of chains, R-hat is the greatest and the effective sample"
        " size the least of all sites and runs.\n"
    )


def _size(runs: list[dict[str, Any]]) -> str:
    """How many edges, and how many pairs, a split holds out."""
    pairs, edges = (sum(row[k] for row in runs[0]["bins"]) for k in (0, 2))
    return f"{edges:.0f} of {pairs:.0f}"


def _convergence(runs: list[dict[str, Any]]) -> list[str]:
    if "r_hat" not in runs[0]:
        return ["by SVI", "", ""]
    good = sum(run["converged"] for run in runs)
    r_hat, ess = max(run["r_hat"] for run in runs), min(run["ess"] for run in runs)
    return [f"{good} of {len(runs)}", f"{r_hat:.3f}", f"{ess:.0f}"]


def _calibration(results: Results) -> str:
    found = {name: {row.low: row for row in binned(results, group)} for name, group in GROUPS.items()}
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        return ""
    head = ["predicted", *(f"{name}: {column}" for name in found for column in ("pairs", "mean", "share of edges"))]
    ends = sorted({(row.low, row.high) for rows in found.values() for row in rows.values()})
    rows = []
    for low, high in ends:
        rows.append([f"{low:g} to {high:g}", *(text for own in found.values() for text in _of_bin(own.get(low)))])
    return table(head, rows) + (
        "\nHeld-out pairs of all models and splits, by their predicted probability: how many they are, the mean of"
        " that, and how many of them are edges. The 95% interval is that of as many pairs as one model has, since"
        f" models have them in common. {' '.join(_judged(name, list(own.values())) for name, own in found.items())}\n"
    )


def _of_bin(row: Bin | None) -> list[str]:
    if row is None:
        return [""] * 3
    low, high = row.interval
    return [str(row.pairs), f"{row.mean:.4f}", f"{row.share:.4f} ({low:.4f} to {high:.4f})"]


def _judged(name: str, rows: list[Bin]) -> str:
    """Where predictions are wrong by more than the interval."""
    high, low = (
        [f"{row.low:g} to {row.high:g}" for row in rows if wrong(row)]
        for wrong in (lambda row: row.mean > row.interval[1], lambda row: row.mean < row.interval[0])
    )
    said = [f"too {way} from {listed(found)}" for way, found in (("high", high), ("low", low)) if found]
    return f"Predictions of {name} are {' and '.join(said) or 'in all intervals'}."


def _evidence(results: Results) -> str:
    head = ["", "model", "log evidence", "minus the greatest", "minus that of e2", *_CHAINS]
    rows = []
    for data in SAMPLED:
        found = evidences(results, data)
        for model, value in found.items():
            beside = [
                "" if model == base else number(apart(value, found[base])) if base in found else NOT_RUN
                for base in (next(iter(found)), FLAT)
            ]
            runs = runs_of(results, data, model, EVIDENCE)
            rows.append([TITLES[data], name_of(model), number(value), *beside, *_convergence(runs)])
    if not rows:
        return ""
    return table(head, rows) + (
        "\nOf the whole network, in nats: mean over the runs that converged, or over all if none did, ± 1.96 standard"
        " errors of the mean, each run's own or their spread, whichever is larger. A difference of 3 is odds of 20 to"
        " 1. Chains that did not converge may have missed mass: the evidence is then too low.\n"
    )


def _curvature(results: Results) -> str:
    rows = []
    for data in NETWORKS:
        found = [curvature(results, data, model) for model in CURVED]
        if any(found):
            rows.append([TITLES[data], *(_posterior(value) for value in found)])
    if not rows:
        return ""
    return table(["", *map(name_of, CURVED)], rows) + (
        "\nMedian and 90% interval of the posterior of the curvature (its absolute value), in units of the scale of the"
        " positions, means over runs: of the whole network where its evidence was computed, else of the network without"
        " the held-out pairs; those of larger networks are of guides, whose intervals are too narrow. The prior has 1"
        " (0.085 to 11.8), so an interval like that is no news.\n"
    )


def _posterior(value: list[float] | None) -> str:
    return NOT_RUN if value is None else "{1:.2g} ({0:.2g} to {2:.2g})".format(*value)
