"""The normal distribution of what cannot be negative."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all


class TruncatedNormal(TorchDistribution):
    r"""A normal variable, given that it is not negative.

    .. math:: p(x) = \frac{\mathcal{N}(x \mid \mu, \sigma^2)}{\Phi(\mu/\sigma)}, \qquad x \ge 0

    The noise of distances in Oh and Raftery, *Bayesian multidimensional scaling and choice of dimension* (2001).
    Samples, which are quantiles of uniform numbers, need :math:`\mu/\sigma` above -37, in float32 above -13.

    :param loc: :math:`\mu`, the mode if it is positive.
    :param scale: :math:`\sigma`.

    Shapes: batch shape as the parameters broadcast, event shape ``()``.

    >>> near = TruncatedNormal(torch.tensor([0.0, 5.0]), torch.tensor(1.0))
    >>> near.log_prob(torch.tensor(1.0))
    tensor([-0.7258, -8.9189])
    >>> near.mean
    tensor([0.7979, 5.0000])
    """

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True

    def __init__(self, loc: Tensor | float, scale: Tensor | float, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TruncatedNormal:
        new = self._get_checked_instance(TruncatedNormal, _instance)
        batch_shape = torch.Size(batch_shape)
        new.loc, new.scale = self.loc.expand(batch_shape), self.scale.expand(batch_shape)
        super(TruncatedNormal, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def _score(self) -> Tensor:
        return self.loc / self.scale

    @property
    def _hazard(self) -> Tensor:
        """The density over the distribution function of a standard normal variable, at the score."""
        log_density = -0.5 * self._score.square() - 0.5 * math.log(2 * math.pi)
        return (log_density - _log_ndtr(self._score)).exp()

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * self._hazard

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - self._hazard * (self._score + self._hazard))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        # Not 0, of which the quantile is infinite.
        share = 1 - torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device)
        draws = self.loc - self.scale * torch.special.ndtri(share * torch.special.ndtr(self._score))
        return draws.clamp(min=0)  # where it was rounded

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        away = (value - self.loc) / self.scale
        log_density = -0.5 * away.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)
        return torch.where(value >= 0, log_density - _log_ndtr(self._score), -torch.inf)


def _log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the normal distribution function; torch's own is not made for ``vmap``."""
    low, high = x.clamp(max=-1.0), x.clamp(min=-1.0)
    tail = torch.log(0.5 * torch.special.erfcx(-low / math.sqrt(2))) - 0.5 * low.square()
    return torch.where(x < -1, tail, torch.log1p(-torch.special.ndtr(-high)))
