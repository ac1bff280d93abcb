"""The output folder of a run: its checkpoint, its metrics, and those of the other processes of a sweep."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

import pyro
import torch

import pyro_hyperbolic
from pyro_hyperbolic import datasets
from pyro_hyperbolic.experiments.statistics import mean_interval
from pyro_hyperbolic.infer import Place, load_checkpoint, save_checkpoint, save_json
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

VAE: TypeAlias = EuclideanVAE | HyperbolicVAE

# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = {
    "num_epochs",
    "resume",
    "output_dir",
    "data_dir",
    "device",
    "iwae_samples",
    "gyroplanes",
    "threads",
    "timeout",
}


class Folder:
    """The output folder.

    :param place: which of several processes this one is. Of a data-parallel run the first process writes; of a sweep,
        where each has seeds of its own, each writes files that have its number in their names.
    """

    def __init__(self, args: argparse.Namespace, place: Place) -> None:
        self.args, self.place = args, place
        self.sweep = args.distributed and args.ensemble is not None
        self.writes = self.sweep or place.rank == 0
        self.silent = None if place.rank == 0 else True  # of progress bars, which None shows on a terminal
        seeds = [args.seed] if args.ensemble is None else args.ensemble
        self.seeds = seeds[place.rank :: place.world] if self.sweep else seeds
        if not self.seeds:
            raise SystemExit(f"--ensemble: {len(seeds)} seeds are too few for {place.world} processes.")
        self.record = describe(args) | ({"processes": place.world} if args.distributed else {})

    def file(self, name: str) -> Path:
        path = Path(self.args.output_dir, name)
        return path.with_name(f"{path.stem}.rank{self.place.rank}{path.suffix}") if self.sweep else path

    @property
    def checkpoint(self) -> Path:
        return self.file("checkpoint.pt")

    def load(self, train_size: int) -> dict[str, Any] | None:
        """The checkpoint to go on from, if there is one."""
        path = self.checkpoint
        if not path.exists():
            return None
        if not self.args.resume:
            raise SystemExit(f"{path} exists: continue that run with --resume, or choose another --output-dir.")
        state = load_checkpoint(path, map_location=self.place.device)
        now, then = self.record["options"], state["options"]
        changed = [key for key in then if key not in FREE_OPTIONS and now.get(key) != then[key]]
        if changed:
            names = ", ".join(f"--{key.replace('_', '-')} (was {then[key]}, is {now.get(key)})" for key in changed)
            raise SystemExit(f"{path} belongs to other options: {names}. Use the same, or another --output-dir.")
        if state["seeds"] != self.seeds:
            raise SystemExit(
                f"{path} has the seeds {state['seeds']}, but the share of this process is {self.seeds} now: "
                "start as many processes as before, or use another --output-dir."
            )
        if state["train_size"] != train_size:
            raise SystemExit(
                f"{path} was trained on {state['train_size']} images, but there are {train_size} now: "
                "give the same data by --data-dir, or use another --output-dir."
            )
        return state

    def save(self, state: dict[str, Any], entries: list[dict[str, Any]]) -> None:
        """Write a checkpoint and the metrics."""
        if self.writes:
            state |= {"histories": [entry["history"] for entry in entries], "seeds": self.seeds}
            state |= {"options": self.record["options"], "train_size": self.record["train_size"]}
            save_checkpoint(state, self.checkpoint)
            self.save_metrics(entries)

    def save_metrics(self, members: list[dict[str, Any]], finished: bool = False) -> dict[str, Any]:
        """Write and return what is known of every member: of a single one its own entries, of an ensemble a list."""
        if self.args.ensemble is None:
            (result,) = members
            result = self.record | {key: value for key, value in result.items() if key != "seed"}
        else:
            result = self.record | {"members": members, "summary": summarise(members), "finished": finished}
        if self.writes:
            save_json(result, self.file("metrics.json"))
        return result

    def merge(self) -> dict[str, Any] | None:
        """Bring the files of a sweep together in ``metrics.json``, if all processes have finished; its content."""
        parts = []
        for rank in range(self.place.world):
            path = Path(self.args.output_dir, f"metrics.rank{rank}.json")
            part: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"finished": False}
            # A file of an earlier, shorter run is finished too.
            if not part["finished"] or any(
                part["options"][k] != getattr(self.args, k) for k in ("num_epochs", "iwae_samples")
            ):
                return None
            parts.append(part)
        members = sorted((member for part in parts for member in part["members"]), key=lambda member: member["seed"])
        result = parts[0] | {"members": members, "summary": summarise(members)}
        # Under a name of its own: two processes may finish at the same time.
        own = Path(self.args.output_dir, f".metrics.{self.place.rank}.json")
        save_json(result, own)
        os.replace(own, Path(self.args.output_dir, "metrics.json"))
        return result

    def finish(self, members: list[VAE], entries: list[dict[str, Any]], test: datasets.Digits) -> dict[str, Any]:
        """Write the final metrics and the pictures; the metrics, of a whole sweep once all processes are done."""
        result = self.save_metrics(entries, finished=True)
        if self.writes:
            from mnist_parts.pictures import draw

            draw(members, entries, test, self.args.gyroplanes, self.file)
            self.say(f"open {self.file('latent.html')} in a browser to move through the latent space")
        merged = self.merge() if self.sweep else None
        if self.args.iwae_samples:
            self.say(f"negative IWAE-{self.args.iwae_samples} on the test set: {self._iwae(result)}")
            if merged is not None:
                self.say(f"of all processes: {self._iwae(merged)}")
        return result if merged is None else merged

    @staticmethod
    def _iwae(result: dict[str, Any]) -> str:
        if "members" not in result:
            return f"{result['negative_iwae']:.2f}"
        mean, half = result["summary"]["negative_iwae"].values()
        return f"{mean:.2f}" + (
            "" if half is None else f" ± {half:.2f} (95% interval, {len(result['members'])} members)"
        )

    def say(self, text: str) -> None:
        if self.writes:
            print(f"rank {self.place.rank}: {text}" if self.sweep else text, flush=True)

    def mourn(self, reason: object) -> None:
        """Say at once why this process ends before its time, and what is left of its work."""
        if self.checkpoint.exists():
            left = f"the last checkpoint, {self.checkpoint}, is whole: go on with --resume."
        else:
            left = f"there is no checkpoint in {self.args.output_dir} yet: start again."
        print(f"rank {self.place.rank}: {reason}; {left}", file=sys.stderr, flush=True)


def summarise(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over members with the half width of their 95% interval, where there is more than one."""
    values = {"test_loss": [member["history"][-1]["test_loss"] for member in members]}
    if all("negative_iwae" in member for member in members):
        values["negative_iwae"] = [member["negative_iwae"] for member in members]
    return {key: dict(zip(("mean", "half_width"), mean_interval(row), strict=True)) for key, row in values.items()}


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """The options, the versions and the revision that a result depends on."""
    versions = {module.__name__: str(module.__version__) for module in (pyro_hyperbolic, torch, pyro)}
    try:
        folder = Path(__file__).resolve().parent
        git = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    return {"options": options, "versions": versions, "revision": revision, "python": sys.version.split()[0]}
