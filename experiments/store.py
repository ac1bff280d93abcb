"""Results on disk: one line per finished run."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.job import Job, digest

_FIELDS = {"key", "table", "cell", "seed", "settings", "metrics"}


class RunStore:
    """The finished runs of all tables in a folder.

    A run is appended as one line of JSON, flushed to the disk before the next one starts, so that an interrupted sweep
    loses nothing that was finished. Several processes write a file each, ``table2.jsonl``, ``table2.rank1.jsonl`` and
    so on, and every reader takes all of them: results from other machines are merged by copying their files here.

    A line that cannot be read, or whose content does not belong to its key, is reported as a warning that names file
    and line, and its run is repeated.

    :param folder: where the files are.
    :param rank: which of several writing processes this one is.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int = 0) -> None:
        self.folder = Path(folder)
        self.rank = rank

    def records(self, table: str) -> dict[str, dict[str, Any]]:
        """The finished runs of a table by their keys."""
        found: dict[str, dict[str, Any]] = {}
        for path in self.files(table):
            for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1):
                if line.strip():
                    record = _parse(line)
                    if record is None:
                        warnings.warn(
                            f"{path}:{number} is not the record of a run; that run will be repeated. Delete the line"
                            " to be rid of this warning.",
                            stacklevel=2,
                        )
                    else:
                        found[record["key"]] = record
        return found

    def files(self, table: str) -> list[Path]:
        """The files that hold runs of a table."""
        return sorted(self.folder.glob(f"{table}.jsonl")) + sorted(self.folder.glob(f"{table}.rank*.jsonl"))

    def append(self, job: Job, **results: Any) -> None:
        """Write one finished run to the disk."""
        name = job.experiment.command
        path = self.folder / (f"{name}.jsonl" if self.rank == 0 else f"{name}.rank{self.rank}.jsonl")
        self.folder.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": job.key} | job.identity() | results)
        with path.open("a", encoding="utf-8") as file:
            # What a killed process left without its end must not spoil this line too.
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that are not finished yet."""
        jobs = list(jobs)
        done = {name: self.records(name) for name in {job.experiment.command for job in jobs}}
        return [job for job in jobs if job.key not in done[job.experiment.command]]

    def model_path(self, job: Job) -> Path:
        """Where the parameters of a trained model are kept, for those experiments that need them again."""
        return self.folder / "models" / f"{job.experiment.command}-{job.key}.pt"

    def checkpoint_path(self, jobs: Iterable[Job]) -> Path:
        """Where the state of an ensemble in training is kept."""
        return self.folder / "checkpoints" / f"{digest([job.key for job in jobs])}.pt"


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not record.keys() >= _FIELDS or not isinstance(record["metrics"], dict):
        return None
    identity = {name: record[name] for name in ("table", "cell", "seed", "settings")}
    return record if record["key"] == digest(identity) else None
