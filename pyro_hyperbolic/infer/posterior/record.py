"""What a sampler hands over, and what follows from it at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import Euclidean, Manifold

_ALL_BUT = 0.999  # of the way to where coordinates end


@dataclass(kw_only=True, eq=False, repr=False)
class Record:
    """The fields of :class:`Posterior`, which explains them."""

    samples: dict[str, Tensor]
    divergences: Tensor
    acceptance: Tensor
    energy: Tensor
    manifolds: Mapping[str, Manifold]
    deterministic: Collection[str]
    failed: Mapping[int, str]
    gauges: Sequence[Sequence[str]]
    seconds: Mapping[str, float]
    settings: Mapping[str, Any]
    modes: Sequence[Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        shape = self.divergences.shape
        given = {"acceptance": self.acceptance, "energy": self.energy, **self.samples}
        for name, value in given.items():
            if len(shape) != 2 or value.shape[:2] != shape:
                raise ValueError(
                    f"samples and statistics must begin with (chains, draws), got {tuple(shape)} of divergences and"
                    f" {tuple(value.shape)} of {name}."
                )
        if unknown := sorted({*self.manifolds} - {*self.samples}):
            raise ValueError(f"manifolds must name sites of samples, {sorted(self.samples)}, got {unknown}.")

    @property
    def num_chains(self) -> int:
        """How many chains there are."""
        return self.divergences.shape[0]

    @property
    def num_draws(self) -> int:
        """How many draws there are of each chain."""
        return self.divergences.shape[1]

    def gauge_of(self, name: str) -> list[str]:
        """The sites that may be rotated together with this one, itself included; none if it may not be rotated."""
        return next(([n for n in gauge if n in self.samples] for gauge in self.gauges if name in gauge), [])

    def space_of(self, name: str) -> Manifold | None:
        """The space of a site of points. Vectors that may be rotated are points of flat space."""
        return self.manifolds.get(name, Euclidean() if self.gauge_of(name) else None)

    def sets_of(self, name: str) -> tuple[Tensor, Manifold]:
        """The points of a site as ``(chains, draws, N, D)``, and their space with curvatures ``(chains, draws, 1)``.

        The last dimension is ``N`` where points of one draw have curvatures of their own.
        """
        points, space = self.samples[name], self.space_of(name)
        assert space is not None
        plates = points.shape[2:-1]

        def flat(c: float | Tensor) -> float | Tensor:
            if not isinstance(c, Tensor) or c.dim() == 0:
                return c
            c = c.reshape((1,) * (points.dim() - 1 - c.dim()) + c.shape)
            own = c.shape[2:] if c.shape[2:].numel() == 1 else plates
            return c.expand(c.shape[:2] + own).reshape(c.shape[:2] + (-1,))

        return points.flatten(2, -2) if plates else points.unsqueeze(2), space.with_curvatures(
            [flat(c) for c in space.curvatures]
        )

    def not_finite(self) -> dict[str, list[int]]:
        """The sites with draws that are not finite, and in which chains."""
        found = {}
        for name, draws in self.samples.items():
            bad = ~draws.reshape(self.num_chains, -1).isfinite().all(-1)
            if bool(bad.any()):
                found[name] = bad.nonzero().squeeze(-1).tolist()
        return found

    def at_the_border(self) -> dict[str, float]:
        """The share of the points of each site that lie where coordinates of their dtype end, or beyond."""
        found = {}
        for name in self.manifolds:
            points, space = self.sets_of(name)
            leaves = space.leaves(space.intrinsic_dim(points.shape[-1]))
            parts = points.split([leaf.ambient_dim(dim) for leaf, dim in leaves], -1)
            is_out = [
                leaf.dist0(part) >= _ALL_BUT * leaf.reach(part.dtype)
                for (leaf, _), part in zip(leaves, parts, strict=True)
            ]
            found[name] = torch.stack(is_out).any(0).double().mean().item()
        return found

    def bfmi(self) -> Tensor:
        """The fraction of missing information about the energy (Betancourt, 2016) of each chain."""
        energy = self.energy.double()
        return energy.diff(dim=-1).square().mean(-1) / energy.var(-1)
