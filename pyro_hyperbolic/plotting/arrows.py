"""Tangent vectors and the exponential map."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.quiver import Quiver
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting.canvas import drawn, points, prepared, styled, together
from pyro_hyperbolic.plotting.lines import geodesic
from pyro_hyperbolic.plotting.surfaces import Center


def tangent(
    x: Tensor,
    v: Tensor,
    manifold: Manifold,
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Draw tangent vectors as arrows from ``x`` to ``x + v``.

    The arrow shows the coordinates of ``v``; its hyperbolic length is :math:`\lambda_x |v|`. It may leave the disc.

    Args:
        x: points, ``(..., 2)``.
        v: tangent vectors at ``x``, ``(..., 2)``; broadcast with ``x``.
        manifold: the ball.
        ax: axes to draw on; a new disc by default.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, the index of one of ``x``, or ``"mean"`` for their Fréchet mean; as of
            :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: passed on to :meth:`matplotlib.axes.Axes.quiver` (``color``, ``width``, ``label``, ...).

    Returns:
        The axes.
    """
    ball = drawn(manifold)
    x, v = together(x=points("x", x, ball), v=points("v", v))
    ax, lens = prepared(ball, ax, view, center, x)
    x, v = lens.push(x, v)
    defaults: dict[str, Any] = {"color": "0.15", "width": 0.007, "zorder": 3.0}
    keywords = styled(Quiver, defaults, style) | {"angles": "xy", "scale_units": "xy", "scale": 1}
    ax.quiver(*x.T.numpy(), *v.T.numpy(), **keywords)
    ax.update_datalim((x + v).numpy())  # matplotlib counts the tails only
    ax.autoscale_view()
    return ax


def exponential_map(
    x: Tensor,
    v: Tensor,
    manifold: Manifold,
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Draw :math:`\exp_x(v)`: the tangent vector, the geodesic that it starts, and the point it leads to.

    Args:
        x: points, ``(..., 2)``.
        v: tangent vectors at ``x``, ``(..., 2)``; broadcast with ``x``.
        manifold: the ball.
        ax: axes to draw on; a new disc by default.
        view: as in :func:`~pyro_hyperbolic.plotting.disc`.
        center: the point in the middle, the index of one of ``x``, or ``"mean"`` for their Fréchet mean; as of
            :func:`~pyro_hyperbolic.plotting.disc` by default.
        **style: for the geodesics, as in :func:`~pyro_hyperbolic.plotting.geodesic`.

    Returns:
        The axes.

    Example:
        >>> import matplotlib.pyplot as plt
        >>> from pyro_hyperbolic import PoincareBall
        >>> v = torch.tensor([[0.4, 0.1], [-0.3, 0.4]])
        >>> ax = exponential_map(torch.tensor([0.2, -0.5]), v, PoincareBall(1.0))
        >>> plt.close(ax.figure)
    """
    ball = drawn(manifold)
    x, v = together(x=points("x", x, ball), v=points("v", v))
    end = ball.expmap(x, v)
    ax = geodesic(x, end, ball, ax, view, center, **style)
    _, lens = prepared(ball, ax, None, None, x)
    colour = ax.collections[-1].get_edgecolor()
    tangent(x, v, ball, ax)
    for at, c in ((lens(end), colour), (lens(x), "0.15")):
        ax.scatter(at[:, 0].numpy(), at[:, 1].numpy(), s=18, c=c, zorder=3.5)
    return ax
