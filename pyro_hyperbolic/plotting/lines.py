"""Geodesics and gyroplanes."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting.canvas import PALETTE, drawn, points, prepared, styled, together
from pyro_hyperbolic.plotting.lens import Lens
from pyro_hyperbolic.plotting.surfaces import Center

# Longest step along a curve, in units of 1/sqrt(c). A chord of an arc that meets the border at right
# angles then leaves the arc by less than step^2/8 = 3e-4 radii, however near to the border.
_STEP = 0.05
_NODES = 1025
# Where a line without a border ends, in radii of curvature beyond the points.
_BEYOND = 3.0


def geodesic(
    x: Tensor,
    y: Tensor,
    manifold: Manifold,
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    """Draw the shortest paths between points.

    Args:
        x: where they start, ``(..., 2)``.
        y: where they end, ``(..., 2)``; broadcasts with ``x``.
        manifold: the ball.
        ax: axes to draw on; a new disc by default.
        view: as in :func:`disc`.
        center: the point in the middle, the index of one of ``x``, or ``"mean"`` for their Fréchet mean; as of
            :func:`disc` by default.
        **style: passed on to :class:`matplotlib.collections.LineCollection` (``color``, ``linewidth``, ``label``, ...).

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> from pyro_hyperbolic import PoincareBall
        >>> x, y = torch.tensor([[0.9, 0.0], [0.0, 0.9]]), torch.tensor([-0.6, 0.6])
        >>> ax = geodesic(x, y, PoincareBall(1.0), color="tab:red")
        >>> len(ax.collections[0].get_segments())
        2
        >>> plt.close(ax.figure)
    """
    ball = drawn(manifold)
    x, y = together(x=points("x", x, ball), y=points("y", y, ball))
    ax, lens = prepared(ball, ax, view, center, x)
    length = math.sqrt(ball.c) * max(ball.dist(x, y).tolist(), default=0.0)
    half = torch.linspace(0, 0.5, 2 + math.ceil(length / (2 * _STEP)), dtype=x.dtype)
    x, y = x.unsqueeze(-2), y.unsqueeze(-2)
    # From both ends to the middle: a curve that starts at the border loses precision with its length.
    to_middle, from_middle = ball.geodesic(half, x, y), ball.geodesic(half, y, x).flip(-2)
    curves = torch.cat([to_middle, from_middle[:, 1:]], -2)
    return _add_curves(ax, lens(curves), {"color": PALETTE[0]}, style)


def gyroplane(
    p: Tensor,
    a: Tensor,
    manifold: Manifold,
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Draw the hyperplanes :math:`\{z : \langle \log_p(z), a\rangle = 0\}` of the disc.

    Each is the geodesic through ``p`` orthogonal to ``a``, drawn from border to border. At ``c = 0`` it is the
    straight line without ends; in the equidistant view it ends a little beyond the points ``p``.

    Args:
        p: points on the planes, ``(..., 2)``.
        a: normals, ``(..., 2)``, not zero; broadcast with ``p``. Their lengths do not matter.
        manifold: the ball.
        ax: axes to draw on; a new disc by default.
        view: as in :func:`disc`.
        center: the point in the middle, the index of one of ``p``, or ``"mean"`` for their Fréchet mean; as of
            :func:`disc` by default.
        **style: passed on to :class:`matplotlib.collections.LineCollection`, or at ``c = 0`` to
            :class:`matplotlib.lines.Line2D`.

    Returns:
        The axes.
    """
    ball = drawn(manifold)
    p, a = together(p=points("p", p, ball), a=points("a", a))
    length = a.norm(dim=-1, keepdim=True)
    if not bool((length > 0).all()):
        raise ValueError("a must not be zero: a zero normal has no plane; drop it.")
    ax, lens = prepared(ball, ax, view, center, p)
    a = a / length
    if ball.c == 0:
        p = lens(p)
        keywords = styled(Line2D, {"color": PALETTE[2], "linewidth": 1.2}, style)
        for (x, y), (u, v) in zip(p.tolist(), a.tolist(), strict=True):
            ax.axline((x, y), (x - v, y + u), **keywords)
            keywords.pop("label", None)  # one entry in the legend
        return ax
    return _add_curves(ax, _seen(_whole_lines(p, a, ball), p, lens), {"color": PALETTE[2]}, style)


def _seen(curves: Tensor, p: Tensor, lens: Lens) -> list[Tensor] | Tensor:
    """The lines on paper; without a border they are cut off beyond the points."""
    curves = lens(curves)
    if math.isfinite(lens.radius):
        return curves
    limit = float(lens(p).norm(dim=-1).max()) + _BEYOND / math.sqrt(lens.ball.c)
    return [curve[curve.norm(dim=-1) <= limit] for curve in curves]


def _whole_lines(p: Tensor, a: Tensor, ball: Any) -> Tensor:
    r"""Points ``(N, nodes, 2)`` of the geodesics through ``p`` with unit normals ``a``.

    The foot of the origin, :math:`m = \exp_0(-d\,\hat w / 2)` with the signed distance ``d`` of the origin and its
    gradient ``w``, halves the line, which is :math:`m \oplus \rho\,\hat w^\perp` with
    :math:`|\rho| < 1/\sqrt{c}`. Equal steps of :math:`\rho` are nearly equal angles on the arc, and the ends are
    points of the border itself.
    """
    b = 2 * (p * a).sum(-1, keepdim=True) / (1 - ball.c * p.square().sum(-1, keepdim=True))
    w = a + ball.c * b * p
    w = w / w.norm(dim=-1, keepdim=True)
    distance = ball.dist2plane(x=torch.zeros_like(p), p=p, a=a).unsqueeze(-1)
    foot = ball.expmap0(-0.5 * distance * w)
    along = torch.stack([-w[..., 1], w[..., 0]], -1)
    share = torch.linspace(-1, 1, _NODES, dtype=p.dtype).unsqueeze(-1)
    m = foot.unsqueeze(-2)
    # The Möbius sum, written out: the ball's own operation refuses points of the border, where share is 1.
    s = m + share * along.unsqueeze(-2) / math.sqrt(ball.c)
    alpha, beta = 1 - ball.c * m.square().sum(-1, keepdim=True), 1 - share.square()
    cs2 = ball.c * s.square().sum(-1, keepdim=True)
    return ball.projx((alpha * s + cs2 * m) / (alpha * beta + cs2))


def _add_curves(ax: Axes, curves: Tensor | list[Tensor], defaults: dict[str, Any], style: dict[str, Any]) -> Axes:
    defaults = {"linewidth": 1.2, "capstyle": "round", "zorder": 2.0} | defaults
    lines = LineCollection([curve.numpy() for curve in curves], **styled(LineCollection, defaults, style))
    ax.add_collection(lines)
    ax.autoscale_view()  # for c = 0; the limits of a disc are fixed
    return ax
