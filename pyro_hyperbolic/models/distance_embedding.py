"""Bayesian scaling: points of a space from noisy, missing or repeated measurements of their distances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import pyro
import torch
from torch import Tensor
from torch.distributions import Distribution

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.models.dissimilarities import OBSERVATIONS, observation
from pyro_hyperbolic.models.layouts import LAYOUTS, completed, parted
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.models.positions import Positions, checked_prior, in_support
from pyro_hyperbolic.nn.graph import check_pairs
from pyro_hyperbolic.ops.checks import check_choice, check_dense, inspectable, is_number
from pyro_hyperbolic.ops.tolerances import metric_tolerance

# Products of the root of the curvature and the largest distance, of which a start takes the best.
_GRID = [0.5 * 1.25**i for i in range(17)]


class Measurements(NamedTuple):
    """Pairs of points and what was measured.

    :ivar pairs: two tensors of the numbers of points ``(M,)``.
    :ivar x: measurements ``(M,)`` or, of several times, ``(R, M)``; 1 where there is none.
    :ivar known: where there are some.
    """

    pairs: tuple[Tensor, Tensor]
    x: Tensor
    known: Tensor

    @property
    def mean_square(self) -> Tensor:
        """The mean of the squares of what was measured."""
        return torch.where(self.known, self.x, 0.0).square().sum() / self.known.sum()


class DistanceEmbedding(NamedModel):
    r"""Points of a space whose distances were measured: Bayesian multidimensional scaling.

    .. math:: z_i \sim \mathcal{N}(0, s^2), \qquad x_{ij} \sim p(x \mid d_c(z_i, z_j), \sigma), \quad i < j

    with wrapped normals on a space of any signature, whose curvature ``c`` may be drawn as well. Distances have a unit,
    in which ``c`` is one over a squared length: the same data in another unit have another curvature, and the same
    posterior otherwise. Sites are those of :class:`~pyro_hyperbolic.models.positions.Positions`, ``"noise"`` or, if
    levels are observed, ``"cuts"``, and ``"x"`` in the plate ``"pairs"``, which is in a plate ``"replicates"`` of
    several matrices.

    ======================  ==========================================================================
    ``"normal"``            :math:`x \sim \mathcal{N}(d, \sigma^2)`
    ``"truncated_normal"``  the same, given that :math:`x \ge 0` (Oh and Raftery, 2001)
    ``"log_normal"``        :math:`\log x \sim \mathcal{N}(\log d, \sigma^2)`, for distances above 0
    ``"ordinal"``           :math:`P(x \le k) = \operatorname{sigmoid}(\tau_k - d)` for levels
                            :math:`x = 0, 1, \ldots, K - 1`, with drawn cuts :math:`\tau_0 < \tau_1 < \ldots`
    ======================  ==========================================================================

    Sample with ``infer.sample_posterior(embedding.model, distances)``, or train :meth:`guide` by SVI. Measurements are
    a matrix ``(N, N)``, symmetric and 0 on the diagonal, or a stack ``(R, N, N)`` of them. A pair is missing where it
    is ``nan`` in both directions. With ``pairs`` ``(M, 2)``, in which a pair may occur again, they are ``(M,)``. The
    arithmetic is in their dtype: use float64 for points that are far from each other.

    :param space: a signature such as ``"h2"`` or ``"h2,e1"``, or a manifold.
    :param num_points: number ``N`` of points.
    :param dim: dimension of the space. A signature and a product have it.
    :param curvature: ``"drawn"``, a prior, ``"learned"``, ``"fixed"`` or a number, as in
        :class:`~pyro_hyperbolic.models.positions.Positions`.
    :param likelihood: a name of the table.
    :param num_levels: number ``K`` of levels, if they are observed.
    :param spread: prior of the scale ``s``; by default :math:`\log s \sim \mathcal{N}(\log u, 1)`.
    :param noise: prior of :math:`\sigma`; by default :math:`\log\sigma \sim \mathcal{N}(\log u - 2, 1)`, without ``u``
        if the noise is log-normal.
    :param unit: the length ``u`` that default priors refer to: the root mean square of the measurements by default,
        and ``K`` for levels.
    :param name: name in Pyro's parameter store; see :class:`~pyro_hyperbolic.models.named.NamedModel`.

    >>> _ = torch.manual_seed(0)
    >>> line = torch.arange(4.0)
    >>> distances = (line - line.unsqueeze(-1)).abs()
    >>> embedding = DistanceEmbedding("h2", 4)
    >>> start = embedding.start(distances)
    >>> sorted(start), embedding.distances(start).diagonal(1)
    (['c', 'noise', 'spread', 'z'], tensor([1.0000, 1.0000, 1.0000]))
    >>> embedding.begin(start)
    >>> svi = pyro.infer.SVI(embedding.model, embedding.guide, pyro.optim.Adam({"lr": 0.01}), pyro.infer.Trace_ELBO())
    >>> loss = svi.step(distances)
    """

    def __init__(
        self,
        space: Manifold | str,
        num_points: int,
        *,
        dim: int | None = None,
        curvature: str | float | Distribution = "drawn",
        likelihood: str = "normal",
        num_levels: int | None = None,
        spread: Distribution | None = None,
        noise: Distribution | None = None,
        unit: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        check_choice("likelihood", likelihood, OBSERVATIONS)
        if unit is not None and not (is_number(unit) and 0 < unit < math.inf):
            raise ValueError(f"unit must be a positive length, got {unit!r}; None is the size of the distances.")
        spread = checked_prior("spread", spread)
        self.positions = Positions(space, num_points, dim=dim, curvature=curvature, spread=spread)
        self.num_points, self.dim, self.unit = self.positions.num_points, self.positions.dim, unit
        if self.num_points <= self.dim + 1:
            raise ValueError(
                f"num_points must be more than {self.dim + 1} in {self.dim} dimensions, where so many points can have"
                f" any distances, got {num_points}; take more points or fewer dimensions."
            )
        self.observed = observation(likelihood, checked_prior("noise", noise), num_levels)
        self.numbers = self.observed.guides()

    def model(self, distances: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Points ``"z"`` ``(N, D)``, and the measurements ``"x"`` of their distances."""
        self._register()
        found = self._measurements(distances, pairs)
        unit = self._unit(found)
        space, z = self.positions.draw(unit)
        latent = self.observed.draw(unit)
        first, second = found.pairs
        d = space.dist(z[..., first, :], z[..., second, :])
        with ExitStack() as plates:
            if found.x.dim() == 2:
                plates.enter_context(pyro.plate("replicates", len(found.x), dim=-2))
            plates.enter_context(pyro.plate("pairs", len(first), dim=-1))
            pyro.sample("x", self.observed.distribution(d, latent).mask(found.known), obs=found.x)
        return z

    def guide(self, distances: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Independent wrapped normals for the points, and normals for all else on its unconstrained scale."""
        self._register()
        like = self._unit(self._measurements(distances, pairs))
        _, z = self.positions.guide(like)
        for site in self.numbers.loc:
            self.numbers.draw(site, like)
        return z

    @torch.no_grad()
    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Put the guide at values by site, such as those of :meth:`start`."""
        self.positions.begin(values)
        self.numbers.begin(values)

    @torch.no_grad()
    def start(self, distances: Tensor, pairs: Tensor | None = None, *, layout: str = "scaling") -> dict[str, Tensor]:
        """Values of all sites, as a start of chains or of :meth:`guide`.

        Several measurements of a pair are averaged, and missing ones filled in by shortest paths. A curvature that is
        drawn is the best of a grid or, with a prior of your own, of some draws. ``infer.sample_posterior`` searches for
        a start of its own; pass this one if there are more than some hundred points.

        :param layout: ``"scaling"`` for classical scaling: hyperbolic and flat spaces have their own
            (:func:`~pyro_hyperbolic.analysis.hyperbolic_mds`), and spheres and products take the flat one as normal
            coordinates. ``"tree"`` for sectors of the minimum spanning tree around the point in the middle, which is
            meant for distances in trees; elsewhere fits may end worse from it.
        """
        check_choice("layout", layout, LAYOUTS)
        found = self._measurements(distances, pairs)
        first, second = found.pairs
        count = found.known.reshape(-1, len(first)).sum(0)
        total = torch.where(found.known, self.observed.lengths(found.x), 0.0).reshape(-1, len(first)).sum(0)
        full = completed(found.pairs, total, count, self.num_points)
        target = full[first, second]
        best: tuple[float, Manifold, Tensor] | None = None
        for space in self._candidates(full.max().item()):
            coords = LAYOUTS[layout](full, space, self.dim)
            if coords is None:
                continue
            z = space.from_normal_coords(None, coords)
            loss = (count * (space.dist(z[first], z[second]) - target).square()).sum().item()
            if best is None or loss < best[0]:
                best = loss, space, z
        if best is None:
            raise ValueError(
                f"distances of up to {full.max().item():g} are too large for {full.dtype} coordinates of"
                f" {self.positions.space()!r}; pass distances.double(), a smaller curvature, or Lorentz ('h') in the"
                " place of a ball ('p')."
            )
        _, space, z = best
        z = parted(z, space)
        d, known = space.dist(z[first], z[second]), count > 0
        values = dict(zip(self.positions.drawn, space.curvatures, strict=False))
        return {
            **{name: torch.as_tensor(c, dtype=z.dtype, device=z.device) for name, c in values.items()},
            "spread": self._spread(space.to_normal_coords(None, z).square().mean().sqrt()),
            "z": z,
            **self.observed.start(d[known], target[known]),
        }

    def _spread(self, found: Tensor) -> Tensor:
        prior = self.positions.spread
        return found if prior is None else in_support(prior.support, found)

    def distances(self, samples: Mapping[str, Tensor]) -> Tensor:
        """Distances of all pairs of points, ``(..., N, N)``.

        :param samples: draws by site ``(..., N, D)``, such as ``posterior.samples``, whose result is ``(chains, draws,
            N, N)``. Of many points take some of the draws.
        """
        if missing := sorted({"z", *self.positions.drawn} - samples.keys()):
            raise ValueError(f"samples must have draws of {missing}, got {sorted(samples)}; take posterior.samples.")
        return self.positions.manifold(samples).pairwise_dist(samples["z"], samples["z"])

    def _unit(self, found: Measurements) -> Tensor:
        own = self.observed.unit(found.mean_square)
        return own if self.unit is None else torch.full_like(own, self.unit)

    def _measurements(self, distances: Tensor, pairs: Tensor | None) -> Measurements:
        if not isinstance(distances, Tensor) or distances.is_complex() or distances.dtype == torch.bool:
            got = distances.dtype if isinstance(distances, Tensor) else type(distances).__name__
            raise ValueError(f"distances must be a tensor of real numbers, got {got}; use torch.as_tensor(distances).")
        check_dense("distances", distances)
        if distances.dtype not in (torch.float32, torch.float64):
            distances = distances.to(torch.get_default_dtype())
        if pairs is not None:
            first, second = _checked_pairs(pairs, distances, self.num_points)
            x = distances
        else:
            shape = (self.num_points, self.num_points)
            if distances.dim() not in (2, 3) or distances.shape[-2:] != shape:
                raise ValueError(
                    f"distances must be a square matrix {shape} of all pairs, or a stack of them, got"
                    f" {tuple(distances.shape)}; pass pairs= with a vector of measurements."
                )
            if inspectable(distances):
                _check_matrix(distances)
            first, second = torch.triu_indices(self.num_points, self.num_points, 1, device=distances.device)
            there, back = distances[..., first, second], distances[..., second, first]
            x = torch.where(there.isnan(), back, there)
        known = ~x.isnan()
        if inspectable(x):
            self._check_values(x[known])
        return Measurements((first, second), torch.where(known, x, 1.0), known)

    def _check_values(self, x: Tensor) -> None:
        if len(x) == 0:
            raise ValueError("distances must have entries that are not missing, got nan alone.")
        if bool(x.isinf().any()):
            raise ValueError(
                "distances must be finite, got inf; of a graph that is not connected take one component"
                " (graph_distances with largest_component=True), or put nan for pairs that were not measured."
            )
        if bool((x < 0).any()):
            raise ValueError(
                f"distances must not be negative, got {x.min().item():g}; similarities have to be turned into"
                " dissimilarities first."
            )
        if bool((x == 0).all()):
            raise ValueError("distances must not all be 0: equal points have no scale.")
        self.observed.check(x)

    def _candidates(self, largest: float) -> Iterator[Manifold]:
        """The space with the curvatures to try, for distances up to the largest."""
        space = self.positions.space().detach()
        if not self.positions.drawn:
            yield space
            return
        if (prior := self.positions.priors[0]) is not None:
            # Draws, since the grid may lie outside of the support.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                draws = prior.sample((len(_GRID),)).tolist()
            yield from (space.with_curvatures([c] * len(self.positions.drawn)) for c in draws)
            return
        signs = (-1.0, 1.0) if any(space.signed_curvatures) else (1.0,)
        for sign, number in itertools.product(signs, _GRID):
            # No two points of a sphere are farther apart than pi radii.
            if not space.geodesics_close or sign < 0 or number < math.pi:
                c = (number / largest) ** 2
                yield space.with_curvatures([sign * c if signed else c for signed in space.signed_curvatures])


def _check_matrix(distances: Tensor) -> None:
    diagonal = distances.diagonal(dim1=-2, dim2=-1)
    size = distances.nan_to_num(0.0, 0.0, 0.0).abs().max()
    tolerance = metric_tolerance(distances.dtype) * size
    if not bool((diagonal.abs() <= tolerance).all()):
        worst = diagonal[~(diagonal.abs() <= tolerance)][0].item()
        raise ValueError(
            f"distances must be 0 on the diagonal, got {worst:g}; similarities are not distances, and for nan there use"
            " distances.fill_diagonal_(0.0)."
        )
    difference = (distances - distances.mT).abs()
    if bool((difference > tolerance).any()):
        raise ValueError(
            f"distances must be symmetric, got a difference of {difference.nan_to_num(0.0).max().item():g} between the"
            " two directions of a pair; pass both directions as two measurements, with pairs=, or their mean."
        )


def _checked_pairs(pairs: Tensor, distances: Tensor, num_points: int) -> tuple[Tensor, Tensor]:
    check_pairs("pairs", pairs, num_points)
    pairs = pairs.long()
    if distances.shape != pairs.shape[:1]:
        raise ValueError(
            f"distances must have one number for each of the {len(pairs)} pairs, got {tuple(distances.shape)}."
        )
    first, second = pairs.unbind(-1)
    if inspectable(pairs):
        if len(pairs) == 0:
            raise ValueError("pairs must not be empty.")
        if bool((first == second).any()):
            raise ValueError("pairs must be of two different points, got one point twice; leave such pairs out.")
    return first, second
