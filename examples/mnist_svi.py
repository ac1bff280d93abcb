"""Train a variational auto-encoder with a hyperbolic latent space on MNIST (the paper's Section 5.2).

This is Pyro's ``vae.py`` with one change: the latents are points of a space of your choice, by default the Poincaré
disc. Everything else is as you know it: a model, a guide, ``SVI`` and an ELBO.

    python examples/mnist_svi.py
    python examples/mnist_svi.py --space p5 --curvature 0.7 --prior riemannian --posterior riemannian
    python examples/mnist_svi.py --loss iwae --particles 8 --curvature learn
    python examples/mnist_svi.py --space h2,s2,e2 --fast

The output folder gets the metrics, a checkpoint after every epoch, and pictures. If a run is interrupted, continue it
with ``--resume``. It ends bit for bit where an uninterrupted run would have.

What to look for: in ``latent.png`` each dot is a test digit, coloured by its class. The classes separate without
labels. Digits that look alike, such as 4, 7 and 9, share a border. On the page ``latent.html``, drag a cluster to the
middle to spread it out. In ``digits.png`` each digit is next to what two numbers keep of it. Below are draws of the
model. The blurred ones lie between classes. In ``loss.png`` the losses fall until the model overfits.

``mnist_ensemble.py`` trains many of these models at once, and ``mnist_distributed.py`` trains one on several devices.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import torch
from command import Parser, command, load_run, natural, positive, record, save_json, save_run
from pyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic import datasets, geometry, infer, plotting
from pyro_hyperbolic.models import DISTRIBUTIONS, HyperbolicVAE
from pyro_hyperbolic.nn import DECODERS, ManifoldModule

LOSSES: Any = {"trace": Trace_ELBO, "meanfield": TraceMeanField_ELBO, "iwae": partial(RenyiELBO, alpha=0)}
SCALES = ("isotropic", "diagonal")
CHUNK = {"cpu": 1 << 14, "cuda": 1 << 18}  # what the estimate of the marginal likelihood holds at a time
FREE_OPTIONS = ("num_epochs", "iwae_samples", "gyroplanes")  # may change when a run goes on


class VAE(HyperbolicVAE):
    """The base class has the networks; its programs are these, with more options."""

    def model(self, x: Tensor) -> None:  # type: ignore[override]  # fewer options
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", self.prior())  # a normal at the origin of the latent space
            pyro.sample("x", self.decode(z), obs=x)  # Bernoulli pixels

    def guide(self, x: Tensor) -> None:  # type: ignore[override]  # fewer options
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.encode(x))  # a normal at the point where the encoder puts the image


def build_model(args: argparse.Namespace) -> VAE:
    """The auto-encoder that the options describe."""
    learn = args.curvature == "learn"
    c = 1.0 if learn else args.curvature
    space = geometry.space(args.space, c=c, k=-c)
    names = ("hidden_dim", "prior", "posterior", "prior_scale", "posterior_scale")
    options = {name: getattr(args, name) for name in names}
    options["decoder"] = args.decoder or ("gyroplane" if space.curvatures else "mlp")
    return VAE(ManifoldModule(space, learnable=learn), geometry.dimension(args.space), (28, 28), **options)


def curvature(text: str) -> float | str:
    """The type of ``--curvature``."""
    try:
        return text if text == "learn" else positive(float)(text)
    except argparse.ArgumentTypeError:
        message = f"must be a positive number or learn, got {text!r}; flat space is --space e2"
        raise argparse.ArgumentTypeError(message) from None


def build_loss(args: argparse.Namespace) -> Any:
    if args.loss == "iwae" and args.particles == 1:
        raise ValueError("--loss iwae needs --particles of at least 2; with one it is the ELBO.")
    return LOSSES[args.loss](num_particles=args.particles, vectorize_particles=True, max_plate_nesting=1)


@torch.no_grad()
def evaluate(vae: HyperbolicVAE, images: Tensor) -> dict[str, float]:
    """Negative ELBO per image and its two terms, one sample of the posterior each."""
    reconstruction = kl = 0.0
    for x in images.split(1000):
        posterior = vae.encode(x)
        z = posterior.rsample()
        reconstruction -= vae.decode(z).log_prob(x).sum().item() / len(images)
        kl += (posterior.log_prob(z) - vae.prior().log_prob(z)).sum().item() / len(images)
    return {"test_loss": reconstruction + kl, "test_reconstruction": reconstruction, "test_kl": kl}


def run(args: argparse.Namespace) -> dict[str, Any]:
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(args.device), test.images.to(args.device)
    print(f"{len(images)} training and {len(held_out)} test digits ({train.source}); results in {args.output_dir}")
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = build_model(args).to(args.device)
    vae.init_output_bias(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    trainer = infer.FastSVI if args.fast else SVI  # FastSVI is SVI without Pyro's overhead
    svi: Any = trainer(vae.model, vae.guide, optimiser, build_loss(args))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / "checkpoint.pt"
    state = load_run(path, args, FREE_OPTIONS, map_location=args.device, training_images=len(images))
    history: list[dict[str, float]] = []
    if state is not None:
        vae.load_state_dict(state["model"])
        (svi.load_state_dict if args.fast else optimiser.set_state)(state["trainer"])
        history = state["history"]

    result = record(args) | {"data": train.source, "train_size": len(images), "test_size": len(held_out)}
    batches = infer.Minibatches(images, args.batch_size, args.seed)
    for epoch in range(len(history) + 1, args.num_epochs + 1):
        start, total = time.perf_counter(), 0.0
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=None):
            total += svi.step(batch)
        row = {"train_loss": float(total) / len(images)} | evaluate(vae, held_out)
        losses = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in row.items())
        print(f"epoch {epoch}/{args.num_epochs}: {losses}", flush=True)
        history.append({"epoch": epoch} | row | {"seconds": time.perf_counter() - start})
        moments = svi.state_dict() if args.fast else optimiser.get_state()
        state = {"model": vae.state_dict(), "trainer": moments, "history": history}
        save_run(state, path, args, training_images=len(images))
        save_json(result | {"history": history}, args.output_dir / "metrics.json")

    result |= {"history": history, "curvatures": [torch.as_tensor(c).item() for c in vae.manifold.curvatures]}
    if args.iwae_samples:
        options: Any = {"num_samples": args.iwae_samples, "chunk": CHUNK[images.device.type], "standard_error": True}
        estimates, errors = infer.log_marginal_likelihood(vae.model, vae.guide, held_out, **options)
        result["negative_iwae"] = -estimates.mean().item()
        result["negative_iwae_error"] = errors.square().sum().sqrt().item() / len(errors)
        print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
    save_json(result, args.output_dir / "metrics.json")
    draw(vae, test, history, args.gyroplanes, args.output_dir)
    return result


def draw(vae: HyperbolicVAE, test: datasets.Digits, history: list[Any], gyroplanes: int, folder: Path) -> None:
    """The latent space as a picture and as a page, reconstructions, samples, and the losses."""
    images, labels = test.images[:5000], test.labels[:5000]
    factors = len(vae.manifold.leaves(vae.latent.dim))
    figure, axes = plt.subplots(1, factors, figsize=(6.5 * factors, 5.6), layout="constrained", squeeze=False)
    for number, ax in enumerate(axes.flat):
        plotting.latent_space(vae, images, labels, ax, gyroplanes, factor=number, s=4)
    plotting.save(figure, folder / "latent.png")
    names = [f"{digit} (test image {i})" for i, digit in enumerate(labels.tolist())]
    pages = plotting.explore_latents(vae, images, folder / "latent.html", labels, names, images, title="MNIST")
    print(f"open {' or '.join(str(page.path) for page in pages)} in a browser to move through the latent space")
    digits = images[:32].to(next(vae.parameters()).device)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(6, 8), layout="constrained", height_ratios=(1, 4))
    pairs = torch.stack([digits, vae.reconstruct(digits)], 1).flatten(0, 1)
    plotting.images(pairs, 16, top).set_title("test digits and their reconstructions, side by side")
    plotting.images(vae.generate(100), 10, bottom).set_title("samples of the model")
    plotting.save(figure, folder / "digits.png")

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for key in ("train_loss", "test_loss"):
        ax.plot([row["epoch"] for row in history], [row[key] for row in history], label=key.replace("_", " "))
    ax.set(xlabel="epoch", ylabel="per image")
    ax.legend(frameon=False)
    plotting.save(figure, folder / "loss.png")
    plt.close("all")


def parser() -> Parser:
    p = Parser(__doc__, __file__)
    add_options(p)
    p.add_argument("--fast", action="store_true", help="train with FastSVI: the same losses without Pyro's overhead")
    p.add_argument("--gyroplanes", type=natural, default=0, help="how many gyroplanes of the decoder to draw (in 2-d)")
    p.add_seed()
    p.add_output_dir(checkpoint="checkpoint.pt")
    return p


def add_options(p: Parser) -> None:
    """Of the model and its training."""
    p.add_space("p2")
    p.add_argument("--curvature", type=curvature, default=1.4, help="c (curvature -c), or learn (paper: 0.1 to 1.4)")
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="prior distribution (paper: both)")
    p.add_argument("--posterior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="guide (paper: as the prior)")
    p.add_argument("--posterior-scale", choices=SCALES, default=SCALES[0], help="a scale per image or per dimension")
    p.add_argument("--prior-scale", type=positive(float), default=1.0, help="scale of the prior (paper: 1)")
    p.add_argument("--decoder", choices=sorted(DECODERS), help="first decoder layer (default: gyroplane; flat: mlp)")
    p.add_argument("--hidden-dim", type=positive(int), default=600, help="width of the hidden layers (paper: 600)")
    p.add_argument("--loss", choices=sorted(LOSSES), default="trace", help="Trace_ELBO, TraceMeanField_ELBO or IWAE")
    p.add_argument("--particles", type=positive(int), default=1, help="samples of the posterior per image (paper: 1)")
    p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data (paper: 80)")
    p.add_argument("--batch-size", type=positive(int), default=128, help="images per step (paper: 128)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="learning rate of Adam (paper: 5e-4)")
    p.add_argument("--iwae-samples", type=natural, default=500, help="samples per image; 0 for none (paper: 5000)")
    p.add_device()
    p.add_threads()
    p.add_data_dir("the MNIST files")


main = command(parser, run)

if __name__ == "__main__":
    main()
