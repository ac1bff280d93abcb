"""The paper's tables and figures, and spaces that it does not have: ``python -m experiments --help``.

This folder is not installed with the library: run it in a clone of the repository.

Each table is a frozen dataclass with the settings of its experiment (:class:`Table1` to :class:`Table4`,
:class:`Ablation`, and :class:`Mixed`, :class:`Cells`, :class:`Choices`, :class:`Distances`, :class:`Earth`,
:class:`Flows` and :class:`Networks`, which the paper does not have).
:func:`sweep` trains what a :class:`RunStore` does not hold yet, cells of one shape together as the members of one
:class:`~pyro_hyperbolic.infer.EnsembleSVI`. A report sets the results beside the paper's.
"""

from experiments.ablation import Ablation
from experiments.cells import Cells
from experiments.choices import Choices
from experiments.distances import Distances
from experiments.earth import Earth
from experiments.experiment import Experiment
from experiments.flows import Flows
from experiments.job import Cell, Job
from experiments.mixed import Mixed
from experiments.networks import Networks
from experiments.store import RunStore
from experiments.sweep import Settings, sweep
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from experiments.table4 import Table4

__all__ = [
    "Ablation",
    "Cell",
    "Cells",
    "Choices",
    "Distances",
    "Earth",
    "Experiment",
    "Flows",
    "Job",
    "Mixed",
    "Networks",
    "RunStore",
    "Settings",
    "Table1",
    "Table2",
    "Table3",
    "Table4",
    "sweep",
]
