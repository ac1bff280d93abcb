"""The report of Table 2."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pyro_hyperbolic.experiments.paper import paper_tables
from pyro_hyperbolic.experiments.report.results import Results, number, table, within
from pyro_hyperbolic.experiments.table2 import CURVATURES, DIMENSIONS

COLOURS = {"wrapped": "#3f90da", "riemannian": "#bd1f01", "euclidean": "0.35"}


def table2(results: Results) -> tuple[str, Figure]:
    """Rows of models, columns of dimensions, ours beside the paper's; then how the two compare."""
    paper = paper_tables()["table2_mnist_negative_iwae_5000"]
    cells = {(cell.row, cell.latent_dim): cell for cell in results.cells}
    best = {d: _best(results, d) for d in DIMENSIONS}
    rows = []
    for name in dict.fromkeys(row for row, _ in cells):
        if name not in paper and not any(results.runs[cells[name, d]] for d in DIMENSIONS):
            continue
        line = [name]
        for i, d in enumerate(DIMENSIONS):
            text = results.text(cells[name, d], "negative_iwae", digits=2)
            line.append(f"**{text}**" if cells[name, d] is best[d] else text)
            line.append(_printed(paper.get(name), i))
        rows.append(line)
    head = [""] + [text for d in DIMENSIONS for text in (f"d = {d}", "paper")]
    notes = (
        "\nMean and 95% interval over runs. Bold: our best of a column. Rows without figures of the paper are ours"
        " alone. In the cells that the paper stars, latents are on the hyperboloid in float64.\n"
    )
    return table(head, rows) + notes + "\n" + _verdict(results, paper, best), _draw(results, paper)


def _printed(row: list[list[float] | None] | None, column: int) -> str:
    if row is None:
        return ""
    cell = row[column]
    return "*" if cell is None else number(cell)


def _best(results: Results, dim: int) -> Any:
    """The cell of least mean in a column, of those that are complete."""
    column = [cell for cell in results.cells if cell.latent_dim == dim]
    found = {cell: mean for cell in column if (mean := results.complete(cell, "negative_iwae")) is not None}
    return min(found, key=lambda cell: found[cell]) if found else None


def _verdict(results: Results, paper: dict[str, Any], best: dict[int, Any]) -> str:
    compared = below = 0
    exceptions = []
    for cell in results.cells:
        theirs = paper[cell.row][DIMENSIONS.index(cell.latent_dim)] if cell.row in paper else None
        ours = results.shown(cell, "negative_iwae")
        if theirs is not None and ours is not None:
            compared += 1
            below += ours[0] <= theirs[0]
            if not within(ours, theirs):
                exceptions.append(cell.name)
    lines = [
        f"* Of {compared} cells with a figure in the paper ours is at or below it in {below}; it is above by more than"
        f" the intervals in {len(exceptions)}" + (f": {', '.join(exceptions)}." if exceptions else ".")
    ]
    for i, d in enumerate(DIMENSIONS):
        ours = None if best[d] is None else results.shown(best[d], "negative_iwae")
        if ours is not None:
            least = min(row[i][0] for key, row in paper.items() if key not in ("runs", "columns") and row[i])
            lines.append(
                f"* d = {d}: our best is {best[d].row}, {number(ours, digits=2)}; the paper's best is {least}."
            )
    return "\n".join(lines) + "\n"


def _draw(results: Results, paper: dict[str, Any]) -> Figure:
    figure, axes = plt.subplots(1, len(DIMENSIONS), figsize=(11, 3.1), layout="constrained")
    cells = {(cell.row, cell.latent_dim): cell for cell in results.cells}
    for i, (ax, d) in enumerate(zip(axes, DIMENSIONS, strict=True)):
        for law in ("wrapped", "riemannian"):
            rows = [f"{law} c={c:g}" for c in CURVATURES]
            found = [
                (c, results.shown(cells[row, d], "negative_iwae")) for c, row in zip(CURVATURES, rows, strict=True)
            ]
            ours = [(c, *value) for c, value in found if value is not None]
            theirs = [(c, *paper[row][i]) for c, row in zip(CURVATURES, rows, strict=True) if paper[row][i]]
            _points(ax, ours, COLOURS[law], f"{law}, ours", "o", "-")
            _points(ax, theirs, COLOURS[law], f"{law}, paper", "s", (0, (2, 2)))
        flat = results.shown(cells["euclidean", d], "negative_iwae")
        if flat is not None:
            ax.axhline(flat[0], color=COLOURS["euclidean"], linewidth=1.0, label="N-VAE, ours")
        ax.axhline(
            paper["euclidean"][i][0],
            color=COLOURS["euclidean"],
            linewidth=1.0,
            linestyle=(0, (2, 2)),
            label="N-VAE, paper",
        )
        ax.set_title(f"$d = {d}$", fontsize="medium")
        ax.set_xlabel("curvature $c$")
        ax.set_xscale("log")
        ax.set_xticks(CURVATURES, [f"{c:g}" for c in CURVATURES])
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
        values = [mean for line in ax.get_lines() for mean in line.get_ydata()]
        low, usual = min(values), sorted(values)[len(values) // 2]
        # The cells that the paper stars are far above the others; the axis shows what can be compared.
        ax.set_ylim(low - 0.6, min(max(values), usual + 4 * (usual - low) + 1.0) + 0.6)
    axes[0].set_ylabel("negative test IWAE (nats)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize="small")
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
