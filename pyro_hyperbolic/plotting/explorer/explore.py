"""The function that makes the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.analysis import Projection
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.plotting.borders import Scales, region_factors
from pyro_hyperbolic.plotting.explorer.packing import LEVELS, half_points, moved_home, packed, packed_labels
from pyro_hyperbolic.plotting.explorer.page import Explorer
from pyro_hyperbolic.plotting.explorer.thumbnails import sheet
from pyro_hyperbolic.plotting.labels import Labels, classify
from pyro_hyperbolic.plotting.projections import check_projection, flattened
from pyro_hyperbolic.plotting.scatters import check_edges
from pyro_hyperbolic.plotting.surfaces import Center, Surface, checked_center, checked_points, surface


@torch.no_grad()
def explore(
    points: Tensor,
    manifold: Manifold,
    path: str | os.PathLike[str] | None = "latent.html",
    labels: Labels | None = None,
    names: Sequence[str] | None = None,
    images: Any = None,
    edges: Tensor | None = None,
    scales: Scales | None = None,
    draws: Tensor | None = None,
    *,
    classes: bool | None = None,
    center: Center | None = None,
    projection: str | Projection = "tangent",
    title: str = "Latent space",
    description: str = "",
) -> Explorer:
    r"""Write a page on which the points can be looked at: dragged, enlarged, searched, filtered, saved as a picture.

    Most points of a hyperbolic embedding lie near the rim of any still picture. On the page the whole space moves by
    isometries, so that every point can be put in the middle. The file needs no network; in a notebook the result shows
    itself. In a browser ``explorer`` is the page's own object.

    Args:
        points: ``(N, D)``, in any chart. Points of more than two dimensions are projected; one-dimensional points lie
            on a line in the disc.
        manifold: their space: a Poincaré ball or hyperboloid of any curvature; a plane or a sphere too.
        path: file to write, or ``None`` to write none.
        labels: one per point, the colours. Strings, booleans and integers of at most 20 values are classes with a
            legend that filters; other numbers get a scale.
        names: one per point, for the search and beside the points.
        images: one per point, a thumbnail: ``(N, H, W)``, ``(N, 1, H, W)``, ``(N, 3, H, W)`` or ``(N, H, W, 3)``, bytes
            or numbers from 0 to 1.
        edges: pairs of indices of points, integers ``(E, 2)``, drawn as geodesics.
        scales: the posteriors around the points: standard deviations of wrapped normals, ``(N,)``, ``(N, 1)`` or
            ``(N, 2)``, Cholesky factors ``(N, 2, 2)``, or a distribution of batch shape ``(N,)`` on the same space with
            its means at the points. The regions of 50 and 90% are drawn. In two dimensions only.
        draws: samples of the posteriors, ``(S, N, D)``.
        classes: whether labels are classes; by default the rule above decides.
        center: what the page shows in the middle at first: a point, the index of one, or ``"mean"`` for the Fréchet
            mean; the origin by default, which is the mean of projected points.
        projection: of points of more than two dimensions: ``"tangent"`` or ``"horo"`` for
            :class:`~pyro_hyperbolic.analysis.TangentPCA` or :class:`~pyro_hyperbolic.analysis.HoroPCA`, or an object of
            such a class, which is fitted if it has not been. The page says how much it keeps.
        title: of the page.
        description: a sentence on what the points are, shown before that on what the picture is.

    Returns:
        The page.

    Example:
        >>> from pyro_hyperbolic import PoincareBall
        >>> points = torch.tensor([[0.0, 0.0], [0.6, 0.0], [0.7, 0.2]])
        >>> page = explore(points, PoincareBall(1.0), None, names=["root", "child", "other child"])
        >>> len(page.html) < 100_000
        True
    """
    s = surface(manifold)
    check_projection(projection)
    x = checked_points("points", points, s.manifold)
    dim = s.manifold.intrinsic_dim(x.shape[-1])
    if x.dim() != 2 or dim < 1:
        raise ValueError(f"points must have shape (N, D), got {tuple(x.shape)}; flatten the leading dimensions.")
    if dim != 2:
        if scales is not None:
            raise ValueError(
                f"scales are drawn in two dimensions only, got points of {dim}; leave them out, or give draws instead."
            )
        flat, kept = flattened(projection, x, s.manifold)
        x = flat(x)
        draws = None if draws is None else flat(draws)
        center = flat(center) if isinstance(center, Tensor) else center
        description = f"{description} {kept}"
    count = len(x)
    middle = checked_center(center, x, s.manifold)
    content = {
        "title": str(title),
        "description": str(description),
        "sign": s.sign,
        "unit": s.unit,
        "home": [1.0, 0.0, 0.0, 0.0] if middle is None else moved_home(_coords(middle, s), s.sign),
        "points": packed(half_points(_coords(x, s), s.sign), "f8"),
        "labels": None if labels is None else packed_labels(classify(labels, count, classes)),
        "names": None if names is None else _checked_names(names, count),
        "images": None if images is None else sheet(images, count),
        "edges": None if edges is None else packed(check_edges(edges, count), "u4"),
        "regions": None if scales is None else _regions(scales, x, s),
        "draws": None if draws is None else _draws(draws, count, s),
    }
    page = Explorer(content)
    if path is not None:
        page.save(path)
    return page


def _coords(x: Tensor, s: Surface) -> Tensor:
    """Normal coordinates at the origin, in radii of curvature."""
    return s.manifold.to_normal_coords(None, x) / s.unit


def _checked_names(names: Sequence[str], count: int) -> list[str]:
    if isinstance(names, str) or len(names) != count:
        raise ValueError(f"names must be {count} strings, one per point, got {names!r:.60}.")
    return [str(name) for name in names]


def _regions(scales: Scales, x: Tensor, s: Surface) -> list[dict[str, Any]]:
    factors = region_factors(scales, x, s.manifold)
    rows, columns = torch.tril_indices(2, 2)
    return [{"level": level, "tril": packed(factors(level)[:, rows, columns] / s.unit, "f4")} for level in LEVELS]


def _draws(draws: Tensor, count: int, s: Surface) -> dict[str, str]:
    x = checked_points("draws", draws, s.manifold)
    if x.dim() != 3 or x.shape[1] != count or s.manifold.intrinsic_dim(x.shape[-1]) != 2:
        raise ValueError(
            f"draws must have shape (S, {count}, {s.manifold.ambient_dim(2)}), the samples first, got {tuple(x.shape)}."
        )
    return packed(half_points(_coords(x.transpose(0, 1), s), s.sign), "f8")
