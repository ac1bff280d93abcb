"""The data of ``curvature_of_data.py``, the distances that it predicts, and its pictures."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import networkx
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.infer import Posterior

PRIOR = {"c": (0.0, 1.0), "spread": (1.0, 0.5), "noise": (-1.0, 0.5)}  # of the logarithms: mean, standard deviation
DRAWS = 1000  # for predictions
COLOURS = ("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2")


def leaf_distances(leaves: int, seed: int) -> Tensor:
    """Distances ``(N, N)`` along a random binary tree whose edges have the mean length 1."""
    generator = torch.Generator().manual_seed(seed)
    tree, open_ends = networkx.Graph(), [0]
    while len(open_ends) < leaves:
        node = open_ends.pop(int(torch.randint(len(open_ends), (), generator=generator)))
        for _ in range(2):
            child = tree.number_of_nodes() or 1
            tree.add_edge(node, child, weight=float(0.5 + torch.rand((), generator=generator)))
            open_ends.append(child)
    lengths = dict(networkx.all_pairs_dijkstra_path_length(tree))
    return torch.tensor([[lengths[i][j] for j in open_ends] for i in open_ends], dtype=torch.float64)


def pairs(count: int) -> Tensor:
    return torch.triu_indices(count, count, offset=1)


def predicted(posterior: Posterior) -> Tensor:
    """New distances ``(draws, pairs)`` with their noise, from some draws of all chains."""
    thin = max(1, posterior.num_chains * posterior.num_draws // DRAWS)
    c, noise, z = (posterior.samples[name].flatten(0, 1)[::thin].cpu() for name in ("c", "noise", "z"))
    i, j = pairs(z.shape[-2])
    d = PoincareBall(c.unsqueeze(-1)).dist(z[:, i], z[:, j])
    return d + noise.unsqueeze(-1) * torch.randn_like(d)


def draw_curvature(curvatures: dict[int, Tensor], folder: Path) -> None:
    """Intervals of the curvature by chain with that of the prior, and the chains ``(chains, samples)`` themselves."""
    ends = torch.tensor([0.05, 0.95])
    count = 1 + len(curvatures)
    figure, axes = plt.subplots(1, count, figsize=(3.2 * count, 3.2), layout="constrained", squeeze=False)
    left = axes[0, 0]
    left.plot(dist.LogNormal(*PRIOR["c"]).icdf(ends), [0, 0], color="0.7", lw=6)
    row, places, names = 0, [0.0], ["prior"]
    for (dim, chains), colour in zip(curvatures.items(), COLOURS, strict=False):
        for chain in chains:
            row -= 1
            left.plot(chain.quantile(ends), [row, row], color=colour, lw=2)
        places.append(row + (len(chains) - 1) / 2)
        names.append(f"d = {dim}")
        row -= 1
    left.set(xscale="log", xlabel="curvature c, 90%", title="each chain")
    left.set_yticks(places, names)
    left.tick_params(axis="y", length=0)
    left.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    left.minorticks_off()
    for ax, (dim, chains) in zip(axes[0, 1:], curvatures.items(), strict=True):
        ax.plot(chains.T, lw=0.4)
        ax.set(xlabel="sample", title=f"curvature, d = {dim}")
    for ax in axes[0]:
        ax.spines[["top", "right"]].set_visible(False)
    plotting.save(figure, folder / "curvature_of_data.png", dpi=150)
    plt.close(figure)


def draw_predicted(posteriors: dict[int, Tensor], observed: Tensor, folder: Path) -> None:
    """Observed against predicted distances."""
    figure, axes = plt.subplots(1, len(posteriors), figsize=(3.6 * len(posteriors), 3.4), sharey=True, squeeze=False)
    for ax, (dim, replicated), colour in zip(axes[0], posteriors.items(), COLOURS, strict=False):
        low, middle, high = replicated.quantile(torch.tensor([0.05, 0.5, 0.95]), 0)
        ax.vlines(observed, low, high, color=colour, alpha=0.15, lw=1)
        ax.plot(observed, middle, ".", ms=2, color=colour)
        ax.axline((0, 0), slope=1, color="0.3", lw=0.8)
        ax.set(xlabel="observed distance", title=f"d = {dim}")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("predicted, median and 90%")
    figure.tight_layout()
    plotting.save(figure, folder / "curvature_predicted.png", dpi=150)
    plt.close(figure)
