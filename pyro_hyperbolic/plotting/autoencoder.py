"""What a trained auto-encoder does with data."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from pyro_hyperbolic.analysis import Projection
from pyro_hyperbolic.geometry import Lorentz, PoincareBall
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import GyroplaneLinear
from pyro_hyperbolic.plotting.canvas import one_curvature
from pyro_hyperbolic.plotting.lines import gyroplane
from pyro_hyperbolic.plotting.projections import flattened
from pyro_hyperbolic.plotting.scatters import embedding
from pyro_hyperbolic.plotting.surfaces import Center

# Data that are encoded at a time.
_BATCH = 1000


@torch.no_grad()
def latent_space(
    vae: EuclideanVAE | HyperbolicVAE,
    data: Tensor,
    labels: Tensor | None = None,
    ax: Axes | None = None,
    gyroplanes: int = 0,
    view: str | None = None,
    center: Center | None = None,
    projection: str | Projection = "tangent",
    **style: Any,
) -> Axes:
    """Draw the posterior means of data in the latent space of an auto-encoder.

    Two dimensions are drawn as they are, in the disc or in the plane. Of more a projection is drawn, and the title says
    how much of the squared distances it keeps.

    Args:
        vae: a trained auto-encoder, on any device.
        data: ``(N, *data_shape)``, on any device.
        labels: ``(N,)``, the colours.
        ax: axes to draw on; new ones by default.
        gyroplanes: how many of a gyroplane decoder's planes to draw as well, in two dimensions.
        view: as in :func:`disc`.
        center: as in :func:`embedding`.
        projection: of more than two dimensions, as in :func:`explore`.
        **style: as in :func:`embedding`.

    Returns:
        The axes.

    Example:
        >>> from pyro_hyperbolic.models import HyperbolicVAE
        >>> vae = HyperbolicVAE(PoincareBall(1.0), 5, 3, hidden_dim=4)
        >>> ax = latent_space(vae, torch.rand(10, 3))
        >>> ax.get_title()  # doctest: +ELLIPSIS
        '5 dimensions are projected to two, which keep ...% of the squared distances.'
        >>> plt.close(ax.figure)
    """
    device = next(vae.parameters()).device
    z = torch.cat([vae.encode(x.to(device)).mean for x in data.split(_BATCH)])
    manifold = PoincareBall(0.0) if isinstance(vae, EuclideanVAE) else vae.manifold
    z = (manifold.to_poincare(z) if isinstance(manifold, Lorentz) else z).cpu()
    ball = PoincareBall(one_curvature(manifold))
    if ax is None:
        _, ax = plt.subplots(figsize=(6.5, 5.6), layout="constrained")
    if z.shape[-1] != 2:
        z = ball.projx(z.double())
        flat, kept = flattened(projection, z, ball)
        embedding(flat(z), ball, labels=labels, ax=ax, view=view, center=center, **style)
        ax.set_title(kept, fontsize="small")
        return ax
    layer = getattr(vae.decoder, "embed", None)  # a decoder of the user's may have none
    embedding(z, ball, labels=labels, ax=ax, view=view, center=center, **style)
    if gyroplanes and isinstance(layer, GyroplaneLinear):
        # The same planes in the ball: offset and normal are stored at the origin.
        p, a = ball.expmap0(layer.offset[:gyroplanes].cpu()), layer.normal[:gyroplanes].cpu()
        gyroplane(p, a, ball, ax=ax, linewidth=0.4, alpha=0.4)
    return ax
