"""The report of the auto-encoders with flows."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.flows import (
    BINARY,
    BINARY_DIMENSIONS,
    CURVED,
    FAMILIES,
    FLAT,
    GREY,
    GREY_CURVATURES,
    GREY_RATE,
    RATES,
    FlowCell,
)
from experiments.report.paired import Scores, differences, summarised
from experiments.report.results import GREY_LEVELS, NOT_RUN, Results, interval, table
from pyro_hyperbolic.plotting.canvas import PALETTE

METRIC, VALIDATION = "negative_iwae", "validation_negative_iwae"
PUBLISHED = {2: 138.14, 4: 113.47, 6: 99.89}
"""Lou et al., Neural manifold ordinary differential equations (2020), Table 1: a hyperbolic auto-encoder with flows."""
SPACES = {CURVED: f"c = {CURVED:g}", FLAT: "flat"}
WORDS = {"flow": "flows", "wrapped": "wrapped normals"}


def flows(results: Results) -> tuple[str, Figure]:
    """Binarised digits beside published values, what flows and curvature gain, grey levels, and coverage."""
    text = _binary(results) + "\n" + _grey(results) + "\n" + _coverage(results)
    return text, _draw(results)


def _chosen(results: Results, d: int, family: str, c: float) -> FlowCell | None:
    """The cell whose learning rate has the least mean loss on held-out images."""
    means = {}
    for rate in RATES:
        cell = FlowCell(BINARY, d, c, family, rate)
        found = interval(results.values(cell, VALIDATION).values())
        if found is not None:
            means[cell] = found[0]
    return min(means, key=lambda cell: means[cell]) if means else None


def _scores(results: Results, d: int, family: str, c: float) -> Scores:
    cell = _chosen(results, d, family, c)
    return {} if cell is None else results.values(cell, METRIC)


def _binary(results: Results) -> str:
    seeds = results.experiment.seeds
    rows = [["Lou et al. (2020), flows", *(f"{value:.2f}" for value in PUBLISHED.values())]]
    for family in FAMILIES:
        for c, space in SPACES.items():
            own = [_scores(results, d, family, c) for d in BINARY_DIMENSIONS]
            rows.append([f"{WORDS[family]}, {space}", *(summarised(scores, seeds, digits=2) for scores in own)])
    for name, (less, more) in {
        "flows gain, c = 1": (("flow", CURVED), ("wrapped", CURVED)),
        "flows gain, flat": (("flow", FLAT), ("wrapped", FLAT)),
        "curvature gains, flows": (("flow", CURVED), ("flow", FLAT)),
    }.items():
        gains = [differences(_scores(results, d, *more), _scores(results, d, *less)) for d in BINARY_DIMENSIONS]
        rows.append([name, *(summarised(gain, seeds, digits=2) for gain in gains)])
    rows.append(["parameters of a model with flows", *(_parameters(results, d) for d in BINARY_DIMENSIONS)])
    notes = (
        "\nNegative IWAE estimates on binarised test images in nats, with mean and 95% interval over runs; lower is"
        " better. Posterior and prior are both flows, or both wrapped normals, with a diagonal posterior. Images to"
        " train on are drawn anew from the grey levels in each epoch, and test images once. The learning rate of each"
        " cell is the one that is best on held-out training images. Gains are between runs of the same seed, which"
        " begin from the same encoder and decoder. The flat models have the same layers with c = 0, and as many"
        " parameters. The published value is the paper's, with its own networks and binarisation.\n"
    )
    return table(["binarised digits", *(f"d = {d}" for d in BINARY_DIMENSIONS)], rows) + notes


def _parameters(results: Results, d: int) -> str:
    counts = {
        int(value)
        for c in SPACES
        for rate in RATES
        for value in results.values(FlowCell(BINARY, d, c, "flow", rate), "parameters").values()
    }
    return " and ".join(f"{count:,}" for count in sorted(counts)) or NOT_RUN


def _grey_scores(results: Results, d: int, family: str) -> Scores:
    return results.values(FlowCell(GREY, d, GREY_CURVATURES[d], family, GREY_RATE), METRIC)


def _grey(results: Results) -> str:
    seeds = results.experiment.seeds
    rows = []
    for d, c in GREY_CURVATURES.items():
        flow, wrapped = (_grey_scores(results, d, family) for family in FAMILIES)
        values = (wrapped, flow, differences(wrapped, flow))
        rows.append([f"d = {d}, c = {c:g}", *(summarised(scores, seeds, digits=2) for scores in values)])
    notes = (
        f"\nThe wrapped models of Table 2, and the same with a flow as the posterior. {GREY_LEVELS} The learning rate"
        f" is {GREY_RATE:g}, and a curvature is the one of Table 2 that is nearest to what its models learn.\n"
    )
    return table(["grey levels", "wrapped posterior", "flow", "gain of the flow"], rows) + notes


def _coverage(results: Results) -> str:
    seeds = results.experiment.seeds
    rows = []
    for family in FAMILIES:
        for c, space in SPACES.items():
            for name, words in (("coverage", "encoder"), ("exact_coverage", "resampling")):
                line = [f"{WORDS[family]}, {space}, {words}"]
                for d in BINARY_DIMENSIONS:
                    runs = results.runs[FlowCell(BINARY, d, c, family, RATES[0])]
                    known = {seed: run["metrics"][name] for seed, run in runs.items() if name in run["metrics"]}
                    wanted = seeds if name == "coverage" else 1
                    line.append(summarised(known, wanted, digits=3))
                rows.append(line)
    notes = (
        "\nHow often the 90% regions of posteriors hold the latent that an image was drawn from:"
        f" {results.experiment.drawn} images of the"
        f" model's own for each run, with the learning rate {RATES[0]:g}. Regions are those of 39 draws of the encoder,"
        " or of the exact posterior by resampling (one run).\n"
    )
    return table(["coverage of 90% regions", *(f"d = {d}" for d in BINARY_DIMENSIONS)], rows) + notes


def _draw(results: Results) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained")
    _draw_binary(axes[0], results)
    _draw_gains(axes[1], results)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    return figure


def _draw_binary(ax: Any, results: Results) -> None:
    """Losses less the published one."""
    for i, d in enumerate(BINARY_DIMENSIONS):
        for place, family in enumerate(FAMILIES):
            for c, marker in ((CURVED, "o"), (FLAT, "s")):
                found = interval(_scores(results, d, family, c).values())
                if found is not None:
                    at = i + 0.2 * (place - 0.5) + 0.06 * (c - 0.5)
                    label = f"{WORDS[family]}, {SPACES[c]}" if i == 0 else None
                    value = found[0] - PUBLISHED[d]
                    ax.errorbar(at, value, found[1], marker=marker, color=PALETTE[place], capsize=2.5, label=label)
    ax.axhline(0.0, color="0.5", lw=0.8, label="Lou et al. (2020)")
    ax.set_xticks(range(len(BINARY_DIMENSIONS)), [f"d = {d}" for d in BINARY_DIMENSIONS])
    ax.set_ylabel("loss less the published (nats)")


def _draw_gains(ax: Any, results: Results) -> None:
    for i, d in enumerate(GREY_CURVATURES):
        flow, wrapped = (_grey_scores(results, d, family) for family in FAMILIES)
        found = interval(differences(wrapped, flow).values())
        if found is not None:
            ax.errorbar(i, *found, marker="o", color=PALETTE[0], capsize=2.5)
    ax.axhline(0.0, color="0.5", lw=0.8, label="wrapped posterior, grey levels")
    ax.set_xticks(range(len(GREY_CURVATURES)), [f"d = {d}" for d in GREY_CURVATURES])
    ax.set_ylabel("gain of the flow (nats)")
