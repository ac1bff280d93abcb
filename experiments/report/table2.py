"""The report of Table 2."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.paper import paper_tables
from experiments.report.results import (
    GREY_LEVELS,
    Results,
    apart,
    compared,
    gains,
    listed,
    number,
    table,
    within,
)
from experiments.table2 import CURVATURES, DIMENSIONS, NEARLY_FLAT
from pyro_hyperbolic.plotting.canvas import PALETTE

COLOURS = {"wrapped": PALETTE[0], "riemannian": PALETTE[2], "diagonal": PALETTE[4], "euclidean": "0.35"}
# The hyperbolic model with next to no curvature: what is gained over it is gained by curvature.
CONTROL = f"wrapped c={NEARLY_FLAT:g}"
FLAT = "euclidean"
METRIC = "negative_iwae"
DOTTED = (0, (2, 2))


def table2(results: Results) -> tuple[str, Figure]:
    """Rows of models, columns of dimensions, ours beside the paper's; then how the two compare."""
    paper = paper_tables()["table2_mnist_negative_iwae_5000"]
    cells = {(cell.row, cell.latent_dim): cell for cell in results.cells}
    best = {d: _best(results, [cell for cell in results.cells if cell.latent_dim == d]) for d in DIMENSIONS}
    rows = []
    for name in dict.fromkeys(row for row, _ in cells):
        if name not in paper and not any(results.runs[cells[name, d]] for d in DIMENSIONS):
            continue
        line = [name]
        for i, d in enumerate(DIMENSIONS):
            text = results.text(cells[name, d], METRIC, digits=2)
            line.append(f"**{text}**" if cells[name, d] is best[d] else text)
            line.append(_printed(paper.get(name), i))
        rows.append(line)
    head = [""] + [text for d in DIMENSIONS for text in (f"d = {d}", "paper")]
    notes = (
        f"\nLosses in nats, with mean and 95% interval over runs; lower is better. {GREY_LEVELS} Bold marks our best"
        ' model of a column. Here and below, "best" means best on the test images. Rows without numbers from the paper'
        " are ours alone: diagonal posteriors, a learned curvature, and next to no curvature (c = 0.0001). The last has"
        " the layers and the initial values of the hyperbolic models. In the cells that the paper stars, latents are on"
        " the hyperboloid in float64. These cells lie above the axes of the picture.\n"
    )
    text = _finding(results, paper) + table(head, rows) + notes + "\n" + _verdict(results, paper)
    return text, _draw(results, paper)


def _finding(results: Results, paper: dict[str, Any]) -> str:
    """What the layers of the hyperbolic models gain without curvature, and what curvature adds at best."""
    layers, curvature = {}, {}
    for d in DIMENSIONS:
        column = {cell.row: cell for cell in results.cells if cell.latent_dim == d}
        best = _best(results, [cell for row, cell in column.items() if row in paper and row != FLAT])
        flat, control, ours = (
            None if cell is None else results.shown(cell, METRIC) for cell in (column[FLAT], column[CONTROL], best)
        )
        if flat is not None and control is not None and ours is not None:
            layers[d], curvature[d] = apart(flat, control), apart(control, ours)
    if not layers:
        return ""
    return (
        f"For d = {listed(list(map(str, layers)))} the hyperbolic model with next to no curvature gains"
        f" {gains(layers.values())} nats over the Euclidean one. The best of the paper's hyperbolic models, chosen on"
        f" the test images, changes that by {gains(curvature.values())} nats (positive: better).\n\n"
    )


def _printed(row: list[list[float] | None] | None, column: int) -> str:
    if row is None:
        return ""
    cell = row[column]
    return "*" if cell is None else number(cell)


def _best(results: Results, cells: list[Any]) -> Any:
    """The cell of least mean, of those that are complete."""
    found = {cell: mean for cell in cells if (mean := results.complete(cell, METRIC)) is not None}
    return min(found, key=lambda cell: found[cell]) if found else None


