"""Runs of one seed have their data in common: choices between them, and their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from examples.intervals import mean_interval
from experiments.report.results import NOT_RUN, number

T = TypeVar("T")
Scores = dict[int, float]
"""A score of one model by the seeds of its runs."""


def choose(candidates: Mapping[T, Mapping[int, Any]]) -> dict[int, T | None]:
    """For every split that all candidates have, the candidate with the best AUC on the validation edges.

    :param candidates: the runs of each by seed. One that diverged is not chosen; where all did, the choice is ``None``.
    """
    chosen: dict[int, T | None] = {}
    for seed in _common(candidates):
        found = {name: runs[seed]["metrics"]["validation_auc"] for name, runs in candidates.items()}
        finite = {name: value for name, value in found.items() if math.isfinite(value)}
        chosen[seed] = max(finite, key=lambda name: finite[name]) if finite else None
    return chosen


def choose_by_others(candidates: Mapping[T, Scores]) -> dict[int, T]:
    """For every seed that all candidates have, the candidate with the least mean loss on the data of the other seeds.

    :param candidates: the losses of each by seed; one that diverged is not chosen. Nothing is without a second seed.
    """
    seeds = _common(candidates)
    finite = {name: losses for name, losses in candidates.items() if all(map(math.isfinite, losses.values()))}
    if len(seeds) < 2 or not finite:
        return {}

    def others(seed: int) -> T:
        return min(finite, key=lambda name: sum(finite[name][other] for other in seeds if other != seed))

    return {seed: others(seed) for seed in seeds}


def scores_of(choice: Mapping[int, T | None], candidates: Mapping[T, Mapping[int, Any]], score: str) -> Scores:
    """A score of what was chosen; ``nan`` where nothing was."""
    return {
        seed: math.nan if name is None else candidates[name][seed]["metrics"][score] for seed, name in choice.items()
    }


def differences(one: Scores, other: Scores) -> Scores:
    """Those of runs of the same seed."""
    return {seed: one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())}


def summarised(scores: Scores, seeds: int, factor: float = 1.0, digits: int = 1) -> str:
    """Mean and interval as a cell of a table.

    :param seeds: how many runs there should be; if there are fewer, the text says so.
    """
    values = list(scores.values())
    if not values:
        return NOT_RUN
    finite = sum(map(math.isfinite, values))
    text = f"{finite} of {len(values)} finite"
    if finite == len(values):
        text = number(mean_interval(values), factor, digits)
    return text if len(values) == seeds else f"{text} ({len(values)} runs)"


def _common(candidates: Mapping[T, Mapping[int, Any]]) -> list[int]:
    return sorted(set.intersection(*(set(runs) for runs in candidates.values())))
