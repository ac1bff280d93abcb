"""What a trained auto-encoder does with data."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle
from torch import Tensor

from pyro_hyperbolic.analysis import Projection
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold, PoincareBall, Product
from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.nn import GyroplaneLinear
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.plotting.explorer import Explorer, explore
from pyro_hyperbolic.plotting.labels import Labels
from pyro_hyperbolic.plotting.lens import check_axes
from pyro_hyperbolic.plotting.lines import gyroplane
from pyro_hyperbolic.plotting.projections import check_projection, flattened
from pyro_hyperbolic.plotting.scatters import embedding
from pyro_hyperbolic.plotting.surfaces import Center, curvature_of

# Data that are encoded at a time.
_BATCH = 1000


@torch.no_grad()
def latent_space(
    vae: ManifoldVAE,
    data: Tensor,
    labels: Tensor | None = None,
    ax: Axes | None = None,
    gyroplanes: int = 0,
    view: str | None = None,
    center: Center | None = None,
    projection: str | Projection = "tangent",
    factor: int = 0,
    **style: Any,
) -> Axes:
    """Draw the posterior means of data in the latent space of an auto-encoder.

    Two dimensions are drawn as they are, in the disc or in the plane. Of more a projection is drawn, and the title says
    how much of the squared distances it keeps. A sphere is drawn by distance and direction from its origin, inside of a
    circle that is the point opposite.

    Args:
        vae: a trained auto-encoder, on any device.
        data: ``(N, *data_shape)``, on any device.
        labels: ``(N,)``, the colours.
        ax: axes to draw on; new ones by default.
        gyroplanes: how many of a gyroplane decoder's planes to draw as well, in two dimensions.
        view: as in :func:`disc`.
        center: as in :func:`embedding`.
        projection: of more than two dimensions, as in :func:`explore`.
        factor: which factor of a product to draw.
        **style: as in :func:`embedding`.

    Returns:
        The axes.

    Example:
        >>> from pyro_hyperbolic.models import ManifoldVAE
        >>> vae = ManifoldVAE(PoincareBall(1.0), 5, 3, hidden_dim=4)
        >>> ax = latent_space(vae, torch.rand(10, 3))
        >>> ax.get_title()  # doctest: +ELLIPSIS
        '5 dimensions are projected to two, which keep ...% of the squared distances.'
        >>> plt.close(ax.figure)
    """
    _check(vae, data)
    check_projection(projection)
    gyroplanes = checked_integer("gyroplanes", gyroplanes, least=0)
    z, space = latent_factor(vae, latent_means(vae, data), factor)
    if ax is None:
        _, ax = plt.subplots(figsize=(6.5, 5.6), layout="constrained")
    check_axes("ax", ax)
    is_plane = z.shape[-1] == space.ambient_dim(2)
    if not is_plane:
        z = space.projx(z.double())
        project, kept = flattened(projection, z, space)
        z = project(z)
        ax.set_title(kept, fontsize="small")
    ball, z = _on_disc(space, z)
    embedding(z, ball, labels=labels, ax=ax, view=view, center=center, **style)
    if isinstance(space, ConstantCurvature) and curvature_of(space) > 0:
        ax.add_patch(Circle((0, 0), math.pi / math.sqrt(curvature_of(space)), fill=False, color="0.6"))
        ax.autoscale_view()
    layer = getattr(vae.decoder, "embed", None)  # a decoder of the user's may have none
    if gyroplanes and isinstance(layer, GyroplaneLinear) and is_plane and not isinstance(vae.manifold, Product):
        # The same planes in the ball: offset and normal are stored at the origin.
        p, a = ball.expmap0(layer.offset[:gyroplanes].cpu()), layer.normal[:gyroplanes].cpu()
        gyroplane(p, a, ball, ax=ax, linewidth=0.4, alpha=0.4)
    return ax


@torch.no_grad()
def explore_latents(
    vae: ManifoldVAE,
    data: Tensor,
    path: str | os.PathLike[str],
    labels: Labels | None = None,
    names: Sequence[str] | None = None,
    images: Any = None,
    **options: Any,
) -> list[Explorer]:
    """Write pages on which the posterior means of data can be looked at, with their regions: one for each factor.

    Args:
        vae: a trained auto-encoder, on any device.
        data: ``(N, *data_shape)``, on any device.
        path: file to write. The pages of a product have the number of the factor before the suffix, from 1 on.
        labels: as in :func:`explore`.
        names: as in :func:`explore`.
        images: as in :func:`explore`.
        **options: as in :func:`explore`.

    Returns:
        The pages.

    Example:
        >>> import tempfile
        >>> from pyro_hyperbolic.models import ManifoldVAE
        >>> vae = ManifoldVAE("h2,s2", 4, 3, hidden_dim=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [page.path.name for page in explore_latents(vae, torch.rand(10, 3), f"{folder}/latent.html")]
        ['latent1.html', 'latent2.html']
    """
    _check(vae, data)
    path = Path(path)
    count = len(vae.manifold.leaves(vae.latent.dim))
    if count == 1 and vae.latent.dim == 2:
        posterior = vae.encode(data.to(next(vae.parameters()).device))
        means = base_distribution(posterior).loc.cpu()
        options |= {"scales": posterior}
    else:
        means = latent_means(vae, data)
    pages = []
    for number in range(count):
        z, space = latent_factor(vae, means, number)
        own = path if count == 1 else path.with_stem(f"{path.stem}{number + 1}")
        pages.append(explore(z, space, own, labels, names, images, **options))
    return pages


def _check(vae: Any, data: Any) -> None:
    if not isinstance(vae, ManifoldVAE):
        raise ValueError(f"vae must be a ManifoldVAE such as HyperbolicVAE, got {type(vae).__name__}; pass the model.")
    if not isinstance(data, Tensor):
        raise ValueError(f"data must be a tensor, got {type(data).__name__}; pass torch.as_tensor(data).")


def latent_means(vae: ManifoldVAE, data: Tensor) -> Tensor:
    """Where an auto-encoder puts data, on the host."""
    device = next(vae.parameters()).device
    return torch.cat([base_distribution(vae.encode(x.to(device))).loc.detach().cpu() for x in data.split(_BATCH)])


def latent_factor(vae: ManifoldVAE, z: Tensor, factor: int) -> tuple[Tensor, Manifold]:
    """Coordinates of one factor of the latent space, and the factor."""
    manifold = vae.manifold
    manifold = manifold.with_curvatures([torch.as_tensor(c).detach().cpu() for c in manifold.curvatures])
    leaves = manifold.leaves(vae.latent.dim)
    if not 0 <= checked_integer("factor", factor) < len(leaves):
        raise ValueError(f"factor must be one of the {len(leaves)} of {manifold!r}, from 0 on, got {factor}.")
    return z.split([leaf.ambient_dim(dim) for leaf, dim in leaves], -1)[factor], leaves[factor][0]


def _on_disc(space: Manifold, z: Tensor) -> tuple[PoincareBall, Tensor]:
    """The ball or plane to draw points of two dimensions on, and where they are on it."""
    if isinstance(space, Euclidean):
        return PoincareBall(0.0), z
    if not isinstance(space, ConstantCurvature) or curvature_of(space) > 0:
        return PoincareBall(0.0), space.to_normal_coords(None, z.double())
    ball = PoincareBall(0.0 - curvature_of(space))
    if isinstance(space, StereographicChart):
        return ball, ball.projx(z.double())
    # Charts of one space have the same normal coordinates at the origin.
    return ball, ball.from_normal_coords(None, space.to_normal_coords(None, z.double()))
