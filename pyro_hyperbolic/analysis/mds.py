"""Points from their distances, without a search."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_open_space
from pyro_hyperbolic.analysis.widening import plain
from pyro_hyperbolic.geometry import Lorentz, Manifold
from pyro_hyperbolic.geometry.gromov import checked_distances
from pyro_hyperbolic.ops.checks import checked_integer


@torch.no_grad()
def hyperbolic_mds(distances: Tensor, dim: int, manifold: Manifold) -> Tensor:
    r"""Classical scaling in hyperbolic space: find points with the given distances, or nearly so.

    On the hyperboloid of radius 1 the distances of points :math:`x_i = (t_i, s_i)` make the matrix

    .. math:: \cosh(\sqrt c\, D) = t\,t^T - s\,s^T .

    One eigenvector with a positive eigenvalue is :math:`t`. The eigenvectors of the ``dim`` most negative eigenvalues
    are the columns of :math:`s`, each times the square root of the size of its eigenvalue. If the distances are exact
    distances between points of the space, these are the points. Otherwise :math:`t` is computed from :math:`s`, which
    puts the points on the hyperboloid. Their centre, :math:`\sum x_i` scaled to the hyperboloid, is then moved to the
    origin. At ``c = 0`` this is classical (Torgerson's) scaling.

    Sala, De Sa, Gu and Ré, *Representation tradeoffs for hyperbolic embeddings* (2018), Section 4 (h-MDS). The cost is
    one decomposition of an ``(N, N)`` matrix. With noise, the largest distances count most, since :math:`\cosh` grows.
    Use the result as a start for a model of the noise, not as a final estimate. The arithmetic is float64, which ends
    at :math:`\sqrt c\, D` of about 30.

    :param distances: all pairs, ``(N, N)``, symmetric and zero on the diagonal, with more than ``dim`` points.
    :param dim: dimension of the space.
    :param manifold: where to put the points: hyperbolic or flat, with one curvature.

    Returns ``(N, D)`` points of ``manifold``, in the dtype of ``distances`` (float64 for integers).

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> points = torch.tensor([[0.3, 0.1], [-0.5, 0.2], [0.0, 0.7], [0.1, -0.4]], dtype=torch.float64)
    >>> distances = ball.pairwise_dist(points, points)
    >>> found = hyperbolic_mds(distances, 2, ball)
    >>> torch.allclose(ball.pairwise_dist(found, found), distances)
    True
    """
    dim = checked_integer("hyperbolic_mds: dim", dim, least=1)
    space = plain(checked_open_space("hyperbolic_mds: manifold", manifold))
    d = checked_distances(distances, fewest=2)
    if len(d) <= dim:
        raise ValueError(
            f"hyperbolic_mds: dim must be less than the number of points, {len(d)}, got {dim}; take a smaller dim or"
            " more points."
        )
    c = torch.tensor(space.c, dtype=torch.float64, device=d.device)
    coords = _flat(d, dim) if c == 0 else _curved(d, dim, c)
    dtype = distances.dtype if distances.is_floating_point() else torch.float64
    farthest, reach = coords.norm(dim=-1).max().item(), space.reach(dtype)
    if not farthest <= reach:
        raise ValueError(
            f"hyperbolic_mds: distances must be smaller for {dtype} coordinates of {manifold!r}, which end at"
            f" {reach:.4g} from the origin, got points at {farthest:.4g}; scale the distances down, pass"
            " distances.double(), or take Lorentz in the place of a ball."
        )
    return space.from_normal_coords(None, coords).to(dtype)


def _curved(d: Tensor, dim: int, c: Tensor) -> Tensor:
    """Normal coordinates at the centre of the points."""
    values, vectors = torch.linalg.eigh(torch.cosh(c.sqrt() * d))  # ascending
    s = vectors[:, :dim] * (-values[:dim]).clamp(min=0).sqrt()
    x = torch.cat([(1 + s.square().sum(-1, keepdim=True)).sqrt(), s], -1)
    centre = x.sum(0)
    centre = centre / (centre[0].square() - centre[1:].square().sum()).sqrt()
    return Lorentz(1.0).to_normal_coords(centre, x) / c.sqrt()


def _flat(d: Tensor, dim: int) -> Tensor:
    square = d.square()
    gram = -0.5 * (square - square.mean(0) - square.mean(1, keepdim=True) + square.mean())
    values, vectors = torch.linalg.eigh(gram)
    return (vectors[:, -dim:] * values[-dim:].clamp(min=0).sqrt()).flip(-1)
