"""A million single cells: counts of 2,000 genes, sparse, trained for ten epochs.

On a GPU the counts lie on the device as a sparse matrix (CSR), and ``FastSVI`` captures its steps:

    python -m benchmarks.cells --device cuda

On a CPU they are read from files, in bounded memory. The run is saved as it goes, and goes on where it was killed:

    python -m benchmarks.cells --folder cells --epochs 1
    python -m benchmarks.cells --folder cells --epochs 1 --resume

``--num-cells 2000 --num-genes 100`` is a size to try it with. The counts are synthetic: cells of 20 types in three
batches, with total counts that differ, and about a tenth of all counts not 0.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from examples.command import add_common, command, device, folder, make_parser, positive
from examples.runs import require_same
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate.trainers.rows import SparseRows
from pyro_hyperbolic.infer import FastSVI, Minibatches, load_checkpoint, save_checkpoint
from pyro_hyperbolic.models import CountVAE

NUM_TYPES, NUM_BATCHES = 20, 3
MEAN_COUNT = 0.13  # of a gene in a cell
CHUNK = 10_000  # cells that are drawn at a time
MOST_GENES = 2**15  # columns are written in two bytes
CHECKPOINT = "checkpoint.pt"
OPTIONS = ("num_cells", "num_genes", "batch_size", "hidden_dim", "latent_dim", "curvature", "learning_rate", "seed")


def batch_of(cells: Tensor) -> Tensor:
    """The batch of a cell."""
    return cells % NUM_BATCHES


def draw_counts(
    num_cells: int, num_genes: int, seed: int, device: str = "cpu"
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Numbers of entries in every row, columns and values, of some cells at a time."""
    generator = torch.Generator(device).manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    profiles = (1.5 * noise(1, num_genes) + noise(NUM_TYPES, num_genes)).exp()
    profiles = MEAN_COUNT * profiles / profiles.mean(-1, keepdim=True)
    effects = (0.3 * noise(NUM_BATCHES, num_genes)).exp()
    for start in range(0, num_cells, CHUNK):
        cells = torch.arange(start, min(start + CHUNK, num_cells), device=device)
        types = torch.randint(NUM_TYPES, cells.shape, generator=generator, device=device)
        depth = (0.4 * noise(len(cells), 1)).exp()
        counts = torch.poisson(depth * profiles[types] * effects[batch_of(cells)], generator=generator)
        counts[:, 0] += 1  # no cell is without counts
        row, column = counts.nonzero(as_tuple=True)
        yield row.bincount(minlength=len(cells)), column.to(torch.int16), counts[row, column].to(torch.int16)


