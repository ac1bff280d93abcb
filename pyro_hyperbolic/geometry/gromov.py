r"""How nearly a metric is that of a tree: Gromov's four-point condition.

Four points :math:`x, y, z, w` make three sums of opposite sides, :math:`d(x, y) + d(z, w)`,
:math:`d(x, z) + d(y, w)` and :math:`d(x, w) + d(y, z)`. Their *four-point delta* is half the difference between the
largest sum and the second largest. In a tree, whatever the lengths of its edges, the two are equal.

With the Gromov products :math:`(y \mid z)_x = \tfrac12\,(d(x, y) + d(x, z) - d(y, z))` at one of the four points the
same number is the middle one of :math:`(y \mid z)_x, (z \mid w)_x, (y \mid w)_x` minus the least. So

.. math:: \delta_{xyzw} = \big|\min(g, \max(a, b)) - \min(a, b)\big|, \qquad
          a = (y \mid z)_x,\ b = (y \mid w)_x,\ g = (z \mid w)_x .
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.tolerances import metric_tolerance

# All quadruples of this many points take minutes.
_MOST_POINTS = 600
# Quadruples that are drawn, and whose distances are gathered, at a time.
_CHUNK = 2**16


@dataclass(frozen=True)
class DeltaHyperbolicity:
    r"""What :func:`delta_hyperbolicity` returns.

    :ivar delta: the largest four-point delta. Of a sample of quadruples it is a lower bound of that of the space.
    :ivar mean: the average four-point delta.
    :ivar standard_error: of ``mean``, as an estimate of the average over all quadruples of these points; 0 if it is
        that average.
    :ivar diameter: the largest distance.
    :ivar mean_distance: the average distance of two different points.
    :ivar num_quadruples: how many quadruples were looked at.
    :ivar is_exact: whether these were all of them.
    """

    delta: float
    mean: float
    standard_error: float
    diameter: float
    mean_distance: float
    num_quadruples: int
    is_exact: bool

    @property
    def relative(self) -> float:
        r""":math:`2\delta / \text{diameter}`, between 0 and 1 and without a unit of length."""
        return 2 * self.delta / self.diameter

    @property
    def relative_mean(self) -> float:
        """Twice the average delta over the average distance, between 0 and 3/2 and without a unit of length."""
        return 2 * self.mean / self.mean_distance


def delta_hyperbolicity(distances: Tensor, num_samples: int | None = None, seed: int = 0) -> DeltaHyperbolicity:
    r"""Gromov's :math:`\delta` of a finite metric space, by the four-point condition.

    .. math:: \delta = \max_{x, y, z, w} \tfrac12 \big(S_1 - S_2\big), \qquad S_1 \ge S_2 \ge S_3 \ \text{ the sums }\
              d(x, y) + d(z, w),\ d(x, z) + d(y, w),\ d(x, w) + d(y, z) .

    M. Gromov, *Hyperbolic groups* (1987). It is 0 for trees (and complete graphs, which are stars without their
    centre), at most :math:`\log 2/\sqrt{c}` for points of hyperbolic space, and has no bound in Euclidean space. Other
    definitions exist: with thin triangles, or with one of the four points fixed, which gives at least half of this
    number.

    Every quadruple is looked at by default, in O(n\ :sup:`4`) time and O(n\ :sup:`2`) memory. With ``num_samples``,
    random ones are: the average is then an estimate with a standard error, the largest a lower bound.
    The arithmetic is float64.

    :param distances: a metric: square ``(n, n)``, symmetric, zero on the diagonal, finite, ``n >= 4``. The triangle
        inequality is taken for granted.
    :param num_samples: number of random quadruples, drawn with replacement from those of four different points;
        needed for more than 600 points.
    :param seed: the sample is a function of the arguments; the global random state is not touched.

    >>> square = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]])
    >>> result = delta_hyperbolicity(square)
    >>> result.delta, result.relative, result.num_quadruples
    (1.0, 1.0, 1)
    """
    d = checked_distances(distances)
    count = len(d)
    if num_samples is not None:
        deltas = _sampled(d, num_samples, seed)
        worst, mean = deltas.max().item(), deltas.mean().item()
        error = deltas.std().item() / math.sqrt(num_samples) if num_samples > 1 else math.inf
        looked_at = num_samples
    else:
        if count > _MOST_POINTS:
            raise ValueError(
                f"num_samples must be given for more than {_MOST_POINTS} points, got None for {count} of them, which"
                f" have {math.comb(count, 4):.1e} quadruples; pass for example num_samples=1_000_000."
            )
        worst, total = _all_quadruples(d)
        looked_at = math.comb(count, 4)
        mean, error = total / looked_at, 0.0
    return DeltaHyperbolicity(
        delta=worst,
        mean=mean,
        standard_error=error,
        diameter=d.max().item(),
        mean_distance=d.sum().item() / (count * (count - 1)),
        num_quadruples=looked_at,
        is_exact=num_samples is None,
    )


def four_point_deltas(distances: Tensor, num_samples: int, seed: int = 0) -> Tensor:
    """The four-point deltas of random quadruples of different points, float64 ``(num_samples,)``.

    The same sample as that of :func:`delta_hyperbolicity`; for histograms and other summaries.

    :param distances: as in :func:`delta_hyperbolicity`.
    :param num_samples: number of quadruples.
    :param seed: the sample is a function of the arguments; the global random state is not touched.

    >>> line = torch.arange(9.0)
    >>> four_point_deltas((line.unsqueeze(-1) - line).abs(), num_samples=3)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    return _sampled(checked_distances(distances), num_samples, seed)


