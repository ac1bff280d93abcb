"""Drawings of the Poincaré disc with matplotlib, and a page on which its points can be moved.

==========================  ================================================================
:func:`disc`                the border of the disc, equal aspect, no ticks
:func:`geodesic`            shortest paths between pairs of points
:func:`gyroplane`           hyperplanes of the disc: whole geodesics, from border to border
:func:`tangent`             tangent vectors as arrows
:func:`exponential_map`     tangent vectors and where the exponential map takes them
:func:`density`             the density of a distribution on the disc
:func:`heatmap`             any function on the disc
:func:`embedding`           points with labels, names and edges
:func:`regions`             regions that hold given shares of posteriors
:func:`credible_regions`    the smallest regions that hold given shares of any density
:func:`compare`             two embeddings side by side, after the best isometry
:func:`explore`             a page on which points can be dragged, searched and looked at
:func:`images`              a grid of grey images
:func:`latent_space`        where an auto-encoder puts data
:func:`explore_latents`     such pages of an auto-encoder's latent space
:func:`save`                write a figure so that no reader meets half a file
==========================  ================================================================

Every drawing function takes the axes as ``ax``, makes new ones by default, and returns them. Those of the disc take
``view`` (``"poincare"``, ``"klein"`` or ``"equidistant"``) and ``center``, the point in the middle; further calls on
the same axes draw the same picture. All work for
any curvature; at ``c = 0`` there is no border and lines are straight. Points are ``(..., 2)``, of any
dtype and device; they are detached, and drawn in double precision. Nothing else of the package imports matplotlib.
"""

from __future__ import annotations

from pyro_hyperbolic.plotting.arrows import exponential_map, tangent
from pyro_hyperbolic.plotting.autoencoder import explore_latents, latent_space
from pyro_hyperbolic.plotting.canvas import disc
from pyro_hyperbolic.plotting.comparisons import compare
from pyro_hyperbolic.plotting.contours import credible_regions
from pyro_hyperbolic.plotting.ellipses import regions
from pyro_hyperbolic.plotting.explorer import Explorer, explore
from pyro_hyperbolic.plotting.files import save
from pyro_hyperbolic.plotting.heatmaps import density, heatmap
from pyro_hyperbolic.plotting.lines import geodesic, gyroplane
from pyro_hyperbolic.plotting.pictures import images
from pyro_hyperbolic.plotting.scatters import embedding

__all__ = [
    "Explorer",
    "compare",
    "credible_regions",
    "density",
    "disc",
    "embedding",
    "explore",
    "explore_latents",
    "exponential_map",
    "geodesic",
    "gyroplane",
    "heatmap",
    "images",
    "latent_space",
    "regions",
    "save",
    "tangent",
]