class Files:
    """Counts in a folder: where rows begin, columns, and values. ``files[start:stop]`` reads some rows.

    :param folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        try:
            about = json.loads((folder / "about.json").read_text("utf-8"))
            self.shape, self.seed = (about["num_cells"], about["num_genes"]), about["seed"]
            self._starts = np.load(folder / "starts.npy", mmap_mode="r")
            self._columns, self.values = (np.memmap(folder / name, np.int16, "r") for name in ("columns", "values"))
            whole = len(self._starts) == self.shape[0] + 1
            whole = whole and self._starts[-1] == len(self._columns) == len(self.values)
        except (FileNotFoundError, NotADirectoryError, ValueError, EOFError, LookupError, TypeError):
            whole = False
        if not whole:
            raise ValueError(f"the counts in {folder} are damaged; delete it, and they are drawn again")

    def __getitem__(self, rows: slice) -> SparseRows:
        starts = torch.from_numpy(np.array(self._starts[rows.start : rows.stop + 1]))
        part = slice(int(starts[0]), int(starts[-1]))
        columns, values = (torch.from_numpy(np.array(array[part])) for array in (self._columns, self.values))
        return SparseRows(starts - starts[0], columns, values, self.shape[1])

    @staticmethod
    def write(folder: Path, num_cells: int, num_genes: int, seed: int) -> None:
        """Draw the counts; the folder is there when it is complete."""
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        lengths = [torch.zeros(1, dtype=torch.int64)]
        with (partial / "columns").open("wb") as columns, (partial / "values").open("wb") as values:
            chunks = draw_counts(num_cells, num_genes, seed)
            for length, column, value in tqdm(chunks, "counts", -(-num_cells // CHUNK), unit="0k cells", disable=None):
                lengths.append(length)
                columns.write(column.numpy().tobytes())
                values.write(value.numpy().tobytes())
        np.save(partial / "starts.npy", torch.cat(lengths).cumsum(0).numpy())
        about = {"num_cells": num_cells, "num_genes": num_genes, "seed": seed}
        (partial / "about.json").write_text(json.dumps(about), "utf-8")
        os.replace(partial, folder)


def on_device(num_cells: int, num_genes: int, seed: int, device: str) -> SparseRows:
    """All counts as one sparse matrix."""
    lengths, columns, values = zip(*draw_counts(num_cells, num_genes, seed, device), strict=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64, device=device), *lengths]).cumsum(0)
    return SparseRows(starts, torch.cat(columns), torch.cat(values), num_genes)


def data(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of the programs, for all cells."""
    if args.folder is None:
        x: Any = on_device(args.num_cells, args.num_genes, args.seed, args.device)
    else:
        folder = args.folder / "counts"
        if not folder.exists():
            Files.write(folder, args.num_cells, args.num_genes, args.seed)
        x = Files(folder)
        if (*x.shape, x.seed) != (args.num_cells, args.num_genes, args.seed):
            raise ValueError(
                f"{folder} holds {x.shape[0]} cells of {x.shape[1]} genes from seed {x.seed}; delete it, or give the"
                " same --num-cells, --num-genes and --seed"
            )
    return {"x": x, "covariates": {"batch": batch_of(torch.arange(args.num_cells, device=args.device))}}


def peak_memory() -> float:
    """The most of the host's memory that this process has used, in GB, with the pages of files that it has read."""
    if sys.platform == "win32":
        return float("nan")  # Python cannot say
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e9


def memory(device: str) -> str:
    """The most that was used so far."""
    text = f"{peak_memory():.2f} GB on the host"
    if torch.device(device).type == "cuda":
        text += f", {torch.cuda.max_memory_allocated() / 1e9:.2f} GB on the device"
    return text


def begin(args: argparse.Namespace) -> tuple[FastSVI, dict[str, Any]]:
    """The trainer and its place, from the checkpoint if asked for."""
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    space = PoincareBall(args.curvature)
    vae = CountVAE(space, args.latent_dim, args.num_genes, args.hidden_dim, batches=NUM_BATCHES).to(args.device)
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO(), compile=args.compile)
    place: dict[str, Any] = {"epoch": 1, "batch": 0, "losses": [], "total": 0.0}
    if args.resume:
        path = args.folder / CHECKPOINT
        state = load_checkpoint(path, args.device)
        if not (isinstance(state, dict) and {"options", "trainer", "place"} <= state.keys()):
            raise ValueError(f"{path} is not a checkpoint of this program; choose another --folder")
        require_same(path, state["options"], args, place="--folder")
        svi.load_state_dict(state["trainer"])
        place = state["place"]
    return svi, place


