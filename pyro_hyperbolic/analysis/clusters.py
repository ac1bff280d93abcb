"""Clusters around Fréchet means."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_hyperbolic.analysis.inputs import checked_points
from pyro_hyperbolic.geometry import Manifold, frechet_mean
from pyro_hyperbolic.ops.checks import checked_integer

# Coordinates of points, one for each centre and start, that are held at a time.
_COORDINATES = 2**20


class Clusters(NamedTuple):
    """The result of :func:`k_means`.

    Attributes:
        centres: the Fréchet means of the clusters, ``(k, D)``.
        labels: the cluster of each point, int64 ``(N,)``.
        cost: the sum of squared distances from the points to the centres of their clusters.
        converged: whether no point changed clusters in the last step.
    """

    centres: Tensor
    labels: Tensor
    cost: float
    converged: bool


@torch.no_grad()
def k_means(
    points: Tensor, manifold: Manifold, k: int, *, restarts: int = 10, seed: int = 0, max_steps: int = 100
) -> Clusters:
    r"""Partition points into ``k`` clusters with the least sum of squared distances to their centres.

    .. math:: \sum_i \min_j d(x_i, m_j)^2

    This is Lloyd's algorithm: each point goes to its nearest centre, and each centre to the Fréchet mean of its points,
    until no point moves. Both steps lower the sum, so the algorithm ends in a local minimum. The best of several starts
    is kept. Each start is that of k-means++: the centres are points, each drawn with probability proportional to the
    squared distance to the nearest of those before it (Arthur and Vassilvitskii 2007). A centre that loses all its
    points moves to the point that is farthest from its own centre.

    A step takes O(N k) time and memory. Several starts run at once if the points are few. The arithmetic is float64.

    :param points: ``(N, D)`` points of ``manifold``, of which at least ``k`` are different.
    :param manifold: their space, with one curvature: any chart, and also a sphere or a product.
    :param k: number of clusters.
    :param restarts: number of starts.
    :param seed: seed of the starts; the global random state is not touched.
    :param max_steps: maximum number of steps per start.

    >>> from pyro_hyperbolic import PoincareBall
    >>> points = torch.tensor([[0.0, 0.8], [0.1, 0.8], [0.0, -0.8], [0.5, 0.0], [0.0, -0.7]])
    >>> k_means(points, PoincareBall(1.0), 3).labels.tolist()
    [0, 0, 1, 2, 1]
    """
    x, space = checked_points("k_means", points, manifold)
    checked_integer("k_means: restarts", restarts, least=1)
    checked_integer("k_means: max_steps", max_steps, least=1)
    check_distinct("k_means", x, k)
    generator = torch.Generator().manual_seed(checked_integer("k_means: seed", seed))
    runs = [run for starts in batches(x, space, k, restarts, generator) for run in lloyd(x, space, starts, max_steps)]
    best = min(runs, key=lambda found: found.cost)
    # Numbered by their first point, whatever the start.
    order = _first_points(best.labels, k).argsort()
    return best._replace(centres=space.projx(best.centres[order].to(points.dtype)), labels=order.argsort()[best.labels])


def check_distinct(caller: str, x: Tensor, k: int) -> None:
    """Refuse a number of clusters that the points cannot fill."""
    checked_integer(f"{caller}: k", k, least=1, most=len(x))
    distinct = len(torch.unique(x, dim=0))
    if distinct < k:
        raise ValueError(f"{caller}: k must be at most the number of different points, {distinct}, got {k}.")


def batches(x: Tensor, space: Manifold, k: int, restarts: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The starts ``(R, k, D)``, in batches that run at once."""
    starts = torch.stack([_plus_plus(x, space, k, generator) for _ in range(restarts)])
    return starts.split(max(1, _COORDINATES // (k * x.numel())))


def lloyd(x: Tensor, space: Manifold, starts: Tensor, max_steps: int) -> list[Clusters]:
    """The clusters from each of the starts ``(R, k, D)``."""
    centres, k = starts.clone(), starts.shape[1]
    labels = torch.full((len(starts), len(x)), -1, device=x.device)
    converged = torch.zeros(len(starts), dtype=torch.bool, device=x.device)
    for _ in range(max_steps):
        going = (~converged).nonzero().squeeze(-1)
        centres[going], closest = _fill(x, space, centres[going])
        converged[going] = (closest == labels[going]).all(-1)
        labels[going] = closest
        going = (~converged).nonzero().squeeze(-1)
        if len(going) == 0:
            break
        centres[going] = weighted_means(x, space, one_hot(labels[going], k).to(x).mT, centres[going])
    own = centres.gather(1, labels.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    costs = space.dist(x, own).square().sum(-1).tolist()
    return [Clusters(*run) for run in zip(centres, labels, costs, converged.tolist(), strict=True)]


def weighted_means(x: Tensor, space: Manifold, weights: Tensor, centres: Tensor) -> Tensor:
    """Fréchet means with weights ``(..., k, N)``; a centre that no point has a weight for stays where it is."""
    used = (weights.sum(-1) > torch.finfo(weights.dtype).tiny).unsqueeze(-1)
    means = frechet_mean(space, x, torch.where(used, weights, 1.0), start=centres)
    return torch.where(used, means, centres)


def _plus_plus(x: Tensor, space: Manifold, k: int, generator: torch.Generator) -> Tensor:
    chosen = [int(torch.randint(len(x), (), generator=generator))]
    nearest = torch.full_like(x[:, 0], torch.inf)
    while len(chosen) < k:
        nearest = torch.minimum(nearest, space.dist(x, x[chosen[-1]]).square())
        mass = nearest.cumsum(0)
        place = torch.rand((), generator=generator, dtype=x.dtype).to(x.device) * mass[-1]
        chosen.append(min(int(torch.searchsorted(mass, place, right=True)), len(x) - 1))
    return x[chosen]


def _fill(x: Tensor, space: Manifold, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centre of each point, after each centre without points has gone to a point far from all of them."""
    k = centres.shape[-2]
    for _ in range(k):
        distance, labels = space.pairwise_dist(x, centres).min(-1)
        empty = one_hot(labels, k).sum(-2) == 0
        rows = empty.any(-1).nonzero().squeeze(-1)
        if len(rows) == 0:
            break
        centres = centres.clone()
        centres[rows, empty[rows].int().argmax(-1)] = x[distance[rows].argmax(-1)]
    return centres, labels


def _first_points(labels: Tensor, k: int) -> Tensor:
    places = torch.full((k,), len(labels), device=labels.device)
    return places.scatter_reduce(0, labels, torch.arange(len(labels), device=labels.device), "amin")
