"""Embed single cells by their counts: hyperbolic, Euclidean and nearly flat auto-encoders side by side.

:class:`pyro_hyperbolic.models.CountVAE` has negative binomial counts with a dispersion of every gene, size factors and
batches. Three models are trained on 70% of the cells, from every seed: with curvature (``hyperbolic``), without it
(``euclidean``), and the hyperbolic one with next to no curvature (``control``), which tells what is due to curvature
and what to the layers. The scores are those of the 20% of cells that are held out for testing: the IWAE estimate of the
log-likelihood of a cell, the share of cells whose neighbours have their label, the correlation of latent and lineage
distances and the mixing of batches where these are known, and how often the 90% regions of posteriors hold the truth
(for data drawn from the model). Over several seeds they are means with 95% intervals.

Cells are those of Paul et al. (2015), which come with the package, a simulated lineage, or a ``.h5ad`` file of yours,
which needs the package ``anndata``. The disc is drawn coloured by label, by pseudotime (the distance from a root cell)
and by batch; ``latent.html`` is a page on which to move through it. The embedding is written as ``.npz``, and as
``.h5ad`` where ``anndata`` is installed.

Every epoch ends with a checkpoint. A run that was interrupted goes on with ``--resume`` and ends where an uninterrupted
one would have.

    python examples/single_cell.py
    python examples/single_cell.py --data branching --seeds 0-4
    python examples/single_cell.py --data cells.h5ad --layer counts --batch-key batch --label-key cell_type
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from cell_parts.data import SOURCES, Source, load
from cell_parts.pictures import draw, pseudotime
from pyro.infer import Trace_ELBO
from torch import Tensor

import pyro_hyperbolic
from pyro_hyperbolic import plotting
from pyro_hyperbolic.commands import positive, seeds
from pyro_hyperbolic.datasets import from_anndata, to_anndata
from pyro_hyperbolic.experiments.cells import build_count_vae, embedding_scores
from pyro_hyperbolic.experiments.statistics import mean_interval
from pyro_hyperbolic.experiments.table1 import NEARLY_FLAT
from pyro_hyperbolic.infer import (
    FastSVI,
    Minibatches,
    load_checkpoint,
    log_marginal_likelihood,
    save_checkpoint,
    save_json,
)
from pyro_hyperbolic.models import CountVAE

MODELS = ("euclidean", "control", "hyperbolic")
# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = {"num_epochs", "iwae_samples", "output_dir", "resume", "threads", "seeds", "models"}
SCORES = {
    "iwae": ("IWAE", 2),
    "knn_accuracy": ("k-NN", 3),
    "correlation": ("lineage", 3),
    "batch_mixing": ("mixing", 3),
    "coverage": ("coverage", 3),
}


def train(name: str, seed: int, source: Source, train_cells: Tensor, args: argparse.Namespace) -> tuple[CountVAE, dict]:
    """One model from one seed, from its checkpoint if there is one; its losses per cell, epoch by epoch."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    curvature = {"euclidean": 0.0, "control": NEARLY_FLAT, "hyperbolic": args.curvature}[name]
    vae = build_count_vae(curvature, args.latent_dim, source.cells, args.hidden_dim)
    vae.init_output_bias(source.cells.counts[train_cells])
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    path = args.output_dir / f"{name}-{seed}.pt"
    history: dict[str, list[float]] = {"train_loss": [], "seconds": []}
    if path.exists():
        state = load_checkpoint(path)
        refuse_other_options(path, state, args, len(source.cells.counts))
        vae.load_state_dict(state["model"])
        svi.load_state_dict(state["trainer"])
        history = state["history"]
    batches = Minibatches(source.cells.inputs(train_cells), args.batch_size, seed=seed)
    for epoch in range(len(history["train_loss"]) + 1, args.num_epochs + 1):
        start = time.perf_counter()
        losses = svi.run(batches.epoch(epoch))
        history["train_loss"].append(losses.sum().item() / len(train_cells))
        history["seconds"].append(time.perf_counter() - start)
        state = {"model": vae.state_dict(), "trainer": svi.state_dict(), "history": history}
        save_checkpoint(state | {"options": options_of(args), "num_cells": len(source.cells.counts)}, path)
        if epoch % max(1, args.num_epochs // 5) == 0 or epoch == args.num_epochs:
            elbo = -history["train_loss"][-1]
            print(f"{name}, seed {seed}, epoch {epoch}/{args.num_epochs}: train elbo {elbo:.2f}", flush=True)
    return vae, history


def evaluate(vae: CountVAE, source: Source, train_cells: Tensor, test: Tensor, args: argparse.Namespace) -> dict:
    """The scores of the test cells."""
    pyro.set_rng_seed(0)
    inputs = source.cells.inputs(test)
    estimates = log_marginal_likelihood(vae.model, vae.guide, num_samples=args.iwae_samples, **inputs)
    return {"iwae": estimates.mean().item()} | embedding_scores(vae, source.cells, train_cells, test)


@torch.no_grad()
def write(vae: CountVAE, source: Source, test: Tensor, args: argparse.Namespace) -> None:
    """The embedding of all cells as files, and as a picture if it is one of the disc."""
    everyone = torch.arange(len(source.cells.counts))
    posterior = vae.encode(**source.cells.inputs(everyone))
    z, manifold = posterior.mean, vae.manifold
    times = pseudotime(z, manifold, source.roots)
    columns = {"labels": source.cells.labels, "batches": source.cells.batches, "pseudotime": times}
    arrays = {name: value.numpy() for name, value in columns.items() if value is not None}
    is_test = torch.zeros(len(z), dtype=torch.bool).index_fill(0, test, True)
    scale = getattr(posterior, "base_dist", posterior).scale  # that of flat space is a Normal inside
    arrays |= {"z": z.numpy(), "scale": scale.numpy(), "is_test": is_test.numpy()}
    np.savez_compressed(args.output_dir / "embedding.npz", allow_pickle=False, **arrays)
    if source.adata is not None:
        to_anndata(source.adata, vae, from_anndata(source.adata, args.layer, source.batch_key))
        source.adata.write_h5ad(args.output_dir / "embedding.h5ad")
    if args.latent_dim == 2:
        panels = {source.title: source.shown, "pseudotime": times, "batch": source.cells.batches}
        draw(z, manifold, panels, args.output_dir / "disc.png")
        labels = next((values for values in panels.values() if values is not None), None)
        plotting.explore(z, manifold, args.output_dir / "latent.html", labels=labels, title="Single cells")


def report(entries: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The scores of the models; means with intervals over several seeds."""
    known = [score for score in SCORES if score in entries[0]]
    print(f"{'':12}" + "".join(f"{SCORES[score][0]:>18}" for score in known))
    for name in args.models:
        own = [entry for entry in entries if entry["model"] == name]
        cells = []
        for score in known:
            mean, half = mean_interval([entry[score] for entry in own])
            digits = SCORES[score][1]
            cells.append(f"{mean:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}"))
        print(f"{name:12}" + "".join(f"{cell:>18}" for cell in cells))


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}


def refuse_other_options(path: Path, state: dict[str, Any], args: argparse.Namespace, num_cells: int) -> None:
    """A run is continued with the options and the data that it was begun with."""
    then, now = state["options"], options_of(args)
    changed = [key for key in then if key not in FREE_OPTIONS and now.get(key) != then[key]]
    if changed:
        names = ", ".join(f"--{key.replace('_', '-')} (was {then[key]}, is {now.get(key)})" for key in changed)
        raise SystemExit(f"{path} belongs to other options: {names}. Use the same, or another --output-dir.")
    if state["num_cells"] != num_cells:
        raise SystemExit(f"{path} was trained on {state['num_cells']} cells, but there are {num_cells} now.")


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.output_dir is None:
        if args.resume:
            raise SystemExit("--resume needs --output-dir: the folder of the run to continue.")
        args.output_dir = Path("outputs") / f"single_cell-{datetime.now():%Y%m%d-%H%M%S}"
    begun = sorted(args.output_dir.glob("*.pt"))
    if begun and not args.resume:
        raise SystemExit(f"{begun[0]} exists: continue that run with --resume, or choose another --output-dir.")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    source = load(args)
    print(f"{len(source.cells.counts)} cells, {source.cells.counts.shape[1]} genes; results in {args.output_dir}")

    versions = {module.__name__: str(module.__version__) for module in (pyro_hyperbolic, torch, pyro)}
    result: dict[str, Any] = {"options": options_of(args), "versions": versions, "python": sys.version.split()[0]}
    result["runs"] = []
    for seed in args.seeds:
        train_cells, _, test = source.cells.split(seed)
        for name in args.models:
            vae, history = train(name, seed, source, train_cells, args)
            scores = evaluate(vae, source, train_cells, test, args)
            if not all(map(math.isfinite, scores.values())):
                raise SystemExit(f"{name}, seed {seed}, has diverged: try a smaller --learning-rate.")
            result["runs"].append({"model": name, "seed": seed, "history": history} | scores)
            save_json(result, args.output_dir / "metrics.json")
            if name == args.models[-1] and seed == args.seeds[0]:
                write(vae, source, test, args)
    report(result["runs"], args)
    return result


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--data", default="paul15", help=f"{' or '.join(SOURCES)}, or a .h5ad file")
    p.add_argument("--layer", default=None, help="of the file: the layer with the counts; its X by default")
    p.add_argument("--batch-key", default=None, help="of the file: the column of the batches; one batch by default")
    p.add_argument("--label-key", default=None, help="of the file: the column of the cell types")
    p.add_argument("--root-label", default=None, help="of the file: the type of the root cell, for pseudotime")
    p.add_argument("--levels", type=positive(int), default=5, help="of the simulated lineage")
    p.add_argument("--num-cells", type=positive(int), default=3000, help="of the simulated lineage")
    p.add_argument("--num-batches", type=positive(int), default=3, help="of the simulated lineage")
    p.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="which to train; the last one is drawn"
    )
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c of curvature -c of the hyperbolic model")
    p.add_argument("--latent-dim", type=positive(int), default=2, help="of the latent space; 2 is drawn")
    p.add_argument("--hidden-dim", type=positive(int), default=128, help="width of the hidden layers")
    p.add_argument("--num-epochs", type=positive(int), default=80, help="passes over the training cells")
    p.add_argument("--batch-size", type=positive(int), default=128, help="cells per step")
    p.add_argument("--learning-rate", type=positive(float), default=5e-3, help="of Adam")
    p.add_argument("--iwae-samples", type=positive(int), default=100, help="of the estimate of the log-likelihood")
    p.add_argument("--seeds", type=seeds, default=[0], help="of splits, starts and noise: 0 or 0,1,5 or 0-9")
    p.add_argument("--output-dir", type=Path, default=None, help="of the results; by default new, in outputs/")
    p.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    p.add_argument("--threads", type=positive(int), default=None, help="CPU threads; torch's choice by default")
    return p


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    return parser().parse_args(arguments)


if __name__ == "__main__":
    main(parse())
