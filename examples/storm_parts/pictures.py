"""The picture of ``examples/storms.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pyro_hyperbolic import plotting
from storm_parts.data import MIDDLE, UNIT, Days
from storm_parts.densities import HEADINGS, LATITUDES, MAIN, SETUPS, Values, mean_heading, on_grid, turning_latitude

COMPASS = {-180: "S", -90: "W", 0: "N", 90: "E", 180: "S"}


def draw(posteriors: dict[str, Values], samples: Values, test: Days, path: Path) -> None:
    """Predictive densities with the test days, and the mean direction by latitude with its intervals."""
    import matplotlib.pyplot as plt

    degrees, latitudes = torch.rad2deg(HEADINGS).numpy(), (MIDDLE + UNIT * LATITUDES).numpy()
    figure, axes = plt.subplots(
        1, len(posteriors) + 1, figsize=(3.6 * (len(posteriors) + 1), 3.6), sharey=True, layout="constrained"
    )
    for ax, (name, draws) in zip(axes, posteriors.items(), strict=False):
        density = on_grid(SETUPS[name], draws).mean(-1).numpy()
        ax.pcolormesh(degrees, latitudes, density, cmap="Blues", shading="gouraud", rasterized=True)
        ax.plot(
            torch.rad2deg(test.heading).numpy(),
            (MIDDLE + UNIT * test.latitude).numpy(),
            ".",
            color="0.15",
            markersize=2.5,
        )
        ax.set_title(name, fontsize="medium")
        _compass(ax)
    right = axes[-1]
    heading = torch.rad2deg(mean_heading(SETUPS[MAIN], samples))
    low, middle, high = heading.quantile(torch.tensor([0.05, 0.5, 0.95]), -1).numpy()
    right.fill_betweenx(latitudes, low, high, color="#3f90da", alpha=0.3, linewidth=0)
    right.plot(middle, latitudes, color="#3f90da", linewidth=1.5)
    turn = turning_latitude(SETUPS[MAIN], samples)
    right.axhspan(*turn.nanquantile(torch.tensor([0.05, 0.95])).tolist(), color="#bd1f01", alpha=0.25, linewidth=0)
    right.axvline(0, color="0.6", linewidth=0.8)
    right.set_title("mean direction, NUTS, median and 90%", fontsize="medium")
    _compass(right)
    axes[0].set_ylabel("latitude (degrees north)")
    plotting.save(figure, path, dpi=150)
    plt.close(figure)


def _compass(ax: Any) -> None:
    ax.set_xlim(-180, 180)
    ax.set_xticks(list(COMPASS), list(COMPASS.values()))
    ax.set_xlabel("direction of motion")
