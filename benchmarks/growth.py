"""How a step grows: the results of ``benchmarks.gpu`` as a figure, as tables, or both.

python -m benchmarks.growth results.json docs/_static/growth.png
python -m benchmarks.growth results.json --rst > tables.rst
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_rows import BATCH, DIM, GROUPS, read
from benchmarks.results import results
from examples.command import command, make_parser, picture_file

Entry = dict[str, Any]
LABELS = {
    "stock": "pyro.infer.SVI",
    "captured": "captured",
    "compiled": "compiled and captured",
}
COLOURS = {"stock": "#7f7f7f", "captured": "#1f5fa8", "compiled": "#bd1f01"}
STYLES = {"wrapped": "-", "riemannian": "--", "euclidean": ":"}


@dataclass(frozen=True)
class Panel:
    """One of the four quantities that a step grows with.

    :param axis: the field of a row that grows.
    :param label: what it is called.
    :param unit: of the times.
    :param belongs: whether a row is of this panel.
    """

    axis: str
    label: str
    unit: str
    belongs: Callable[[Entry], bool]


PANELS = {
    "dimension": Panel("dim", "latent dimension d", "ms", lambda r: r["subject"] == "step" and r["batch"] == BATCH),
    "batch": Panel("batch", "batch", "ms", lambda r: r["subject"] == "step" and r["dim"] == DIM),
    "ensemble": Panel("members", "members E", "µs per member", lambda r: r["subject"] == "ensemble"),
    "graph": Panel("nodes", "nodes N", "ms", lambda r: r["subject"] == "graph"),
}


def series(result: dict[str, Any], panel: Panel) -> dict[tuple[str, str], list[Entry]]:
    """The measured rows of a panel on the ball by kind and distribution, in the order of the axis, if there are two."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for row in sorted(result["rows"], key=lambda row: row[panel.axis]):
        if row["median"] is not None and not row.get("space") and panel.belongs(row):
            found.setdefault((row["kind"], row["distribution"]), []).append(row)
    return {key: rows for key, rows in found.items() if len(rows) > 1}


def stock_step(result: dict[str, Any]) -> Entry | None:
    """The step of stock SVI that members of an ensemble would take one after the other."""
    name = next(row.name for row in GROUPS["bounds"] if row.kind == "stock" and row.distribution == "wrapped")
    return next((row for row in result["rows"] if row["name"] == name and row["median"] is not None), None)


def draw(result: dict[str, Any], path: Path) -> None:
    """Four panels, both axes logarithmic; a bar reaches from the least to the greatest repeat."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    figure, axes = plt.subplots(2, 2, figsize=(8.4, 6.4), layout="constrained")
    for ax, panel in zip(axes.flat, PANELS.values(), strict=True):
        ticks: set[int] = set()
        for (kind, distribution), rows in series(result, panel).items():
            x = [row[panel.axis] for row in rows]
            ticks |= set(x)
            y = [row["median"] for row in rows]
            spread = [[row["median"] - row["min"] for row in rows], [row["max"] - row["median"] for row in rows]]
            style = {"color": COLOURS[kind], "linestyle": STYLES[distribution], "marker": "o", "markersize": 3}
            ax.errorbar(x, y, yerr=spread, label=f"{LABELS[kind]}, {distribution}", linewidth=1.2, capsize=2, **style)
        stock = stock_step(result)
        if panel.axis == "members" and stock is not None:
            label = f"{LABELS['stock']}, {stock['distribution']}, one after the other"
            ax.axhline(1e3 * stock["median"], color=COLOURS["stock"], linewidth=1.2, label=label)
        ax.set(xscale="log", yscale="log", xlabel=panel.label, ylabel=f"step in {panel.unit}")
        ax.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticklabels([str(tick) for tick in sorted(ticks)])
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.grid(alpha=0.25)
        if ax.has_data():
            low, high = ax.get_ylim()
            ax.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
            ax.legend(frameon=False, fontsize="x-small", loc="upper left")
    figure.suptitle(_where(result), fontsize="medium")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def tables(result: dict[str, Any]) -> str:
    """reStructuredText: the rows that have bounds and their comparisons, and one table per panel."""
    found = [_table(result, panel, columns) for panel in PANELS.values() if (columns := series(result, panel))]
    return "\n".join([_summary(result), *found])


def _summary(result: dict[str, Any]) -> str:
    names = [row.name for row in (*GROUPS["bounds"], GROUPS["ensemble"][-1])]
    rows = {row["name"]: row for row in result["rows"] if row["median"] is not None}
    entries = [rows[name] for name in names if name in rows]
    lines = [["measured", "median (least to greatest)", "unit", "bound"]]
    lines += [[row["name"], _cell(row), row["unit"].replace("us", "µs"), _bound(row)] for row in entries]
    lines += [[row["name"], _number(row["median"]), "", _bound(row)] for row in result["ratios"]]
    return _list_table(f"Training and evaluation; {_where(result)}", lines)


def _table(result: dict[str, Any], panel: Panel, columns: dict[tuple[str, str], list[Entry]]) -> str:
    lines = [[panel.label, *(f"{LABELS[kind]}, {distribution}" for kind, distribution in columns)]]
    for size in sorted({row[panel.axis] for rows in columns.values() for row in rows}):
        cells = [next((row for row in rows if row[panel.axis] == size), None) for rows in columns.values()]
        lines.append([str(size), *("" if cell is None else _cell(cell) for cell in cells)])
    return _list_table(f"One step in {panel.unit}, median (least to greatest) of repeats; {_where(result)}", lines)


def _list_table(title: str, lines: list[list[str]]) -> str:
    body = "".join(
        f"   {' ' if column else '*'} - {text}".rstrip() + "\n" for line in lines for column, text in enumerate(line)
    )
    return f".. list-table:: {title}\n   :header-rows: 1\n\n{body}"


def _where(result: dict[str, Any]) -> str:
    return f"{result['device']}, torch {result['torch'].split('+')[0]}"


def _bound(row: Entry) -> str:
    return "" if row["bound"] is None else f"{row['bound']:g}"


def _cell(row: Entry) -> str:
    return f"{_number(row['median'])} ({_number(row['min'])} to {_number(row['max'])})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def run(args: argparse.Namespace) -> None:
    if args.figure is None and not args.rst:
        raise ValueError("there is nothing to do; name a figure, or ask for --rst")
    if args.figure is not None:
        draw(args.results, args.figure)
    if args.rst:
        print(tables(args.results), end="")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.growth")
    p.add_argument("results", type=results(read), help="what python -m benchmarks.gpu --json wrote")
    p.add_argument("figure", type=picture_file, nargs="?", help="picture to draw (default: none)")
    p.add_argument("--rst", action="store_true", help="print the tables as reStructuredText")
    return p


main = command(parser, run)


if __name__ == "__main__":
    main()
