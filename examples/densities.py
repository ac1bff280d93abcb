"""Draw densities of the hyperbolic normal distributions (the paper's figures of the two normals).

What to look for in the pictures, where a cross marks the mean:

* ``densities_isotropic``: the Riemannian and the wrapped normal of the same scale, at sqrt(c)|mu| = 0, 0.4 and 0.8. The
  wrapped normal is narrower. Moving the mean carries the density along by an isometry. It looks smaller towards the
  border, but in hyperbolic distances it is as wide as before.
* ``densities_anisotropic``: the wrapped normal with diagonal and full covariance, at sqrt(c)|mu| = 0 and 0.4. The
  ellipses around the origin become bent when the mean is elsewhere.

The colours of each panel run from 0 to its greatest value. Densities are with respect to the Riemannian volume and peak
at the mean. With ``--lebesgue`` they are densities of the coordinates, dots per area on paper, and peak nearer to the
border.

    python examples/densities.py
    python examples/densities.py --curvature 1 --scale 0.5 --lebesgue --output-dir figures
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import torch
from command import add_common, at_least, command, make_parser, positive
from matplotlib.figure import Figure
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal

Rows = dict[str, Callable[[Tensor], Any]]
# Standard deviations, in units of the scale, and the correlation of the normal coordinates.
COVARIANCES = [((1.0, 1.0), 0.0), ((2.0, 0.5), 0.0), ((0.5, 2.0), 0.0), ((1.0, 1.0), 0.8)]


def isotropic(ball: PoincareBall, scale: float) -> Rows:
    """Both normals, as functions of their mean."""
    kinds: dict[str, Any] = {"Riemannian": RiemannianNormal, "Wrapped": WrappedNormal}
    return {name: partial(kind, scale=scale, manifold=ball) for name, kind in kinds.items()}


def anisotropic(ball: PoincareBall, scale: float) -> Rows:
    """The wrapped normal with several covariances, as functions of its mean."""
    rows: Rows = {}
    for stds, correlation in COVARIANCES:
        s = scale * torch.tensor(stds, dtype=torch.float64)
        covariance = s.outer(s) * torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=s.dtype)
        root = torch.linalg.cholesky(covariance)
        rows[f"{stds}, {correlation}"] = partial(WrappedNormal, manifold=ball, scale_tril=root)
    return rows


def draw(rows: Rows, norms: tuple[float, ...], ball: PoincareBall, **options: Any) -> Figure:
    """A row of panels for each distribution, and a column for each sqrt(c)|mu|."""
    size = (1.7 * len(norms) + 0.4, 1.7 * len(rows) + 0.3)
    figure, axes = plt.subplots(len(rows), len(norms), figsize=size, layout="constrained", squeeze=False)
    for row, (name, distribution) in zip(axes, rows.items(), strict=True):
        row[0].set_ylabel(name)
        for ax, norm in zip(row, norms, strict=True):
            mean = torch.full((2,), norm / math.sqrt(2 * float(ball.c)), dtype=torch.float64)
            plotting.density(distribution(mean), ax, **options)
            plotting.embedding(mean.unsqueeze(0), ball, ax=ax, marker="+", color="#ff4b33", s=50, linewidth=1.4)
    for ax, norm in zip(axes[0], norms, strict=True):
        ax.set_title(rf"$\sqrt{{c}}\,\|\mu\| = {norm:g}$", fontsize="medium")
    return figure


def run(args: argparse.Namespace) -> None:
    ball = PoincareBall(args.curvature)
    scale = args.scale or 1 / math.sqrt(args.curvature)
    options: Any = {"lebesgue": args.lebesgue, "resolution": args.resolution}
    figures = {
        "isotropic": draw(isotropic(ball, scale), (0.0, 0.4, 0.8), ball, **options),
        "anisotropic": draw(anisotropic(ball, scale), (0.0, 0.4), ball, **options),
    }
    for name, figure in figures.items():
        path = plotting.save(figure, args.output_dir / f"densities_{name}.{args.format}")
        plt.close(figure)
        print(f"c = {args.curvature:g}, scale {scale:.4g}: {path}")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--curvature", type=positive(float), default=10.0, help="c > 0; the curvature is -c")
    p.add_argument("--scale", type=positive(float), help="scale of the distributions (default: 1/sqrt(c))")
    p.add_argument("--lebesgue", action="store_true", help="draw densities of the coordinates")
    p.add_argument("--resolution", type=at_least(2), default=512, help="grid points per side")
    p.add_argument("--format", default="png", choices=["png", "pdf", "svg"], help="file format")
    add_common(p, "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
