"""Train a variational auto-encoder with a hyperbolic latent space on MNIST (the paper's Section 5.2).

The model and the guide are ordinary Pyro programs (:class:`pyro_hyperbolic.models.HyperbolicVAE`), trained by
``pyro.infer.SVI``. The output folder receives a checkpoint after every epoch, the metrics, and pictures of the latent
space, of reconstructions and of samples. A run that was interrupted goes on with ``--resume`` and ends bit for
bit where an uninterrupted one would have.

    python examples/mnist_svi.py
    python examples/mnist_svi.py --curvature 0.7 --prior riemannian --posterior riemannian --num-epochs 80
    python examples/mnist_svi.py --loss iwae --particles 8 --curvature learn
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import ELBO, SVI, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from tqdm.auto import tqdm

import pyro_hyperbolic
from pyro_hyperbolic import Lorentz, PoincareBall, datasets
from pyro_hyperbolic.infer import FastSVI, load_checkpoint, log_marginal_likelihood, save_checkpoint, save_json
from pyro_hyperbolic.models import LAWS, VAE, EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import DECODERS, ManifoldModule

History = list[dict[str, float]]

LOSSES: dict[str, Any] = {
    "trace": lambda particles: Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=1),
    "meanfield": lambda particles: TraceMeanField_ELBO(
        num_particles=particles, vectorize_particles=True, max_plate_nesting=1
    ),
    "iwae": lambda particles: RenyiELBO(
        alpha=0, num_particles=particles, vectorize_particles=True, max_plate_nesting=1
    ),
}
CHARTS = {"poincare": PoincareBall, "lorentz": Lorentz}
PRECISIONS = {"32": torch.float32, "64": torch.float64}
REPORT_EVERY = 20  # batches between two looks at the loss, each of which waits for the device
# What may change between the parts of one run; everything else decides the result.
FREE_OPTIONS = {"num_epochs", "resume", "output_dir", "data_dir", "device", "iwae_samples", "gyroplanes", "threads"}


def build_model(args: argparse.Namespace) -> VAE:
    """The auto-encoder that the options describe; ``.model`` and ``.guide`` are its Pyro programs."""
    options = {"hidden_dim": args.hidden_dim, "prior_scale": args.prior_scale, "posterior_scale": args.posterior_scale}
    if args.curvature == 0.0:
        return EuclideanVAE(args.latent_dim, (28, 28), **options)
    learn = args.curvature == "learn"
    return HyperbolicVAE(
        ManifoldModule(CHARTS[args.manifold](1.0 if learn else args.curvature), learnable=learn),
        args.latent_dim,
        (28, 28),
        prior=args.prior,
        posterior=args.posterior,
        decoder=args.decoder,
        latent_dtype=PRECISIONS[args.latent_precision],
        **options,
    )


def train_epoch(svi: SVI | FastSVI, images: Tensor, batch_size: int, epoch: int, seed: int, title: str) -> float:
    """One pass over the data in an order that depends on the seed and the epoch alone; the mean loss per image."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
    total: Any = 0.0
    with tqdm(order.split(batch_size), desc=title, leave=False, unit="batch", disable=None) as bar:
        for number, index in enumerate(bar, 1):
            total = total + svi.step(images[index.to(images.device)])
            if number % REPORT_EVERY == 0:
                bar.set_postfix(elbo=f"{-float(total) / (number * batch_size):.2f}")
    return float(total) / len(images)


@torch.no_grad()
def evaluate(vae: VAE, images: Tensor, batch_size: int = 1000) -> dict[str, float]:
    """Negative ELBO per image and its two terms, one sample of the posterior each."""
    reconstruction = kl = 0.0
    for x in images.split(batch_size):
        posterior = vae.encode(x)
        z = posterior.rsample()
        reconstruction -= vae.decode(z).log_prob(x).sum().item()
        kl += (posterior.log_prob(z) - vae.prior().log_prob(z)).sum().item()
    count = len(images)
    return {
        "test_loss": (reconstruction + kl) / count,
        "test_reconstruction": reconstruction / count,
        "test_kl": kl / count,
    }


