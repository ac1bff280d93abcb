"""Densities of the hyperbolic normal laws (the paper's figures of the two normals).

``isotropic``: the Riemannian and the wrapped normal of the same scale, at sqrt(c)|mu| = 0, 0.4 and 0.8.
``anisotropic``: the wrapped normal with diagonal and full covariance, at sqrt(c)|mu| = 0 and 0.4.

Densities are with respect to the Riemannian volume: moving the mean carries the picture along by an isometry, so that
its peak has the same height everywhere. With ``--lebesgue`` they are densities of the coordinates.

    python examples/densities.py --curvature 10 --output figures
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import matplotlib.pyplot as plt

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.experiments.figures.densities import anisotropic, isotropic


def main(args: argparse.Namespace) -> None:
    if not args.curvature > 0:
        raise ValueError(f"--curvature must be positive, got {args.curvature:g}; the disc has the radius 1/sqrt(c).")
    if args.scale is not None and not args.scale > 0:
        raise ValueError(f"--scale must be positive, got {args.scale:g}; leave it out for 1/sqrt(c).")
    if args.resolution < 2:
        raise ValueError(f"--resolution must be at least 2, got {args.resolution}; the default is 512.")
    ball = PoincareBall(args.curvature)
    scale = 1 / math.sqrt(args.curvature) if args.scale is None else args.scale
    figures = {
        "isotropic": isotropic(ball, [scale], args.lebesgue, args.resolution),
        "anisotropic": anisotropic(ball, scale, args.lebesgue, args.resolution),
    }
    for name, figure in figures.items():
        path = plotting.save(figure, args.output / f"densities_{name}.{args.format}")
        plt.close(figure)
        print(f"c = {args.curvature:g}, scale {scale:.4g}: {path}")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--curvature", type=float, default=10.0, help="c > 0; the curvature is -c")
    options.add_argument("--scale", type=float, help="standard deviation of the laws; default 1/sqrt(c)")
    options.add_argument("--lebesgue", action="store_true", help="densities of the coordinates")
    options.add_argument("--resolution", type=int, default=512, help="nodes on a side of the grid")
    options.add_argument("--format", default="png", choices=["png", "pdf", "svg"])
    options.add_argument("--output", type=Path, default=Path("."), help="folder to write to")
    return options


if __name__ == "__main__":
    try:
        main(parser().parse_args())
    except (ValueError, OSError) as error:
        sys.exit(f"densities.py: error: {error}")