def _verdict(results: Results, paper: dict[str, Any]) -> str:
    lines = [_count(results, paper)]
    for i, d in enumerate(DIMENSIONS):
        column = [cell for cell in results.cells if cell.latent_dim == d]
        own, every = _best(results, [cell for cell in column if cell.row in paper]), _best(results, column)
        if own is None:
            continue
        least = min((row[i] for key, row in paper.items() if key not in ("runs", "columns") and row[i]))
        line = f"* d = {d}: the paper's best is {number(least)}; our best of the same models is {_named(results, own)}"
        if every is not own:
            line += f", of all models {_named(results, every)}"
        control = next(cell for cell in column if cell.row == CONTROL)
        flat, ours = (results.shown(cell, METRIC) for cell in (control, own))
        if flat is not None and ours is not None:
            line += f". {own.row} is {compared(apart(flat, ours))} than {CONTROL}"
        lines.append(line + ".")
    learned = {cell.latent_dim: results.shown(cell, "curvature") for cell in results.cells if cell.learn_curvature}
    found = [f"{number(value, digits=2)} (d = {d})" for d, value in learned.items() if value is not None]
    if found:
        lines.append(f"* Learned curvatures, from 1: {', '.join(found)}.")
    return "\n".join(lines) + "\n"


def _count(results: Results, paper: dict[str, Any]) -> str:
    count = below = 0
    exceptions = []
    for cell in results.cells:
        theirs = paper[cell.row][DIMENSIONS.index(cell.latent_dim)] if cell.row in paper else None
        ours = results.shown(cell, METRIC)
        if theirs is not None and ours is not None:
            count += 1
            below += ours[0] <= theirs[0]
            if not within(ours, theirs):
                exceptions.append(cell.name)
    return (
        f"* The paper gives a number for {count} of the cells. Our loss is at or below it in {below} of them, and above"
        f" it by more than the intervals in {len(exceptions) or 'none'}"
        + (f": {', '.join(exceptions)}." if exceptions else ".")
    )


def _named(results: Results, cell: Any) -> str:
    return f"{results.text(cell, METRIC, digits=2)} ({cell.row})"


def _draw(results: Results, paper: dict[str, Any]) -> Figure:
    figure, axes = plt.subplots(1, len(DIMENSIONS), figsize=(11, 3.3), layout="constrained")
    cells = {(cell.row, cell.latent_dim): cell for cell in results.cells}
    for i, (ax, d) in enumerate(zip(axes, DIMENSIONS, strict=True)):
        # The cells that the paper stars are far above the others; the axis shows what can be compared.
        heights = []
        for distribution, suffix in (("wrapped", ""), ("riemannian", ""), ("wrapped", ", diagonal")):
            rows = [(c, f"{distribution} c={c:g}{suffix}") for c in CURVATURES]
            found = [(c, row, results.shown(cells[row, d], METRIC)) for c, row in rows]
            ours = [(c, *value) for c, _, value in found if value is not None]
            theirs = [(c, *paper[row][i]) for c, row in rows if row in paper and paper[row][i]]
            colour = COLOURS["diagonal" if suffix else distribution]
            _points(ax, ours, colour, f"{distribution}{suffix}, ours", "o", "-")
            if not suffix:
                _points(ax, theirs, colour, f"{distribution}, paper", "s", DOTTED)
            heights += [value[0] for _, row, value in found if value and (row not in paper or paper[row][i])]
            heights += [mean for _, mean, _ in theirs]
        lines = (
            ("N-VAE, ours", results.shown(cells["euclidean", d], METRIC), COLOURS["euclidean"], "-"),
            ("N-VAE, paper", paper["euclidean"][i], COLOURS["euclidean"], DOTTED),
            (f"{CONTROL}, ours", results.shown(cells[CONTROL, d], METRIC), COLOURS["wrapped"], (0, (6, 2))),
        )
        for label, value, colour, style in lines:
            if value is not None:
                ax.axhline(value[0], color=colour, linewidth=1.0, linestyle=style, label=label)
                heights.append(value[0])
        ax.set_title(f"$d = {d}$", fontsize="medium")
        ax.set_xlabel("curvature $c$")
        ax.set_xscale("log")
        ax.set_xticks(CURVATURES, [f"{c:g}" for c in CURVATURES])
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_ylim(min(heights) - 0.8, max(heights) + 0.8)
    axes[0].set_ylabel("negative test IWAE (nats)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return figure


def _points(ax: Any, points: list[tuple[float, float, float]], colour: str, label: str, marker: str, line: Any) -> None:
    c, mean, half = zip(*points, strict=True) if points else ((), (), ())
    filled = {"mfc": "white", "alpha": 0.6} if marker == "s" else {}
    ax.errorbar(
        c,
        mean,
        half,
        color=colour,
        marker=marker,
        markersize=4,
        linestyle=line,
        linewidth=1.2,
        capsize=2,
        label=label,
        **filled,
    )