def _all_quadruples(d: Tensor) -> tuple[float, float]:
    """Largest and sum of the deltas of all quadruples x < y < z < w."""
    worst, total = d.new_zeros(()), d.new_zeros(())
    for x in range(len(d) - 3):
        to_x = d[x, x + 1 :]
        products = 0.5 * (to_x.unsqueeze(-1) + to_x - d[x + 1 :, x + 1 :])
        # On the diagonal z = w there is no quadruple: infinity makes its delta 0.
        products.fill_diagonal_(math.inf)
        for y in range(len(to_x) - 2):
            a, rest = products[y, y + 1 :], products[y + 1 :, y + 1 :]
            column = a.unsqueeze(-1)
            low, high = torch.minimum(column, a), torch.maximum(column, a)
            deltas = torch.minimum(rest, high).sub_(low).abs_()
            worst = torch.maximum(worst, deltas.amax())
            total = total + deltas.sum()
    # Each pair z, w was met in both orders.
    return worst.item(), 0.5 * total.item()


def _sampled(d: Tensor, num_samples: int, seed: int) -> Tensor:
    num_samples = checked_integer("num_samples", num_samples, least=1)
    generator = torch.Generator().manual_seed(checked_integer("seed", seed))
    deltas = []
    for start in range(0, num_samples, _CHUNK):
        size = min(_CHUNK, num_samples - start)
        x, y, z, w = _different_points(len(d), size, generator).to(d.device).unbind(-1)
        sums = torch.stack([d[x, y] + d[z, w], d[x, z] + d[y, w], d[x, w] + d[y, z]])
        largest, second = sums.topk(2, dim=0).values
        deltas.append(0.5 * (largest - second))
    return torch.cat(deltas)


def _different_points(count: int, size: int, generator: torch.Generator) -> Tensor:
    """``size`` ordered quadruples ``(size, 4)`` of different numbers below ``count``, all equally likely."""
    chosen = torch.empty(size, 0, dtype=torch.long)
    for k in range(4):
        new = torch.randint(count - k, (size, 1), generator=generator)
        # The new number counts those that are still free: step over the others from the smallest on.
        taken = chosen.sort(dim=-1).values
        for i in range(k):
            new = new + (new >= taken[:, i : i + 1])
        chosen = torch.cat([chosen, new], -1)
    return chosen


def checked_distances(distances: Tensor, fewest: int = 4) -> Tensor:
    """The distances of at least so many points, in float64 and symmetric to the last digit."""
    if not isinstance(distances, Tensor) or distances.dim() != 2 or distances.shape[0] != distances.shape[1]:
        got = tuple(distances.shape) if isinstance(distances, Tensor) else type(distances).__name__
        raise ValueError(
            f"distances must be a square tensor of all pairs, got {got}; for points x use torch.cdist(x, x,"
            " compute_mode='donot_use_mm_for_euclid_dist') or manifold.pairwise_dist(x, x)."
        )
    if distances.is_complex() or distances.dtype == torch.bool:
        raise ValueError(f"distances must be real numbers, got {distances.dtype}; pass lengths, not adjacency.")
    if len(distances) < fewest:
        raise ValueError(f"distances must be of at least {fewest} points, got {len(distances)}; take more of them.")
    d = distances.detach().double()
    if not bool(d.isfinite().all()):
        raise ValueError(
            f"distances must be finite, got {int((~d.isfinite()).sum())} entries that are not; take one component of"
            " a graph that is not connected."
        )
    if bool((d < 0).any()):
        raise ValueError(
            f"distances must not be negative, got {d.min().item():g}; take absolute values or roots first."
        )
    tolerance = metric_tolerance(distances.dtype) * d.max().item()
    if d.diagonal().max().item() > tolerance:
        raise ValueError(
            f"distances must be 0 on the diagonal, got {d.diagonal().max().item():g}; similarities are not distances,"
            " and torch.cdist needs compute_mode='donot_use_mm_for_euclid_dist' to be exact there."
        )
    if (d - d.mT).abs().max().item() > tolerance:
        raise ValueError(
            f"distances must be symmetric, got a difference of {(d - d.mT).abs().max().item():g} between the two"
            " directions of a pair; for a directed graph take the distances of the undirected one."
        )
    if d.max().item() == 0:
        raise ValueError("distances must not all be 0: equal points have no scale.")
    return 0.5 * (d + d.mT)
