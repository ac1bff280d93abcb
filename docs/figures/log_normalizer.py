"""Draw ``docs/_static/log_normalizer.png``: errors of log Z_r over the dimension and the scale.

    python docs/figures/log_normalizer.py

prints the figures that ``docs/numerics.rst`` quotes. It takes a few minutes: the references are integrals in 50-digit
arithmetic.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from pathlib import Path

import matplotlib
import mpmath
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import ListedColormap
from torch import Tensor

from pyro_hyperbolic.distributions import HyperbolicRadius

SCALES = torch.logspace(math.log10(0.005), math.log10(6.0), 25, dtype=torch.float64)
DIMENSIONS = (2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200)
QUOTED = ((2, 0.005), (5, 0.1), (10, 0.1), (20, 0.1), (20, 1.0), (50, 0.1), (50, 1.0), (100, 0.1), (200, 6.0))


@functools.cache
def reference(dim: int, scale: float) -> float:
    """log Z_r at c = 1: scale times the integral of exp(h(y)), h(y) = n log sinh(scale y) - y^2/2, over y > 0.

    Gauss-Legendre rules of 48 nodes on six pieces leave less than 1e-35 of it out, and so does the window.
    """
    n = dim - 1
    with mpmath.workdps(50):
        sigma = mpmath.mpf(scale)

        def h(y: mpmath.mpf) -> mpmath.mpf:
            return n * mpmath.log(mpmath.sinh(sigma * y)) - y * y / 2

        start = mpmath.sqrt(n + (n * sigma) ** 2)
        mode = mpmath.findroot(lambda y: y * mpmath.tanh(sigma * y) - n * sigma, start)
        top = h(mode)
        pieces = mpmath.linspace(max(mpmath.mpf(0), mode - 16), mode + 16, 7)
        mass = mpmath.quad(lambda y: mpmath.exp(h(y) - top), pieces, method="gauss-legendre", maxdegree=5)
        return float(mpmath.log(sigma * mass) + top)


def closed_form(dim: int, scale: Tensor) -> Tensor:
    """The same sum in the dtype of ``scale``: no term overflows or loses digits, only the sum does."""
    n = dim - 1
    j = torch.arange(n + 1, dtype=scale.dtype)
    log_binomial = math.lgamma(n + 1) - torch.lgamma(j + 1) - torch.lgamma(n - j + 1)
    b = (n - 2 * j) * scale.unsqueeze(-1)
    log_terms = log_binomial + 0.5 * b * b + math.log(2) + torch.special.log_ndtr(b)
    largest = log_terms.amax(-1, keepdim=True)
    total = ((1 - 2 * (j % 2)) * (log_terms - largest).exp()).sum(-1)
    # Of a sum that came out negative there is no logarithm.
    return total.log() + largest.squeeze(-1) + scale.log() + 0.5 * math.log(math.pi / 2) - n * math.log(2)


def here(dim: int, scale: Tensor) -> Tensor:
    return HyperbolicRadius(dim, scale, 1.0).log_normalizer


METHODS: dict[str, tuple[Callable[[int, Tensor], Tensor], torch.dtype]] = {
    "closed form, float64": (closed_form, torch.float64),
    "this package, float64": (here, torch.float64),
    "this package, float32": (here, torch.float32),
}


def error(method: str, dim: int, scale: Tensor) -> Tensor:
    """Relative error, absolute where |log Z_r| < 1; ``nan`` where there is no number."""
    function, dtype = METHODS[method]
    rounded = scale.to(dtype)
    exact = torch.tensor([reference(dim, s) for s in rounded.tolist()], dtype=torch.float64)
    return (function(dim, rounded).double() - exact).abs() / exact.abs().clamp(min=1)


def draw(errors: dict[str, Tensor], path: Path) -> None:
    figure, axes = plt.subplots(1, len(errors), figsize=(9, 3.3), sharey=True, layout="constrained")
    colours = matplotlib.colormaps["viridis_r"].resampled(9)
    colours = ListedColormap(colours(np.arange(9)), bad="#bd1f01")
    for ax, (method, values) in zip(axes, errors.items(), strict=True):
        # An exact value is drawn as one that is right to the last digit.
        levels = np.ma.masked_invalid(values.clamp(min=1e-17).log10().numpy())
        # One row per dimension, with edges half way between neighbours on the logarithmic axis.
        mesh = ax.pcolormesh(SCALES, DIMENSIONS, levels, cmap=colours, vmin=-16.5, vmax=1.5, shading="nearest")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_yticks([2, 5, 10, 20, 50, 100, 200], labels=["2", "5", "10", "20", "50", "100", "200"])
        ax.minorticks_off()
        ax.set_title(method, fontsize="medium")
        ax.set_xlabel(r"$\sqrt{c}\,\sigma$")
    axes[0].set_ylabel("dimension")
    bar = figure.colorbar(mesh, ax=axes, ticks=[-16, -12, -8, -4, 0], shrink=0.9)
    bar.set_ticklabels([f"$10^{{{k}}}$" for k in (-16, -12, -8, -4, 0)])
    bar.set_label("error of log Z")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def report(errors: dict[str, Tensor]) -> None:
    """The figures that the page quotes."""
    print(f"{'error at':<14}" + "".join(f"{method:>26}" for method in METHODS))
    for dim, scale in QUOTED:
        row = [error(method, dim, torch.tensor([scale], dtype=torch.float64)).item() for method in METHODS]
        print(f"{f'd = {dim}, {scale:g}':<14}" + "".join(f"{value:26.1e}" for value in row))
    for method, values in errors.items():
        found = values[values.isfinite()]
        lost = ((values > 0.01) | ~values.isfinite()).double().mean()
        print(f"{method}: largest {found.max():.1e}, {100 * lost:.0f}% of the grid above 1e-2 or without a number")


def main(args: argparse.Namespace) -> None:
    errors = {method: torch.stack([error(method, dim, SCALES) for dim in DIMENSIONS]) for method in METHODS}
    report(errors)
    draw(errors, args.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "_static" / "log_normalizer.png"
    parser.add_argument("--output", type=Path, default=default, help="where to save the figure")
    main(parser.parse_args())
