"""Two embeddings of the same things, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from pyro_hyperbolic.analysis import procrustes
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting import canvas
from pyro_hyperbolic.plotting.labels import Labels
from pyro_hyperbolic.plotting.scatters import embedding
from pyro_hyperbolic.plotting.surfaces import Center, checked_center


def compare(
    first: Tensor,
    second: Tensor,
    manifold: Manifold,
    labels: Labels | None = None,
    edges: Tensor | None = None,
    axes: Sequence[Axes] | None = None,
    titles: tuple[str, str] = ("first", "second"),
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> tuple[Axes, Axes]:
    """Draw two embeddings of the same things side by side, after the isometry that brings the second nearest.

    Distances determine an embedding up to an isometry only, so two pictures of it may look quite different. See
    :func:`~pyro_hyperbolic.analysis.procrustes`. The title of the second says how far apart the points still are.

    Args:
        first: ``(N, 2)``.
        second: ``(N, 2)``, the same things in the same order.
        manifold: the ball of both.
        labels: as in :func:`~pyro_hyperbolic.plotting.embedding`.
        edges: as in :func:`~pyro_hyperbolic.plotting.embedding`.
        axes: two axes to draw on; new ones by default.
        titles: what the two are.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle of both, the index of one of the first points, or ``"mean"``; as of
            :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: as in :func:`~pyro_hyperbolic.plotting.embedding`.

    Returns:
        The two axes.

    Example:
        >>> import torch
        >>> from pyro_hyperbolic import PoincareBall
        >>> first = torch.tensor([[0.0, 0.0], [0.6, 0.0], [0.2, 0.7]])
        >>> left, right = compare(first, first.flip(-1), PoincareBall(1.0))
        >>> right.get_title()
        'second, 0 apart'
        >>> plt.close(left.figure)
    """
    ball = canvas.drawn(manifold)
    x, y = canvas.points("first", first, ball), canvas.points("second", second, ball)
    align = procrustes(y, x, ball)
    middle = checked_center(center, x, ball)
    if axes is None:
        _, axes = plt.subplots(1, 2, figsize=(9, 4.5), layout="constrained")
    left, right = axes
    embedding(x, ball, labels, edges, left, view=view, center=middle, **{"legend": False} | style)
    embedding(align(y), ball, labels, edges, right, view=view, center=middle, **style)
    left.set_title(titles[0], fontsize="medium")
    right.set_title(f"{titles[1]}, {round(align.error, 6):.3g} apart", fontsize="medium")
    return left, right
