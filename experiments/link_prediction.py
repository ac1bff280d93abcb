"""Predict missing links of a graph from hyperbolic and Euclidean embeddings (the paper's Section 5.3).

The example holds out some edges and trains a variational graph auto-encoder
(:class:`pyro_hyperbolic.models.ManifoldVGAE` or its Euclidean twin) on the others with ``pyro.infer.SVI``. The model
then has to tell the held-out edges from as many pairs without an edge. The table gives the area under the ROC curve and
the average precision over several splits, which both models share, each with its 95% interval. In a tree every held-out
edge leaves two separate parts behind, so little is known about it. Expect scores not far above one half there.

What to look for: ``curves.png`` shows the loss and the score on held-out edges. Where the score falls while the loss
still falls, a model overfits the training edges. With ``--space p2``, ``embeddings.png`` shows both embeddings. Dashed
lines are held-out edges. Where they are short, the model has put their ends side by side without having seen them.
``latent.html`` shows the same as a web page that you can move through.

Every finished training is written to the output folder at once. If a run is interrupted, continue it with ``--resume``,
which repeats nothing that is finished. More ``--seeds`` extend a run.

    python -m experiments.link_prediction
    python -m experiments.link_prediction --graph diseases --seeds 10
    python -m experiments.link_prediction --graph my.edges --num-negatives 100000 --space p2
    python -m experiments.link_prediction --space h2,s2,e1
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from examples.command import add_common, command, fraction, make_parser, positive
from examples.intervals import mean_interval
from examples.runs import record, require_same, save_json
from pyro_hyperbolic import Lorentz, PoincareBall, Product, datasets, geometry
from pyro_hyperbolic.infer import load_checkpoint, save_checkpoint
from pyro_hyperbolic.models import DISTRIBUTIONS, VGAE, EuclideanVGAE, ManifoldVGAE

MODELS = ("euclidean", "hyperbolic")
SCORES = ("auc", "ap")
# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = ("seeds",)
# Epochs between two points of the curves.
STRIDE = 10
COLOURS = {"euclidean": "#ffa90e", "hyperbolic": "#3f90da"}


def build_model(name: str, graph: datasets.Graph, edges: Tensor, args: argparse.Namespace) -> VGAE:
    """One of the two auto-encoders; ``.model`` and ``.guide`` are its Pyro programs."""
    options = {
        "latent_dim": geometry.signature_dim(args.space),
        "hidden_dim": args.hidden_dim,
        "prior_scale": args.prior_scale,
        "posterior_scale": args.posterior_scale,
    }
    if name == "euclidean":
        return EuclideanVGAE(graph.num_nodes, edges, **options)
    space = geometry.from_signature(args.space, c=args.curvature, k=-args.curvature)
    return ManifoldVGAE(space, graph.num_nodes, edges, prior=args.prior, posterior=args.posterior, **options)


def train(name: str, graph: datasets.Graph, seed: int, args: argparse.Namespace) -> tuple[VGAE, dict[str, Any]]:
    """Train one model on the split of one seed; the model, and its scores."""
    split = datasets.split_edges(graph, test=args.test, validation=args.validation, seed=seed)
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    vgae = build_model(name, graph, split.train, args).to(args.device)
    svi = SVI(vgae.model, vgae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    history: dict[str, list[float]] = {"epoch": [], "loss": [], "auc": []}
    start = time.perf_counter()
    title = f"{name}, seed {seed}"
    with tqdm(range(1, args.num_epochs + 1), desc=title, leave=False, unit="epoch", disable=None) as bar:
        for epoch in bar:
            loss = svi.step(args.num_negatives) / graph.num_nodes
            if epoch % STRIDE == 0 or epoch == args.num_epochs:
                auc = vgae.link_scores(split.test, split.test_negatives)["auc"]
                for key, value in (("epoch", epoch), ("loss", loss), ("auc", auc)):
                    history[key].append(value)
                bar.set_postfix(loss=f"{loss:.2f}", auc=f"{100 * auc:.1f}")
    run = {"model": name, "seed": seed} | vgae.link_scores(split.test, split.test_negatives)
    if len(split.validation):
        run["validation"] = vgae.link_scores(split.validation, split.validation_negatives)
    return vgae, run | {"seconds": time.perf_counter() - start, "history": history}


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Means and intervals of the scores of each model, and of their differences on the same split."""
    values = {(run["model"], run["seed"], key): run[key] for run in runs for key in SCORES}
    seeds = sorted({run["seed"] for run in runs})
    rows = {name: {key: [values[name, seed, key] for seed in seeds] for key in SCORES} for name in MODELS}
    rows["difference"] = {
        key: [values["hyperbolic", seed, key] - values["euclidean", seed, key] for seed in seeds] for key in SCORES
    }
    return {name: {key: mean_interval(row[key]) for key in SCORES} for name, row in rows.items()}


