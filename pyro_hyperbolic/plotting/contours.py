"""The smallest regions that hold given shares of a density."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting import canvas
from pyro_hyperbolic.plotting.heatmaps import Extent, cell_centres, check_grid, check_window
from pyro_hyperbolic.plotting.lens import Lens
from pyro_hyperbolic.plotting.surfaces import Center

# Of the largest region and of the smallest.
_ALPHAS = 0.2, 0.8
# Densities are drawn relative to the greatest one.
_ABOVE_ALL = 2.0


def credible_regions(
    log_density: Callable[[Tensor], Tensor],
    manifold: Manifold,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
    ax: Axes | None = None,
    extent: Extent | None = None,
    resolution: int = 256,
    filled: bool = False,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Draw the smallest regions that hold given shares of a density, in one piece or in several.

    The region of a level is :math:`\{z : p(z) \ge t\}`, where :math:`p` is a density with respect to the Riemannian
    volume and :math:`t` is such that the region has this share of the mass in the picture. For posteriors that are
    wrapped or Riemannian normals see :func:`regions`, which needs no grid.

    Args:
        log_density: takes points, float64 ``(N, 2)``, and returns log-densities with respect to the Riemannian volume,
            ``(N,)``, up to a constant; for example the sum of a prior's and a likelihood's ``log_prob``.
        manifold: the ball.
        levels: the shares, between 0 and 1.
        ax: axes to draw on; a new disc by default.
        extent: as in :func:`heatmap`.
        resolution: nodes on a side of the grid.
        filled: areas instead of their borders.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, ``(2,)``; as in :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: as in :meth:`matplotlib.axes.Axes.contour` or, if ``filled``, :meth:`~matplotlib.axes.Axes.contourf`
            (``colors``, ``linewidths``, ...). Colours are from the largest region to the smallest.

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import pyro_hyperbolic.distributions as hdist
        >>> from pyro_hyperbolic import PoincareBall
        >>> ball = PoincareBall(1.0)
        >>> parts = hdist.WrappedNormal(torch.tensor([[0.6, 0.0], [-0.6, 0.2]], dtype=torch.float64), 0.3, ball)
        >>> ax = credible_regions(lambda z: parts.log_prob(z.unsqueeze(-2)).logsumexp(-1), ball)
        >>> plt.close(ax.figure)
    """
    canvas.check_function("log_density", log_density)
    if not levels or not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie between 0 and 1, got {tuple(levels)}; for example (0.5, 0.9).")
    check_grid(extent, resolution)
    ball = canvas.drawn(manifold)
    canvas.check_home("log_density", getattr(log_density, "__self__", None), ball)
    check_window(extent, ball, ax, view)
    ax, lens = canvas.prepared(ball, ax, view, center, torch.zeros(1, 2, dtype=torch.float64))
    if extent is None:
        extent = (-lens.radius, lens.radius, -lens.radius, lens.radius)
    nodes = cell_centres(extent, resolution)
    heights = _heights(log_density, nodes.reshape(-1, 2), lens)
    cuts = _cuts(heights, nodes.reshape(-1, 2), lens, levels)
    x, y, grid = nodes[0, :, 0].numpy(), nodes[:, 0, 1].numpy(), heights.exp().reshape(resolution, resolution).numpy()
    if filled:
        shades = [to_hex((*to_rgb(canvas.PALETTE[0]), alpha), True) for alpha in np.linspace(*_ALPHAS, len(cuts))]
        defaults: dict[str, Any] = {"colors": shades, "zorder": 0.0}
        ax.contourf(x, y, grid, [*cuts, _ABOVE_ALL], **defaults | style)
    else:
        defaults = {"colors": canvas.PALETTE[0], "linewidths": 1.0, "zorder": 1.0}
        ax.contour(x, y, grid, cuts, **defaults | style)
    return ax


def _heights(log_density: Callable[[Tensor], Tensor], nodes: Tensor, lens: Lens) -> Tensor:
    """Log-densities at places on paper ``(N, 2)`` relative to the greatest one; -inf outside of the border."""
    inside = nodes.norm(dim=-1) < lens.radius
    with torch.no_grad():
        values = log_density(lens.back(nodes[inside]))
    if values.shape != (int(inside.sum()),):
        raise ValueError(
            f"log_density must return one value per point, {(int(inside.sum()),)}, got {tuple(values.shape)}; sum over"
            " the data, and draw one density at a time."
        )
    if bool(values.isnan().any()) or not bool(values.isfinite().any()):
        raise ValueError("log_density must be finite or -inf in the picture, and finite somewhere; check its dtype.")
    heights = torch.full((len(nodes),), -math.inf, dtype=torch.float64)
    heights[inside] = values.to("cpu", torch.float64)
    return heights - heights.max()


def _cuts(heights: Tensor, nodes: Tensor, lens: Lens, levels: Sequence[float]) -> list[float]:
    """The densities above which the densest cells have the shares of the levels, in ascending order."""
    order = heights.argsort(descending=True)
    held = (heights + lens.log_volume(nodes)).softmax(0)[order].cumsum(0)
    last = torch.searchsorted(held, torch.tensor(levels, dtype=torch.float64)).clamp(max=len(order) - 1)
    return heights[order[last]].exp().unique().tolist()
