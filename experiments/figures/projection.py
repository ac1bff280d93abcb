"""The orthogonal projection on a hyperplane, in the disc and in the plane."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.figures.source import Source
from experiments.figures.style import BLUE, INK, RED, annotate, subplots, window
from pyro_hyperbolic import plotting
from pyro_hyperbolic.geometry import PoincareBall

# The point of the plane, its normal there, and the point that is projected.
OFFSET, NORMAL, POINT = (-0.15, -0.25), (-0.12, 0.26), (0.42, 0.62)


def gyroplane(source: Source) -> Figure:
    """The same point, offset and normal with c = 1 and c = 0."""
    figure, axes = subplots(1, 2, size=3.3)
    for ax, c in zip(axes[0], (1.0, 0.0), strict=True):
        _draw(PoincareBall(c), ax)
    axes[0, 0].set_title("gyroplane of the Poincaré disc")
    axes[0, 1].set_title("hyperplane of the Euclidean plane")
    return figure


def project(z: Tensor, p: Tensor, a: Tensor, ball: PoincareBall) -> Tensor:
    """The point of the hyperplane through ``p`` with normal ``a`` that is nearest to ``z``.

    Half-way to the mirror image of ``z``, which is a plain reflection once ``p`` is moved to the origin.
    """
    moved = ball.mobius_add(-p, z)
    unit = a / a.norm(dim=-1, keepdim=True)
    mirrored = ball.mobius_add(p, moved - 2 * (moved * unit).sum(-1, keepdim=True) * unit)
    return ball.geodesic(torch.tensor(0.5, dtype=z.dtype), z, mirrored)


def _draw(ball: PoincareBall, ax: Axes) -> None:
    p, a, z = torch.tensor((OFFSET, NORMAL, POINT), dtype=torch.float64)
    foot = project(z, p, a, ball)
    plotting.gyroplane(p, a, ball, ax, color=RED, linewidth=1.6)
    plotting.geodesic(z, foot, ball, ax, color=BLUE, linewidth=1.6)
    plotting.tangent(p, a, ball, ax)
    for point in (p, z, foot):
        plotting.embedding(point.unsqueeze(0), ball, ax=ax, color=INK, s=22)
    if ball.c == 0:
        window(ax, (-1.0, 1.0, -1.0, 1.0))
    # The chart is conformal: a right angle looks like one.
    towards = ball.logmap(foot, z)
    towards = 0.07 * towards / towards.norm()
    along = torch.stack([towards[1], -towards[0]])
    corner = torch.stack([foot + towards, foot + towards + along, foot + along])
    ax.plot(*corner.T.numpy(), color=INK, linewidth=0.9)
    middle = ball.geodesic(torch.tensor(0.5, dtype=z.dtype), z, foot)
    _label(ax, "$z$", z, (8, 5))
    _label(ax, "$p$", p, (-4, -10))
    _label(ax, "$a$", p + a, (-8, 2))
    _label(ax, "$H_{a,p}$", ball.expmap(p, -0.55 * torch.stack([a[1], -a[0]]) / a.norm()), (2, -14), color=RED)
    _label(ax, "$d(z, H_{a,p})$", middle, (-34, 2), color=BLUE)


def _label(ax: Axes, text: str, at: Tensor, shift: tuple[float, float], **style: Any) -> None:
    x, y = at.tolist()
    annotate(ax, text, (x, y), shift, **style)
