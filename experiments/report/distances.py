"""The report of the maps of distances."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.distances import GRAPHS, METHODS, DistanceCell
from experiments.report.results import NOT_RUN, Results, listed, table
from pyro_hyperbolic.plotting.canvas import PALETTE

TITLES = {"karate": "Karate", "phylogenetic": "Phylogenetic", "csphd": "CS PhDs"}
PUBLISHED = {
    "BHMDS": ((0.1780, 0.3485), (0.0413, 0.1214), (0.1466, 0.2869)),
    "hydraPlus": ((0.1727, 0.3287), (0.0413, 0.1206), (0.1471, 0.2868)),
    "flat BMDS": ((0.2050, 0.3986), (0.1601, 0.3552), (0.2281, 0.4523)),
    "smacof": ((0.2112, 0.3743), (0.1594, 0.3516), (0.2351, 0.4510)),
    "classical scaling": ((0.2850, 0.5234), (0.2481, 0.5918), (0.3862, 0.7513)),
}
"""Stress and distortion for the graphs in their order (Liu, Lubold, Raftery and McCormick, arXiv 2210.15081)."""
_ROWS = ((None, "c drawn"), (True, "c as theirs"), (0.0, "flat"))


def distances(results: Results) -> tuple[str, Figure]:
    """Stress and distortion beside the published ones, and the curvature."""
    head = ["stress / distortion", *TITLES.values()]
    rows = [[name, *(_pair(*values) for values in row)] for name, row in PUBLISHED.items()]
    for method in METHODS:
        for kind, name in _ROWS:
            if method == "draws" and kind is not None:
                continue
            cells = [_cell(graph, kind, method) for graph in GRAPHS]
            label, kind_of_run = (f"{name}, mode", "start") if method == "mode" else (f"{name}, best draw", "run")
            rows.append([f"{label}, best {kind_of_run}", *(_best(results, cell) for cell in cells)])
            texts = (results.text(cell, "stress", digits=4) for cell in cells)
            rows.append([f"{label}, all {kind_of_run}s", *texts])
    found = [
        f"{min(values):.4f} on {TITLES[graph]} ({min(PUBLISHED[name][i][0] for name in PUBLISHED):.4f})"
        for i, graph in enumerate(GRAPHS)
        if (values := [v for how in METHODS for v in results.values(_cell(graph, None, how), "stress").values()])
    ]
    finding = (
        "With the curvature drawn, the stress at the best mode or draw is, beside the least that is published,"
        f" {listed(found)}.\n\n"
        if found
        else ""
    )
    notes = (
        "\nThe published rows take the best of 20,000 draws (BHMDS, flat BMDS) or the end of a search, with the"
        " curvature fixed by a grid. Ours take the best of several starts, and the mean with its 95% interval over"
        ' these starts in the rows "all starts". A mode is the point of greatest posterior density that a search from'
        ' one start reaches, and "best draw" the draw of least stress of chains, which find their own start, and on CS'
        " PhDs begin at the mode of their seed. Stress and distortion are counted as in the paper. Classical scaling"
        " gives the published figures to all digits in this way. The best start is chosen by the stress that is"
        " reported: there are no other data to choose it by, for theirs or for ours.\n\n"
    )
    return finding + table(head, rows) + notes + _curvatures(results), _draw(results)


def _cell(graph: str, kind: float | bool | None, method: str) -> DistanceCell:
    return DistanceCell(graph, GRAPHS[graph] if kind is True else kind, method)


def _best(results: Results, cell: DistanceCell) -> str:
    runs = [run["metrics"] for run in results.runs[cell].values()]
    best = min(runs, key=lambda metrics: metrics["stress"], default=None)
    return NOT_RUN if best is None else _pair(best["stress"], best["distortion"])


def _pair(stress: float, distortion: float) -> str:
    return f"{stress:.4f} / {distortion:.4f}"


def _curvatures(results: Results) -> str:
    rows = []
    for graph, theirs in GRAPHS.items():
        modes = [run["metrics"] for run in results.runs[_cell(graph, None, "mode")].values()]
        best = min(modes, key=lambda metrics: metrics["energy"], default=None)
        line = [TITLES[graph], f"{theirs:g}", NOT_RUN if best is None else f"{best['c']:.3g}"]
        rows.append([*line, *_posterior(results, graph)])
    return (
        table(["curvature c", "their grid", "best mode", "posterior, 90%, by run", "R-hat of c", "of distances"], rows)
        + "\nLengths are in edges of the graph. R-hat is the largest of the runs. CS PhDs have 4 chains of 200 draws,"
        " after 200 trajectories each.\n"
    )


def _posterior(results: Results, graph: str) -> list[str]:
    runs = [run["metrics"] for run in results.runs[_cell(graph, None, "draws")].values()]
    if not runs:
        return [NOT_RUN] * 3
    intervals = "; ".join("{0:.3g} to {2:.3g}".format(*run["c"]["quantiles"]) for run in runs)
    return [intervals, *(f"{max(run[name]['r_hat'] for run in runs):.2f}" for name in ("c", "distances of z"))]


def _draw(results: Results) -> Figure:
    figure, axes = plt.subplots(2, len(GRAPHS), figsize=(10.5, 5.0), layout="constrained")
    for i, graph in enumerate(GRAPHS):
        _draw_stress(axes[0, i], results, i, graph)
        _draw_curvature(axes[1, i], results, graph)
    axes[0, 0].set_xlabel("stress")
    axes[1, 0].set_xlabel("curvature c, 90%")
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[:, 1:].flat:
        ax.set_yticklabels([])
    return figure


def _draw_stress(ax: Any, results: Results, column: int, graph: str) -> None:
    own = [("c drawn, best draw", None, "draws"), *((f"{name}, mode", kind, "mode") for kind, name in _ROWS)]
    names = [*PUBLISHED, *(name for name, _, _ in own)]
    for row, values in enumerate(PUBLISHED.values()):
        ax.plot(values[column][0], -row, "s", color="0.5", mfc="white")
    for row, (_, kind, method) in enumerate(own, len(PUBLISHED)):
        found = list(results.values(_cell(graph, kind, method), "stress").values())
        ax.plot(found, [-row] * len(found), "o", color=PALETTE[row - len(PUBLISHED)], alpha=0.7)
    ax.set_yticks([-row for row in range(len(names))], names)
    ax.set_ylim(0.5 - len(names), 0.5)
    ax.set_title(TITLES[graph], fontsize="medium")
    ax.set_xlim(left=0)


def _draw_curvature(ax: Any, results: Results, graph: str) -> None:
    runs = results.runs[_cell(graph, None, "draws")]
    for seed, run in runs.items():
        low, middle, high = run["metrics"]["c"]["quantiles"]
        ax.plot([low, high], [-seed, -seed], color=PALETTE[0], lw=2)
        ax.plot(middle, -seed, "o", color=PALETTE[0])
    ax.axvline(GRAPHS[graph], color="0.5", ls=(0, (3, 2)))
    ax.set_yticks(
        [-seed for seed in range(results.experiment.seeds)], [f"run {i + 1}" for i in range(results.experiment.seeds)]
    )
    ax.set_ylim(0.5 - results.experiment.seeds, 0.5)
    ax.set_xlim(left=0)