def train(
    args: argparse.Namespace, svi: FastSVI, place: dict[str, Any], inputs: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """All epochs from that place on; the record of the run."""
    batches = Minibatches(inputs, args.batch_size, args.seed, drop_last=True, device=args.device)
    path = None if args.folder is None else args.folder / CHECKPOINT
    options = {name: getattr(args, name) for name in OPTIONS}

    def save() -> None:
        if path is not None:
            save_checkpoint({"trainer": svi.state_dict(), "place": place, "options": options}, path)

    since, steps = time.perf_counter(), 0
    for epoch in range(place["epoch"], args.epochs + 1):
        start, first = time.perf_counter(), place["batch"]
        stream = batches.epoch(epoch, first)
        with tqdm(total=len(batches), initial=first, desc=f"epoch {epoch}", unit="batch", disable=None) as bar:
            while place["batch"] < len(batches):
                # Batches on the device are taken as a whole, by which they become part of the captured graphs.
                piece = stream if path is None else counted(itertools.islice(stream, args.save_every), bar)
                losses = svi.run(piece)
                steps += len(losses)
                place["batch"] += len(losses)
                place["total"] += float(losses.double().sum())  # waits for the device
                mean = place["total"] / (place["batch"] * args.batch_size)
                bar.set_postfix(loss=f"{mean:.2f}", memory=memory(args.device))
                if place["batch"] < len(batches):
                    save()
        place |= {"epoch": epoch + 1, "batch": 0, "losses": [*place["losses"], mean], "total": 0.0}
        save()
        seconds = time.perf_counter() - start
        rate = (len(batches) - first) * args.batch_size / seconds
        say(f"epoch {epoch}: loss {mean:.3f} per cell, {seconds:.1f} s, {rate:,.0f} cells/s")
    seconds = time.perf_counter() - since
    say(f"{steps} steps in {seconds:.1f} s; {memory(args.device)}")
    return {"losses": place["losses"], "seconds": seconds, "memory": memory(args.device), "steps": steps}


def counted(batches: Iterable[Any], bar: Any) -> Iterator[Any]:
    """Batches, each of which moves the bar."""
    for batch in batches:
        yield batch
        bar.update()


def run(args: argparse.Namespace) -> dict[str, Any]:
    _check(args)

    def say(text: str) -> None:
        tqdm.write(text)

    svi, place = begin(args)
    start = time.perf_counter()
    inputs = data(args)
    share = len(inputs["x"].values) / (args.num_cells * args.num_genes)
    seconds = time.perf_counter() - start
    say(f"{args.num_cells:,} cells of {args.num_genes:,} genes, {share:.1%} of the counts not 0, in {seconds:.1f} s")
    if args.resume:
        say(f"goes on at epoch {place['epoch']}, batch {place['batch']}")
    return train(args, svi, place, inputs, say)


def _check(args: argparse.Namespace) -> None:
    """Mistakes are found before the counts are drawn."""
    if args.batch_size > args.num_cells:
        raise ValueError(f"--batch-size must be at most --num-cells, {args.num_cells}, got {args.batch_size}")
    if args.num_genes > MOST_GENES:
        raise ValueError(f"--num-genes must be at most {MOST_GENES}, got {args.num_genes}")
    if args.folder is None:
        if args.resume:
            raise ValueError("--resume needs --folder, the folder of the run to continue")
        return
    checkpoint = args.folder / CHECKPOINT
    if args.resume and not checkpoint.exists():
        raise ValueError(
            f"--resume: there is no run to continue in {args.folder} (no {CHECKPOINT}); check --folder, or leave out"
            " --resume to start a new run"
        )
    if checkpoint.exists() and not args.resume:
        raise ValueError(f"{checkpoint} exists; continue that run with --resume, or choose another --folder")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.cells")
    p.add_argument("--num-cells", type=positive(int), default=1_000_000, help="how many")
    p.add_argument("--num-genes", type=positive(int), default=2000, help="counts of each cell")
    p.add_argument("--epochs", type=positive(int), default=10, help="passes over the cells")
    p.add_argument("--batch-size", type=positive(int), default=1024, help="cells per step")
    p.add_argument("--hidden-dim", type=positive(int), default=128, help="width of the hidden layers")
    p.add_argument("--latent-dim", type=positive(int), default=10, help="dimension of the latent space")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c; the curvature is -c")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="of Adam")
    add_common(p, "--seed")
    p.add_argument("--device", type=device, default="cpu", help="where to compute: cpu, cuda or cuda:1")
    p.add_argument("--compile", action="store_true", help="compile the steps")
    text = "read the counts from files in it, and save the run there (default: counts in memory, nothing is saved)"
    p.add_argument("--folder", type=folder, help=text)
    p.add_argument("--resume", action="store_true", help="continue the run in --folder")
    p.add_argument("--save-every", type=positive(int), default=100, help="batches between two checkpoints")
    add_common(p, "--threads")
    return p


main = command(parser, run, go_on="with --folder, go on from its last checkpoint with --resume")


if __name__ == "__main__":
    main()
