"""How good an embedding is: neighbours, distances, batches, posteriors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from pyro.distributions import Normal
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_hyperbolic.analysis.inputs import checked_labels, checked_points
from pyro_hyperbolic.distributions import HyperbolicRadius
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.geometry.gromov import checked_distances
from pyro_hyperbolic.ops.checks import checked_integer

# Rows of a matrix of distances that are held at a time.
_ROWS = 1024


@torch.no_grad()
def knn_accuracy(
    points: Tensor,
    labels: Tensor,
    manifold: Manifold,
    *,
    k: int = 15,
    reference: tuple[Tensor, Tensor] | None = None,
) -> float:
    """The share of points whose ``k`` nearest neighbours vote for their label.

    Neighbours are the other points, or those of ``reference``, for example the cells that a model was trained on. If
    labels have equally many votes, the one with the nearer neighbours wins.

    :param points: ``(N, D)`` points of ``manifold``.
    :param labels: ``(N,)`` integers.
    :param manifold: the space, with one curvature.
    :param k: number of neighbours.
    :param reference: points ``(M, D)`` and labels ``(M,)`` of the neighbours.

    >>> from pyro_hyperbolic import Euclidean
    >>> points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.3]])
    >>> knn_accuracy(points, torch.tensor([0, 0, 0, 1, 1, 0]), Euclidean(), k=2)
    0.8333333333333334
    """
    x, space = checked_points("knn_accuracy", points, manifold)
    own = checked_labels("knn_accuracy", "labels", labels, len(x))
    y, theirs = x, own
    if reference is not None:
        y, _ = checked_points("knn_accuracy", reference[0], manifold)
        theirs = checked_labels("knn_accuracy", "reference[1]", reference[1], len(y))
    classes, votes_for = torch.unique(theirs, return_inverse=True)
    checked_integer("knn_accuracy: k", k, least=1, most=len(y) - (reference is None))
    # Less than one vote in all, in the order of nearness.
    votes = 1 + torch.arange(k, 0, -1, dtype=torch.float64, device=x.device) / (2 * k * k)
    right = 0
    for rows, nearest in _neighbours(x, y, space, k, alone=reference is None):
        won = (one_hot(votes_for[nearest], len(classes)) * votes.unsqueeze(-1)).sum(-2).argmax(-1)
        right += int((classes[won] == own[rows]).sum())
    return right / len(x)


@torch.no_grad()
def lineage_correlation(points: Tensor, distances: Tensor, manifold: Manifold, *, method: str = "pearson") -> float:
    """The correlation over all pairs of the distances of points with given distances, such as along a lineage tree.

    :param points: ``(N, D)`` points of ``manifold``, at least 3.
    :param distances: ``(N, N)``, symmetric, zero on the diagonal.
    :param manifold: the space, with one curvature.
    :param method: ``"pearson"``, which is 1 if the distances are proportional up to a constant; or ``"spearman"``, the
        correlation of the ranks, which is 1 if they are in the same order.

    >>> from pyro_hyperbolic import Euclidean
    >>> points = torch.tensor([[0.0], [1.0], [4.0]])
    >>> round(lineage_correlation(points, 2 * (points - points.T).abs(), Euclidean()), 6)
    1.0
    """
    if method not in _TRANSFORMS:
        raise ValueError(f"lineage_correlation: method must be one of {sorted(_TRANSFORMS)}, got {method!r}.")
    x, space = checked_points("lineage_correlation", points, manifold, fewest=3)
    given = checked_distances(distances, fewest=3)
    if len(given) != len(x):
        raise ValueError(
            f"lineage_correlation: distances must be a matrix of all pairs, ({len(x)}, {len(x)}), got"
            f" {tuple(distances.shape)}."
        )
    above = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
    pair = torch.stack([_TRANSFORMS[method](d[above]) for d in (space.pairwise_dist(x, x), given.to(x.device))])
    if bool((pair.amin(-1) == pair.amax(-1)).any()):
        raise ValueError("lineage_correlation: all distances are equal, so there is no correlation with others.")
    return torch.corrcoef(pair)[0, 1].item()


@torch.no_grad()
def batch_mixing(points: Tensor, batches: Tensor, manifold: Manifold, *, k: int = 30) -> float:
    r"""How well batches are mixed: the entropy of the batches among neighbours, as a share of the ideal.

    .. math::

        \frac{\sum_i H(\hat p_i)}{\sum_i E\,H(\hat q_i)}, \qquad H(p) = -\sum_b p_b \log p_b

    with the shares :math:`\hat p_i` of the batches among the ``k`` nearest neighbours of a point, and the shares
    :math:`\hat q_i` among ``k`` of the other points drawn at random without replacement. That mean is exact (of a
    hypergeometric variable). The score is 0 if every point has neighbours of one batch only, and 1 if batches look as
    if they were assigned at random.

    :param points: ``(N, D)`` points of ``manifold``.
    :param batches: ``(N,)`` integers, at least two different ones.
    :param manifold: the space, with one curvature.
    :param k: number of neighbours, at least 2: one alone is never mixed.

    >>> from pyro_hyperbolic import Euclidean
    >>> points = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> batch_mixing(points, torch.tensor([0, 0, 0, 1, 1, 1]), Euclidean(), k=2)
    0.0
    """
    x, space = checked_points("batch_mixing", points, manifold, fewest=3)
    _, classes, sizes = torch.unique(
        checked_labels("batch_mixing", "batches", batches, len(x)), return_inverse=True, return_counts=True
    )
    if len(sizes) < 2:
        raise ValueError("batch_mixing: there must be at least two batches, got one: there is nothing to mix.")
    checked_integer("batch_mixing: k", k, least=2, most=len(x) - 1)
    found = x.new_zeros(())
    for _, nearest in _neighbours(x, x, space, k, alone=True):
        found += torch.special.entr(one_hot(classes[nearest], len(sizes)).sum(-2).to(x) / k).sum()
    ideal = 0.0
    for batch, size in enumerate(sizes.tolist()):
        others = [n - (b == batch) for b, n in enumerate(sizes.tolist())]
        ideal += size * sum(_mean_entropy(len(x) - 1, n, k) for n in others)
    return found.item() / ideal


@torch.no_grad()
def posterior_coverage(
    posterior: Any, points: Tensor, *, level: float = 0.9, manifold: Manifold | None = None
) -> float:
    r"""The share of true points inside the regions that should hold ``level`` of the mass of their posteriors.

    The region of a distribution is that of highest density in normal coordinates at its location: a ball for an
    isotropic one, an ellipsoid for others. In white noise (``to_noise``) it is
    :math:`|\epsilon|^2 \le \chi^2_d(level)`. On a sphere several noises of a wrapped normal lead to one point, some of
    them inside of the region and some outside. There a point counts with the probability that its noise was inside.

    The region of draws consists of the points whose mean distance to the draws is no greater than that of the share
    ``level`` of the draws themselves. Each mean is over the other draws and the true point, so that the level is exact
    for any number of draws, up to the steps in which that many can count it.

    For exact posteriors the share is ``level`` on average. It is smaller for posteriors that are too narrow, and larger
    for those that are too wide. To judge the posteriors of a model, draw ``points`` from its prior, draw data given the
    points, and encode the data, or draw from their exact posteriors
    (:meth:`VAE.posterior <pyro_hyperbolic.models.VAE.posterior>`).

    :param posterior: a distribution on a manifold (wrapped or Riemannian normal, von Mises-Fisher, power spherical), or
        a Gaussian with independent coordinates, batch shape ``(N,)``; or draws ``(S, N, D)``.
    :param points: ``(N, D)``, the true latents of the data that the posteriors belong to.
    :param level: level of the regions, between 0 and 1.
    :param manifold: the space of draws; a distribution knows its own.

    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> _ = torch.manual_seed(0)
    >>> posterior = WrappedNormal(torch.zeros(4000, 2), 0.5, PoincareBall(1.0))
    >>> points = posterior.sample()
    >>> round(posterior_coverage(posterior, points), 2)
    0.9
    >>> round(posterior_coverage(posterior.sample((19,)), points, manifold=PoincareBall(1.0)), 2)
    0.9
    """
    if not 0 < level < 1:
        raise ValueError(f"posterior_coverage: level must be between 0 and 1, got {level!r}.")
    if isinstance(posterior, Tensor) != (manifold is not None):
        raise ValueError(
            "posterior_coverage: give a manifold with draws (S, N, D), and none with a distribution, got"
            f" {type(posterior).__name__} and {manifold!r}."
        )
    shape = posterior.shape[1:] if manifold else posterior.batch_shape + posterior.event_shape
    if not isinstance(points, Tensor) or points.shape != shape:
        raise ValueError(
            f"posterior_coverage: points must have the shape {tuple(shape)} of a sample of the posterior, got"
            f" {tuple(points.shape) if isinstance(points, Tensor) else points!r}."
        )
    inside = _within_draws(posterior, points, manifold, level) if manifold else _within(posterior, points, level)
    return inside.double().mean().item()


def _within(posterior: Any, points: Tensor, level: float) -> Tensor:
    """Which points are in the regions of distributions, or how likely."""
    distribution = base_distribution(posterior)
    if isinstance(distribution, ManifoldDistribution):
        edge = HyperbolicRadius(distribution.dim, 1.0, 0.0).icdf(torch.tensor(level)).item()
        return distribution._share_within(points, edge)
    if not isinstance(distribution, (Normal, torch.distributions.Normal)):
        raise ValueError(
            f"posterior_coverage: posterior must be a wrapped or Riemannian normal or Normal(...).to_event(1), got"
            f" {type(distribution).__name__}."
        )
    edge = HyperbolicRadius(points.shape[-1], 1.0, 0.0).icdf(torch.tensor(level)).item()
    return ((points - distribution.loc) / distribution.scale).norm(dim=-1) <= edge


def _within_draws(draws: Tensor, points: Tensor, manifold: Manifold, level: float) -> Tensor:
    """Which points are in the regions of draws."""
    sets = torch.cat([points.unsqueeze(0), draws]).transpose(0, 1)
    count = sets.shape[1]
    flat, space = checked_points("posterior_coverage", sets.flatten(0, 1), manifold)
    inside = []
    for some in flat.unflatten(0, (-1, count)).split(max(1, _ROWS**2 // count**2)):
        mean = space.pairwise_dist(some, some).sum(-1)
        inside.append((mean[:, 1:] < mean[:, :1]).sum(-1) < level * count)
    return torch.cat(inside)


def _neighbours(x: Tensor, y: Tensor, space: Manifold, k: int, alone: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of ``x`` and the ``k`` nearest of ``y``, the nearest first; ``alone``: none is its own neighbour."""
    for rows in torch.arange(len(x), device=x.device).split(_ROWS):
        distance = space.pairwise_dist(x[rows], y)
        if alone:
            distance[torch.arange(len(rows), device=x.device), rows] = torch.inf
        yield rows, distance.topk(k, largest=False).indices


def _mean_entropy(total: int, size: int, k: int) -> float:
    r"""The mean of :math:`-p\log p`, where ``p k`` of ``k`` draws out of ``total`` are of a batch of ``size``."""
    count = torch.arange(max(0, k - (total - size)), min(k, size) + 1, dtype=torch.float64)
    log_mass = _log_binomial(size, count) + _log_binomial(total - size, k - count)
    return (log_mass.softmax(-1) * torch.special.entr(count / k)).sum().item()


def _log_binomial(n: int, m: Tensor) -> Tensor:
    return torch.lgamma(torch.tensor(n + 1.0, dtype=torch.float64)) - torch.lgamma(m + 1) - torch.lgamma(n - m + 1)


def _ranks(values: Tensor) -> Tensor:
    """From 0 on; equal values share the mean of theirs."""
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).to(values)
    return (last - (count + 1) / 2)[place]


_TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {"pearson": lambda values: values, "spearman": _ranks}
