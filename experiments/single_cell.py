"""Embed single cells by their counts, and compare hyperbolic, Euclidean and nearly flat auto-encoders.

:class:`pyro_hyperbolic.models.CountVAE` has a negative binomial likelihood with a dispersion for every gene, size
factors and batches. For every seed, the example trains three models on 70% of the cells: with curvature
(``hyperbolic``), without it (``euclidean``), and the hyperbolic model with next to no curvature (``control``), which
separates what is due to curvature from what is due to the layers. The scores are on the 20% of cells that are held out
for testing:

* the IWAE estimate of the log-likelihood of a cell,
* the share of cells whose neighbours have their label,
* the correlation of latent and lineage distances, and the mixing of batches, where these are known,
* how often the 90% regions of posteriors hold the truth, for data drawn from the model: those of the encoder, and
  those of draws from exact posteriors (``exact``).

With several seeds, scores are means with 95% intervals.

The cells are those of Paul et al. (2015), which come with the package, a simulated lineage, or your own ``.h5ad`` file,
which needs the package ``anndata``. The embedding of the last model and the first seed is written to ``embedding.npz``,
and into a copy of your file.

What to look for in ``disc.png``: each dot is the posterior mean of a cell. Coloured by label, cells of one type or
lineage should form an arm of the disc, with early types where the arms meet. Coloured by pseudotime, the distance from
a root cell, colours should run outwards along the arms. Coloured by batch, colours should be mixed everywhere.
``latent.html`` is a web page on which you can move through the disc.

Every epoch ends with a checkpoint. If a run is interrupted, continue it with ``--resume``. It ends where an
uninterrupted run would have.

    python -m experiments.single_cell
    python -m experiments.single_cell --data branching --seeds 0-4
    python -m experiments.single_cell --data cells.h5ad --layer counts --batch-key batch --label-key cell_type
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from examples.command import add_common, at_least, command, input_file, make_parser, positive, seeds
from examples.intervals import mean_interval
from examples.runs import load_run, record, save_json, save_run
from experiments.cells import KnownCells, build_count_vae, coverage_scores, embedding_scores
from experiments.table1 import NEARLY_FLAT
from pyro_hyperbolic import PoincareBall, datasets, plotting
from pyro_hyperbolic.analysis import pseudotime
from pyro_hyperbolic.infer import FastSVI, Minibatches, log_marginal_likelihood
from pyro_hyperbolic.models import CountVAE

CURVATURES = {"euclidean": 0.0, "control": NEARLY_FLAT, "hyperbolic": 1.0}
# Options that may change between the parts of one run; all others decide the result.
FREE = ("num_epochs", "iwae_samples", "seeds", "models")
SCORES = {"iwae": "IWAE", "knn_accuracy": "k-NN", "correlation": "lineage", "batch_mixing": "mixing"}
SCORES |= {"coverage": "coverage", "exact_coverage": "exact"}
COVERED = 200  # cells for which coverage is measured


class Source(NamedTuple):
    """Cells, the labels that the picture shows, candidates for the root of the lineage, and the ``AnnData`` of a file.

    All but the cells may be missing.
    """

    cells: KnownCells
    shown: np.ndarray | None = None
    roots: Tensor | None = None
    adata: Any = None


def paul15(args: argparse.Namespace) -> Source:
    found = datasets.paul15()
    roots = (found.types == found.type_names.index("Multipotent progenitors")).nonzero().flatten()
    return Source(KnownCells(found.counts, found.types), np.array(found.type_names)[found.types.numpy()], roots)


def branching(args: argparse.Namespace) -> Source:
    found = datasets.branching_cells(cells=args.num_cells)
    cells = KnownCells(found.counts, found.nodes, found.batches, found.distances)
    earliest = found.times.argsort()[: max(1, args.num_cells // 100)]
    return Source(cells, found.lineages(2).numpy(), earliest)  # there are more edges than colours: two levels


def h5ad(args: argparse.Namespace) -> Source:
    try:
        import anndata
    except ImportError as error:
        raise ImportError(
            f"--data {args.data} needs the package anndata; install it with pip install anndata"
        ) from error
    try:
        adata = anndata.read_h5ad(args.data)
    except OSError as error:
        raise ValueError(f"--data {args.data} is not a .h5ad file, or is damaged ({error}); give another.") from error
    annotated = datasets.from_anndata(adata, args.layer, args.batch_key)
    counts = torch.cat([batch["x"] for batch in annotated.in_order(1024)]).float()
    batches = None if annotated.covariates is None else annotated.covariates["batch"]
    if args.label_key is None:
        return Source(KnownCells(counts, None, batches), adata=adata)
    if args.label_key not in adata.obs:
        raise ValueError(f"--label-key must be one of {sorted(adata.obs)}, got {args.label_key!r}.")
    shown = np.array([str(value) for value in adata.obs[args.label_key]])
    known, codes = np.unique(shown, return_inverse=True)
    roots = None
    if args.root_label is not None:
        if args.root_label not in known:
            raise ValueError(f"--root-label must be one of {known.tolist()}, got {args.root_label!r}.")
        roots = torch.from_numpy(shown == args.root_label).nonzero().flatten()
    return Source(KnownCells(counts, torch.from_numpy(codes.astype(np.int64)), batches), shown, roots, adata)


SOURCES = {"paul15": paul15, "branching": branching}


def train(name: str, seed: int, cells: KnownCells, rows: Tensor, args: argparse.Namespace) -> tuple[CountVAE, dict]:
    """One model from one seed, from its checkpoint if there is one; its losses per cell, epoch by epoch."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    vae = build_count_vae(CURVATURES[name], args.latent_dim, cells, args.hidden_dim)
    vae.init_output_bias(cells.counts[rows])
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    batches = Minibatches(cells.inputs(rows), args.batch_size, seed=seed)
    path, size = args.output_dir / f"{name}-{seed}.pt", len(cells.counts)
    history: dict[str, list[float]] = {"train_loss": [], "seconds": []}
    state = load_run(path, args, FREE, cells=size)
    if state is not None:
        vae.load_state_dict(state["model"])
        svi.load_state_dict(state["trainer"])
        history = state["history"]
    for epoch in range(len(history["train_loss"]) + 1, args.num_epochs + 1):
        start = time.perf_counter()
        losses = svi.run(batches.epoch(epoch))
        history["train_loss"].append(losses.sum().item() / len(rows))
        history["seconds"].append(time.perf_counter() - start)
        state = {"model": vae.state_dict(), "trainer": svi.state_dict(), "history": history}
        save_run(state, path, args, cells=size)
        if epoch % max(1, args.num_epochs // 5) == 0 or epoch == args.num_epochs:
            elbo = -history["train_loss"][-1]
            print(f"{name}, seed {seed}, epoch {epoch}/{args.num_epochs}: train elbo {elbo:.2f}", flush=True)
    return vae, history


@torch.no_grad()
def write(vae: CountVAE, source: Source, test: Tensor, args: argparse.Namespace) -> None:
    """The embedding of all cells as files, and as a picture if it is one of the disc."""
    cells, manifold = source.cells, vae.manifold
    posterior = vae.encode(**cells.inputs(torch.arange(len(cells.counts))))
    z = posterior.mean
    times = None if source.roots is None else pseudotime(z, source.roots, manifold)
    arrays = {"labels": cells.labels, "batches": cells.batches, "pseudotime": times, "z": z}
    arrays["scale"] = getattr(posterior, "base_dist", posterior).scale  # that of flat space is a Normal inside
    arrays["is_test"] = torch.zeros(len(z), dtype=torch.bool).index_fill(0, test, True)
    known = {name: value.numpy() for name, value in arrays.items() if value is not None}
    np.savez_compressed(args.output_dir / "embedding.npz", allow_pickle=False, **known)
    if source.adata is not None:
        datasets.to_anndata(source.adata, vae, datasets.from_anndata(source.adata, args.layer, args.batch_key))
        source.adata.write_h5ad(args.output_dir / "embedding.h5ad")
    if args.latent_dim == 2:
        panels: dict[str, Any] = {"label": source.shown, "pseudotime": times, "batch": cells.batches}
        draw(z, manifold, {title: np.asarray(values) for title, values in panels.items() if values is not None}, args)


def draw(z: Tensor, manifold: Any, panels: dict[str, Any], args: argparse.Namespace) -> None:
    """A disc for each of the panels, labels or numbers of the cells, or one without colours."""
    panels = panels or {"cells": None}
    ball = manifold if isinstance(manifold, PoincareBall) else PoincareBall(0.0)
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.8), squeeze=False, layout="constrained")
    # In random order: no class lies on top of all others.
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    for ax, (title, values) in zip(axes[0], panels.items(), strict=True):
        plotting.embedding(z[order], ball, labels=None if values is None else values[order], ax=ax, s=4, alpha=0.8)
        ax.set_title(title, fontsize="medium")
    plotting.save(figure, args.output_dir / "disc.png")
    plt.close(figure)
    labels = next(iter(panels.values()))
    plotting.explore(z, manifold, args.output_dir / "latent.html", labels=labels, title="Single cells")


