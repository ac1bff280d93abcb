"""What a run is: a cell of a table, and a seed."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class Cell(ABC):
    """One cell of a table: a frozen dataclass of what sets it apart from the others."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How reports and ``--cells`` call it."""


class Table(ABC):
    """What tells the runs of one table from those of another, and apart from each other; not how they are done."""

    command: ClassVar[str]
    """Its name on the command line."""

    def shape(self, cell: Any) -> Hashable:
        """Runs of one shape are trained together; by default each is finished, and stored, before the next one."""
        return object()

    @abstractmethod
    def settings_of(self, cell: Any) -> dict[str, Any]:
        """What decides a result beside cell and seed."""


@dataclass(frozen=True)
class Job:
    """One run: a cell and a seed."""

    experiment: Table
    cell: Any
    seed: int

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same."""
        settings = self.experiment.settings_of(self.cell)
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
