"""What an experiment is: a table of cells, and how each is trained from several seeds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from experiments.job import Cell, Job, Table
from experiments.session import Session


@dataclass(frozen=True)
class Experiment(Table):
    """A table to train and report. A subclass is a frozen dataclass of its settings.

    :param seeds: runs of every cell.
    :param epochs: of training.
    """

    worth_compiling: ClassVar[bool] = False
    """Whether its trainings take much longer than a compilation of their step."""

    seeds: int
    epochs: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value <= 0:
                raise ValueError(f"{field.name} must be positive, got {value!r}.")

    @abstractmethod
    def cells(self) -> Sequence[Cell]:
        """All cells, in the order of the report."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], session: Session) -> list[dict[str, Any]]:
        """Train and evaluate jobs of one shape; the metrics of each."""

    def required(self, cells: Sequence[Any]) -> tuple[Experiment, list[Cell]] | None:
        """The experiment, and those of its cells, whose models these cells start from."""
        return None

    def part(self, cell: Any) -> Experiment:
        """The experiment whose settings those of a cell are: itself, unless it is made of several."""
        return self

    def extras(self, cell: Any, member: Any) -> dict[str, Any]:
        """What a trained model has to report beside the scores of its table."""
        return {}

    def settings(self) -> dict[str, Any]:
        """What decides a result beside cell and seed."""
        return {key: value for key, value in asdict(self).items() if key != "seeds"}

    def settings_of(self, cell: Any) -> dict[str, Any]:
        """Those of the part that the cell belongs to."""
        return self.part(cell).settings()