def report(runs: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """The scores of the models; means with intervals over several seeds."""
    known = [score for score in SCORES if score in runs[0]]
    print(f"{'':12}" + "".join(f"{SCORES[score]:>18}" for score in known))
    for name in args.models:
        row = ""
        for score in known:
            mean, half = mean_interval([entry[score] for entry in runs if entry["model"] == name])
            digits = 2 if score == "iwae" else 3
            row += f"{f'{mean:.{digits}f}' + ('' if half is None else f' ± {half:.{digits}f}'):>18}"
        print(f"{name:12}{row}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    source = SOURCES.get(args.data, h5ad)(args)
    cells = source.cells
    print(f"{len(cells.counts)} cells, {cells.counts.shape[1]} genes; results in {args.output_dir}")
    result: dict[str, Any] = record(args) | {"runs": []}
    for seed in args.seeds:
        train_cells, _, test = cells.split(seed)
        for name in args.models:
            vae, history = train(name, seed, cells, train_cells, args)
            pyro.set_rng_seed(0)
            bound = log_marginal_likelihood(vae.model, vae.guide, num_samples=args.iwae_samples, **cells.inputs(test))
            scores = {"iwae": bound.mean().item()} | embedding_scores(vae, cells, train_cells, test)
            scores |= coverage_scores(vae, cells, test[:COVERED])
            if not all(map(math.isfinite, scores.values())):
                raise ValueError(f"{name}, seed {seed}, has diverged; try a smaller --learning-rate.")
            result["runs"].append({"model": name, "seed": seed, "history": history} | scores)
            save_json(result, args.output_dir / "metrics.json")
            if name == args.models[-1] and seed == args.seeds[0]:
                write(vae, source, test, args)
    report(result["runs"], args)
    return result


def data(text: str) -> str:
    """A name, or a file that is there."""
    try:
        return text if text in SOURCES else str(input_file(text))
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {' or '.join(SOURCES)}") from error


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.single_cell")
    p.add_argument("--data", type=data, default="paul15", help=f"{' or '.join(SOURCES)}, or a .h5ad file")
    p.add_argument("--layer", help="layer of the file that holds the counts (default: its X)")
    p.add_argument("--batch-key", help="column of the file with the batches (default: one batch)")
    p.add_argument("--label-key", help="column of the file with the cell types (default: no types)")
    p.add_argument("--root-label", help="cell type of the root, for pseudotime (default: none)")
    p.add_argument("--num-cells", type=at_least(100), default=3000, help="cells of the simulated lineage")
    names, text = list(CURVATURES), "models to train; the last one is drawn"
    p.add_argument("--models", nargs="+", choices=names, default=names, help=text)
    p.add_argument("--latent-dim", type=positive(int), default=2, help="latent dimension; only 2 is drawn")
    p.add_argument("--hidden-dim", type=positive(int), default=128, help="width of the hidden layers")
    p.add_argument("--num-epochs", type=positive(int), default=80, help="passes over the training cells")
    p.add_argument("--batch-size", type=positive(int), default=128, help="cells per step")
    p.add_argument("--learning-rate", type=positive(float), default=5e-3, help="learning rate of Adam")
    p.add_argument("--iwae-samples", type=positive(int), default=100, help="samples of the log-likelihood estimate")
    p.add_argument("--seeds", type=seeds, default=[0], help="seeds of splits, starts and noise: 0 or 0,1,5 or 0-9")
    add_common(p, "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint="*-*.pt")

if __name__ == "__main__":
    main()
