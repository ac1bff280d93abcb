"""The latent spaces of MNIST models."""

from __future__ import annotations

import math

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.figures.source import Source
from experiments.figures.style import subplots, window
from experiments.figures.thumbnails import thumbnails
from experiments.mnist import MnistCell, digits
from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.models import VAE
from pyro_hyperbolic.plotting.heatmaps import Extent
from pyro_hyperbolic.plotting.labels import COLOURS

HYPERBOLIC, EUCLIDEAN = "riemannian c=1.4", "euclidean"
"""The rows of Table 2 that are drawn; the paper does not say which distribution its own pictures are of."""

TITLES = {
    HYPERBOLIC: r"$\mathcal{P}^{\,c}$-VAE, $c = 1.4$, Riemannian",
    "wrapped c=1.4": r"$\mathcal{P}^{\,c}$-VAE, $c = 1.4$, wrapped",
    EUCLIDEAN: r"$\mathcal{N}$-VAE",
}
SHOWN, SAMPLES = 2500, 64


def mnist_latents(source: Source) -> Figure:
    """Posterior means of test digits, some of the digits at their means, and samples of the model."""
    rows = (HYPERBOLIC, EUCLIDEAN)
    cells = [cell for row in rows for cell in source.table2.cells() if cell.row == row and cell.latent_dim == 2]
    models = source.mnist_models(cells)
    figure, axes = subplots(len(rows), 3, size=2.2)
    for row, cell, vae in zip(axes, cells, models, strict=True):
        _draw_row(vae, cell, row)
        row[0].set_ylabel(TITLES[cell.row])
    for ax, title in zip(axes[0], ("posterior means", "digits at their means", "samples"), strict=True):
        ax.set_title(title)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=10, frameon=False, handletextpad=0.1, markerscale=3.0
    )
    return figure


def _draw_row(vae: VAE, cell: MnistCell, row: list[Axes]) -> None:
    test = digits(False)
    images, labels = test.images[:SHOWN], test.labels[:SHOWN]
    ball = PoincareBall(cell.curvature)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        points = vae.encode(images).mean
        samples = vae.generate(SAMPLES)
    extent = _extent(ball, points)
    plotting.embedding(points, ball, labels=labels, ax=row[0], legend=False, s=2.5)
    thumbnails(images, points, [COLOURS[label] for label in labels.tolist()], ball, row[1], extent)
    plotting.images(samples, ax=row[2], cmap="gray_r")
    for ax in row[:2]:
        if ball.c == 0:
            window(ax, extent)


def _extent(ball: PoincareBall, points: Tensor) -> Extent:
    """The disc; in the plane a square around the origin that holds nearly all points."""
    half = 1 / math.sqrt(float(ball.c)) if ball.c else float(points.abs().amax(-1).quantile(0.995))
    return -half, half, -half, half
