"""The disc of cells, coloured by what is known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold, PoincareBall, frechet_mean


def pseudotime(z: Tensor, manifold: Manifold, roots: Tensor) -> Tensor | None:
    """Distances from the root cell: of those that may be it, the one that is nearest to their Fréchet mean."""
    if len(roots) == 0:
        return None
    middle = frechet_mean(manifold, z[roots])
    root = roots[manifold.dist(z[roots], middle).argmin()]
    return manifold.dist(z, z[root])


def draw(z: Tensor, manifold: Manifold, columns: dict[str, Tensor | np.ndarray | None], path: Path) -> None:
    """A disc for each of the columns that there is.

    :param z: ``(N, 2)`` points of the ball or, in the same way, of the plane.
    :param columns: labels or numbers of the cells by title.
    """
    import matplotlib.pyplot as plt

    from pyro_hyperbolic import plotting

    ball = manifold if isinstance(manifold, PoincareBall) else PoincareBall(0.0)
    known: dict[str, Any] = {title: values for title, values in columns.items() if values is not None}
    figure, axes = plt.subplots(1, len(known), figsize=(4.6 * len(known), 3.8), squeeze=False, layout="constrained")
    # In random order: no class lies on top of all others.
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    for ax, (title, values) in zip(axes[0], known.items(), strict=True):
        shown = values[order.numpy()] if isinstance(values, np.ndarray) else values[order]
        plotting.embedding(z[order], ball, labels=shown, ax=ax, s=4, alpha=0.8)
        ax.set_title(title, fontsize="medium")
    plotting.save(figure, path)
    plt.close(figure)
