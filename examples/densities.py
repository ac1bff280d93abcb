"""Densities of the hyperbolic normal distributions (the paper's figures of the two normals).

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

import matplotlib.pyplot as plt
from command import Parser, at_least, command, positive

from experiments.figures.densities import anisotropic, isotropic
from pyro_hyperbolic import PoincareBall, plotting


def run(args: argparse.Namespace) -> None:
    ball = PoincareBall(args.curvature)
    scale = args.scale or 1 / math.sqrt(args.curvature)
    figures = {
        "isotropic": isotropic(ball, [scale], args.lebesgue, args.resolution),
        "anisotropic": anisotropic(ball, scale, args.lebesgue, args.resolution),
    }
    for name, figure in figures.items():
        path = plotting.save(figure, args.output_dir / f"densities_{name}.{args.format}")
        plt.close(figure)
        print(f"c = {args.curvature:g}, scale {scale:.4g}: {path}")


def parser() -> Parser:
    p = Parser(__doc__, __file__)
    p.add_argument("--curvature", type=positive(float), default=10.0, help="c > 0; the curvature is -c")
    p.add_argument("--scale", type=positive(float), help="scale of the distributions (default: 1/sqrt(c))")
    p.add_argument("--lebesgue", action="store_true", help="draw densities of the coordinates")
    p.add_argument("--resolution", type=at_least(2), default=512, help="grid points per side")
    p.add_argument("--format", default="png", choices=["png", "pdf", "svg"], help="file format")
    p.add_output_dir()
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
