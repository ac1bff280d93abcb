"""The report of Table 4."""

from __future__ import annotations

from collections import Counter
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.paper import paper_tables
from experiments.report.paired import Scores, choose, differences, scores_of, summarised
from experiments.report.results import Results, interval, listed, number, table
from experiments.table4 import CURVATURES, GRAPHS, GraphCell
from pyro_hyperbolic.plotting.canvas import PALETTE

TITLES = {"phylogenetic": "Phylogenetic", "csphd": "CS PhDs", "diseases": "Diseases"}
SCORES = ("auc", "ap")
FLAT, CHOSEN = "euclidean", "c chosen"
_ALL = (0.0, *CURVATURES)


def table4(results: Results) -> tuple[str, Figure]:
    """Scores of every model, the paper's, and differences on the same splits."""
    paper = paper_tables()["table4_link_prediction_percent"]
    columns = [(graph, score) for graph in GRAPHS for score in SCORES]
    models = {GraphCell("", c).row: {column: _scores(results, c, *column) for column in columns} for c in _ALL}
    choices = {graph: choose(_candidates(results, graph)) for graph in GRAPHS}
    models[CHOSEN] = {
        (graph, score): scores_of(choices[graph], _candidates(results, graph), score) for graph, score in columns
    }

    def line(name: str, scores: dict[tuple[str, str], Scores]) -> list[str]:
        return [name, *(summarised(scores[column], results.experiment.seeds, 100) for column in columns)]

    head = [""] + [f"{TITLES[graph]} {score.upper()}" for graph, score in columns]
    rows = [["euclidean, paper", *map(number, paper["euclidean"])]]
    rows += [["hyperbolic, paper", *map(number, paper["hyperbolic"])]]
    rows += [line(name, scores) for name, scores in models.items()]
    gains = {
        name: {column: differences(scores[column], models[FLAT][column]) for column in columns}
        for name, scores in models.items()
        if name != FLAT
    }
    rows += [line(f"{name} minus {FLAT}", scores) for name, scores in gains.items()]
    found = [
        f"{summarised(gains[CHOSEN][graph, 'auc'], results.experiment.seeds, 100)} on {TITLES[graph]}"
        for graph in GRAPHS
    ]
    finding = (
        "With c chosen on the validation edges of each split, the hyperbolic model gains the following points of AUC"
        f" over the Euclidean one: {listed(found)}.\n\n"
    )
    notes = (
        "\nPer cent, with mean and 95% interval over runs. Each run has its own split, which all models share."
        " Differences are between models on the same split. The paper does not give its curvature. The rows"
        ' "c chosen" take, on every split, the curvature with the best AUC on the validation edges of that split.'
        f" Number of splits on which each was chosen: {'; '.join(_counts(choices)) or 'not run'}.\n"
    )
    return finding + table(head, rows) + notes, _draw(models, paper)


def _scores(results: Results, c: float, graph: str, score: str) -> Scores:
    return results.values(GraphCell(graph, c), score)


def _candidates(results: Results, graph: str) -> dict[float, dict[int, Any]]:
    """The runs between which the validation edges choose, by curvature."""
    return {c: results.runs[GraphCell(graph, c)] for c in CURVATURES}


def _counts(choices: dict[str, dict[int, float | None]]) -> list[str]:
    texts = []
    for graph, choice in choices.items():
        counts = Counter(choice.values())
        if counts:
            times = ", ".join(f"c = {c:g} ({count})" for c, count in counts.most_common() if c is not None)
            texts.append(f"{TITLES[graph]} {times}")
    return texts


def _draw(models: dict[str, dict[tuple[str, str], Scores]], paper: dict[str, Any]) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.0), layout="constrained")
    names = ["euclidean", *(f"c = {c:g}" for c in CURVATURES), CHOSEN]
    for i, (ax, graph) in enumerate(zip(axes, GRAPHS, strict=True)):
        for j, (score, colour) in enumerate(zip(SCORES, PALETTE[:2], strict=True)):
            label: str | None = f"{score.upper()}, ours"
            for x, scores in enumerate(models.values()):
                found = interval(scores[graph, score].values())
                if found is not None:
                    mean, half = found
                    ax.errorbar(x, 100 * mean, 100 * half, color=colour, marker="o", capsize=2.5, label=label)
                    label = None
            # The paper does not say how it came by its curvature; its model stands beside the one that is chosen.
            for x, row in ((0, "euclidean"), (len(names) - 1, "hyperbolic")):
                mean, half = paper[row][2 * i + j]
                label = f"{score.upper()}, paper" if x == 0 else None
                style = {"color": colour, "marker": "s", "mfc": "white", "alpha": 0.7, "capsize": 2.5}
                ax.errorbar(x + 0.25, mean, half, linestyle="none", label=label, **style)
        ax.set_title(TITLES[graph], fontsize="medium")
        ax.set_xticks(range(len(names)), names, fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("score on test edges (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure
