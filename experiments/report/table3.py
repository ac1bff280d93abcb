"""The report of Table 3."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.paper import paper_tables
from experiments.report.results import Results, listed, number, table
from pyro_hyperbolic.plotting.canvas import PALETTE

PAPER = {"euclidean": "euclidean", "riemannian c=1.4": "hyperbolic c=1.4"}
COLOURS = {"euclidean": PALETTE[1], "wrapped c=1.4": PALETTE[0], "riemannian c=1.4": PALETTE[2]}


def table3(results: Results) -> tuple[str, Figure]:
    """Per-digit accuracies, ours and the paper's."""
    paper = paper_tables()["table3_mnist_digit_accuracy_2d_percent"]
    rows = []
    for cell in results.cells:
        if results.runs[cell]:
            accuracies = [100 * _mean(results, cell, digit)[0] for digit in range(10)]
            average = number(_mean(results, cell, None), 100)
            rows.append([cell.name, *(f"{value:.0f}" for value in accuracies), average])
            if cell.name in PAPER:
                theirs = paper[PAPER[cell.name]]
                rows.append([f"{PAPER[cell.name]}, paper", *map(str, theirs[:-1]), str(theirs[-1])])
    notes = (
        "\nPer cent of the test digits of each class that are classified correctly, averaged over embeddings and"
        " classifiers. The last column averages the ten classes, as in the paper. Its 95% interval is over sets of"
        " embeddings, because the classifiers on one set are not independent. The paper does not say which normal its"
        " P-VAE uses.\n"
    )
    known = [cell for cell in results.cells if results.runs[cell]]
    found = [f"{number(_mean(results, cell, None), 100)} ({cell.name})" for cell in known]
    finding = f"Per cent of the test digits that a classifier recognises from their embeddings: {listed(found)}.\n\n"
    return finding + table(["", *map(str, range(10)), "average"], rows) + notes, _draw(results)


def _mean(results: Results, cell: Any, digit: int | None) -> tuple[float, float | None]:
    """Mean and interval over embeddings of the accuracy for a digit, or of the average over digits."""

    def accuracy(metrics: dict[str, Any]) -> float:
        rates = [row[i] / sum(row) for i, row in enumerate(metrics["confusion"])]
        return sum(rates) / len(rates) if digit is None else rates[digit]

    embeddings: dict[int, list[float]] = {}
    for seed, value in results.values(cell, accuracy).items():
        embeddings.setdefault(seed // results.experiment.trainings, []).append(value)
    return mean_interval([sum(values) / len(values) for values in embeddings.values()])


def _draw(results: Results) -> Figure:
    figure, ax = plt.subplots(figsize=(6.5, 3.0), layout="constrained")
    cells = [cell for cell in results.cells if results.runs[cell]]
    width = 0.8 / max(len(cells), 1)
    for i, cell in enumerate(cells):
        found = [_mean(results, cell, digit) for digit in (*range(10), None)]
        places = [x + (i - (len(cells) - 1) / 2) * width for x in range(11)]
        heights, errors = [100 * mean for mean, _ in found], [100 * (half or 0.0) for _, half in found]
        ax.bar(
            places, heights, width, yerr=errors, color=COLOURS[cell.name], label=cell.name, error_kw={"linewidth": 0.7}
        )
    ax.set_xticks(range(11), [*map(str, range(10)), "average"])
    ax.set_xlabel("digit")
    ax.set_ylabel("accuracy (%)")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure
