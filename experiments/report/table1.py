"""The report of Table 1."""

from __future__ import annotations

from collections import Counter
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.paper import paper_tables
from experiments.report.paired import Scores, choose_by_others, differences, summarised
from experiments.report.results import NOT_RUN, Results, listed, number, table
from experiments.table1 import CURVATURES, NEARLY_FLAT, PRIOR_SCALES, BranchingCell
from pyro_hyperbolic.plotting.canvas import PALETTE

METRIC = "negative_iwae"
COLOURS = {1.0: PALETTE[0], 1.7: PALETTE[2]}


def table1(results: Results) -> tuple[str, Figure]:
    """Rows of prior scales, columns of curvatures; a picture of the same."""
    paper = paper_tables()["table1_branching_diffusion_negative_iwae_5000"]
    columns = (0.0, NEARLY_FLAT, *CURVATURES)
    rows = []
    for scale in PRIOR_SCALES:
        cells = [BranchingCell(c, scale) for c in columns]
        rows.append([f"σ₀ = {scale:g}, ours"] + [results.text(cell, METRIC, digits=2) for cell in cells])
        theirs = paper[f"sigma0={scale:.1f}"]
        rows.append(
            [f"σ₀ = {scale:g}, paper"]
            + [number(theirs[cell.column]) if cell.column in theirs else "" for cell in cells]
        )
    losses = {cell: results.values(cell, METRIC) for cell in results.cells}
    seeds = results.experiment.seeds
    for scale in PRIOR_SCALES:
        flat = losses[BranchingCell(NEARLY_FLAT, scale)]
        gains = [
            "" if c == NEARLY_FLAT else summarised(differences(flat, losses[BranchingCell(c, scale)]), seeds, digits=2)
            for c in columns
        ]
        rows.append([f"σ₀ = {scale:g}, gain over c = {NEARLY_FLAT:g}", *gains])
    head = ["", "N-VAE", f"c = {NEARLY_FLAT:g}", *(f"c = {c:g}" for c in CURVATURES)]
    notes = (
        "\nLosses in nats, with mean and 95% interval over runs; lower is better. Each run has its own data, which all"
        f" models share, and gains are between models on the same data. The column c = {NEARLY_FLAT:g} is our addition:"
        " the hyperbolic model with next to no curvature. It differs from the N-VAE in the parameters and the initial"
        " values of its first decoder layer, and its exponential map doubles the output of the encoder.\n"
    )
    return _finding(losses, seeds) + table(head, rows) + notes, _draw(results, paper)


def _finding(losses: dict[BranchingCell, Scores], seeds: int) -> str:
    """What curvature gains where it is chosen on other data than it is tested on: those of the other seeds."""
    gains, chosen = [], []
    for scale in PRIOR_SCALES:
        candidates = {c: losses[BranchingCell(c, scale)] for c in CURVATURES}
        choice = choose_by_others(candidates)
        own = {seed: candidates[c][seed] for seed, c in choice.items()}
        gain = differences(losses[BranchingCell(NEARLY_FLAT, scale)], own)
        gains.append(f"{summarised(gain, seeds, digits=2)} nats for σ₀ = {scale:g}")
        counts = [f"c = {c:g} {count} times" for c, count in Counter(choice.values()).most_common()]
        chosen.append(f"{listed(counts) or NOT_RUN} for σ₀ = {scale:g}")
    return (
        "With c chosen for each data set by the losses on the other data sets, curvature gains over the same model with"
        f" next to none: {listed(gains)}. The choice was {listed(chosen)}.\n\n"
    )


def _draw(results: Results, paper: dict[str, dict[str, list[float]]]) -> Figure:
    # The N-VAE apart: it differs from the others in more than curvature.
    columns, flat = (NEARLY_FLAT, *CURVATURES), -0.15
    figure, ax = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    for scale in PRIOR_SCALES:
        found = [(c, results.shown(BranchingCell(c, scale), METRIC)) for c in columns]
        ours = [(c, *value) for c, value in found if value is not None]
        c, mean, half = zip(*ours, strict=True) if ours else ((), (), ())
        style: Any = {"color": COLOURS[scale], "capsize": 2.5, "linewidth": 1.3}
        ax.errorbar(c, mean, half, marker="o", label=rf"ours, $\sigma_0 = {scale:g}$", **style)
        alone = results.shown(BranchingCell(0.0, scale), METRIC)
        if alone is not None:
            ax.errorbar(flat, *alone, marker="o", **style)
        theirs = paper[f"sigma0={scale:.1f}"]
        mean, half = zip(*(theirs[BranchingCell(c, scale).column] for c in CURVATURES), strict=True)
        style |= {"linestyle": (0, (2, 2)), "alpha": 0.6, "mfc": "white", "marker": "s"}
        shifted = [c + 0.015 for c in CURVATURES]
        ax.errorbar(shifted, mean, half, label=rf"paper, $\sigma_0 = {scale:g}$", **style)
        value, interval = theirs[BranchingCell(0.0, scale).column]
        ax.errorbar(flat + 0.03, value, interval, **style)
    ax.set_xticks([flat, NEARLY_FLAT, *CURVATURES], ["N-VAE", "≈ 0", *(f"{c:g}" for c in CURVATURES)])
    ax.tick_params(axis="x", labelsize="small")
    ax.set_xlabel("curvature $c$")
    ax.set_ylabel("negative test IWAE (nats)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small", ncols=2)
    return figure
