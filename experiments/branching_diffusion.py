"""Embed a branching diffusion in the Poincaré disc and in the plane (the paper's Section 5.1).

The data are noisy observations of the nodes of a tree along which a 50-dimensional point diffuses. No model sees the
tree. The example trains a hyperbolic and a Euclidean auto-encoder (:class:`pyro_hyperbolic.models.HyperbolicVAE` and
its twin) with ``pyro.infer.SVI`` and compares their test marginal likelihoods. The figure shows where they put the
nodes, next to two classical embeddings: principal components and a Gaussian process latent variable model.

What to look for: in ``embeddings.png``, lines join the nodes as in the tree, which no method has seen, and the black
dot is the root. The fewer lines cross, the better the method has found the tree. In ``loss.png``, compare the test
losses: the better model has the lower one.

Every few epochs the state is written to the output folder. If a run is interrupted, continue it with ``--resume``. It
ends bit for bit where an uninterrupted run would have.

    python -m experiments.branching_diffusion
    python -m experiments.branching_diffusion --curvature 0.3 --prior-scale 1 --num-epochs 1000
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from examples.command import add_common, command, make_parser, natural, positive
from examples.runs import load_run, record, save_json, save_run
from experiments.embeddings import gplvm, principal_components
from pyro_hyperbolic import PoincareBall, datasets
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models import DISTRIBUTIONS, VAE, EuclideanVAE, HyperbolicVAE

Data = datasets.BranchingDiffusion
MODELS = ("hyperbolic", "euclidean")
# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = ("num_epochs", "iwae_samples", "gplvm_steps", "checkpoint_every")


def build_model(name: str, args: argparse.Namespace, dim: int) -> VAE:
    """One of the two auto-encoders with two latent dimensions; ``.model`` and ``.guide`` are its Pyro programs."""
    options = {"hidden_dim": args.hidden_dim, "likelihood": "normal", "prior_scale": args.prior_scale}
    if name == "euclidean":
        return EuclideanVAE(2, dim, **options)
    ball = PoincareBall(args.curvature)
    return HyperbolicVAE(ball, 2, dim, prior=args.prior, posterior=args.posterior, **options)


def train(name: str, data: Data, args: argparse.Namespace) -> tuple[VAE, dict[str, list[float]]]:
    """Fit one model, from its checkpoint if there is one; its losses per observation, epoch by epoch."""
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = build_model(name, args, data.train.shape[1])
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    svi = SVI(vae.model, vae.guide, optimiser, Trace_ELBO())
    path = args.output_dir / f"{name}.pt"
    history: dict[str, list[float]] = {"train_loss": [], "test_loss": [], "seconds": []}
    state = load_run(path, args, FREE_OPTIONS)
    if state is not None:
        vae.load_state_dict(state["model"])
        optimiser.set_state(state["optimiser"])
        history = state["history"]

    done = len(history["train_loss"])
    with tqdm(initial=done, total=args.num_epochs, desc=name, leave=False, unit="epoch", disable=None) as bar:
        for epoch in range(done + 1, args.num_epochs + 1):
            start = time.perf_counter()
            order = torch.randperm(len(data.train))
            loss = sum(svi.step(data.train[index]) for index in order.split(args.batch_size)) / len(order)
            history["train_loss"].append(loss)
            history["test_loss"].append(svi.evaluate_loss(data.test) / len(data.test))
            history["seconds"].append(time.perf_counter() - start)
            bar.update()
            if epoch % args.checkpoint_every == 0 or epoch == args.num_epochs:
                state = {"model": vae.state_dict(), "optimiser": optimiser.get_state(), "history": history}
                save_run(state, path, args)
                test_loss = history["test_loss"][-1]
                bar.write(
                    f"{name}, epoch {epoch}/{args.num_epochs}: train elbo {-loss:.2f}, test elbo {-test_loss:.2f}"
                )
    return vae, history


def draw(models: dict[str, VAE], data: Data, result: dict[str, Any], args: argparse.Namespace) -> None:
    """The four embeddings of the tree, and the losses."""
    import matplotlib.pyplot as plt

    from experiments.figures.branching import draw_embedding, embed
    from pyro_hyperbolic import plotting
    from pyro_hyperbolic.plotting.canvas import PALETTE

    plane, ball = PoincareBall(0.0), PoincareBall(args.curvature)
    panels: list[tuple[str, PoincareBall, Tensor, Tensor | None]] = []
    for (name, vae), manifold in zip(models.items(), (ball, plane), strict=True):
        title = rf"Poincaré VAE, $c = {args.curvature:g}$" if name == "hyperbolic" else "Euclidean VAE"
        panels.append((title, manifold, *embed(vae, data)))
    components = principal_components(data)
    panels.append(("PCA", plane, *components))
    if args.gplvm_steps:
        panels.append(("GPLVM", plane, gplvm(data.nodes, components[0], args.gplvm_steps, args.seed), None))

    figure, axes = plt.subplots(1, len(panels), figsize=(2.6 * len(panels), 3.1), layout="constrained")
    for ax, (title, manifold, nodes, observations) in zip(axes, panels, strict=True):
        draw_embedding(data, manifold, ax, nodes, observations)
        ax.set_title(title, fontsize="medium")
    if args.iwae_samples:
        for ax, name in zip(axes, models, strict=False):
            ax.set_xlabel(f"negative test IWAE {result['models'][name]['negative_iwae']:.2f}")
    plotting.save(figure, args.output_dir / "embeddings.png")

    figure, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for name, colour in zip(models, PALETTE, strict=False):
        history = result["models"][name]["history"]
        ax.plot(history["train_loss"], color=colour, alpha=0.4, linewidth=0.8, label=f"{name}, training")
        ax.plot(history["test_loss"], color=colour, linewidth=1.0, label=f"{name}, test")
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss per observation")
    ax.legend(frameon=False)
    plotting.save(figure, args.output_dir / "loss.png")
    plt.close("all")


def run(args: argparse.Namespace) -> dict[str, Any]:
    data = datasets.branching_diffusion(depth=args.depth, branching=args.branching, seed=args.seed)
    sizes = f"{len(data.nodes)} nodes, {len(data.train)} observations for training and {len(data.test)} for the test"
    print(f"{sizes}; results in {args.output_dir}", flush=True)

    args.output_dir.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = record(args) | {"models": {}}
    models = {}
    for name in MODELS:
        models[name], history = train(name, data, args)
        entry: dict[str, Any] = {"history": history}
        if args.iwae_samples:
            vae = models[name]
            estimates, errors = log_marginal_likelihood(
                vae.model, vae.guide, data.test, num_samples=args.iwae_samples, standard_error=True, progress=True
            )
            entry["negative_iwae"] = -estimates.mean().item()
            entry["negative_iwae_error"] = errors.square().mean().sqrt().item() / len(errors) ** 0.5
            print(f"{name}: negative IWAE-{args.iwae_samples} on the test set {entry['negative_iwae']:.2f}", flush=True)
        result["models"][name] = entry
        save_json(result, args.output_dir / "metrics.json")
    draw(models, data, result, args)
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.branching_diffusion")
    p.add_argument("--curvature", type=positive(float), default=1.2, help="c; the curvature is -c (paper: 0.1 to 1.2)")
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="hyperbolic prior distribution")
    p.add_argument(
        "--posterior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="hyperbolic posterior distribution"
    )
    p.add_argument("--prior-scale", type=positive(float), default=1.7, help="scale of both priors (paper: 1 and 1.7)")
    p.add_argument("--hidden-dim", type=positive(int), default=200, help="width of the hidden layers (paper: 200)")
    p.add_argument("--depth", type=positive(int), default=6, help="generations of the tree below its root (paper: 6)")
    p.add_argument("--branching", type=positive(int), default=2, help="children per node (paper: 2)")
    p.add_argument("--num-epochs", type=positive(int), default=500, help="passes over the data (paper: 1000)")
    p.add_argument("--batch-size", type=positive(int), default=64, help="observations per step (paper: 64)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="learning rate of Adam (paper: 1e-3)")
    p.add_argument("--iwae-samples", type=natural, default=5000, help="samples per estimate; 0 for none (paper: 5000)")
    p.add_argument("--gplvm-steps", type=natural, default=1000, help="steps of the GPLVM baseline; 0 for none")
    p.add_argument("--checkpoint-every", type=positive(int), default=50, help="epochs between checkpoints")
    add_common(p, "--seed", "--threads", "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint=f"{MODELS[0]}.pt")

if __name__ == "__main__":
    main()
