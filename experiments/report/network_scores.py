"""What the runs on networks say: differences between models, evidence, calibration and curvatures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from examples.intervals import mean_interval
from experiments.networks import BINS, EVIDENCE, HELD_OUT, MODELS, SAMPLED, TRAINED, NetworkCell
from experiments.report.results import Results, apart, listed

Model = tuple[str, bool]
FLAT, *OTHERS = MODELS
"""The plane without effects of nodes, and the models that are compared with it."""
TITLES = {
    "florentine": "Florentine families",
    "karate": "karate club",
    "les_miserables": "Les Misérables",
    "phylogenetic": "phylogenetic tree",
    "csphd": "CS PhDs",
    "diseases": "diseases",
    "drawn e2": "drawn on e2",
    "drawn h2": "drawn on h2",
}
GROUPS = {"chains": SAMPLED, "guides": TRAINED}
"""Networks by how their posteriors are found."""
THOUSANDTHS = 1000.0, 1
"""Of a nat, in which log scores are shown, and the digits after them."""
DECISIVE = math.log(20.0)
"""A difference of evidences that is odds of 20 to 1."""


def cell_of(data: str, model: Model, task: str) -> NetworkCell:
    """The cell of a model."""
    return NetworkCell(data, *model, task)


def name_of(model: Model) -> str:
    """The name of a model."""
    return cell_of("", model, "").model


def runs_of(results: Results, data: str, model: Model, task: str) -> list[dict[str, Any]]:
    """The metrics of the runs that are there; a larger network has none of the evidence."""
    return [record["metrics"] for record in results.runs.get(cell_of(data, model, task), {}).values()]


def gain(results: Results, data: str, model: Model, base: Model = FLAT) -> tuple[float, float | None] | None:
    """How much better a log score is than that of another model on the same splits, with its interval."""
    ours, theirs = (results.values(cell_of(data, kind, HELD_OUT), "log_score") for kind in (model, base))
    both = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return mean_interval(both) if both else None


def ahead(results: Results, data: str, model: Model) -> tuple[float, float] | None:
    """How much greater an evidence is than that of the flat model, with its interval."""
    found = evidences(results, data)
    return apart(found[model], found[FLAT]) if model in found and FLAT in found else None


def best(results: Results, data: str) -> Model | None:
    """The model of the greatest mean log score, where all models have the same splits."""
    scores = {model: results.values(cell_of(data, model, HELD_OUT), "log_score") for model in MODELS}
    splits = {frozenset(values) for values in scores.values()}
    if len(splits) > 1 or not all(scores.values()):
        return None
    return max(scores, key=lambda model: sum(scores[model].values()))


def evidences(results: Results, data: str) -> dict[Model, tuple[float, float]]:
    """Mean and 1.96 standard errors over the runs of each model that has some, the greatest first.

    Those that converged, if there are any: the others may have missed mass.
    """
    found = {model: runs_of(results, data, model, EVIDENCE) for model in MODELS}
    means = {
        model: _evidence([run for run in runs if run["converged"]] or runs) for model, runs in found.items() if runs
    }
    return dict(sorted(means.items(), key=lambda item: -item[1][0]))


def _evidence(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    values = [run["log_evidence"] for run in runs]
    own = math.sqrt(sum(run["standard_error"] ** 2 for run in runs)) / len(runs)
    mean = sum(values) / len(values)
    spread = 0.0
    if len(values) > 1:
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    return mean, 1.96 * max(own, spread)


def curvature(results: Results, data: str, model: Model) -> list[float] | None:
    """The ends and the median of the posterior's 90% interval, means over runs: of the whole network if there are any.

    ``None`` of flat models, and without a run.
    """
    for task in (EVIDENCE, HELD_OUT):
        runs = [run["curvature"] for run in runs_of(results, data, model, task) if "curvature" in run]
        if runs:
            return [sum(run[k] for run in runs) / len(runs) for k in range(3)]
    return None


class Bin(NamedTuple):
    """Pairs whose predicted probabilities are near each other."""

    low: float
    high: float
    pairs: int
    mean: float
    share: float
    """Of edges."""
    interval: tuple[float, float]
    """Of the share."""


def binned(results: Results, networks: Sequence[str], models: Sequence[Model] = MODELS) -> list[Bin]:
    """Held-out pairs of these networks and models by their predicted probability; bins without pairs are left out.

    Models see the same pairs, so the interval is that of as many pairs as one model has.
    """
    kinds = [[run for data in networks for run in runs_of(results, data, model, HELD_OUT)] for model in models]
    runs = [run["bins"] for same in kinds for run in same]
    several = sum(map(bool, kinds))
    out = []
    for place, (low, high) in enumerate(itertools.pairwise((0.0, *BINS, 1.0))):
        count, total, edges = (sum(run[place][k] for run in runs) for k in range(3))
        if count:
            share = edges / count
            out.append(Bin(low, high, round(count), total / count, share, _wilson(share, count / several)))
    return out


def _wilson(share: float, count: float, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of Wilson (1927), which is right for shares of 0 and 1 too."""
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def missing(results: Results, data: str, task: str) -> str:
    """Which models have not been run with all seeds, or which ones alone have been run; nothing if all is there."""
    counts = {name_of(model): len(runs_of(results, data, model, task)) for model in MODELS}
    wanted = results.experiment.seeds
    if (task == EVIDENCE and data not in SAMPLED) or min(counts.values()) == wanted:
        return ""
    if len(set(counts.values())) == 1:
        count = wanted - counts["e2"]
        return "all" if count == wanted else f"{count} of {wanted} of each model"
    begun = {name: count for name, count in counts.items() if count}
    if 2 * len(begun) <= len(MODELS):
        return f"all but {listed([_part(name, count, wanted) for name, count in begun.items()])}"
    return listed([_part(name, wanted - count, wanted) for name, count in counts.items() if count < wanted])


def _part(name: str, count: int, wanted: int) -> str:
    return name if count == wanted else f"{count} of {wanted} of {name}"
