"""Densities and other functions on the disc."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import AxesImage
from torch import Tensor
from torch.distributions import Distribution

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.ops.checks import checked_integer, is_number
from pyro_hyperbolic.plotting.canvas import add_colorbar, border, check_function, check_home, drawn, prepared, styled
from pyro_hyperbolic.plotting.lens import Lens, lens_of
from pyro_hyperbolic.plotting.surfaces import Center

Extent = tuple[float, float, float, float]

# Zero is white, as the page: the disc has no tint, and a window at c = 0 no visible edge.
_BLUES = LinearSegmentedColormap.from_list("white_blues", ["white", *colormaps["Blues"](np.linspace(0.1, 1.0, 10))])


def heatmap(
    function: Callable[[Tensor], Tensor],
    manifold: Manifold,
    ax: Axes | None = None,
    extent: Extent | None = None,
    resolution: int = 512,
    colorbar: bool = False,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    """Draw a function of the points of the disc as a heat map, cut off at the border.

    Args:
        function: takes points, float64 ``(N, 2)``, and returns ``(N,)``. Where it is not finite nothing is drawn.
        manifold: the ball.
        ax: axes to draw on; a new disc by default.
        extent: left, right, bottom, top of the picture; the whole disc by default. At ``c = 0`` and in the equidistant
            view it must be given.
        resolution: nodes on a side of the grid.
        colorbar: whether to add a colour bar.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, ``(2,)``; as in :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: passed on to :meth:`matplotlib.axes.Axes.imshow` (``cmap``, ``vmin``, ``vmax``, ``norm``, ...). The
            colours run from the first to the last percentile of the values by default: many
            functions have no bound at the border.

    Returns:
        The axes.
    """
    ball = drawn(manifold)
    check_function("function", function)
    check_grid(extent, resolution)
    check_window(extent, ball, ax, view)
    ax, lens = prepared(ball, ax, view, center, torch.zeros(1, 2, dtype=torch.float64))
    return _draw(lambda p: function(lens.back(p)), lens, ax, extent, resolution, colorbar, style)


def check_grid(extent: Extent | None, resolution: int) -> None:
    """Before anything is drawn: where the nodes of a grid are, and how many."""
    checked_integer("resolution", resolution, least=2)
    if extent is None:
        return
    is_four = isinstance(extent, (Sequence, np.ndarray)) and len(extent) == 4
    if not is_four or not all(is_number(edge) and math.isfinite(edge) for edge in extent):
        raise ValueError(f"extent must be four numbers, (left, right, bottom, top), got {extent!r:.60}.")


def check_window(extent: Extent | None, ball: Any, ax: Axes | None, view: str | None) -> None:
    """Before anything is drawn: what has no border needs an extent."""
    known = None if ax is None else lens_of(ax)
    equidistant = (view or (known.view if known else "")) == "equidistant"
    if extent is None and (ball.c == 0 or equidistant):
        where = "in the equidistant view" if equidistant else "at c = 0"
        raise ValueError(f"extent must be given {where}, got None; pass (left, right, bottom, top).")


def _draw(
    function: Callable[[Tensor], Tensor],
    lens: Lens,
    ax: Axes,
    extent: Extent | None,
    resolution: int,
    colorbar: bool,
    style: dict[str, Any],
) -> Axes:
    """Of a function of places on paper."""
    if extent is None:
        extent = (-lens.radius, lens.radius, -lens.radius, lens.radius)
    nodes = cell_centres(extent, resolution)
    # Nodes outside take the value at the border: the image is smooth up to the circle that cuts it off.
    inside = nodes.norm(dim=-1) < lens.radius
    with torch.no_grad():
        values = function(nodes.reshape(-1, 2))
    if values.shape != (resolution**2,):
        raise ValueError(
            f"function must return one value per point, {(resolution**2,)}, got {tuple(values.shape)};"
            " for a distribution use one without batch dimensions."
        )
    grid = np.ma.masked_invalid(values.double().cpu().reshape(resolution, resolution).numpy())
    if "norm" not in style and (seen := grid[inside.numpy()].compressed()).size:
        low, high = np.percentile(seen, (1, 99))
        style = styled(AxesImage, {"vmin": low, "vmax": high}, style)
    style = styled(AxesImage, {"cmap": "viridis", "interpolation": "bilinear", "zorder": 0.0}, style)
    image = ax.imshow(grid, origin="lower", extent=extent, aspect=ax.get_aspect(), **style)
    if math.isfinite(lens.radius):
        image.set_clip_path(border(ax, lens.ball))
    if colorbar:
        add_colorbar(ax, image)
    return ax


def density(
    distribution: Distribution,
    ax: Axes | None = None,
    lebesgue: bool = False,
    manifold: Manifold | None = None,
    extent: Extent | None = None,
    resolution: int = 512,
    colorbar: bool = False,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    """Draw the density of a distribution on the disc, from 0 to its greatest value.

    Args:
        distribution: a distribution with empty batch shape and event shape ``(2,)``.
        ax: axes to draw on; a new disc by default.
        lebesgue: draw the density of the coordinates (dots per area on paper) instead of the density with respect
            to the Riemannian volume (the paper's), which an isometry carries along unchanged.
        manifold: where the distribution lives, if the distribution does not say: ``distribution.manifold`` by default.
        extent: as in :func:`heatmap`; where there is no border wide enough for a sample by default.
        resolution: as in :func:`heatmap`.
        colorbar: as in :func:`heatmap`.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, or ``"mean"`` for that of the distribution; as of
            :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: as in :func:`heatmap`.

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> import pyro_hyperbolic.distributions as hdist
        >>> from pyro_hyperbolic import PoincareBall
        >>> ax = density(hdist.RiemannianNormal(torch.tensor([0.4, 0.0]), 0.8, PoincareBall(1.0)))
        >>> plt.close(ax.figure)
    """
    manifold = getattr(distribution, "manifold", None) if manifold is None else manifold
    if manifold is None:
        raise ValueError(
            f"manifold must be given for a distribution that has none, got {distribution!r}; pass PoincareBall(c)."
        )
    if distribution.event_shape != (2,) or distribution.batch_shape != ():
        raise ValueError(
            f"distribution must have batch shape () and event shape (2,), got {tuple(distribution.batch_shape)} and"
            f" {tuple(distribution.event_shape)}; draw one distribution of two dimensions at a time."
        )
    ball = drawn(manifold)
    check_home("distribution", distribution, ball)
    check_grid(extent, resolution)
    like = _parameter(distribution)
    anchor = distribution.mean.detach().double().cpu().reshape(1, 2) if center == "mean" else torch.zeros(1, 2).double()
    ax, lens = prepared(ball, ax, view, center, anchor)
    if extent is None and math.isinf(lens.radius):
        extent = _extent_of_sample(distribution, like, lens)

    def values(p: Tensor) -> Tensor:
        # In the distribution's own dtype a point at the border must be moved in again.
        z = ball.projx(lens.back(p).to(like.device, like.dtype))
        log_density = distribution.log_prob(z)
        return (log_density + lens.log_volume(p).to(z) if lebesgue else log_density).exp()

    style = styled(AxesImage, {"cmap": _BLUES, "vmin": 0.0, "vmax": None}, style)
    return _draw(values, lens, ax, extent, resolution, colorbar, style)


def cell_centres(extent: Extent, resolution: int) -> Tensor:
    left, right, bottom, top = extent
    steps = (torch.arange(resolution, dtype=torch.float64) + 0.5) / resolution
    x, y = left + (right - left) * steps, bottom + (top - bottom) * steps
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)


def _parameter(distribution: Distribution) -> Tensor:
    """A parameter of the distribution: points must have its dtype and device."""
    for value in vars(distribution).values():
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        if isinstance(value, Distribution):
            return _parameter(value)
    return torch.empty(())


def _extent_of_sample(distribution: Distribution, like: Tensor, lens: Lens) -> Extent:
    with torch.random.fork_rng(devices=[like.device] if like.is_cuda else []):
        torch.manual_seed(0)
        sample = lens(distribution.sample(torch.Size((1000,))).double().cpu())
    centre = sample.mean(0)
    half = 1.2 * float((sample - centre).abs().max())
    x, y = centre.tolist()
    return x - half, x + half, y - half, y + half
