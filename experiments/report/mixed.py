"""The report of the spaces of mixed curvature: auto-encoders here, links in :mod:`.mixed_links`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.mixed import AUTOENCODERS, FLAT, SpaceCell, autoencoder_cells, control
from experiments.report.mixed_links import NO_SPACE, Links
from experiments.report.paired import differences
from experiments.report.results import GREY_LEVELS, Results, exceeds, listed, number, table
from experiments.report.table4 import TITLES
from pyro_hyperbolic.geometry.signature import parse
from pyro_hyperbolic.plotting.canvas import PALETTE

METRIC = "negative_iwae"
TASKS = {"mnist": "MNIST", "branching": "branching diffusion"}
PAIRED = "branching"
"""Of this task two runs of one seed have their data, training and test, in common."""
FIXED, LEARNED, GREY = PALETTE[0], PALETTE[2], "0.35"


def mixed(results: Results) -> tuple[str, Figure]:
    """The auto-encoders by space, fixed beside learned; the links by space, chosen beside learned; the curvatures."""
    links = Links(results)
    parts = (("Auto-encoders", _autoencoders(results)), ("Links", links.text()), ("Curvatures", _curvatures(results)))
    body = _finding(results) + links.finding() + "\n"
    body += "\n".join(f"## {title}\n\n{text}" for title, text in parts if text)
    figure = plt.figure(figsize=(10, 7), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    _draw(results, halves[0])
    links.draw(halves[1])
    return body, figure


def _finding(results: Results) -> str:
    """The spaces that are better than the control by more than the interval, for every task that was run."""
    lines = []
    for task, title in TASKS.items():
        found = {cell.row: _gain(results, cell) for cell in autoencoder_cells(task) if cell != control(task)}
        gains = {row: gain for row, gain in found.items() if gain is not None}
        better = [f"{row} ({number(gain, digits=2)} nats)" for row, gain in gains.items() if exceeds(gain, digits=2)]
        if gains:
            spaces = listed(better) or NO_SPACE
            lines.append(f"* On {title}, better than the nearly flat control by more than the interval: {spaces}.\n")
    return "".join(lines)


def _autoencoders(results: Results) -> str:
    rows = []
    for space in (FLAT, *AUTOENCODERS):
        cells = [cell for task in TASKS for cell in _of_space(task, space)]
        rows.append([space, *("" if cell is None else results.text(cell, METRIC, digits=2) for cell in cells)])
    flat = [results.text(control(task), METRIC, digits=2) for task in TASKS]
    rows.append([control("").row, *(text for value in flat for text in (value, ""))])
    head = [""] + [f"{title}, {kind}" for title in TASKS.values() for kind in ("fixed", "learned")]
    notes = (
        "\nNegative test IWAE in nats, with mean and 95% interval over runs; lower is better. Every space has latent"
        " dimension 6, isotropic wrapped normals and a gyroplane decoder. Fixed curvatures are c = 1 for the factors h"
        " and s, and k = -1, 0 and 1 for the three factors u. Learned curvatures start from c = 1 and from k = 0. The"
        " last row is the control: it has the layers and the initial values of the curved spaces, and next to no"
        f" curvature. {FLAT} has these layers too, but not the factor 2 of the exponential map behind the encoder."
        f" On MNIST: {GREY_LEVELS[0].lower()}{GREY_LEVELS[1:]}\n\n"
    )
    return table(head, rows) + notes + "".join(_gains(results, task) for task in TASKS)


def _of_space(task: str, space: str) -> tuple[SpaceCell, SpaceCell | None]:
    """The cells with fixed and with learned curvature."""
    cells = [cell for cell in autoencoder_cells(task) if cell.space == space and cell != control(task)]
    return cells[0], cells[1] if len(cells) > 1 else None


def _gains(results: Results, task: str) -> str:
    cells = [cell for cell in autoencoder_cells(task) if cell != control(task)]
    found = [(cell.row, _gain(results, cell)) for cell in cells]
    gains = [f"{row} {number(gain, digits=2)}" for row, gain in found if gain is not None]
    return f"* {TASKS[task]}, gain over the control in nats: {'; '.join(gains)}.\n" if gains else ""


def _gain(results: Results, cell: SpaceCell) -> tuple[float, float | None] | None:
    """How much less the loss is than that of the control: of runs on the same data where there are such.

    Of a cell whose runs are not all finite there is none.
    """
    base = control(cell.task)
    one, other = results.shown(base, METRIC), results.shown(cell, METRIC)
    if one is None or other is None:
        return None
    if cell.task == PAIRED:
        gains = differences(results.values(base, METRIC), results.values(cell, METRIC))
        return mean_interval(list(gains.values())) if gains else None
    return one[0] - other[0], math.hypot(one[1], other[1])


def _curvatures(results: Results) -> str:
    """The learned curvatures, those of factors that can be exchanged in order of size."""
    lines = []
    for cell in results.cells:
        runs = [run["metrics"]["curvatures"] for run in results.runs[cell].values() if cell.learn_curvature]
        if runs:
            columns = zip(*(_ordered(cell.space, values) for values in runs), strict=True)
            each = [number(mean_interval(c), digits=2) if all(map(math.isfinite, c)) else "not finite" for c in columns]
            lines.append(f"* {(TASKS | TITLES)[cell.task]}, {cell.row}: {', '.join(each)}.\n")
    if not lines:
        return ""
    return (
        "Final values of the learned curvatures, with mean and 95% interval over runs. In every run, factors of one"
        " kind are sorted by size. The curvature is -c for h, c for s and k for u.\n\n" + "".join(lines)
    )


def _ordered(space: str, values: Sequence[float]) -> list[float]:
    letters = [letter for letter, _ in parse(space) if letter != "e"]
    pairs = sorted(zip(letters, values, strict=True), key=lambda pair: (letters.index(pair[0]), pair[1]))
    return [value for _, value in pairs]


def _draw(results: Results, figure: Any) -> None:
    """Gains over the control, on the same data where there are such."""
    tasks = [task for task in TASKS if any(results.runs[cell] for cell in autoencoder_cells(task))] or list(TASKS)
    for ax, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for x, space in enumerate((FLAT, *AUTOENCODERS)):
            fixed, learned = _of_space(task, space)
            _point(ax, x if learned is None else x - 0.12, _gain(results, fixed), FIXED, "fixed curvature")
            if learned is not None:
                _point(ax, x + 0.12, _gain(results, learned), LEARNED, "learned curvature")
        ax.axhline(0.0, color=GREY, linewidth=1.0, linestyle=(0, (6, 2)), label=f"control, {control('').row}")
        ax.set_xticks(range(1 + len(AUTOENCODERS)), [FLAT, *AUTOENCODERS])
        ax.set_xlim(-0.5, len(AUTOENCODERS) + 0.5)
        ax.set_title(TASKS[task], fontsize="medium")
        ax.set_ylabel("gain over the control (nats)")
        ax.spines[["top", "right"]].set_visible(False)
    found = [pair for ax in figure.axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    unique = {label: handle for handle, label in reversed(found)}
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize="small")


def _point(ax: Any, x: float, value: tuple[float, float | None] | None, colour: str, label: str) -> None:
    if value is not None:
        ax.errorbar(x, *value, color=colour, marker="o", markersize=4, linestyle="none", capsize=2.5, label=label)
