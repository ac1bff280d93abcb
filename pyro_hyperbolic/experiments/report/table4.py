"""The report of Table 4."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pyro_hyperbolic.experiments.paper import paper_tables
from pyro_hyperbolic.experiments.report.results import NOT_RUN, Results, number, table
from pyro_hyperbolic.experiments.statistics import mean_interval
from pyro_hyperbolic.experiments.table4 import CURVATURES, GRAPHS, GraphCell
from pyro_hyperbolic.plotting.canvas import PALETTE

TITLES = {"phylogenetic": "Phylogenetic", "csphd": "CS PhDs", "diseases": "Diseases"}
SCORES = ("auc", "ap")


def table4(results: Results) -> tuple[str, Figure]:
    """Scores of every model, the paper's, and differences on the same splits."""
    paper = paper_tables()["table4_link_prediction_percent"]
    head = [""] + [f"{TITLES[graph]} {score.upper()}" for graph in GRAPHS for score in SCORES]
    rows = [["euclidean, paper", *map(number, paper["euclidean"])]]
    rows += [["hyperbolic, paper", *map(number, paper["hyperbolic"])]]
    for c in (0.0, *CURVATURES):
        cells = [GraphCell(graph, c) for graph in GRAPHS]
        rows.append([cells[0].row, *(results.text(cell, score, 100) for cell in cells for score in SCORES)])
    for c in CURVATURES:
        gains = [_gain(results, GraphCell(graph, c), score) for graph in GRAPHS for score in SCORES]
        rows.append([f"c={c:g} minus euclidean", *(NOT_RUN if gain is None else number(gain, 100) for gain in gains)])
    chosen = {graph: _chosen(results, graph) for graph in GRAPHS}
    rows.append(
        ["c chosen by validation"]
        + [NOT_RUN if cell is None else results.text(cell, score, 100) for cell in chosen.values() for score in SCORES]
    )
    picks = ", ".join(f"{TITLES[graph]} c = {cell.curvature:g}" for graph, cell in chosen.items() if cell is not None)
    left_out = [cell.name for cell in results.cells if results.complete(cell, "validation_auc") is None]
    incomplete = f" Not complete, and so not chosen from: {'; '.join(left_out)}." if left_out else ""
    notes = (
        "\nPer cent; mean and 95% interval over runs, each on a split of its own that all models share. The differences"
        f" are those on the same split. Chosen by the mean AUC of the validation edges: {picks or 'none yet'}. The"
        f" paper does not give its curvature.{incomplete}\n"
    )
    return table(head, rows) + notes, _draw(results, paper)


def _gain(results: Results, cell: GraphCell, score: str) -> tuple[float, float | None] | None:
    ours, flat = results.values(cell, score), results.values(GraphCell(cell.graph, 0.0), score)
    gains = [ours[seed] - flat[seed] for seed in sorted(ours.keys() & flat.keys())]
    finite = [gain for gain in gains if math.isfinite(gain)]
    return mean_interval(finite) if finite else None


def _chosen(results: Results, graph: str) -> GraphCell | None:
    """The curvature of the best validation edges, of the cells that are complete."""
    cells = [GraphCell(graph, c) for c in CURVATURES]
    found = {cell: mean for cell in cells if (mean := results.complete(cell, "validation_auc")) is not None}
    return max(found, key=lambda cell: found[cell]) if found else None


def _draw(results: Results, paper: dict[str, Any]) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.0), layout="constrained")
    for i, (ax, graph) in enumerate(zip(axes, GRAPHS, strict=True)):
        for j, (score, colour) in enumerate(zip(SCORES, PALETTE[:2], strict=True)):
            found = [(x, results.shown(GraphCell(graph, c), score)) for x, c in enumerate((0.0, *CURVATURES))]
            ours = [(x, *value) for x, value in found if value is not None]
            for x, mean, half in ours:
                label = f"{score.upper()}, ours" if x == ours[0][0] else None
                ax.errorbar(x, 100 * mean, 100 * half, color=colour, marker="o", capsize=2.5, label=label)
            for x, row in ((0, "euclidean"), (2, "hyperbolic")):
                mean, half = paper[row][2 * i + j]
                label = f"{score.upper()}, paper" if x == 0 else None
                style = {"color": colour, "marker": "s", "mfc": "white", "alpha": 0.7, "capsize": 2.5}
                ax.errorbar(x + 0.25, mean, half, linestyle="none", label=label, **style)
        ax.set_title(TITLES[graph], fontsize="medium")
        ax.set_xticks(range(1 + len(CURVATURES)), ["euclidean", *(f"c = {c:g}" for c in CURVATURES)])
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("score on test edges (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure
