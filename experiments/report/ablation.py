"""The report of the ablation."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.ablation import DECODERS
from experiments.report.results import GREY_LEVELS, Results, apart, gains, listed, table
from experiments.table2 import DIMENSIONS
from pyro_hyperbolic.plotting.canvas import PALETTE

METRIC = "negative_iwae"
BASELINE, *OTHERS = DECODERS
COLOURS = {"mlp": "0.35", "logmap": PALETTE[1], "gyroplane": PALETTE[0]}


def ablation(results: Results) -> tuple[str, Figure]:
    """Rows of decoders, columns of dimensions."""
    cells = {(cell.decoder, cell.latent_dim): cell for cell in results.cells}
    rows = [[decoder, *(results.text(cells[decoder, d], METRIC, digits=2) for d in DIMENSIONS)] for decoder in DECODERS]
    notes = (
        "\nNegative test IWAE in nats, with mean and 95% interval over runs; lower is better. All models use wrapped"
        f" normals with c = 1. {GREY_LEVELS} The paper shows this comparison as a figure without numbers.\n"
    )
    body = _finding(results) + table(["decoder", *(f"d = {d}" for d in DIMENSIONS)], rows) + notes
    return body, _draw(results)


def _gains(results: Results, decoder: str) -> dict[int, tuple[float, float]]:
    """How much less the loss of a decoder is than that of the baseline, by dimension."""
    cells = {(cell.decoder, cell.latent_dim): cell for cell in results.cells}
    found = {}
    for d in DIMENSIONS:
        ours, base = (results.shown(cells[name, d], METRIC) for name in (decoder, BASELINE))
        if ours is not None and base is not None:
            found[d] = apart(base, ours)
    return found


def _finding(results: Results) -> str:
    found = {decoder: _gains(results, decoder) for decoder in reversed(OTHERS)}
    parts = [
        f"{decoder} gains {gains(own.values())} nats over {BASELINE} for d = {listed(list(map(str, own)))}"
        for decoder, own in found.items()
        if own
    ]
    return f"As the first layer of the decoder, {'; '.join(parts)}.\n\n" if parts else ""


def _draw(results: Results) -> Figure:
    figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
    ax.axhline(0.0, color=COLOURS[BASELINE], linewidth=1.0, label=BASELINE)
    for decoder in OTHERS:
        own = _gains(results, decoder)
        heights, halves = [-mean for mean, _ in own.values()], [half for _, half in own.values()]
        ax.errorbar(list(own), heights, halves, color=COLOURS[decoder], marker="o", capsize=2.5, label=decoder)
    ax.set_xlabel("latent dimension")
    ax.set_xticks(DIMENSIONS)
    ax.set_ylabel("negative test IWAE minus that of the MLP (nats)", fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    return figure
