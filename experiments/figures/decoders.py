"""The ablation of the decoder."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from examples.intervals import mean_interval
from experiments.ablation import DECODERS
from experiments.figures.source import Source
from experiments.figures.style import BLUE, GREY, ORANGE, subplots
from experiments.mnist import MnistCell

LOOKS = {"logmap": ("log map, then MLP", ORANGE, "s"), "gyroplane": ("gyroplane", BLUE, "o")}


def decoder_ablation(source: Source) -> Figure:
    """Relative improvement of the negative test log-likelihood over an MLP decoder, with 95 % intervals."""
    baseline, *others = DECODERS
    dimensions = list(dict.fromkeys(cell.latent_dim for cell in source.ablation.cells()))
    figure, axes = subplots(1, 1, size=3.4)
    ax = axes[0, 0]
    ax.axhline(0, color=GREY, linewidth=1.2, label="MLP (baseline)")
    for number, decoder in enumerate(others):
        label, colour, marker = LOOKS[decoder]
        gains = [mean_interval(_gains(source, d, decoder, baseline)) for d in dimensions]
        # Side by side, so that no interval hides another.
        places = [i + 0.12 * (number - (len(others) - 1) / 2) for i in range(len(dimensions))]
        errors = [half or 0.0 for _, half in gains]
        ax.errorbar(
            places,
            [mean for mean, _ in gains],
            errors,
            color=colour,
            marker=marker,
            markersize=4,
            capsize=2.5,
            label=label,
        )
    ax.set_xticks(range(len(dimensions)), map(str, dimensions))
    ax.set(xlabel="latent dimension", ylabel="improvement over the MLP (%)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    if diverged := _diverged(source):
        ax.set_title(f"diverged runs left out: {diverged}", fontsize="small")
    return figure


def _gains(source: Source, dimension: int, decoder: str, baseline: str) -> list[float]:
    """Improvement in per cent, seed by seed, of the runs that did not diverge."""
    cells = {cell.decoder: cell for cell in source.ablation.cells() if cell.latent_dim == dimension}
    new, old = (_losses(source, cells[name]) for name in (decoder, baseline))
    seeds = sorted(new.keys() & old.keys())
    if not seeds:
        raise ValueError(
            f"ablation, {cells[decoder].name} and {cells[baseline].name}, have no finite results of one seed;"
            f" run `python -m experiments ablation --results {source.store.folder}` to the end."
        )
    return [100 * (old[seed] - new[seed]) / old[seed] for seed in seeds]


def _losses(source: Source, cell: MnistCell) -> dict[int, float]:
    """Negative test log-likelihoods by seed."""
    losses = {seed: run["negative_iwae"] for seed, run in source.metrics(source.ablation, cell).items()}
    return {seed: loss for seed, loss in losses.items() if math.isfinite(loss)}


def _diverged(source: Source) -> int:
    cells = source.ablation.cells()
    return sum(len(source.metrics(source.ablation, cell)) - len(_losses(source, cell)) for cell in cells)
