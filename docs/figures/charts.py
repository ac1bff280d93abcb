"""Draw ``docs/_static/charts.png``: what coordinates in floats lose with the distance from the origin.

    python docs/figures/charts.py

prints the figures that ``docs/charts.rst`` quotes.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib
import mpmath

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.distributions import RiemannianNormal
from pyro_hyperbolic.geometry import Manifold

DIM, SCALE, CURVATURE = 20, 1.0, 1.0
DIRECTIONS = 32
COLOURS: dict[type[Manifold], str] = {PoincareBall: "#bd1f01", Lorentz: "#1f5fa8"}
STYLES = {torch.float32: "--", torch.float64: "-"}
# (d - 1) c scale^2 of the Riemannian cells that the paper leaves out: d = 10 at c = 1.4, d = 20 at c = 0.7 and 1.4.
CELLS = (12.6, 26.6)
QUOTED = (5.0, 10.0, 15.0, 30.0, 60.0, 300.0)


def errors(manifold: Manifold, distances: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Largest relative errors, over directions, of the distance and of the prior's log-density at each distance."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(DIRECTIONS, DIM, generator=generator, dtype=torch.float64)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    v = (distances.unsqueeze(-1).unsqueeze(-1) * directions).to(dtype)
    # Exact for these v, which are rounded: the length in float64, and the density as a function of it.
    radius = v.double().norm(dim=-1)
    log_prob = -0.5 * (radius / SCALE).square() - log_normalizer()
    z = manifold.from_normal_coords(None, v)
    prior = RiemannianNormal(manifold.origin(DIM, dtype), SCALE, manifold, validate_args=False)
    found = manifold.dist0(z), prior.log_prob(z)
    relative = [((a.double() - b) / b).abs().amax(-1) for a, b in zip(found, (radius, log_prob), strict=True)]
    return relative[0], relative[1]


def log_normalizer() -> float:
    """Of the Riemannian normal, from its alternating sum with digits to spare."""
    with mpmath.workdps(400):
        n, tau = DIM - 1, mpmath.sqrt(CURVATURE) * SCALE
        terms = []
        for j in range(n + 1):
            b = (n - 2 * j) * tau
            terms.append((-1) ** j * mpmath.binomial(n, j) * mpmath.exp(b * b / 2) * mpmath.erfc(-b / mpmath.sqrt(2)))
        radial = SCALE * mpmath.sqrt(mpmath.pi / 2) * mpmath.fsum(terms) / (2 * mpmath.sqrt(CURVATURE)) ** n
        return float(mpmath.log(radial * 2 * mpmath.pi ** (DIM / 2) / mpmath.gamma(DIM / 2)))


def draw(path: Path) -> None:
    distances = torch.logspace(-0.5, math.log10(700), 250).double()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for chart, colour in COLOURS.items():
        for dtype, style in STYLES.items():
            label = f"{chart.__name__}, {str(dtype).removeprefix('torch.')}"
            for ax, error in zip(axes, errors(chart(CURVATURE), distances, dtype), strict=True):
                # Where the coordinates overflow there is no number, and the curve ends; an exact value is drawn at the
                # foot of the logarithmic axis.
                there = error.isfinite()
                x, y = distances[there], error[there].clamp(min=1e-17)
                ax.loglog(x, y, style, color=colour, linewidth=1.3, label=label)
                if not there.all():
                    ax.plot(x[-1], y[-1], "o", color=colour, markersize=4)
    for ax, title in zip(axes, ("distance to the origin", "log_prob of the prior"), strict=True):
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel(r"$\sqrt{c}$ · distance")
        ax.set_ylim(1e-17, 10)
        ax.axvspan(*CELLS, color="0.88", zorder=0)
        ax.grid(alpha=0.3, linewidth=0.5)
    axes[0].set_ylabel("relative error")
    axes[0].legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(0.0, 0.36))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def report() -> None:
    """The figures that the page quotes."""
    for dtype in STYLES:
        for chart in COLOURS:
            distance, log_prob = errors(chart(CURVATURE), torch.tensor(QUOTED).double(), dtype)
            for name, error in (("distance", distance), ("log_prob", log_prob)):
                row = " ".join(f"{e:9.1e}" for e in error.tolist())
                print(f"{chart.__name__:<13} {str(dtype).removeprefix('torch.'):<8} {name:<9} {row}")


def main(args: argparse.Namespace) -> None:
    print(f"{'relative error at sqrt(c) distance':<32} " + " ".join(f"{s:9g}" for s in QUOTED))
    report()
    draw(args.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "_static" / "charts.png"
    parser.add_argument("--output", type=Path, default=default, help="where to save the figure")
    main(parser.parse_args())
