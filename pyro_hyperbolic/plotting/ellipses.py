"""Regions of posteriors around points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting import canvas
from pyro_hyperbolic.plotting.borders import Scales, region_factors
from pyro_hyperbolic.plotting.surfaces import Center

_CORNERS = 128


def regions(
    points: Tensor,
    scales: Scales,
    manifold: Manifold,
    levels: Sequence[float] = (0.5, 0.9),
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Draw the regions that hold given shares of wrapped or Riemannian normals.

    Around the mean of a wrapped normal it is the image, under the exponential map, of an ellipse of the tangent space;
    around that of a Riemannian normal it is a circle.

    Args:
        points: the means, ``(N, 2)``.
        scales: standard deviations of wrapped normals (a number, ``(N,)``, ``(N, 1)`` or ``(N, 2)``), their Cholesky
            factors ``(N, 2, 2)``, or the distributions themselves, of batch shape ``(N,)``, on the same space with
            their means at the points.
        manifold: the ball.
        levels: the shares, between 0 and 1.
        ax: axes to draw on; a new disc by default.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, the index of one of the points, or ``"mean"`` for their Fréchet mean; as of
            :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: passed on to :class:`matplotlib.collections.PolyCollection` (``facecolor``, ``alpha``, ...).

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> from pyro_hyperbolic import PoincareBall
        >>> points = torch.tensor([[0.0, 0.0], [0.8, 0.0]])
        >>> ax = regions(points, torch.tensor([[0.3, 0.1], [0.3, 0.1]]), PoincareBall(1.0))
        >>> plt.close(ax.figure)
    """
    ball = canvas.drawn(manifold)
    x = canvas.points("points", points, ball)
    if x.dim() != 2:
        raise ValueError(f"points must have shape (N, 2), got {tuple(x.shape)}; flatten the leading dimensions first.")
    if not all(0 < level < 1 for level in levels):
        raise ValueError(f"levels must lie between 0 and 1, got {tuple(levels)}; for example (0.5, 0.9).")
    factors = region_factors(scales, x, ball)
    ax, lens = canvas.prepared(ball, ax, view, center, x)
    angle = 2 * math.pi * torch.arange(_CORNERS, dtype=x.dtype) / _CORNERS
    circle = torch.stack([angle.cos(), angle.sin()])
    defaults: dict[str, Any] = {"facecolor": canvas.PALETTE[0], "edgecolor": canvas.PALETTE[0], "alpha": 0.25}
    defaults |= {"linewidth": 0.8, "zorder": 1.0}
    for level in sorted(levels, reverse=True):
        borders = ball.from_normal_coords(x.unsqueeze(1), (factors(level) @ circle).mT)
        ax.add_collection(
            PolyCollection([b.numpy() for b in lens(borders)], **canvas.styled(PolyCollection, defaults, style))
        )
        style = {key: value for key, value in style.items() if key != "label"}  # one entry in the legend
    ax.autoscale_view()
    return ax
