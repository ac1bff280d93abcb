"""What the programs on MNIST share beside the model of ``mnist_svi.py``: options, losses, estimates and pictures."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from command import add_common, natural, positive
from pyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor

from pyro_hyperbolic import datasets, plotting
from pyro_hyperbolic.models import DISTRIBUTIONS, ManifoldVAE

LOSSES: Any = {"trace": Trace_ELBO, "meanfield": TraceMeanField_ELBO, "iwae": partial(RenyiELBO, alpha=0)}
SCALES = ("isotropic", "diagonal")
DECODERS = ("gyroplane", "logmap", "mlp", "mobius")
FREE_OPTIONS = ("num_epochs", "iwae_samples", "gyroplanes", "timeout")  # may change when a run goes on


def add_options(p: argparse.ArgumentParser) -> None:
    """Of the model and its training."""
    add_common(p, "--space")
    p.add_argument("--curvature", type=curvature, default=1.4, help="c (curvature -c), or learn (paper: 0.1 to 1.4)")
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="prior distribution (paper: both)")
    p.add_argument("--posterior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="guide (paper: as the prior)")
    p.add_argument("--posterior-scale", choices=SCALES, default=SCALES[0], help="a scale per image or per dimension")
    p.add_argument("--prior-scale", type=positive(float), default=1.0, help="scale of the prior (paper: 1)")
    p.add_argument("--decoder", choices=DECODERS, help="first decoder layer (default: gyroplane; flat: mlp)")
    p.add_argument("--hidden-dim", type=positive(int), default=600, help="width of the hidden layers (paper: 600)")
    p.add_argument("--loss", choices=sorted(LOSSES), default="trace", help="Trace_ELBO, TraceMeanField_ELBO or IWAE")
    p.add_argument("--particles", type=positive(int), default=1, help="samples of the posterior per image (paper: 1)")
    p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data (paper: 80)")
    p.add_argument("--batch-size", type=positive(int), default=128, help="images per step (paper: 128)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="learning rate of Adam (paper: 5e-4)")
    p.add_argument("--iwae-samples", type=natural, default=500, help="samples per image; 0 for none (paper: 5000)")
    add_common(p, "--device", "--threads", "--data-dir")


def curvature(text: str) -> float | str:
    """The type of ``--curvature``."""
    try:
        return text if text == "learn" else positive(float)(text)
    except argparse.ArgumentTypeError:
        message = f"must be a positive number or learn, got {text!r}; flat space is --space e2"
        raise argparse.ArgumentTypeError(message) from None


def build_loss(args: argparse.Namespace) -> Any:
    """The loss of Pyro that the options ask for."""
    if args.loss == "iwae" and args.particles == 1:
        raise ValueError("--loss iwae needs --particles of at least 2; with one it is the ELBO.")
    if args.posterior_scale == "diagonal" and args.posterior != "wrapped":
        raise ValueError("--posterior-scale diagonal needs --posterior wrapped.")
    return LOSSES[args.loss](num_particles=args.particles, vectorize_particles=True, max_plate_nesting=1)


@torch.no_grad()
def evaluate(vae: Any, images: Tensor) -> dict[str, float]:
    """Negative ELBO per image and its two terms, one sample of the posterior each."""
    reconstruction = kl = 0.0
    for x in images.split(1000):
        posterior = vae.encode(x)
        z = posterior.rsample()
        reconstruction -= vae.decode(z).log_prob(x).sum().item() / len(images)
        kl += (posterior.log_prob(z) - vae.prior().log_prob(z)).sum().item() / len(images)
    if not math.isfinite(reconstruction + kl):
        raise ValueError("the losses are not finite any more; try a smaller --learning-rate.")
    return {"test_loss": reconstruction + kl, "test_reconstruction": reconstruction, "test_kl": kl}


def negative_iwae(bound: Callable[..., Any], images: Tensor, samples: int, **options: Any) -> dict[str, Any]:
    """The negative IWAE estimate per image with its Monte Carlo error, also for several members at once.

    :param bound: from images to estimates and their errors, such as :func:`~infer.log_marginal_likelihood`.
    """
    estimates, errors = bound(images, num_samples=samples, standard_error=True, **options)
    error = errors.square().sum(-1).sqrt() / errors.shape[-1]
    return {"negative_iwae": (-estimates.mean(-1)).tolist(), "negative_iwae_error": error.tolist()}


def library_model(vae: Any, args: argparse.Namespace) -> ManifoldVAE:
    """The same networks as a model of the library, which knows how to draw them."""
    names = ("prior", "posterior", "prior_scale", "posterior_scale")
    options: dict[str, Any] = {name: getattr(args, name) for name in names}
    return ManifoldVAE(vae.space, vae.dim, (28, 28), encoder=vae.encoder, decoder=vae.decoder, **options)


def draw(vae: Any, test: datasets.Digits, history: list[Any], args: argparse.Namespace) -> None:
    """The latent space as a picture and as a page, reconstructions, samples, and the losses."""
    device, folder = next(vae.parameters()).device, args.output_dir
    vae = library_model(vae, args).to(device)
    images, labels = test.images[:5000], test.labels[:5000]
    factors = len(vae.manifold.leaves(vae.latent.dim))
    figure, axes = plt.subplots(1, factors, figsize=(6.5 * factors, 5.6), layout="constrained", squeeze=False)
    for number, ax in enumerate(axes.flat):
        plotting.latent_space(vae, images, labels, ax, getattr(args, "gyroplanes", 0), factor=number, s=4)
    plotting.save(figure, folder / "latent.png")
    names = [f"{digit} (test image {i})" for i, digit in enumerate(labels.tolist())]
    pages = plotting.explore_latents(vae, images, folder / "latent.html", labels, names, images, title="MNIST")
    print(f"open {' or '.join(str(page.path) for page in pages)} in a browser to move through the latent space")
    digits = images[:32].to(device)
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
