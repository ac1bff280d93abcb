"""The disc itself, and what all drawing functions ask of their arguments."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cbook import normalize_kwargs
from matplotlib.cm import ScalarMappable
from matplotlib.patches import Circle
from torch import Tensor
from torch.distributions import Distribution

from pyro_hyperbolic.analysis.inputs import checked_space
from pyro_hyperbolic.analysis.widening import plain
from pyro_hyperbolic.geometry import Lorentz, Manifold, PoincareBall, Stereographic
from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.plotting.lens import Lens, lens_of, show
from pyro_hyperbolic.plotting.surfaces import Center, checked_center, curvature_of, same_space

# Ten colours that readers with a colour vision deficiency tell apart: M. A. Petroff, Accessible color
# sequences for data visualization, arXiv:2107.02270.
PALETTE = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#92dadd",
)

# Room between the border and the edge of the axes, in radii: the border's line keeps its full width.
_MARGIN = 0.03
_BORDER = "pyro_hyperbolic.border"


def disc(
    manifold: Manifold,
    ax: Axes | None = None,
    view: str | None = None,
    center: Center | None = None,
    **style: Any,
) -> Axes:
    r"""Prepare axes for a disc: its border, equal aspect, no ticks, limits just outside the border.

    On axes that have this disc already nothing is changed, so that a zoom is kept. At ``c = 0`` and in the equidistant
    view there is no border, a light frame stays, and the limits follow what is drawn.

    Args:
        manifold: the ball, of which the disc of radius :math:`1/\sqrt{c}` is drawn.
        ax: axes to draw on; new ones by default.
        view: ``"poincare"`` keeps angles, ``"klein"`` draws geodesics straight, ``"equidistant"`` draws distances from
            the middle to scale; that of the axes, or ``"poincare"``, by default.
        center: the point in the middle, ``(2,)``; that of the axes, or the origin, by default.
        **style: for the border, as in :class:`matplotlib.patches.Circle`.

    Returns:
        The axes.

    Example:
        >>> from pyro_hyperbolic import PoincareBall
        >>> ax = disc(PoincareBall(c=4.0))
        >>> print(*ax.get_xlim())
        -0.515 0.515
        >>> plt.close(ax.figure)
    """
    ball = drawn(manifold)
    return prepared(ball, ax, view, center, torch.zeros(1, 2, dtype=torch.float64), **style)[0]


def prepared(
    ball: PoincareBall, ax: Axes | None, view: str | None, center: Center | None, anchors: Tensor, **style: Any
) -> tuple[Axes, Lens]:
    """Axes that show a disc, and how they show it; ``anchors`` are the points that ``center`` may speak of."""
    known = None if ax is None else lens_of(ax)
    middle = checked_center(center, anchors, ball)
    if known is not None and known.ball.c == ball.c:
        lens = Lens(ball, view or known.view, known.center if middle is None else middle)
        if not lens.is_like(known):
            raise ValueError(
                f"view and center must be those of the axes, {known.view!r} and {known.center}, got {lens.view!r} and"
                f" {lens.center}; draw on other axes."
            )
    else:
        lens = Lens(ball, view or "poincare", middle)
    if ax is None:
        _, ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
    _prepare(ax, lens, style)
    show(ax, lens)
    return ax, lens


def _prepare(ax: Axes, lens: Lens, style: dict[str, Any]) -> None:
    radius = lens.radius
    bounded = math.isfinite(radius)
    if bounded and border(ax, lens.ball) is not None:
        return
    ax.set_aspect("equal", adjustable="box" if bounded else "datalim")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(not bounded)
        spine.set_color("0.75")
    if bounded:
        defaults = {"facecolor": "none", "edgecolor": "0.2", "linewidth": 1.0, "zorder": 2.5}
        ax.add_patch(Circle((0, 0), radius, gid=_BORDER, **styled(Circle, defaults, style)))
        limit = (1 + _MARGIN) * radius
        ax.set_xlim(-limit, limit)
        ax.set_ylim(-limit, limit)


def border(ax: Axes, manifold: Manifold) -> Circle | None:
    """The border of this disc, if ``ax`` has it."""
    radius = 1 / math.sqrt(drawn(manifold).c)
    for patch in ax.patches:
        if isinstance(patch, Circle) and patch.get_gid() == _BORDER and math.isclose(patch.radius, radius):
            return patch
    return None


def drawn(manifold: Manifold) -> PoincareBall:
    """The ball, with its curvature as a plain number."""
    space = checked_space("manifold", manifold)
    if isinstance(space, PoincareBall):
        return plain(space)
    remedy = "plotting.explore shows points of planes and spheres, and of a product one factor at a time"
    if isinstance(space, Lorentz):
        remedy = "pass manifold.to_poincare(points) and PoincareBall(manifold.c)"
    elif isinstance(space, Stereographic) and curvature_of(plain(space)) <= 0:
        remedy = "pass PoincareBall(manifold.c), where the points have the same coordinates"
    raise ValueError(f"manifold must be a PoincareBall, got {space!r}; {remedy}.")


def check_function(name: str, value: Any) -> None:
    """Refuse what is not a function of points; to call a distribution of Pyro is to sample it."""
    if not callable(value) or isinstance(value, Distribution):
        raise ValueError(
            f"{name} must be a function of points, got {type(value).__name__}; pass for example distribution.log_prob."
        )


def check_home(name: str, distribution: Any, ball: PoincareBall) -> None:
    """Refuse a distribution, if it is one, that knows its space and has other coordinates than the ball."""
    own = getattr(distribution, "manifold", None) if isinstance(distribution, Distribution) else None
    if own is not None and not (isinstance(own, StereographicChart) and same_space(own, ball)):
        raise ValueError(
            f"{name} must take points of {ball!r}, got that of {type(distribution).__name__} on {own!r}; pass the"
            " manifold of the distribution."
        )


def points(name: str, value: Any, manifold: Manifold | None = None) -> Tensor:
    """``value`` as float64 ``(..., 2)`` on the host; points of ``manifold``, or vectors without one."""
    x = torch.as_tensor(value).detach().to("cpu", torch.float64)
    if x.dim() == 0 or x.shape[-1] != 2:
        raise ValueError(
            f"{name} must have shape (..., 2), got {tuple(x.shape)}; project points to two dimensions first, with"
            " analysis.TangentPCA(2).fit_transform(points, manifold) or analysis.HoroPCA, or use plotting.explore."
        )
    if not bool(x.isfinite().all()):
        raise ValueError(
            f"{name} must be finite, got {int((~x.isfinite()).any(-1).sum())} points that are not; drop them."
        )
    if manifold is not None and not bool(manifold.contains(x).all()):
        radius = 1 / math.sqrt(drawn(manifold).c)
        raise ValueError(
            f"{name} must lie inside the disc of radius 1/sqrt(c) = {radius:.6g}, got a point of norm"
            f" {float(x.norm(dim=-1).max()):.6g}; use the manifold that made the points, or manifold.projx({name})."
        )
    return x


def together(**named: Tensor) -> tuple[Tensor, ...]:
    """The tensors, broadcast to one shape and flattened to ``(N, 2)``."""
    try:
        return tuple(t.reshape(-1, 2) for t in torch.broadcast_tensors(*named.values()))
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in named.items())
        raise ValueError(
            f"{' and '.join(named)} must broadcast, got {shapes}; give one per pair, or a single one."
        ) from error


def styled(kind: type[Artist], defaults: dict[str, Any], style: dict[str, Any]) -> dict[str, Any]:
    """The caller's style over the defaults; ``lw`` and ``linewidth`` are one."""
    return defaults | normalize_kwargs(style, kind)


def add_colorbar(ax: Axes, artist: ScalarMappable) -> None:
    """A colour bar beside the disc."""
    bar = ax.figure.colorbar(artist, ax=ax, shrink=0.75, pad=0.02)
    bar.outline.set_visible(False)
