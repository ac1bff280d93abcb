"""Mixtures of Riemannian normals, fitted to points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pyro_hyperbolic.analysis.clusters import batches, check_distinct, lloyd, weighted_means
from pyro_hyperbolic.analysis.inputs import checked_points
from pyro_hyperbolic.distributions import ManifoldMixture, RiemannianNormal
from pyro_hyperbolic.geometry import Manifold, frechet_mean
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.tolerances import eps

# Without a bound from below a component that shrinks to one point has an infinite likelihood.
_NARROWEST = 1e-3  # in units of the spread of the points
# On a sphere a component may be as wide as the uniform distribution, whose scale is infinite; at this one, in units of
# the greatest distance, its density is uniform to half a per cent.
_WIDEST = 10.0
_LLOYD_STEPS = 100
_NEWTON_STEPS = 100


@dataclass(frozen=True, eq=False)
class RiemannianMixture:
    """The result of :func:`fit_mixture`: a mixture of ``k`` components.

    Attributes:
        weights: the weights of the components, ``(k,)``, which sum to 1.
        loc: their Fréchet means, ``(k, D)``.
        scale: their scales, ``(k, 1)``.
        manifold: their space.
        history: the mean log-likelihood of a point at the start and after each step, float64. The last value is that of
            this mixture.
        converged: whether the last step gained less than the tolerance.
    """

    weights: Tensor
    loc: Tensor
    scale: Tensor
    manifold: Manifold
    history: Tensor
    converged: bool

    @property
    def components(self) -> RiemannianNormal:
        """The distribution of a point given its component, batch shape ``(k,)``."""
        return RiemannianNormal(self.loc, self.scale, self.manifold)

    @property
    def distribution(self) -> ManifoldMixture:
        """The mixture as a Pyro distribution, for a prior or a likelihood."""
        return ManifoldMixture(dist.Categorical(self.weights), self.components)

    def responsibilities(self, points: Tensor) -> Tensor:
        """Probabilities of the components given points ``(..., D)``, as ``(..., k)``."""
        return (self.components.log_prob(points.unsqueeze(-2)) + self.weights.log()).softmax(-1)

    def bic(self, points: Tensor) -> float:
        r"""Schwarz's criterion :math:`p\log N - 2\log L` for points ``(N, D)``. The best ``k`` has the least value.

        :math:`p` counts the free parameters: a mean, a scale and a weight for each component, less one weight.
        """
        dim = self.manifold.intrinsic_dim(points.shape[-1])
        parameters = len(self.weights) * (dim + 2) - 1
        return parameters * math.log(len(points)) - 2 * self.distribution.log_prob(points).double().sum().item()


@torch.no_grad()
def fit_mixture(
    points: Tensor,
    manifold: Manifold,
    k: int,
    *,
    restarts: int = 5,
    seed: int = 0,
    tolerance: float = 1e-8,
    max_steps: int = 500,
    min_scale: float | None = None,
) -> RiemannianMixture:
    r"""Fit a mixture of Riemannian normals by maximum likelihood.

    .. math::

        \max \sum_i \log \sum_j \frac{\pi_j}{Z(\sigma_j)} \exp\left(-\frac{d(x_i, \mu_j)^2}{2\sigma_j^2}\right)

    The algorithm is expectation maximisation. Given the responsibilities :math:`r_{ij}` of the components for the
    points, a weight is :math:`\pi_j = \sum_i r_{ij}/N`. A mean :math:`\mu_j` is the Fréchet mean with weights
    :math:`r_{ij}`, because :math:`Z` does not depend on it. The scale solves an equation in one unknown,

    .. math:: \sigma_j^3\, \frac{d \log Z}{d\sigma}(\sigma_j) = \frac{\sum_i r_{ij}\, d(x_i, \mu_j)^2}{\sum_i r_{ij}} .

    The left side is the mean squared distance under the component and grows with :math:`\sigma`. The likelihood never
    falls, except by rounding. Starts come from :func:`k_means`, and the best of several is kept. The arithmetic is
    float64.

    :param points: ``(N, D)`` points of ``manifold``, of which at least ``k`` are different.
    :param manifold: their space, with one curvature: any chart, and also a sphere or a product.
    :param k: number of components.
    :param restarts: number of starts.
    :param seed: seed of the starts; the global random state is not touched.
    :param tolerance: a start ends when a step gains less than this in the mean log-likelihood of a point.
    :param max_steps: maximum number of steps per start.
    :param min_scale: smallest scale of a component; by default a thousandth of the root mean square distance from the
        points to their Fréchet mean. Without a bound the likelihood has no maximum, because a component on a single
        point may have any density there.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> truth = RiemannianNormal(torch.tensor([[0.0, 0.8], [0.0, -0.5]]), 0.4, ball)
    >>> _ = torch.manual_seed(0)
    >>> fit = fit_mixture(truth.sample((500,)).flatten(0, 1), ball, 2)
    >>> [round(scale, 2) for scale in fit.scale.flatten().tolist()]
    [0.39, 0.39]
    >>> fit.distribution.log_prob(torch.zeros(3, 2)).shape
    torch.Size([3])
    """
    x, space = checked_points("fit_mixture", points, manifold)
    checked_integer("fit_mixture: restarts", restarts, least=1)
    checked_integer("fit_mixture: max_steps", max_steps, least=1)
    check_distinct("fit_mixture", x, k)
    if not tolerance >= 0:
        raise ValueError(f"fit_mixture: tolerance must not be negative, got {tolerance!r}.")
    generator = torch.Generator().manual_seed(checked_integer("fit_mixture: seed", seed))
    scales = _Scales(x, space, min_scale)
    runs = [
        run
        for starts in batches(x, space, k, restarts, generator)
        for run in _fits(x, space, starts, scales, tolerance, max_steps)
    ]
    best = max(runs, key=lambda fit: fit.history[-1].item())
    order = best.weights.argsort(descending=True, stable=True)
    return RiemannianMixture(
        weights=best.weights[order].to(points.dtype),
        loc=space.projx(best.loc[order].to(points.dtype)),
        scale=best.scale[order].to(points.dtype),
        manifold=space,
        history=best.history,
        converged=best.converged,
    )


def _fits(
    x: Tensor, space: Manifold, starts: Tensor, scales: _Scales, tolerance: float, max_steps: int
) -> list[RiemannianMixture]:
    """The mixtures from each of the starts ``(R, k, D)``."""
    clusters, k = lloyd(x, space, starts, _LLOYD_STEPS), starts.shape[1]
    loc = torch.stack([run.centres for run in clusters])
    share = one_hot(torch.stack([run.labels for run in clusters]), k).to(x)
    weights, scale = share.mean(-2), scales.ends[1].repeat(len(starts), k)
    history: list[list[Tensor]] = [[] for _ in clusters]
    going = torch.arange(len(starts), device=x.device)
    for step in range(max_steps + 1):
        if step > 0:
            loc[going] = weighted_means(x, space, share[going].mT, loc[going])
        own = share[going]
        total = own.sum(-2)
        square = space.pairwise_dist(x, loc[going]).square()
        # A component that has lost all points has no mean square, and its weight is 0.
        mean_square = (own * square).sum(-2) / total.clamp(min=torch.finfo(x.dtype).tiny)
        weights[going], scale[going] = total / len(x), scales.best(mean_square, scale[going])
        log_joint = -0.5 * square / scale[going].square().unsqueeze(-2)
        log_joint = log_joint + (weights[going].log() - scales.log_normalizer(scale[going])).unsqueeze(-2)
        density = log_joint.logsumexp(-1)
        share[going] = (log_joint - density.unsqueeze(-1)).exp()
        for run, value in zip(going.tolist(), density.mean(-1), strict=True):
            history[run].append(value)
        going = going[[not _converged(history[run], tolerance) for run in going.tolist()]]
        if len(going) == 0:
            break
    return [
        RiemannianMixture(w, m, s, space, torch.stack(values), _converged(values, tolerance))
        for w, m, s, values in zip(weights, loc, scale.unsqueeze(-1), history, strict=True)
    ]


def _converged(history: list[Tensor], tolerance: float) -> bool:
    return len(history) > 1 and bool(history[-1] - history[-2] < tolerance)


class _Scales:
    """The scale of greatest likelihood given a mean squared distance, within bounds.

    :param least: the smallest scale; ``None``: from the points.
    """

    def __init__(self, x: Tensor, space: Manifold, least: float | None) -> None:
        self.space = space
        self.origin = space.origin(space.intrinsic_dim(x.shape[-1]), x.dtype, x.device)
        distance = space.dist(x, frechet_mean(space, x))
        spread = distance.square().mean().sqrt().item()
        if least is None:
            if spread == 0:
                raise ValueError("fit_mixture: all points are the same, and no scale fits them; pass min_scale.")
            least = _NARROWEST * spread
        if not 0 < least < math.inf:
            raise ValueError(f"fit_mixture: min_scale must be positive and finite, got {least!r}.")
        self.set_bounds(least, max(least, _WIDEST * distance.max().item()))

    def set_bounds(self, least: float, greatest: float) -> None:
        """The scales, and the mean squared distances, between which to search."""
        self.ends = self.origin.new_tensor([least, greatest])
        self.squares = self._log_mean_square(self.ends.log())[0].exp()

    def log_normalizer(self, scale: Tensor) -> Tensor:
        place = self.origin.expand(*scale.shape, -1)
        return RiemannianNormal(place, scale.unsqueeze(-1), self.space, validate_args=False).log_normalizer

    def best(self, square: Tensor, start: Tensor) -> Tensor:
        r"""Solve :math:`\log E_\sigma[r^2] = \log S` for :math:`s = \log\sigma`: Newton's steps, or halvings."""
        low, high = (end.log().expand(square.shape) for end in self.ends)
        below, above = square <= self.squares[0], square >= self.squares[1]
        wanted = torch.where(below | above, self.squares.log().mean(), square.log())
        s = start.log()
        for _ in range(_NEWTON_STEPS):
            log_mean, slope = self._log_mean_square(s)
            excess = log_mean - wanted
            low, high = torch.where(excess < 0, s, low), torch.where(excess < 0, high, s)
            step = s - excess / slope
            step = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
            # Quadratic convergence: the error that is left is of the order of the rounding.
            done = (step - s).abs() <= math.sqrt(eps(s.dtype))
            s = step
            if bool(done.all()):
                break
        return torch.where(below, self.ends[0], torch.where(above, self.ends[1], s.exp()))

    def _log_mean_square(self, s: Tensor) -> tuple[Tensor, Tensor]:
        r""":math:`\log E_\sigma[r^2]` and its derivative in :math:`s = \log\sigma`."""
        with torch.enable_grad():
            s = s.detach().requires_grad_()
            # The mean of r^2 in units of the scale.
            (mean,) = torch.autograd.grad(self.log_normalizer(s.exp()).sum(), s, create_graph=True)
            (slope,) = torch.autograd.grad(mean.sum(), s)
        mean = mean.detach()
        return mean.log() + 2 * s.detach(), slope / mean + 2
