"""The embedding with the regions of held-out nodes, and the curve of calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor

from pyro_hyperbolic import plotting
from tree_parts.calibration import LEVELS, region
from tree_parts.data import BALL, DOUBLE, Data

COLOURS = ("#3f90da", "#bd1f01", "#832db6", "#e76300")
WIDTHS = {"90%": 0.6, "80%": 1.0, "50%": 1.5}
# Points drawn per cloud, and nodes on a side of the grid of a density.
CLOUD, GRID = 600, 120
# Draws of each node on the page.
SHOWN = 100


def draw_embedding(data: Data, points: Tensor, clouds: list[Tensor], folder: Path) -> None:
    """The first fold in normal coordinates around the root, and around its first held-out node.

    In these the distance to the centre of the picture is the distance in the plane. In the disc most of a tree would be
    at the border.

    :param points: draws of the reference nodes, ``(S, R, 2)``.
    :param clouds: draws of each held-out node, ``(S, 2)``.
    """
    mean = BALL.frechet_mean(points.transpose(0, 1))
    figure, axes = plt.subplots(1, 2, figsize=(11, 6.3), layout="constrained")
    _draw_fold(data, mean, clouds, torch.zeros(2, **DOUBLE), axes[0])
    _draw_fold(data, mean, clouds[:1], BALL.frechet_mean(clouds[0]), axes[1])
    axes[0].set_title("around the root", fontsize="medium")
    axes[1].set_title(f"around the mean of {data.names[data.held_out[0, 0]]}", fontsize="medium")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, markerscale=5)
    plotting.save(figure, folder / "embedding.png")
    plt.close(figure)


def explore(data: Data, points: Tensor, clouds: list[Tensor], path: Path) -> plotting.Explorer:
    """A page on which the first fold can be moved, with draws of all nodes; the arguments are as above."""
    count = min(len(points), SHOWN, *(len(cloud) for cloud in clouds))
    draws = torch.cat([_thinned(points, count), torch.stack([_thinned(cloud, count) for cloud in clouds], 1)], 1)
    nodes = torch.cat([data.reference[0], data.held_out[0]]).tolist()
    place = {node: i for i, node in enumerate(nodes)}
    edges = [[place[first], place[second]] for first, second in data.edges.tolist()]
    reference = data.reference.shape[1]
    return plotting.explore(
        BALL.frechet_mean(draws.transpose(0, 1)),
        BALL,
        path,
        labels=["reference" if i < reference else f"held out: {data.names[node]}" for i, node in enumerate(nodes)],
        names=[data.names[node] for node in nodes],
        edges=torch.tensor(edges, dtype=torch.long).reshape(-1, 2),
        draws=draws,
        title="A tree with uncertainty",
        description=f"Posterior means of {len(nodes)} nodes, and {count} draws of each.",
    )


def _thinned(draws: Tensor, count: int) -> Tensor:
    """So many of the draws, evenly from all chains."""
    return draws[torch.linspace(0, len(draws) - 1, count).long()]


def _draw_fold(data: Data, mean: Tensor, clouds: list[Tensor], origin: Tensor, ax: Axes) -> None:
    # z -> (-origin) + z is an isometry.
    mean, clouds = BALL.mobius_add(-origin, mean), [BALL.mobius_add(-origin, cloud) for cloud in clouds]
    at = BALL.to_normal_coords(None, mean)
    limit = 1.1 * max(BALL.dist0(mean).quantile(0.9), *(BALL.dist0(cloud).quantile(0.95) for cloud in clouds)).item()
    place = {node: i for i, node in enumerate(data.reference[0].tolist())}
    for first, second in data.edges.tolist():
        if first in place and second in place:
            times = torch.linspace(0, 1, 40, **DOUBLE)
            path = BALL.geodesic(times, mean[place[first]], mean[place[second]])
            ax.plot(*BALL.to_normal_coords(None, path).T.numpy(), color="0.65", linewidth=0.8, zorder=1.5)
    _scatter(ax, at, s=9, color="0.15", zorder=3)
    for i, (cloud, colour) in enumerate(zip(clouds, COLOURS, strict=False)):
        node = data.held_out[0, i]
        _scatter(ax, BALL.to_normal_coords(None, cloud[:CLOUD]), s=2, color=colour, alpha=0.3, label=data.names[node])
        _draw_regions(cloud, limit, colour, ax)
        _scatter(ax, at[data.seen[0, i]], s=60, facecolors="none", edgecolors=colour, linewidth=1.3, zorder=3)
        if data.truth is not None:
            truth = BALL.to_normal_coords(None, BALL.mobius_add(-origin, data.truth[0, node]))
            _scatter(ax, truth, marker="*", s=110, color=colour, edgecolors="white", zorder=4)
    named: list[tuple[float, float]] = []
    for node, (x, y) in zip(data.reference[0].tolist(), at.tolist(), strict=True):
        # Names that would cover another one are left out.
        if max(abs(x), abs(y)) < limit and all(
            abs(x - a) > 0.15 * limit or abs(y - b) > 0.04 * limit for a, b in named
        ):
            named.append((x, y))
            ax.annotate(data.names[node], (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6.5)
    for radius in range(2, int(limit) + 1, 2):
        ax.add_patch(Circle((0, 0), radius, facecolor="none", edgecolor="0.9", linewidth=0.6, zorder=0))
    ax.set(aspect="equal", xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[])
    ax.spines[:].set_color("0.75")


def _scatter(ax: Axes, points: Tensor, **style: Any) -> None:
    x, y = points.unbind(-1)
    ax.scatter(x.numpy(), y.numpy(), **style)


def _draw_regions(cloud: Tensor, limit: float, colour: str, ax: Axes) -> None:
    """Contours of the credible regions."""
    density, values = region(cloud)
    axis = torch.linspace(-limit, limit, GRID, **DOUBLE)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
    heights = density(BALL.from_normal_coords(None, grid.flatten(0, 1))).reshape(GRID, GRID)
    thresholds = [values.quantile(1 - LEVELS[name]).item() for name in WIDTHS]
    style: Any = {"colors": colour, "linewidths": [*WIDTHS.values()], "linestyles": "solid"}
    ax.contour(axis.numpy(), axis.numpy(), heights.numpy(), thresholds, **style)


def draw_calibration(levels: dict[str, Tensor], folder: Path) -> None:
    """How often the truth is in the region of a level, against the level, with 95% intervals."""
    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
    grid = torch.linspace(0, 1, 101, **DOUBLE)
    for (name, values), colour in zip(levels.items(), COLOURS, strict=False):
        hits = (values[..., None] <= grid).double().masked_fill(values[..., None].isnan(), float("nan"))
        share = hits.flatten(0, 1).nanmean(0)
        error = 1.96 * hits.nanmean(1).std(0) / len(hits) ** 0.5
        ax.plot(grid.numpy(), share.numpy(), color=colour, label=name)
        low, high = (share - error).clamp(min=0), (share + error).clamp(max=1)
        ax.fill_between(grid.numpy(), low.numpy(), high.numpy(), color=colour, alpha=0.2, linewidth=0)
    for level in LEVELS.values():
        ax.axvline(level, color="0.85", linewidth=0.6, zorder=0)
    ax.set(
        xlabel="level of the credible region", ylabel="share of truths inside", aspect="equal", xlim=(0, 1), ylim=(0, 1)
    )
    ax.legend(frameon=False, loc="upper left")
    plotting.save(figure, folder / "calibration.png")
    plt.close(figure)