def draw(vae: VAE, test: datasets.Digits, history: History, args: argparse.Namespace) -> None:
    """Pictures of the latent space, reconstructions, samples and the loss curve."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    from pyro_hyperbolic import plotting

    images, labels = test.images[:5000], test.labels[:5000]
    device = next(vae.parameters()).device
    with torch.no_grad():
        z = torch.cat([vae.encode(x.to(device)).mean.cpu() for x in images.split(1000)])
    flat = isinstance(vae, EuclideanVAE)
    if not flat and isinstance(vae.manifold, Lorentz):
        z = vae.manifold.to_poincare(z)
    ball = PoincareBall(0.0 if flat else vae.manifold.c.item())
    figure, ax = plt.subplots(figsize=(6.5, 5.6), layout="constrained")
    if args.latent_dim == 2:
        if args.gyroplanes and not flat and args.decoder == "gyroplane":
            layer: Any = vae.decoder.embed
            with torch.no_grad():
                # The same planes in the ball: offset and normal are stored at the origin.
                p = ball.expmap0(layer.offset.cpu())
                plotting.gyroplane(p[:100], layer.normal.cpu()[:100], ball, ax=ax, linewidth=0.4, alpha=0.4)
        plotting.embedding(z, ball, labels=labels, ax=ax, s=4)
    else:
        # More than two dimensions: the plane of greatest variance of the tangent space at the origin.
        v = (z if flat else ball.logmap0(z)).double()
        plane = torch.pca_lowrank(v, q=min(2, args.latent_dim))[2]
        v = torch.nn.functional.pad(v @ plane, (0, 2 - plane.shape[1]))
        plotting.embedding(v, PoincareBall(0.0), labels=labels, ax=ax, s=4)
        ax.set_title("principal plane of the tangent space", fontsize="medium")
    plotting.save(figure, args.output_dir / "latent.png")

    shown = images[:32].to(device)
    pairs = torch.stack([shown, vae.reconstruct(shown)], 1).flatten(0, 1)
    figure, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
    plotting.images(pairs, columns=16, ax=ax)
    ax.set_title("test digits and their reconstructions, side by side", fontsize="medium")
    plotting.save(figure, args.output_dir / "reconstructions.png")

    figure, ax = plt.subplots(figsize=(6, 6.2), layout="constrained")
    plotting.images(vae.generate(100), columns=10, ax=ax)
    ax.set_title("samples of the model", fontsize="medium")
    plotting.save(figure, args.output_dir / "samples.png")

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    epochs = [row["epoch"] for row in history]
    ax.plot(epochs, [row["train_loss"] for row in history], label="training")
    ax.plot(epochs, [row["test_loss"] for row in history], label="test")
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("loss per image")
    ax.legend(frameon=False)
    plotting.save(figure, args.output_dir / "loss.png")
    plt.close("all")


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """The options, the versions and the revision that a result depends on."""
    versions = {module.__name__: module.__version__ for module in (pyro_hyperbolic, torch, pyro)}
    try:
        folder = Path(__file__).resolve().parent
        git = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
        revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        revision = None
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    return {"options": options, "versions": versions, "revision": revision, "python": sys.version.split()[0]}


def trainer_state(svi: SVI | FastSVI) -> dict[str, Any]:
    """What the trainer keeps beside the model."""
    return svi.state_dict() if isinstance(svi, FastSVI) else svi.optim.get_state()


def resume(
    args: argparse.Namespace, vae: VAE, svi: SVI | FastSVI, train_size: int
) -> tuple[int, list[dict[str, float]]]:
    """Load the checkpoint of the output folder; the epochs done and their metrics."""
    path = args.output_dir / "checkpoint.pt"
    if not path.exists():
        return 0, []
    if not args.resume:
        raise SystemExit(f"{path} exists: continue that run with --resume, or choose another --output-dir.")
    state = load_checkpoint(path, map_location=args.device)
    now, then = describe(args)["options"], state["options"]
    changed = [key for key in then if key not in FREE_OPTIONS and now.get(key) != then[key]]
    if changed:
        names = ", ".join(f"--{key.replace('_', '-')} (was {then[key]}, is {now.get(key)})" for key in changed)
        raise SystemExit(f"{path} belongs to other options: {names}. Use the same, or another --output-dir.")
    if state["train_size"] != train_size:
        raise SystemExit(
            f"{path} was trained on {state['train_size']} images, but there are {train_size} now: "
            "give the same data by --data-dir, or use another --output-dir."
        )
    vae.load_state_dict(state["model"])
    if isinstance(svi, FastSVI):
        svi.load_state_dict(state["trainer"])
    else:
        svi.optim.set_state(state["trainer"])
    return state["epoch"], state["history"]


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.output_dir is None:
        if args.resume:
            raise SystemExit("--resume needs --output-dir: the folder of the run to continue.")
        args.output_dir = Path("outputs") / f"mnist_svi-{datetime.now():%Y%m%d-%H%M%S}"
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(args.device), test.images.to(args.device)

    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = build_model(args).to(args.device)
    vae.init_output_bias(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    loss: ELBO = LOSSES[args.loss](args.particles)
    trainer = FastSVI if args.fast else SVI
    svi = trainer(vae.model, vae.guide, optimiser, loss)
    done, history = resume(args, vae, svi, len(images))
    record = describe(args) | {"data": train.source, "train_size": len(images), "test_size": len(held_out)}
    print(f"{len(images)} training and {len(held_out)} test digits ({train.source}); results in {args.output_dir}")

    for epoch in range(done + 1, args.num_epochs + 1):
        start = time.perf_counter()
        title = f"epoch {epoch}/{args.num_epochs}"
        train_loss = train_epoch(svi, images, args.batch_size, epoch, args.seed, title)
        row = {"epoch": epoch, "train_loss": train_loss} | evaluate(vae, held_out)
        history.append(row | {"seconds": time.perf_counter() - start})
        print(
            f"{title}: train elbo {-train_loss:.2f}, test elbo {-row['test_loss']:.2f} "
            f"(reconstruction {-row['test_reconstruction']:.2f}, kl {row['test_kl']:.2f})",
            flush=True,
        )
        state = {"model": vae.state_dict(), "trainer": trainer_state(svi), "epoch": epoch, "history": history}
        state |= {"options": record["options"], "train_size": len(images)}
        save_checkpoint(state, args.output_dir / "checkpoint.pt")
        save_json(record | {"history": history}, args.output_dir / "metrics.json")

    result = record | {"history": history}
    if args.iwae_samples:
        estimates, errors = log_marginal_likelihood(
            vae.model, vae.guide, held_out, num_samples=args.iwae_samples, standard_error=True, progress=True
        )
        result["negative_iwae"] = -estimates.mean().item()
        result["negative_iwae_error"] = errors.square().mean().sqrt().item() / len(errors) ** 0.5
        result["iwae_samples"] = args.iwae_samples
        print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
    if not isinstance(vae, EuclideanVAE):
        result["curvature"] = vae.manifold.c.item()
    save_json(result, args.output_dir / "metrics.json")
    draw(vae, test, history, args)
    return result


def curvature(text: str) -> float | str:
    """A number >= 0 or ``learn``."""
    if text == "learn":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number >= 0 or 'learn', got {text!r}")
    return value


def positive(kind: type) -> Any:
    """A parser of positive numbers."""

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a positive {kind.__name__}, got {text!r}")
        return value

    return parse


def natural(text: str) -> int:
    """An integer >= 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer >= 0, got {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--latent-dim", type=positive(int), default=2, help="of the latent space (paper: 2, 5, 10, 20)")
    p.add_argument(
        "--curvature",
        type=curvature,
        default=1.4,
        help="c of curvature -c, or 'learn'; 0 is the Euclidean N-VAE (paper: 0, 0.1, 0.2, 0.7, 1.4)",
    )
    p.add_argument(
        "--manifold",
        choices=sorted(CHARTS),
        default="poincare",
        help="coordinates of the latent space: the ball, or the hyperboloid, which reaches farther (paper: ball)",
    )
    p.add_argument("--prior", choices=sorted(LAWS), default="wrapped", help="law of the prior (paper: both)")
    p.add_argument("--posterior", choices=sorted(LAWS), default="wrapped", help="its law (paper: as the prior)")
    p.add_argument(
        "--posterior-scale",
        choices=["isotropic", "diagonal"],
        default="isotropic",
        help="one scale per image or one per dimension (paper: isotropic)",
    )
    p.add_argument(
        "--decoder",
        choices=sorted(DECODERS),
        default="gyroplane",
        help="first layer of the decoder (paper: gyroplane; logmap and mlp in its ablation)",
    )
    p.add_argument("--prior-scale", type=positive(float), default=1.0, help="scale of the prior (paper: 1)")
    p.add_argument("--hidden-dim", type=positive(int), default=600, help="width of the hidden layers (paper: 600)")
    p.add_argument(
        "--loss",
        choices=sorted(LOSSES),
        default="trace",
        help="Trace_ELBO, TraceMeanField_ELBO or the IWAE bound, RenyiELBO(alpha=0) (paper: trace)",
    )
    p.add_argument("--particles", type=positive(int), default=1, help="samples of the posterior per image (paper: 1)")
    p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data (paper: 80)")
    p.add_argument("--batch-size", type=positive(int), default=128, help="images per step (paper: 128)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="of Adam (paper: 5e-4)")
    p.add_argument("--iwae-samples", type=natural, default=500, help="of the final estimate; 0: none (paper: 5000)")
    p.add_argument("--seed", type=natural, default=0, help="of everything random")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to compute")
    p.add_argument("--latent-precision", choices=sorted(PRECISIONS), default="32", help="bits of the latent arithmetic")
    p.add_argument(
        "--data-dir",
        type=Path,
        default=None,
        help="folder of the MNIST files; by default PYRO_HYPERBOLIC_DATA, then a per-user cache",
    )
    p.add_argument("--output-dir", type=Path, default=None, help="of the results; by default new, in outputs/")
    p.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    p.add_argument("--fast", action="store_true", help="train by FastSVI: the same losses without Pyro's overhead")
    p.add_argument("--gyroplanes", action="store_true", help="draw the decoder's gyroplanes in the latent space")
    p.add_argument("--threads", type=positive(int), default=None, help="CPU threads; torch's choice by default")
    return p


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(arguments)
    if args.loss == "iwae" and args.particles == 1:
        p.error("--loss iwae needs --particles of at least 2; with one it is the ELBO")
    if args.posterior_scale == "diagonal" and args.posterior != "wrapped" and args.curvature != 0.0:
        p.error("--posterior-scale diagonal needs --posterior wrapped")
    return args


if __name__ == "__main__":
    main(parse())
