"""The report of the densities on the globe."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.earth import FILES, EarthCell, MatchedCell
from experiments.report.results import Results, table
from pyro_hyperbolic.plotting.canvas import PALETTE

ESTIMATES = {
    "a flow of couplings": (EarthCell, "flow"),
    "a continuous flow": (MatchedCell, "flow"),
    "kernels": (EarthCell, "kernels"),
    "couplings and kernels, mixed": (EarthCell, "both"),
    "continuous flow and kernels, mixed": (MatchedCell, "both"),
}
PUBLISHED = {
    "Riemannian flow matching (Chen and Lipman 2024)": ("-7.93 ± 1.67", "-0.28 ± 0.08", "0.42 ± 0.05", "-1.86 ± 0.11"),
    "Riemannian diffusion mixtures (Jo and Hwang 2024)": ("-6.61 ± 0.96", "-0.40 ± 0.05", "", ""),
    "Riemannian score-based (De Bortoli et al. 2022)": ("-4.92 ± 0.25", "-0.19 ± 0.07", "0.48 ± 0.17", "-1.33 ± 0.06"),
    "mixture of Kent distributions (the same)": ("-0.80 ± 0.47", "0.33 ± 0.05", "0.73 ± 0.07", "1.18 ± 0.06"),
}


def earth(results: Results) -> tuple[str, Figure]:
    """A row for each estimate, a column for each data set; a picture of the same."""
    rows = [
        [words, *(results.text(cell(data), name, digits=2) for data in FILES)]
        for words, (cell, name) in ESTIMATES.items()
    ]
    rows += [[name, *values] for name, values in PUBLISHED.items()]
    continuous = ", ".join(f"{name} {value}" for name, value in results.experiment.matched.settings().items())
    notes = (
        "\nNegative log-likelihood of test places in nats, with respect to the area of the unit sphere; mean and 95%"
        " interval over random splits into 80%, 10% and 10%. Lower is better. All settings, the epoch of the flow, the"
        " noise of its training points and the weight of the mixture are chosen on the validation places of each split."
        " Published values, on other splits, are those of the papers, with their own intervals. Continuous flows are"
        f" trained by flow matching, with {continuous}.\n\n"
    )
    new = [["share of test rows", *(results.text(EarthCell(data), "repeated", 100, digits=1) for data in FILES)]]
    for words, (cell, name) in ESTIMATES.items():
        new.append([f"{words}, other rows", *(results.text(cell(data), f"{name} new", digits=2) for data in FILES)])
    warning = (
        "\nSome rows are in a file more than once, and then a test place may be a training place, where a method is"
        " rewarded for remembering. The first row is the share of such test rows in per cent, and the others have the"
        " losses on the rest. Of the 827 rows of volcanoes only 267 are distinct: that column tells little about"
        " densities. The published values have the same files, and count all rows. No kernel is narrower than 6 km"
        " times its factor.\n"
    )
    body = table(["", *FILES], rows) + notes + table(["test places that are training places", *FILES], new) + warning
    return body, _draw(results)


def _draw(results: Results) -> Figure:
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for place, (words, (cell, name)) in enumerate(ESTIMATES.items()):
        for i, data in enumerate(FILES):
            value = results.shown(cell(data), name)
            mean, half = value if value is not None else (math.nan, 0.0)
            at, label = i + 0.15 * (place - 2), words if i == 0 else None
            ax.errorbar(at, mean, half, marker="o", color=PALETTE[place], capsize=2.5, label=label)
    ax.set_xticks(range(len(FILES)), list(FILES))
    ax.set_ylabel("negative test log-likelihood (nats)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure
