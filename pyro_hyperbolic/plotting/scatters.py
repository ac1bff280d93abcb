"""Points of the disc with labels and edges."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting import canvas
from pyro_hyperbolic.plotting.labels import MARKERS, Classes, Labels, classify
from pyro_hyperbolic.plotting.lines import geodesic
from pyro_hyperbolic.plotting.surfaces import Center


def embedding(
    points: Tensor,
    manifold: Manifold,
    labels: Labels | None = None,
    edges: Tensor | None = None,
    ax: Axes | None = None,
    legend: bool = True,
    classes: bool | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    """Scatter points, coloured by label, with the edges of a graph as geodesics below them.

    To draw edges in another style, call :func:`~pyro_hyperbolic.plotting.geodesic` on the same axes.

    Args:
        points: ``(N, 2)``.
        manifold: their ball; at ``c = 0`` the plane.
        labels: one per point. Classes (strings, booleans, integers of at most 20 values) get a look and an entry in the
            legend each; other numbers get a colour map and a colour bar.
        edges: pairs of indices of points, integers ``(E, 2)``.
        ax: axes to draw on; a new disc by default.
        legend: whether to draw the legend or the colour bar.
        classes: whether labels are classes; by default the rule above decides.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, the index of one of the points (such as a root), or ``"mean"`` for their
            Fréchet mean; as in :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: passed on to :meth:`matplotlib.axes.Axes.scatter` (``s``, ``marker``, ``cmap``, ...).

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> from pyro_hyperbolic import PoincareBall
        >>> points = torch.tensor([[0.0, 0.0], [0.6, 0.0], [0.7, 0.2]])
        >>> edges = torch.tensor([[0, 1], [1, 2]])
        >>> ax = embedding(points, PoincareBall(1.0), labels=["root", "child", "child"], edges=edges)
        >>> plt.close(ax.figure)
    """
    ball = canvas.drawn(manifold)
    x = canvas.points("points", points, ball)
    if x.dim() != 2:
        raise ValueError(f"points must have shape (N, 2), got {tuple(x.shape)}; flatten the leading dimensions first.")
    ax, lens = canvas.prepared(ball, ax, view, center, x)
    if edges is not None:
        first, second = check_edges(edges, len(x)).T
        geodesic(x[first], x[second], ball, ax, color="0.65", linewidth=0.8, zorder=1.5)
    x = lens(x)
    size = min(max(3000 / max(len(x), 1), 4), 24)
    style = canvas.styled(
        PathCollection, {"s": size, "linewidth": 0.0 if _filled(style) else 1.0, "zorder": 3.0}, style
    )
    if labels is None:
        ax.scatter(*x.T.numpy(), **canvas.styled(PathCollection, {"color": "0.15"}, style))
        return ax
    found = classify(labels, len(x), classes)
    if isinstance(found, Classes):
        _scatter_classes(ax, x, found, legend, style)
    else:
        image = ax.scatter(*x.T.numpy(), **canvas.styled(PathCollection, {"c": found.values, "cmap": "viridis"}, style))
        if legend:
            canvas.add_colorbar(ax, image)
    return ax


def _filled(style: dict[str, Any]) -> bool:
    return style.get("marker", "o") not in ("x", "+", "|", "_", "1", "2", "3", "4")


def _scatter_classes(ax: Axes, x: Tensor, classes: Classes, legend: bool, style: dict[str, Any]) -> None:
    for i, name in enumerate(classes.names):
        colour, marker = classes.look(i)
        defaults = {"color": colour, "marker": MARKERS[marker], "label": name}
        ax.scatter(*x[torch.from_numpy(classes.index == i)].T.numpy(), **defaults | style)
    if legend:
        box = ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handletextpad=0.2)
        for handle in box.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([30.0])


def check_edges(edges: Tensor, count: int) -> Tensor:
    pairs = torch.as_tensor(edges).detach().cpu()
    if pairs.dim() != 2 or pairs.shape[-1] != 2 or pairs.is_floating_point():
        raise ValueError(f"edges must be integers of shape (E, 2), got {pairs.dtype} of shape {tuple(pairs.shape)}.")
    if len(pairs) and not (int(pairs.min()) >= 0 and int(pairs.max()) < count):
        raise ValueError(
            f"edges must be indices of the {count} points, got {int(pairs.min())} to {int(pairs.max())}; leave out"
            " the root's missing parent."
        )
    return pairs.long()
