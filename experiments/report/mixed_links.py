"""The links in the report of the spaces of mixed curvature, beside the runs of Table 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from examples.intervals import mean_interval
from experiments.mixed import GRAPH_SPACES, LINKS, SpaceCell
from experiments.report.paired import Scores, choose, differences, scores_of, summarised
from experiments.report.results import Results, exceeds, interval, listed, number, table
from experiments.report.table4 import SCORES, TITLES
from experiments.table4 import CURVATURES, GRAPHS, GraphCell, Table4
from pyro_hyperbolic.plotting.canvas import PALETTE

FLAT = "e5"
NO_SPACE = "no space"


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
        self.models[name] = {}
        for graph, score in self.columns:
            found = {candidate: runs(graph) for candidate, runs in candidates.items()}
            choice = choose(found)
            self.models[name][graph, score] = scores_of(choice, found, score)
        self.compared.append(name)

    def finding(self) -> str:
        """The spaces with a better AUC than flat space, by more than the interval."""
        known, better = False, []
        for name in self.compared:
            for graph in GRAPHS:
                values = differences(*(self.models[model][graph, "auc"] for model in (name, FLAT))).values()
                gain = interval(values)
                known = known or gain is not None
                if gain is not None and len(values) > 1 and exceeds(gain, 100):
                    better.append(f"{name} ({number(gain, 100)} points on {TITLES[graph]})")
        if not known:
            return ""
        return f"* In AUC of links, better than {FLAT} by more than the interval: {listed(better) or NO_SPACE}.\n"

    def text(self) -> str:
        """The scores as a table, and the differences to flat space on the same splits."""
        rows = [
            [name, *(self._text(scores[column]) for column in self.columns)] for name, scores in self.models.items()
        ]
        for name in self.compared:
            gains = [differences(self.models[name][c], self.models[FLAT][c]) for c in self.columns]
            rows.append([f"{name} minus {FLAT}", *map(self._text, gains)])
        head = [""] + [f"{TITLES[graph]} {score.upper()}" for graph, score in self.columns]
        notes = (
            "\nPer cent, with mean and 95% interval over runs. Each run has its own split, which all models share."
            ' Differences are between models on the same split. The rows "chosen" take, on every split, the fixed'
            f" curvature with the best AUC on its validation edges. {FLAT} and p5, the ball, are runs of Table 4 on the"
            " same splits. h2,h2 has one dimension less than the others. With k = 0, u5 is flat but has the factor 2 of"
            f" the exponential map behind the encoder, which {FLAT} lacks, so it is the control of the curved spaces.\n"
        )
        return table(head, rows) + notes

    def _text(self, scores: Scores) -> str:
        return summarised(scores, self.seeds, 100)

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
