"""Densities of the hyperbolic normals.

They are with respect to the Riemannian volume: moving the mean carries the picture along by an isometry, so that its
peak has the same height everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from experiments.figures.source import Source
from experiments.figures.style import subplots
from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall

DISTRIBUTIONS = {"Riemannian": hdist.RiemannianNormal, "Wrapped": hdist.WrappedNormal}
# About that of the panels in pixels.
RESOLUTION = 256
# Standard deviations, in units of the scale, and the correlation of the normal coordinates.
COVARIANCES = [((1.0, 1.0), 0.0), ((2.0, 0.5), 0.0), ((0.5, 2.0), 0.0), ((1.0, 1.0), 0.8)]


def densities_isotropic(source: Source) -> Figure:
    """The two distributions at the paper's curvature, c = 10."""
    c = 10.0
    return isotropic(PoincareBall(c), [0.5 / math.sqrt(c), 1 / math.sqrt(c)], resolution=RESOLUTION)


def densities_anisotropic(source: Source) -> Figure:
    """The wrapped normal at c = 1 with the paper's three covariances, and with a full one."""
    return anisotropic(PoincareBall(1.0), 1.0, resolution=RESOLUTION)


def isotropic(ball: PoincareBall, scales: Sequence[float], lebesgue: bool = False, resolution: int = 512) -> Figure:
    """The two distributions (rows) at three means (columns), for one scale after the other.

    :param ball: where the distributions live.
    :param scales: their standard deviations.
    :param lebesgue: densities of the coordinates.
    :param resolution: nodes on a side of the grid of each panel.
    """
    norms = (0.0, 0.4, 0.8)
    rows = [(name, distribution, scale) for scale in scales for name, distribution in DISTRIBUTIONS.items()]
    figure, axes = subplots(len(rows), len(norms), size=1.7)
    for row, (name, distribution, scale) in zip(axes, rows, strict=True):
        for ax, norm in zip(row, norms, strict=True):
            mean = _mean(norm, ball)
            plotting.density(distribution(mean, scale, ball), ax, lebesgue=lebesgue, resolution=resolution)
            _mark(mean, ball, ax)
        row[0].set_ylabel(rf"{name}, $\sqrt{{c}}\,\sigma = {scale * math.sqrt(float(ball.c)):.3g}$")
    for ax, norm in zip(axes[0], norms, strict=True):
        ax.set_title(_norm_label(norm), fontsize="medium")
    return figure


def anisotropic(ball: PoincareBall, scale: float, lebesgue: bool = False, resolution: int = 512) -> Figure:
    """The wrapped normal at two means (rows) with four covariances (columns).

    :param ball: where the distributions live.
    :param scale: unit of the standard deviations.
    :param lebesgue: densities of the coordinates.
    :param resolution: nodes on a side of the grid of each panel.
    """
    norms = (0.0, 0.4)
    figure, axes = subplots(len(norms), len(COVARIANCES), size=1.7)
    for row, norm in zip(axes, norms, strict=True):
        mean = _mean(norm, ball)
        for ax, (stds, correlation) in zip(row, COVARIANCES, strict=True):
            distribution = hdist.WrappedNormal(mean, manifold=ball, scale_tril=scale * _factor(stds, correlation))
            plotting.density(distribution, ax, lebesgue=lebesgue, resolution=resolution)
            _mark(mean, ball, ax)
        row[0].set_ylabel(_norm_label(norm))
    unit = scale * math.sqrt(float(ball.c))
    for ax, (stds, correlation) in zip(axes[0], COVARIANCES, strict=True):
        label = rf"$\sqrt{{c}}\,\sigma = ({unit * stds[0]:.3g}, {unit * stds[1]:.3g})$"
        ax.set_title(label + (rf", $\rho = {correlation:g}$" if correlation else ""), fontsize="medium")
    return figure


def _mean(norm: float, ball: PoincareBall) -> Tensor:
    """The point with sqrt(c)|mu| = norm on the diagonal."""
    return torch.full((2,), norm / math.sqrt(2 * float(ball.c)), dtype=torch.float64)


def _factor(stds: tuple[float, float], correlation: float) -> Tensor:
    """Cholesky factor of the covariance."""
    s = torch.tensor(stds, dtype=torch.float64)
    covariance = s.outer(s) * torch.tensor([[1.0, correlation], [correlation, 1.0]], dtype=s.dtype)
    return torch.linalg.cholesky(covariance)


def _mark(mean: Tensor, ball: PoincareBall, ax: Axes) -> None:
    plotting.embedding(mean.unsqueeze(0), ball, ax=ax, marker="+", color="#ff4b33", s=50, linewidth=1.4)


def _norm_label(norm: float) -> str:
    return rf"$\sqrt{{c}}\,\|\mu\| = {norm:g}$"
