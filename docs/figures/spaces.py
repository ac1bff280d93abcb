"""Draw ``docs/_static/spaces.png``: geodesics and a density on every space.

    python docs/figures/spaces.py

The upper row has geodesics of equal length from one point and the circles of equal distance around it, the lower row
the density of a wrapped normal with respect to the Riemannian volume.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LinearSegmentedColormap
from torch import Tensor

from pyro_hyperbolic import Euclidean, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting.canvas import PALETTE

CENTRE = torch.tensor([0.55, 0.35], dtype=torch.float64)
"""Normal coordinates at the origin of the point in the middle of it all."""
RADII = (0.6, 1.2, 1.8, 2.4)
RAYS = 16
SCALE = 0.6
# A covariance that couples the angle and the height of the cylinder.
COUPLED = torch.tensor([[0.9, 0.0], [0.8, 0.25]], dtype=torch.float64)
TILT = math.radians(25)
BLUES = LinearSegmentedColormap.from_list("white_blues", ["white", "#c6dbef", "#6baed6", "#2171b5", "#08306b"])
LINE, CIRCLE = PALETTE[0], PALETTE[1]


@dataclass(frozen=True)
class View:
    """How a space is shown on paper.

    :param title: above its column.
    :param space: the space, of dimension 2.
    :param project: points ``(..., D)`` to places on paper ``(..., 2)`` and whether they lie in front.
    :param mesh: points ``(N, M, D)`` of all that lies in front.
    :param half: half the side of the picture.
    :param outline: a curve on paper, ``(N, 2)``.
    """

    title: str
    space: Manifold
    project: Callable[[Tensor], tuple[Tensor, Tensor]]
    mesh: Tensor
    half: float
    outline: Tensor | None = None


def polar(radii: Tensor, angles: Tensor) -> Tensor:
    return radii[:, None, None] * torch.stack([angles.cos(), angles.sin()], -1)


def turns(count: int) -> Tensor:
    return torch.linspace(0, 2 * math.pi, count, dtype=torch.float64)


def line(start: float, end: float, count: int) -> Tensor:
    return torch.linspace(start, end, count, dtype=torch.float64)


def on_paper(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.ones(x.shape[:-1], dtype=torch.bool)


def plane(title: str, space: Manifold, half: float) -> View:
    """A chart whose coordinates are places on paper."""
    return View(title, space, on_paper, polar(line(0, 1.5 * half, 300), turns(240)), half)


def disc(title: str, space: Any) -> View:
    """A chart that is a disc."""
    radius = 1 / math.sqrt(float(space.c))
    return View(
        title,
        space,
        on_paper,
        polar(radius * line(0, 1 - 1e-6, 300), turns(240)),
        1.04 * radius,
        polar(torch.tensor([radius]), turns(240))[0],
    )


def globe(title: str) -> View:
    """The unit sphere from afar, seen from above the origin and a little to the side."""
    space = Sphere(1.0)
    eye = space.from_normal_coords(None, torch.tensor([0.25, 0.35], dtype=torch.float64))
    right = torch.linalg.cross(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64), eye)
    right = right / right.norm()
    axes = torch.stack([right, torch.linalg.cross(eye, right)])

    def project(x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ axes.T, x @ eye > 0

    angles = line(0, math.pi / 2, 200)[:, None, None]
    around = polar(torch.ones(1), turns(240))[0] @ axes
    mesh = angles.cos() * eye + angles.sin() * around
    return View(title, space, project, mesh, 1.04, polar(torch.ones(1), turns(240))[0])


def cylinder(title: str) -> View:
    """Circle times line, seen a little from above."""
    radius, height = 1.6, 2.5
    space = Product((Sphere(radius**-2), 1), (Euclidean(), 1))
    turn = CENTRE[0].item() / radius

    def project(x: Tensor) -> tuple[Tensor, Tensor]:
        angle = torch.atan2(x[..., 1], x[..., 0]) - turn
        y = math.cos(TILT) * (x[..., 2] - CENTRE[1]) - math.sin(TILT) * radius * angle.cos()
        return torch.stack([radius * angle.sin(), y], -1), angle.cos() > 0

    def points(angle: Tensor, z: Tensor) -> Tensor:
        angle, z = torch.broadcast_tensors(angle + turn, z + CENTRE[1])
        return torch.stack([radius * angle.cos(), radius * angle.sin(), z], -1)

    mesh = points(line(-math.pi / 2, math.pi / 2, 200)[:, None], line(-height, height, 200))
    bottom = project(points(line(-math.pi / 2, math.pi / 2, 100), torch.tensor(-height)))[0]
    top = project(points(line(math.pi / 2, 5 * math.pi / 2, 200), torch.tensor(height)))[0]
    # Down on the left, along the bottom, up on the right, and once around the top.
    outline = torch.cat([top[100:101], bottom, top])
    return View(title, space, project, mesh, 3.0, outline)


VIEWS = (
    disc("hyperbolic, h2 or p2\n$c = 1$, curvature $-1$", PoincareBall(1.0)),
    plane("flat, e2\ncurvature 0", Euclidean(), 3.1),
    globe("sphere, s2\n$c = 1$, curvature $+1$"),
    disc("stereographic, u2\n$k = -0.5$", Stereographic(-0.5)),
    plane("stereographic, u2\n$k = +0.5$", Stereographic(0.5), 2.75),
    cylinder("product, s1,e1"),
)


def draw_lines(view: View, ax: Any) -> None:
    """Geodesics from one point, and circles around it; what lies behind is pale."""
    space = view.space
    x = space.from_normal_coords(None, CENTRE)
    directions = polar(torch.ones(1), turns(RAYS + 1)[:-1])[0]
    rays = line(0, max(RADII), 200)[:, None] * directions[:, None, :]
    circles = torch.tensor(RADII)[:, None, None] * polar(torch.ones(1), turns(400))
    for curves, colour in ((rays, LINE), (circles, CIRCLE)):
        for places, front in zip(*view.project(space.from_normal_coords(x, curves)), strict=True):
            for part, alpha in ((front, 1.0), (~front, 0.25)):
                shown = torch.where(part.unsqueeze(-1), places, torch.nan)
                ax.plot(*shown.T, color=colour, linewidth=0.9, alpha=alpha)
    ax.plot(*view.project(x)[0], "o", color="0.15", markersize=3.5)


def draw_density(view: View, ax: Any) -> None:
    x = view.space.from_normal_coords(None, CENTRE)
    if isinstance(view.space, Product):
        normal = WrappedNormal(x, manifold=view.space, scale_tril=COUPLED)
    else:
        normal = WrappedNormal(x, SCALE, view.space)
    density = normal.log_prob(view.mesh).exp()
    places = view.project(view.mesh)[0]
    ax.pcolormesh(places[..., 0], places[..., 1], density, cmap=BLUES, vmin=0, shading="gouraud", rasterized=True)
    ax.plot(*view.project(x)[0], "+", color="0.15", markersize=6)


def draw(path: Path) -> None:
    figure, axes = plt.subplots(2, len(VIEWS), figsize=(12.5, 4.7), layout="constrained")
    for column, view in zip(axes.T, VIEWS, strict=True):
        for ax, paint in zip(column, (draw_lines, draw_density), strict=True):
            paint(view, ax)
            if view.outline is not None:
                ax.plot(*view.outline.T, color="0.3", linewidth=1.0)
            ax.set_aspect("equal")
            ax.set_xlim(-view.half, view.half)
            ax.set_ylim(-view.half, view.half)
            ax.set_xticks([])
            ax.set_yticks([])
            for spine in ax.spines.values():
                spine.set_visible(view.outline is None)
                spine.set_color("0.75")
        column[0].set_title(view.title, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "_static" / "spaces.png"
    parser.add_argument("--output", type=Path, default=default, help="where to save the figure")
    draw(parser.parse_args().output)
