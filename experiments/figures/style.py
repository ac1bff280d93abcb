"""What all figures look like."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pyro_hyperbolic.plotting.canvas import PALETTE
from pyro_hyperbolic.plotting.heatmaps import Extent

BLUE, ORANGE, RED, GREY, PURPLE = PALETTE[:5]
INK = "0.1"
PINK = "#e7298a"

# Sizes are those of a paper's page, so that text is readable without a zoom.
STYLE: Any = {"font.size": 9, "axes.titlesize": 9, "axes.labelsize": 9, "legend.fontsize": 8}
DPI = 150


def subplots(rows: int, columns: int, size: float, beside: float = 0.0) -> tuple[Figure, np.ndarray]:
    """A grid of square panels of ``size`` inches, with room beside them."""
    figsize = (size * columns + beside, size * rows)
    figure, axes = plt.subplots(rows, columns, figsize=figsize, layout="constrained", squeeze=False)
    return figure, axes


def window(ax: Axes, extent: Extent) -> None:
    """Show this square, which is left, right, bottom, top."""
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlim=extent[:2], ylim=extent[2:])


def annotate(ax: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any) -> None:
    """A text beside a point, shifted by so many typographic points."""
    defaults: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10, "color": INK}
    ax.annotate(text, at, shift, textcoords="offset points", **defaults | style)
