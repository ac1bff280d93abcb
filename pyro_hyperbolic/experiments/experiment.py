"""What an experiment is: cells, each trained from several seeds."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyro_hyperbolic.experiments.session import Session


class Cell(ABC):
    """One cell of a table: a frozen dataclass of what sets it apart from the others."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How reports and ``--cells`` call it."""


@dataclass(frozen=True)
class Experiment(ABC):
    """A table of the paper. A subclass is a frozen dataclass of its settings.

    :param seeds: runs of every cell.
    :param epochs: of training.
    """

    command: ClassVar[str]
    """Its name on the command line."""

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
    def shape(self, cell: Any) -> Hashable:
        """Cells of one shape are trained together."""

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


@dataclass(frozen=True)
class Job:
    """One run: a cell and a seed."""

    experiment: Experiment
    cell: Any
    seed: int

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same."""
        settings = self.experiment.part(self.cell).settings()
        return {"table": self.experiment.command, "cell": asdict(self.cell), "seed": self.seed, "settings": settings}

    @property
    def key(self) -> str:
        """The identity as a short string, the same on every machine."""
        return digest(self.identity())

    @property
    def number(self) -> int:
        """The identity as a seed."""
        return int(self.key, 16) % (1 << 31)


def digest(value: Any) -> str:
    """A short hash of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