def draw(graph: datasets.Graph, runs: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Losses and scores during the trainings, and the embeddings of the first split.

    The hyperbolic one as a page; in two dimensions both as a picture.
    """
    import matplotlib.pyplot as plt

    from pyro_hyperbolic import plotting

    figure, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained")
    for ax, key, label, factor in zip(axes, ("loss", "auc"), ("loss per node", "test AUC (%)"), (1, 100), strict=True):
        for name in MODELS:
            histories = [run["history"] for run in runs if run["model"] == name]
            curves = factor * torch.tensor([history[key] for history in histories], dtype=torch.float64)
            epochs = histories[0]["epoch"]
            ax.plot(epochs, curves.T.numpy(), color=COLOURS[name], linewidth=0.5, alpha=0.35)
            ax.plot(epochs, curves.mean(0).numpy(), color=COLOURS[name], linewidth=1.6, label=name)
        ax.set_xlabel("epoch")
        ax.set_ylabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    plotting.save(figure, args.output_dir / "curves.png")

    seed = runs[0]["seed"]
    split = datasets.split_edges(graph, test=args.test, validation=args.validation, seed=seed)
    explore(graph, split, seed, args)
    if args.space in ("p2", "h2"):
        figure, axes = plt.subplots(1, 2, figsize=(8, 4.7), layout="constrained")
        for ax, name in zip(axes, MODELS, strict=True):
            vgae = build_model(name, graph, split.train, args)
            vgae.load_state_dict(load_checkpoint(model_path(name, seed, args))["model"])
            with torch.no_grad():
                z = vgae.encode().mean
            z = vgae.manifold.to_poincare(z) if isinstance(vgae.manifold, Lorentz) else z
            ball = PoincareBall(args.curvature if name == "hyperbolic" else 0.0)
            plotting.embedding(z, ball, edges=split.train, ax=ax, s=10)
            first, second = split.test.T
            style: Any = {"color": "#bd1f01", "linewidth": 1.0, "linestyle": (0, (3, 2))}
            plotting.geodesic(z[first], z[second], ball, ax, label="held-out edges", **style)
            ax.set_title(name, fontsize="medium")
            ax.set_box_aspect(1)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", frameon=False)
        plotting.save(figure, args.output_dir / "embeddings.png")
    plt.close("all")


@torch.no_grad()
def explore(graph: datasets.Graph, split: datasets.EdgeSplit, seed: int, args: argparse.Namespace) -> None:
    """A page for each factor of the curved space, on which the embedding can be moved."""
    from pyro_hyperbolic import plotting

    vgae = build_model("hyperbolic", graph, split.train, args)
    vgae.load_state_dict(load_checkpoint(model_path("hyperbolic", seed, args))["model"])
    posterior = vgae.encode()
    degrees = torch.bincount(split.train.flatten(), minlength=graph.num_nodes)
    space, z = vgae.manifold, posterior.mean
    parts = space.split(z) if isinstance(space, Product) else (z,)
    for number, (part, (factor, dim)) in enumerate(zip(parts, space.leaves(vgae.latent.dim), strict=True), 1):
        page = plotting.explore(
            part,
            factor,
            args.output_dir / ("latent.html" if len(parts) == 1 else f"latent{number}.html"),
            labels=degrees.double().add(1).log2(),
            names=[f"node {i} of degree {degree}" for i, degree in enumerate(degrees.tolist())],
            edges=split.train,
            scales=posterior if dim == 2 and len(parts) == 1 else None,
            title=f"Latent space of {Path(args.graph).name}",
            description=f"{graph.num_nodes} nodes with the edges that were not held out; colours: log2(1 + degree).",
        )
        print(f"open {page.path} in a browser to move through the latent space")


def model_path(name: str, seed: int, args: argparse.Namespace) -> Path:
    return args.output_dir / f"{name}-{seed}.pt"


def finished_runs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The trainings that the output folder holds already, with their models."""
    path = args.output_dir / "metrics.json"
    if not path.exists():
        return []
    try:
        known = json.loads(path.read_text("utf-8"))
        then = known["options"]
        runs = [entry for entry in known["runs"] if model_path(entry["model"], entry["seed"], args).exists()]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a record of this example, or is damaged ({type(error).__name__});"
            " choose another --output-dir."
        ) from error
    require_same(path, then, args, FREE_OPTIONS)
    return runs


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.posterior_scale == "diagonal" and args.posterior != "wrapped":
        raise ValueError("--posterior-scale diagonal needs --posterior wrapped.")
    try:
        graph = datasets.graph(args.graph, args.data_dir)
    except (OSError, ValueError) as error:
        raise ValueError(f"--graph {args.graph}: {error}") from error
    datasets.split_edges(graph, test=args.test, validation=args.validation)  # before any work, whether it can be
    runs = finished_runs(args)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    print(f"{args.graph}: {graph.num_nodes} nodes, {graph.num_edges} edges; results in {args.output_dir}", flush=True)

    facts = record(args) | {"graph": {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}}
    finished = {(entry["model"], entry["seed"]) for entry in runs}
    for seed in range(args.seeds):
        for name in MODELS:
            if (name, seed) in finished:
                continue
            vgae, entry = train(name, graph, seed, args)
            save_checkpoint({"model": vgae.state_dict(), "options": facts["options"]}, model_path(name, seed, args))
            runs.append(entry)
            save_json(facts | {"runs": runs}, args.output_dir / "metrics.json")
            scores = f"AUC {100 * entry['auc']:.1f}, AP {100 * entry['ap']:.1f}"
            print(f"{name}, seed {seed}: {scores} ({entry['seconds']:.0f} s)", flush=True)

    wanted = [entry for entry in runs if entry["seed"] < args.seeds]
    summary = summarise(wanted)
    print(f"\n{'test set':12}{'AUC':>14}{'AP':>14}")
    for name, row in summary.items():
        print(f"{name:12}" + "".join(f"{percent(*cell):>14}" for cell in row.values()))
    print(f"in percent; mean and 95% interval; splits: {args.seeds}; the difference is that on the same split")
    result = facts | {"runs": runs, "summary": summary}
    save_json(result, args.output_dir / "metrics.json")
    draw(graph, wanted, args)
    return result


