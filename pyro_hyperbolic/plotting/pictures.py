"""Grids of images."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.plotting.canvas import styled
from pyro_hyperbolic.plotting.lens import check_axes

# Pixels between two images.
_GAP = 1


def images(batch: Tensor, columns: int | None = None, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw a batch of grey images as one grid, row by row.

    Args:
        batch: ``(N, height, width)`` or ``(N, 1, height, width)``, 0 for black to 1 for white.
        columns: images in a row; as square a grid as possible by default.
        ax: axes to draw on; new ones by default.
        **style: passed on to :meth:`matplotlib.axes.Axes.imshow` (``cmap``, ``vmin``, ``vmax``, ...).

    Returns:
        The axes.

    Example:
        >>> ax = images(torch.rand(10, 28, 28), columns=5)
        >>> ax.images[0].get_array().shape
        (57, 144)
        >>> plt.close(ax.figure)
    """
    x = torch.as_tensor(batch).detach().cpu().double()
    if x.dim() == 4 and x.shape[1] == 1:
        x = x.squeeze(1)
    if x.dim() != 3 or 0 in x.shape:
        raise ValueError(
            f"batch must have shape (N, height, width) or (N, 1, height, width) with N >= 1, got {tuple(x.shape)};"
            " reshape flat images first, for example batch.reshape(-1, 28, 28)."
        )
    count, height, width = x.shape
    if columns is None:
        columns = math.ceil(math.sqrt(count))
    columns = min(checked_integer("columns", columns, least=1), count)
    rows = math.ceil(count / columns)
    # nan is not drawn: the gaps and the empty places show the background.
    grid = torch.full((rows, height + _GAP, columns, width + _GAP), math.nan, dtype=x.dtype)
    for i, image in enumerate(x):
        grid[i // columns, :height, i % columns, :width] = image
    flat = grid.reshape(rows * (height + _GAP), columns * (width + _GAP))[:-_GAP, :-_GAP]
    if ax is None:
        _, ax = plt.subplots(figsize=(4.5, 4.5 * flat.shape[0] / flat.shape[1]), layout="constrained")
    check_axes("ax", ax)
    defaults = {"cmap": "gray", "vmin": 0.0, "vmax": 1.0, "interpolation": "nearest"}
    ax.imshow(flat.numpy(), **styled(AxesImage, defaults, style))
    ax.set_axis_off()
    return ax
