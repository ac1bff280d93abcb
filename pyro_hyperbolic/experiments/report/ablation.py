"""The report of the ablation."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from pyro_hyperbolic.experiments.ablation import DECODERS
from pyro_hyperbolic.experiments.report.results import Results, table
from pyro_hyperbolic.experiments.table2 import DIMENSIONS
from pyro_hyperbolic.plotting.canvas import PALETTE

COLOURS = {"mlp": "0.35", "logmap": PALETTE[1], "gyroplane": PALETTE[0]}


def ablation(results: Results) -> tuple[str, Figure]:
    """Rows of decoders, columns of dimensions."""
    cells = {(cell.decoder, cell.latent_dim): cell for cell in results.cells}
    rows = [
        [decoder, *(results.text(cells[decoder, d], "negative_iwae", digits=2) for d in DIMENSIONS)]
        for decoder in DECODERS
    ]
    notes = (
        "\nMean and 95% interval over runs; wrapped normals, c = 1. The paper shows this as a figure without numbers.\n"
    )
    figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
    baseline, *others = DECODERS
    ax.axhline(0.0, color=COLOURS[baseline], linewidth=1.0, label=baseline)
    for decoder in others:
        points = []
        for d in DIMENSIONS:
            ours, base = (results.shown(cells[name, d], "negative_iwae") for name in (decoder, baseline))
            if ours is not None and base is not None:
                points.append((d, ours[0] - base[0], math.hypot(ours[1], base[1])))
        places, mean, half = zip(*points, strict=True) if points else ((), (), ())
        ax.errorbar(places, mean, half, color=COLOURS[decoder], marker="o", capsize=2.5, label=decoder)
    ax.set_xlabel("latent dimension")
    ax.set_xticks(DIMENSIONS)
    ax.set_ylabel("negative test IWAE minus that of the MLP (nats)", fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    return table(["decoder", *(f"d = {d}" for d in DIMENSIONS)], rows) + notes, figure
