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
import torch
from matplotlib.figure import Figure
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting

LAWS = {"Riemannian": hdist.RiemannianNormal, "Wrapped": hdist.WrappedNormal}
# Standard deviations, in units of --scale, and the correlation of the normal coordinates.
COVARIANCES = [((1.0, 1.0), 0.0), ((2.0, 0.5), 0.0), ((0.5, 2.0), 0.0), ((1.0, 1.0), 0.8)]


def isotropic(ball: PoincareBall, scale: float, lebesgue: bool = False, resolution: int = 512) -> Figure:
    """The two laws (rows) at three means (columns)."""
    norms = (0.0, 0.4, 0.8)
    figure, axes = plt.subplots(2, 3, figsize=(6.6, 4.6), layout="constrained", squeeze=False)
    for row, (name, law) in zip(axes, LAWS.items(), strict=True):
        for ax, norm in zip(row, norms, strict=True):
            plotting.density(law(_mean(norm, ball), scale, ball), ax, lebesgue=lebesgue, resolution=resolution)
        row[0].set_ylabel(name)
    for ax, norm in zip(axes[0], norms, strict=True):
        ax.set_title(_norm_label(norm), fontsize="medium")
    return figure


def anisotropic(ball: PoincareBall, scale: float, lebesgue: bool = False, resolution: int = 512) -> Figure:
    """The wrapped normal at two means (rows) with four covariances (columns)."""
    norms = (0.0, 0.4)
    figure, axes = plt.subplots(2, 4, figsize=(8.6, 4.6), layout="constrained", squeeze=False)
    for row, norm in zip(axes, norms, strict=True):
        mean = _mean(norm, ball)
        for ax, (stds, correlation) in zip(row, COVARIANCES, strict=True):
            if correlation == 0:
                law = hdist.WrappedNormal(mean, scale * mean.new_tensor(stds), ball)
            else:
                law = hdist.WrappedNormal(mean, manifold=ball, scale_tril=scale * _factor(stds, correlation))
            plotting.density(law, ax, lebesgue=lebesgue, resolution=resolution)
            plotting.embedding(mean.unsqueeze(0), ball, ax=ax, marker="+", color="#ff4b33", s=50, linewidth=1.4)
        row[0].set_ylabel(_norm_label(norm))
    for ax, (stds, correlation) in zip(axes[0], COVARIANCES, strict=True):
        label = rf"$\sigma/\sigma_0 = ({stds[0]:g}, {stds[1]:g})$"
        ax.set_title(label + (rf", $\rho = {correlation:g}$" if correlation else ""), fontsize="medium")
    return figure


def main(args: argparse.Namespace) -> None:
    if not args.curvature > 0:
        raise ValueError(f"--curvature must be positive, got {args.curvature:g}; the disc has the radius 1/sqrt(c).")
    if args.scale is not None and not args.scale > 0:
        raise ValueError(f"--scale must be positive, got {args.scale:g}; leave it out for 1/sqrt(c).")
    if args.resolution < 2:
        raise ValueError(f"--resolution must be at least 2, got {args.resolution}; the default is 512.")
    ball = PoincareBall(args.curvature)
    scale = 1 / math.sqrt(args.curvature) if args.scale is None else args.scale
    for draw in (isotropic, anisotropic):
        figure = draw(ball, scale, args.lebesgue, args.resolution)
        path = plotting.save(figure, args.output / f"densities_{draw.__name__}.{args.format}")
        plt.close(figure)
        print(f"c = {args.curvature:g}, scale {scale:.4g}: {path}")


def _mean(norm: float, ball: PoincareBall) -> Tensor:
    """The point with sqrt(c)|mu| = norm on the diagonal."""
    return torch.full((2,), norm / math.sqrt(2 * float(ball.c)), dtype=torch.float64)


def _factor(stds: tuple[float, float], correlation: float) -> Tensor:
    """Cholesky factor of the covariance."""
    s = torch.tensor(stds, dtype=torch.float64)
    covariance = s.outer(s) * torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=s.dtype)
    return torch.linalg.cholesky(covariance)


def _norm_label(norm: float) -> str:
    return rf"$\sqrt{{c}}\,\|\mu\| = {norm:g}$"


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
