"""Reports of the tables: ours beside the paper's, as Markdown with a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from examples.runs import save_text
from experiments.experiment import Experiment
from experiments.report.ablation import ablation
from experiments.report.cells import cells
from experiments.report.choices import choices
from experiments.report.distances import distances
from experiments.report.earth import earth
from experiments.report.flows import flows
from experiments.report.mixed import mixed
from experiments.report.networks import networks
from experiments.report.results import Results
from experiments.report.table1 import table1
from experiments.report.table2 import table2
from experiments.report.table3 import table3
from experiments.report.table4 import table4
from experiments.store import RunStore
from pyro_hyperbolic import plotting

REPORTS: dict[str, Callable[[Results], tuple[str, Figure]]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "ablation": ablation,
    "mixed": mixed,
    "cells": cells,
    "choices": choices,
    "networks": networks,
    "distances": distances,
    "earth": earth,
    "flows": flows,
}
"""What makes the body and the picture of a report, by the name of the experiment."""


class NoRunsError(ValueError):
    """There is nothing to report."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        super().__init__(
            f"there are no runs with these settings in {folder} of {', '.join(names)}; train them first, with"
            f" `python -m experiments {names[0] if len(names) == 1 else 'NAME'}`."
        )


def write_report(experiment: Experiment, store: RunStore, folder: Path) -> None:
    """Write ``folder/NAME.md`` and ``folder/NAME.png`` from the runs in the store.

    :param experiment: whose runs; those with other settings are left out.
    """
    results = Results(experiment, store)
    if not results.finished:
        raise NoRunsError([experiment.command], store.folder)
    body, figure = REPORTS[experiment.command](results)
    name = experiment.command
    text = f"# {results.title}\n\n{body}\n![{results.title}]({name}.png)\n\n{results.provenance()}"
    plotting.save(figure, folder / f"{name}.png", dpi=150)
    plt.close(figure)
    save_text(text, folder / f"{name}.md")
