"""Pictures of trained auto-encoders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import MaxNLocator

from pyro_hyperbolic import datasets, plotting
from pyro_hyperbolic.geometry import Euclidean
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

SHOWN, COLUMNS = 12, 4  # latent spaces of an ensemble, and in a row
PLANES = 100


def draw(
    members: list[EuclideanVAE | HyperbolicVAE],
    entries: list[dict[str, Any]],
    test: datasets.Digits,
    gyroplanes: bool,
    file: Callable[[str], Path],
) -> None:
    """The latent spaces of the first members, the losses of all; a page, reconstructions and samples of the first one.

    :param entries: seed, history and, where it was estimated, marginal likelihood of every member.
    :param file: where to write the picture of a name.
    """
    images, labels = test.images[:5000], test.labels[:5000]
    shown = members[:SHOWN]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.5 * columns, 5.6 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax, vae, entry in zip(axes.flat, shown, entries, strict=False):
        plotting.latent_space(vae, images, labels, ax, gyroplanes=PLANES if gyroplanes else 0, s=4)
        if len(members) > 1:
            value = f", negative IWAE {entry['negative_iwae']:.2f}" if "negative_iwae" in entry else ""
            ax.set_title(f"seed {entry['seed']}{value}", fontsize="medium")
    plotting.save(figure, file("latent.png"))

    first = members[0]
    explore(first, images, labels, file("latent.html"))
    digits = images[:32].to(next(first.parameters()).device)
    pairs = torch.stack([digits, first.reconstruct(digits)], 1).flatten(0, 1)
    figure, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
    plotting.images(pairs, columns=16, ax=ax)
    ax.set_title("test digits and their reconstructions, side by side", fontsize="medium")
    plotting.save(figure, file("reconstructions.png"))

    figure, ax = plt.subplots(figsize=(6, 6.2), layout="constrained")
    plotting.images(first.generate(100), columns=10, ax=ax)
    ax.set_title("samples of the model", fontsize="medium")
    plotting.save(figure, file("samples.png"))

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for i, history in enumerate(entry["history"] for entry in entries):
        epochs = [row["epoch"] for row in history]
        for key, name, colour in (("train_loss", "training", "C0"), ("test_loss", "test", "C1")):
            label = name if i == 0 else None
            ax.plot(epochs, [row[key] for row in history], colour, label=label, alpha=len(entries) ** -0.5)
    ax.set_xlabel("epoch")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylabel("loss per image")
    ax.legend(frameon=False)
    plotting.save(figure, file("loss.png"))
    plt.close("all")


@torch.no_grad()
def explore(vae: EuclideanVAE | HyperbolicVAE, images: torch.Tensor, labels: torch.Tensor, path: Path) -> None:
    """A page on which the latent space can be moved: posterior means with their digits and regions."""
    posterior = vae.encode(images.to(next(vae.parameters()).device))
    manifold = Euclidean() if isinstance(vae, EuclideanVAE) else vae.manifold
    dim = manifold.intrinsic_dim(posterior.mean.shape[-1])
    plotting.explore(
        posterior.mean,
        manifold,
        path,
        labels=labels,
        names=[f"{digit} (test image {i})" for i, digit in enumerate(labels.tolist())],
        images=images,
        scales=posterior if dim == 2 else None,
        title="Latent space of MNIST",
        description=f"Each dot is one of {len(images):,} test digits, where the encoder puts it.",
    )
