"""Images at their places in the latent space."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from torch import Tensor

from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall
from pyro_hyperbolic.plotting.heatmaps import Extent


def thumbnails(
    images: Tensor,
    points: Tensor,
    colours: list[str],
    ball: PoincareBall,
    ax: Axes,
    extent: Extent,
    across: int = 20,
) -> list[int]:
    """Draw as many of the images as find room at their points, in turn.

    :param images: ``(N, height, height)``, 0 for transparent to 1 for ink.
    :param points: ``(N, 2)``, the centres.
    :param colours: of the ink of each image.
    :param ball: where the points lie.
    :param ax: axes to draw on.
    :param extent: left, right, bottom, top: a square.
    :param across: images side by side in the picture.
    :returns: the numbers of the images that are drawn.
    """
    left, right, bottom, _ = extent
    side = images.shape[-1]
    width = (right - left) / across
    corners = ((points.double() - torch.tensor([left, bottom])) / width - 0.5) * side
    corner = corners.round().long().tolist()
    canvas = np.ones((across * side, across * side, 4), dtype=np.float32)
    canvas[..., 3] = 0
    shown: list[int] = []
    free = np.ones(canvas.shape[:2], dtype=bool)
    for number, (x, y) in enumerate(corner):
        rows, columns = slice(y, y + side), slice(x, x + side)
        inside = min(x, y) >= 0 and max(x, y) <= across * side - side
        if inside and free[rows, columns].all():
            free[rows, columns] = False
            canvas[rows, columns, :3] = to_rgb(colours[number])
            # The first row of an image is its top, that of the canvas its bottom.
            canvas[rows, columns, 3] = images[number].flip(0).numpy()
            shown.append(number)
    plotting.disc(ball, ax)
    ax.imshow(canvas, origin="lower", extent=extent, aspect=ax.get_aspect(), zorder=2.0)
    return shown
