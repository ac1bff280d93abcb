"""The links in the report of the spaces of mixed curvature, beside the runs of Table 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyro_hyperbolic.experiments.mixed import GRAPH_SPACES, LINKS, SpaceCell
from pyro_hyperbolic.experiments.report.results import NOT_RUN, Results, number, table
from pyro_hyperbolic.experiments.report.table4 import SCORES, TITLES
from pyro_hyperbolic.experiments.statistics import mean_interval
from pyro_hyperbolic.experiments.table4 import CURVATURES, GRAPHS, GraphCell, Table4
from pyro_hyperbolic.plotting.canvas import PALETTE

Scores = dict[int, float]
FLAT = "e5"


class Links:
    """The scores of every model on every graph.

    :param results: of the experiment; the store also has the runs of Table 4, if there are any.
    """

    def __init__(self, results: Results) -> None:
        links = results.experiment.configured(LINKS)
        table4 = Results(replace(Table4(), seeds=links.seeds, **links.settings()), results.store)
        self.seeds = links.seeds
        self.columns = [(graph, score) for graph in GRAPHS for score in SCORES]
        self.models = self._of(lambda graph: table4.runs[GraphCell(graph, 0.0)], FLAT)
        self.compared: list[str] = []
        on_ball = {f"p5 c={c:g}": (lambda graph, c=c: table4.runs[GraphCell(graph, c)]) for c in CURVATURES}
        self._add("p5 c chosen", on_ball)
        for space, (fixed, start) in GRAPH_SPACES.items():
            cells = [SpaceCell("", space, values) for values in fixed]
            learned = SpaceCell("", space, start, learn_curvature=True)
            runs = {cell.row: (lambda graph, cell=cell: results.runs[replace(cell, task=graph)]) for cell in cells}
            self._add(learned.row.replace("learned", "chosen"), runs)
            self.models |= self._of(lambda graph, cell=learned: results.runs[replace(cell, task=graph)], learned.row)
            self.compared.append(learned.row)

    def _of(self, runs: Any, name: str) -> dict[str, dict[tuple[str, str], Scores]]:
        scores = {
            (graph, score): {seed: run["metrics"][score] for seed, run in runs(graph).items()}
            for graph, score in self.columns
        }
        return {name: scores}

    def _add(self, name: str, candidates: dict[str, Any]) -> None:
        """Models of several curvatures, and what a choice between them on every split gives."""
        for candidate, runs in candidates.items():
            self.models |= self._of(runs, candidate)
        self.models[name] = {
            (graph, score): choose([runs(graph) for runs in candidates.values()], score)
            for graph, score in self.columns
        }
        self.compared.append(name)

    def text(self) -> str:
        """The scores as a table, and the differences to flat space on the same splits."""
        rows = [
            [name, *(self._text(scores[column]) for column in self.columns)] for name, scores in self.models.items()
        ]
        for name in self.compared:
            gains = [mean_difference(self.models[name][c], self.models[FLAT][c]) for c in self.columns]
            rows.append([f"{name} minus {FLAT}", *(NOT_RUN if gain is None else number(gain, 100) for gain in gains)])
        head = [""] + [f"{TITLES[graph]} {score.upper()}" for graph, score in self.columns]
        notes = (
            "\nPer cent; mean and 95% interval over runs, each on a split of its own that all models share. The"
            " differences are those on the same split. Chosen: on every split the fixed curvature with the best AUC of"
            f" its own validation edges. {FLAT} and p5, the ball, are runs of Table 4 on the same splits; h2,h2 has one"
            " dimension less than the others. With k = 0, u5 is flat and has the factor 2 of the exponential map behind"
            f" the encoder, which {FLAT} has not: it is the control of the curved spaces.\n"
        )
        return table(head, rows) + notes

    def _text(self, scores: Scores) -> str:
        values = list(scores.values())
        if not values:
            return NOT_RUN
        finite = sum(map(math.isfinite, values))
        text = number(mean_interval(values), 100) if finite == len(values) else f"{finite} of {len(values)} finite"
        return text if len(values) == self.seeds else f"{text} ({len(values)} runs)"

    def draw(self, figure: Any) -> None:
        """A panel for every graph; of the fixed curvatures the choice alone."""
        names = [FLAT, *self.compared]
        for ax, graph in zip(figure.subplots(1, len(GRAPHS), sharey=True), GRAPHS, strict=True):
            for shift, score, colour in zip((-0.13, 0.13), SCORES, PALETTE, strict=False):
                label: str | None = score.upper()
                for y, name in enumerate(names):
                    values = [100 * value for value in self.models[name][graph, score].values() if math.isfinite(value)]
                    if values:
                        mean, half = mean_interval(values)
                        style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "capsize": 2.5}
                        ax.errorbar(mean, y + shift, xerr=half, linestyle="none", label=label, **style)
                        label = None
            ax.set_title(TITLES[graph], fontsize="medium")
            ax.set_yticks(range(len(names)), names)
            ax.set_ylim(len(names) - 0.5, -0.5)
            ax.set_xlabel("score on test edges (%)")
            ax.spines[["top", "right"]].set_visible(False)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize="small")


def choose(candidates: Sequence[dict[int, Any]], score: str) -> Scores:
    """On every split that all candidates have, a score of the one with the best AUC of the validation edges."""
    chosen = {}
    for seed in sorted(set.intersection(*map(set, candidates))):
        metrics = [runs[seed]["metrics"] for runs in candidates]
        finite = [values for values in metrics if math.isfinite(values["validation_auc"])]
        chosen[seed] = max(finite, key=lambda values: values["validation_auc"])[score] if finite else math.nan
    return chosen


def mean_difference(one: Scores, other: Scores) -> tuple[float, float | None] | None:
    """Mean and interval of the differences of runs of the same seed, of those that are finite."""
    differences = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    finite = [value for value in differences if math.isfinite(value)]
    return mean_interval(finite) if finite else None
