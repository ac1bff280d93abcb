"""Where models put the tree of a branching diffusion.

Black crosses are the nodes, blue lines the true hierarchy, and dots are samples of the posteriors of the training
observations, coloured by the subtree that they are from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.embeddings import gplvm, principal_components
from experiments.figures.hyperplanes import first_layer, planes
from experiments.figures.source import Source
from experiments.figures.style import BLUE, INK, PINK, subplots
from experiments.table1 import BranchingCell
from pyro_hyperbolic import plotting
from pyro_hyperbolic.datasets import BranchingDiffusion
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.models import VAE

PRIOR_SCALE = 1.7
CURVATURES = (1.2, 0.3, 0.1)
GPLVM_STEPS = 1000
# Gyroplanes in a picture; all of them would leave no room for the tree.
MOST_PLANES = 60
# Blue is for the lines, grey for the nodes above all subtrees.
COLOURS = ("#ffa90e", "#bd1f01", "#832db6", "#5fa55a", "#a96b59", "#92dadd", "#b9ac70")


def branching_embeddings(source: Source) -> Figure:
    """The Poincaré VAE with c = 1, the Euclidean VAE, principal components and a GPLVM."""
    data = source.branching_data()
    cells = [BranchingCell(1.0, PRIOR_SCALE), BranchingCell(0.0, PRIOR_SCALE)]
    figure, axes = subplots(1, 4, size=2.5)
    for ax, cell, vae in zip(axes[0], cells, source.branching_models(cells), strict=False):
        draw_embedding(data, latent_space(cell), ax, *embed(vae, data))
        ax.set_title(model_title(cell))
    plane = PoincareBall(0.0)
    nodes, observations = principal_components(data)
    draw_embedding(data, plane, axes[0, 2], nodes, observations)
    axes[0, 2].set_title("PCA")
    draw_embedding(data, plane, axes[0, 3], gplvm(data.nodes, nodes, GPLVM_STEPS, seed=0))
    axes[0, 3].set_title("GPLVM")
    return figure


def branching_curvatures(source: Source) -> Figure:
    """Poincaré VAEs with decreasing curvature."""
    return _curvatures(source, with_planes=False)


def branching_gyroplanes(source: Source) -> Figure:
    """The same with the gyroplanes of the decoder's first layer."""
    return _curvatures(source, with_planes=True)


def _curvatures(source: Source, with_planes: bool) -> Figure:
    data = source.branching_data()
    cells = [BranchingCell(c, PRIOR_SCALE) for c in CURVATURES]
    figure, axes = subplots(1, len(cells), size=2.5)
    for ax, cell, vae in zip(axes[0], cells, source.branching_models(cells), strict=True):
        ball = latent_space(cell)
        if with_planes:
            p, a = planes(first_layer(vae))
            shown = slice(MOST_PLANES)
            plotting.gyroplane(p[shown], a[shown], ball, ax, color=PINK, linewidth=0.5, alpha=0.35, zorder=1.0)
        nodes, samples = embed(vae, data)
        draw_embedding(data, ball, ax, nodes, None if with_planes else samples)
        ax.set_title(model_title(cell))
    return figure


def latent_space(cell: BranchingCell) -> PoincareBall:
    """The disc of a model, or the plane."""
    return PoincareBall(cell.curvature)


def model_title(cell: BranchingCell) -> str:
    """The paper's name of a model."""
    return rf"$\mathcal{{P}}^{{\,c}}$-VAE, $c = {cell.curvature:g}$" if cell.curvature else r"$\mathcal{N}$-VAE"


def embed(vae: VAE, data: BranchingDiffusion, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Posterior means of the nodes, and a sample of the posterior of each training observation."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return vae.encode(data.nodes).mean, vae.encode(data.train).sample()


def draw_embedding(
    data: BranchingDiffusion,
    ball: PoincareBall,
    ax: Axes,
    nodes: Tensor,
    observations: Tensor | None = None,
    **style: Any,
) -> None:
    """Draw the nodes with the edges of the tree, and the training observations as dots.

    :param data: whose nodes and training observations they are.
    :param ball: where they lie; at ``c = 0`` the plane.
    :param ax: axes to draw on.
    :param nodes: ``(N, 2)``.
    :param observations: ``(M, 2)``.
    :param style: of the edges, as in :func:`pyro_hyperbolic.plotting.geodesic`.
    """
    plotting.disc(ball, ax)
    if observations is not None:
        groups = subtrees(data)[data.train_nodes].tolist()
        shades = ["0.55" if group < 0 else COLOURS[group % len(COLOURS)] for group in groups]
        plotting.embedding(observations, ball, ax=ax, color=shades, s=6, alpha=0.55, zorder=1.5)
    widths: Sequence[float] = (1.6 * 0.8 ** data.depths[1:].double()).tolist()
    keywords = {"color": BLUE, "linewidth": widths} | style
    plotting.geodesic(nodes[data.parents[1:]], nodes[1:], ball, ax, **keywords)
    plotting.embedding(nodes, ball, ax=ax, marker="x", color=INK, s=7, linewidth=0.6)
    # The root, which no picture puts in the same place.
    plotting.embedding(nodes[:1], ball, ax=ax, marker="o", color=INK, s=20, zorder=3.5)
    ax.set_box_aspect(1)


def subtrees(data: BranchingDiffusion) -> Tensor:
    """The number of the subtree, from depth two on, that each node is in; -1 above."""
    roots = (data.depths == min(2, int(data.depths.max()))).nonzero().squeeze(-1)
    groups = torch.full_like(data.depths, -1)
    groups[roots] = torch.arange(len(roots))
    for node in range(int(roots[-1]) + 1, len(groups)):  # parents come before their children
        groups[node] = groups[data.parents[node]]
    return groups
