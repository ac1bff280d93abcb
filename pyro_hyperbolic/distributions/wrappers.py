"""What ``to_event`` and ``mask`` make of distributions of points.

They are Pyro's own wrappers under names of their own, so that a divergence can be registered for them
(:mod:`~pyro_hyperbolic.distributions.kl`) without a change to the divergences of other distributions.
"""

from __future__ import annotations

from typing import Any

from pyro.distributions import Independent, MaskedDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch.distributions import Distribution


class PointDistribution(Distribution, TorchDistributionMixin):
    """What a distribution of points and its wrappers have in common, before Pyro's classes in the order of bases."""

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Any:
        wrapped = super().to_event(reinterpreted_batch_ndims)
        if not isinstance(wrapped, Independent):
            return wrapped
        return PointEvents(wrapped.base_dist, wrapped.reinterpreted_batch_ndims)

    def mask(self, mask: Any) -> Any:
        return MaskedPoints(self, mask)


class PointEvents(PointDistribution, Independent):
    """``to_event`` of a distribution of points."""


class MaskedPoints(PointDistribution, MaskedDistribution):
    """``mask`` of a distribution of points."""
