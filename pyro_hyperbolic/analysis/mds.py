"""Points from their distances, without a search."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.inputs import checked_open_space
from pyro_hyperbolic.analysis.widening import plain
from pyro_hyperbolic.geometry import Lorentz, Manifold, PoincareBall
from pyro_hyperbolic.geometry.gromov import checked_distances
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.special import sinhc

# Of a power iteration: entries between 1 and cosh(1) leave at most 0.27 of the error in each.
_POWER_STEPS = 32


@torch.no_grad()
def hyperbolic_mds(distances: Tensor, dim: int, manifold: Manifold) -> Tensor:
    r"""Classical scaling in hyperbolic space: find points with the given distances, or nearly so.

    On the hyperboloid of radius 1 the distances of points :math:`x_i = (t_i, s_i)` make the matrix

    .. math:: \cosh(\sqrt c\, D) = t\,t^T - s\,s^T .

    One eigenvector with a positive eigenvalue is :math:`t`. The eigenvectors of the ``dim`` most negative eigenvalues
    are the columns of :math:`s`, each times the square root of the size of its eigenvalue. If the distances are exact
    distances between points of the space, these are the points. Otherwise :math:`t` is computed from :math:`s`, which
    puts the points on the hyperboloid. Their centre, :math:`\sum x_i` scaled to the hyperboloid, is then moved to the
    origin. At ``c = 0`` this is classical (Torgerson's) scaling, to which it tends for small ``c`` without a loss of
    digits.

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
    coords = _nearly_flat(d, dim, c) if c.sqrt() * d.max() < 1 else _curved(d, dim, c)
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
    """Normal coordinates at the centre of the points, which loses the digits of :math:`c D^2` beside 1."""
    values, vectors = torch.linalg.eigh(torch.cosh(c.sqrt() * d))  # ascending
    s = vectors[:, :dim] * (-values[:dim]).clamp(min=0).sqrt()
    x = torch.cat([(1 + s.square().sum(-1, keepdim=True)).sqrt(), s], -1)
    centre = x.sum(0)
    centre = centre / (centre[0].square() - centre[1:].square().sum()).sqrt()
    return Lorentz(1.0).to_normal_coords(centre, x) / c.sqrt()


def _nearly_flat(d: Tensor, dim: int, c: Tensor) -> Tensor:
    r"""The same where :math:`\sqrt c\,D < 1`, without the cancellation of the large eigenvalue; ``c = 0`` included.

    With :math:`\cosh(\sqrt c\, D) = 1 1^T + c M`, and in a basis that begins with the direction of ones,

    .. math:: \frac1c \cosh(\sqrt c\, D) = \begin{pmatrix} N/c + a & b^T \\ b & B \end{pmatrix} .

    Its large eigenvalue has an eigenvector :math:`(1, c u)`. All others are those of the matrix on the complement,
    which :math:`(-c u^T, I)` spans: at ``c = 0`` of :math:`B`, whose eigenvectors are those of classical scaling.
    """
    count = len(d)
    mirror = torch.full_like(d[0], count**-0.5)
    mirror[0] -= 1
    mirror = torch.eye(count).to(d) - 2 * torch.outer(mirror, mirror) / mirror.square().sum()
    m = mirror @ (0.5 * (d * sinhc(0.25 * c * d.square())).square()) @ mirror
    a, b, rest = m[0, 0], m[0, 1:], m[1:, 1:]
    u = b / count
    for _ in range(_POWER_STEPS):
        u = (b + c * rest @ u) / (count + c * (a + c * b @ u))
    length = (1 + c.square() * u.square().sum()).sqrt()
    root = torch.eye(count - 1).to(d) - torch.outer(u, u) * c.square() / (length * (1 + length))  # (1 + c^2 u u^T)^-1/2
    large = c * (torch.outer(u, u) * (count + c * a) - torch.outer(u, b) - torch.outer(b, u))
    values, vectors = torch.linalg.eigh(root @ (rest + large) @ root)
    vectors = root @ vectors[:, :dim]
    s = mirror @ torch.cat([-c * u.unsqueeze(0) @ vectors, vectors]) * (-values[:dim]).clamp(min=0).sqrt()
    t = (1 + c * s.square().sum(-1, keepdim=True)).sqrt()
    centre, height = s.sum(0), t.sum()
    centre = centre / (height.square() - c * centre.square().sum()).sqrt()
    ball = PoincareBall(c)
    points = [v / (1 + (1 + c * v.square().sum(-1, keepdim=True)).sqrt()) for v in (centre, s)]
    return ball.to_normal_coords(*points)
