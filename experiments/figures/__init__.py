"""The paper's figures: ``python -m experiments figures``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from experiments.figures.branching import (
    branching_curvatures,
    branching_embeddings,
    branching_gyroplanes,
)
from experiments.figures.confusion import confusion
from experiments.figures.decoders import decoder_ablation
from experiments.figures.densities import densities_anisotropic, densities_isotropic
from experiments.figures.geodesics import geodesics
from experiments.figures.mnist import mnist_latents
from experiments.figures.plane_distances import branching_distances
from experiments.figures.projection import gyroplane
from experiments.figures.source import Source
from experiments.figures.style import DPI, STYLE
from experiments.figures.trees import tree_embedding
from experiments.store import RunStore
from experiments.sweep import Settings
from pyro_hyperbolic import plotting

FIGURES: dict[str, Callable[[Source], Figure]] = {
    builder.__name__: builder
    for builder in (
        tree_embedding,
        geodesics,
        densities_isotropic,
        densities_anisotropic,
        gyroplane,
        branching_embeddings,
        branching_curvatures,
        branching_gyroplanes,
        branching_distances,
        mnist_latents,
        confusion,
        decoder_ablation,
    )
}
"""What draws a figure, by its name, in the order of the paper."""

USED = ("table1", "table2", "table3", "ablation")
"""The experiments that figures are drawn from."""


def draw(
    names: Sequence[str],
    store: RunStore,
    folder: Path,
    settings: Settings,
    experiments: Mapping[str, Any] | None = None,
) -> None:
    """Draw figures into ``folder/figures`` and print what was written.

    A model that the store does not hold is trained first. A figure whose runs are missing does not keep the others from
    being drawn; all of these are named in one error at the end.

    :param names: keys of :data:`FIGURES`.
    :param store: of models and runs.
    :param folder: where to.
    :param settings: how models are trained.
    :param experiments: whose models and runs, by their commands; with the settings of the paper by default.
    """
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise ValueError(f"names must be among {', '.join(FIGURES)}, got {', '.join(unknown)}.")
    given = {name: experiments[name] for name in USED if name in experiments} if experiments else {}
    source = Source(store, settings, **given)
    problems = []
    for name in names:
        open_before = plt.get_fignums()
        try:
            with plt.rc_context(STYLE):
                path = plotting.save(FIGURES[name](source), folder / "figures" / f"{name}.png", dpi=DPI)
            print(path)
        except ValueError as error:
            problems.append(f"{name}: {error}")
        finally:
            for number in set(plt.get_fignums()).difference(open_before):
                plt.close(number)
    if problems:
        raise ValueError("\n".join(problems))
