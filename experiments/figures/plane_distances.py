"""The distance to one hyperplane of the decoder, over the latent space."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure
from torch import Tensor

from experiments.figures.branching import PRIOR_SCALE, draw_embedding, embed, latent_space, model_title
from experiments.figures.hyperplanes import first_layer, most_telling, planes
from experiments.figures.source import Source
from experiments.figures.style import PINK, subplots, window
from experiments.table1 import BranchingCell
from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.plotting.heatmaps import Extent

LEAST, GREATEST = -3.0, 2.0
"""The log distances that the colours run between."""


def branching_distances(source: Source) -> Figure:
    """The Poincaré VAE with c = 1 and the Euclidean VAE, each with the log distance to a plane of its decoder."""
    data = source.branching_data()
    cells = [BranchingCell(1.0, PRIOR_SCALE), BranchingCell(0.0, PRIOR_SCALE)]
    figure, axes = subplots(1, 2, size=2.9, beside=0.7)
    for ax, cell, vae in zip(axes[0], cells, source.branching_models(cells), strict=True):
        ball = latent_space(cell)
        nodes, _ = embed(vae, data)
        number = most_telling(vae, nodes)
        p, a = (t[number].double() for t in planes(first_layer(vae)))
        extent = None if cell.curvature else _square_around(nodes)
        distance = partial(_log_distance, ball, p, a)
        plotting.heatmap(distance, ball, ax, extent=extent, cmap="Greys_r", vmin=LEAST, vmax=GREATEST)
        plotting.gyroplane(p, a, ball, ax, color=PINK, linewidth=2.0)
        draw_embedding(data, ball, ax, nodes)
        if extent is not None:
            window(ax, extent)
        ax.set_title(model_title(cell))
    bar = figure.colorbar(axes[0, 0].images[0], ax=axes, shrink=0.8, label="log distance")
    bar.outline.set_color("0.75")
    return figure


def _log_distance(ball: PoincareBall, p: Tensor, a: Tensor, z: Tensor) -> Tensor:
    distance = ball.dist2plane(x=z, p=p, a=a, signed=False)
    # The metric of the ball at c = 0 is 4 dz^2, that of the Euclidean model dz^2.
    return (distance if ball.c else distance / 2).log()


def _square_around(points: Tensor) -> Extent:
    """A square around all points, with a margin."""
    low, high = points.double().amin(0), points.double().amax(0)
    (x, y), half = ((low + high) / 2).tolist(), 0.55 * float((high - low).max())
    return x - half, x + half, y - half, y + half