def percent(mean: float, half: float | None) -> str:
    return f"{100 * mean:.1f}" + ("" if half is None else f" ± {100 * half:.1f}")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.link_prediction")
    p.add_argument(
        "--graph",
        default="karate",
        help="phylogenetic, csphd, diseases (the paper's), karate, balanced_tree:BRANCHING:HEIGHT, "
        "or the path of an edge list",
    )
    p.add_argument("--seeds", type=positive(int), default=5, help="splits, and runs of each model (paper: 40)")
    add_common(p, "--space")
    p.set_defaults(space="p5")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c; factors have curvature -c or c")
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="prior (paper: wrapped)")
    p.add_argument("--posterior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="posterior (paper: wrapped)")
    p.add_argument(
        "--posterior-scale", choices=["diagonal", "isotropic"], default="diagonal", help="scales of a node's posterior"
    )
    p.add_argument("--prior-scale", type=positive(float), default=1.0, help="scale of both priors")
    p.add_argument("--hidden-dim", type=positive(int), default=32, help="width of the graph convolution (paper: 32)")
    p.add_argument("--num-epochs", type=positive(int), default=800, help="full-batch steps (paper: 800)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-2, help="learning rate of Adam (paper: 1e-2)")
    p.add_argument(
        "--num-negatives",
        type=positive(int),
        help="pairs without an edge per step, for graphs whose N^2 pairs do not fit into memory (default: all)",
    )
    p.add_argument("--test", type=fraction, default=0.1, help="fraction of the edges to predict (paper: 0.1)")
    p.add_argument(
        "--validation",
        type=fraction,
        default=0.05,
        help="further fraction to hold out, only reported (paper: 0.05)",
    )
    add_common(p, "--device", "--threads", "--data-dir", "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint="metrics.json")

if __name__ == "__main__":
    main()
