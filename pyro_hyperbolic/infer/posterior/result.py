"""What a sampler found: draws that know whether to be believed."""

from __future__ import annotations

import itertools
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from pyro_hyperbolic.infer.posterior.alignment import Aligned, moved, rotated
from pyro_hyperbolic.infer.posterior.diagnostics import Diagnosis, diagnose, elements
from pyro_hyperbolic.infer.posterior.points import distances, inner_products, is_shared, radii
from pyro_hyperbolic.infer.posterior.record import Record
from pyro_hyperbolic.infer.posterior.stored import read_fields, write_record
from pyro_hyperbolic.infer.posterior.summary import facts, table
from pyro_hyperbolic.infer.posterior.verdict import Finding, findings, verdict
from pyro_hyperbolic.ops.checks import check_choice

if TYPE_CHECKING:
    from arviz import InferenceData

_ISOMETRIES = "gauge", "rotations", "all"


class Posterior(Record):
    """Draws of a posterior by several chains, with their diagnostics.

    A sampler makes it. ``print(posterior.summary())`` is the first thing to look at, and its last line says whether to
    believe the draws. Chains that failed are named there, and stay in the draws and in the diagnostics.

    :param samples: draws by site, ``(chains, draws, ...)``: points in the space of the model, values of deterministic
        sites too.
    :param divergences: which steps diverged, ``(chains, draws)``.
    :param acceptance: probabilities of acceptance, ``(chains, draws)``.
    :param energy: of each draw, ``(chains, draws)``.
    :param manifolds: the spaces of the sites of points. A curvature that is drawn is a tensor ``(chains, draws, 1...)``
        that broadcasts against ``points[..., 0]``.
    :param deterministic: names of the deterministic sites.
    :param failed: chains that failed, by number, and why.
    :param gauges: groups of sites that the posterior determines up to a common rotation or reflection about the origin.
    :param seconds: time by phase.
    :param settings: numbers and words that tell how the draws were made.
    :param modes: the ``"energy"``, the ``"weight"`` and the number of ``"chains"`` of each mode that was found.

    >>> _ = torch.manual_seed(0)
    >>> posterior = Posterior(
    ...     samples={"loc": torch.randn(4, 1000)},
    ...     divergences=torch.zeros(4, 1000, dtype=torch.bool),
    ...     acceptance=torch.full((4, 1000), 0.8),
    ...     energy=torch.randn(4, 1000),
    ...     manifolds={},
    ...     deterministic=set(),
    ...     failed={},
    ...     gauges=[],
    ...     seconds={"sampling": 0.5},
    ...     settings={"seed": 0},
    ... )
    >>> posterior
    Posterior(4 chains of 1000 draws: loc)
    >>> print(posterior.summary().splitlines()[-1])
    Believe it: every R-hat is at most 1.01 and every effective sample size at least 400.
    """

    def diagnostics(self) -> dict[str, Diagnosis]:
        """Rank-normalised R-hat and effective sample sizes (Vehtari et al., 2021), by group of quantities.

        A site of numbers is one group, under its name, and its elements are the quantities. A site ``"z"`` of points is
        judged by the ``"distances of z"`` between its points and by its ``"radii of z"``, the distances to the origin.
        The ``"coordinates of z"`` are judged only if the posterior determines its orientation. If it determines that of
        two sites together, there are ``"inner products of z and w"`` of their normal coordinates at the origin.

        A group has the largest ``r_hat`` of its quantities, the smallest ``ess_bulk`` and ``ess_tail``, and the
        ``count`` of them; ``r_hats``, ``bulks`` and ``tails`` are those of each. Of more than 2,000 pairs of points,
        2,000 are judged, always the same.
        """
        return dict(self._diagnostics)

    @cached_property
    def _diagnostics(self) -> dict[str, Diagnosis]:
        out = {}
        for name, draws in self.samples.items():
            if self.space_of(name) is None:
                out[name] = diagnose(elements(draws), draws.shape[2:].numel())
                continue
            points, space = self.sets_of(name)
            if points.shape[-2] > 1 and is_shared(space):
                out[f"distances of {name}"] = distances(points, space)
            out[f"radii of {name}"] = radii(points, space)
            if not self.gauge_of(name):
                out[f"coordinates of {name}"] = diagnose(elements(points), draws.shape[2:].numel())
        for gauge in self.gauges:
            sites = [name for name in gauge if name in self.samples]
            for one, other in itertools.combinations(sites, 2):
                v, w = (space.to_normal_coords(None, points) for points, space in map(self.sets_of, (one, other)))
                out[f"inner products of {one} and {other}"] = inner_products(v, w)
        return out

    @cached_property
    def _findings(self) -> list[Finding]:
        return findings(self, self._diagnostics)

    @property
    def converged(self) -> bool:
        """Whether nothing speaks against the draws; the last line of :meth:`summary` says what does."""
        return not self._findings

    def summary(self) -> str:
        """A table of all sites, facts about the run, and a last line that says whether to believe the draws."""
        lines = [*table(self, self._diagnostics), "", *facts(self), "", verdict(self, self._findings)]
        return "\n".join(lines)

    def aligned(self, name: str, isometries: str = "gauge") -> Aligned:
        """The draws of a site of points, laid on each other by isometries of the space.

        Use them for means, regions and pictures. Each draw is moved as a whole, so that its distances stay; sites that
        may be rotated together are. Of a product, each factor is moved by itself.

        :param name: the site.
        :param isometries: ``"gauge"`` for rotations and reflections about the origin if the posterior does not see
            them, and for none if it does. ``"rotations"`` for these in any case. ``"all"`` for translations too, if
            nothing in the model, such as a prior around the origin, determines where the points are.
        :returns: ``points``, of the shape of the draws, and the ``isometries``, one of ``"none"``, ``"rotations"`` and
            ``"all"``, that they were moved by.
        """
        check_choice("isometries", isometries, _ISOMETRIES)
        if name not in self.samples or self.space_of(name) is None:
            known = [site for site in self.samples if self.space_of(site) is not None]
            raise ValueError(f"name must be a site of points, {known}, got {name!r}; numbers are in samples.")
        draws, gauge = self.samples[name], self.gauge_of(name)
        if isometries == "gauge" and not gauge:
            return Aligned(draws, "none")
        own = self.sets_of(name)
        others = [self.sets_of(site) for site in gauge if site != name]
        if isometries == "all":
            if not is_shared(own[1]):
                raise ValueError(
                    f"isometries must be 'gauge' or 'rotations' for {name!r}, whose points have curvatures of their"
                    " own; got 'all'."
                )
            same = [other for other in others if other[1] == own[1]]
            return Aligned(moved([own, *same]).reshape(draws.shape), "all")
        same = [other for other in others if _dims(*other) == _dims(*own)]
        return Aligned(rotated([own, *same]).reshape(draws.shape), "rotations")

    def to_arviz(self) -> InferenceData:
        """The draws and the statistics of the steps as ArviZ reads them (``pip install 'pyro_hyperbolic[arviz]'``)."""
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ; pip install 'pyro_hyperbolic[arviz]'.") from error
        statistics = {"diverging": self.divergences, "energy": self.energy, "acceptance_rate": self.acceptance}
        groups = ({name: draws.detach().cpu().numpy() for name, draws in g.items()} for g in (self.samples, statistics))
        posterior, sample_stats = groups
        return arviz.from_dict(posterior=posterior, sample_stats=sample_stats)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, which is complete or not there."""
        write_record(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], map_location: Any = "cpu") -> Self:
        """Read what :meth:`save` has written.

        :param map_location: the device of the tensors.
        """
        return cls(**read_fields(path, map_location))

    def __repr__(self) -> str:
        return f"Posterior({self.num_chains} chains of {self.num_draws} draws: {', '.join(self.samples)})"


def _dims(points: Any, space: Any) -> list[int]:
    return [dim for _, dim in space.leaves(space.intrinsic_dim(points.shape[-1]))]
