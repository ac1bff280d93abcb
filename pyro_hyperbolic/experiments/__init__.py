"""The paper's tables and figures, and spaces that it does not have: ``python -m pyro_hyperbolic.experiments --help``.

Each table is a frozen dataclass with the settings of its experiment (:class:`Table1` to :class:`Table4`,
:class:`Ablation`, and :class:`Mixed`, :class:`Cells` and :class:`Choices`, which the paper does not have).
:func:`sweep` trains what a :class:`RunStore` does not hold yet, cells of one shape together as the members of one
:class:`~pyro_hyperbolic.accelerate.EnsembleSVI`. A report sets the results beside the paper's.
"""

from pyro_hyperbolic.experiments.ablation import Ablation
from pyro_hyperbolic.experiments.cells import Cells
from pyro_hyperbolic.experiments.choices import Choices
from pyro_hyperbolic.experiments.experiment import Experiment
from pyro_hyperbolic.experiments.job import Cell, Job
from pyro_hyperbolic.experiments.mixed import Mixed
from pyro_hyperbolic.experiments.store import RunStore
from pyro_hyperbolic.experiments.sweep import Settings, sweep
from pyro_hyperbolic.experiments.table1 import Table1
from pyro_hyperbolic.experiments.table2 import Table2
from pyro_hyperbolic.experiments.table3 import Table3
from pyro_hyperbolic.experiments.table4 import Table4

__all__ = [
    "Ablation",
    "Cell",
    "Cells",
    "Choices",
    "Experiment",
    "Job",
    "Mixed",
    "RunStore",
    "Settings",
    "Table1",
    "Table2",
    "Table3",
    "Table4",
    "sweep",
]
