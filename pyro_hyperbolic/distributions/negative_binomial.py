"""The negative binomial distribution, by its mean."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all

from pyro_hyperbolic.ops.counts import log_mass


class NegativeBinomial(TorchDistribution):
    r"""Counts with mean :math:`m` and variance :math:`m + m^2/r`.

    .. math::

        \log p(x) = \log\frac{\Gamma(r + x)}{\Gamma(r)\, x!} + x \log m - x \log r - (r + x) \log(1 + m/r)

    As :math:`r` grows it tends to the Poisson distribution. ``pyro.distributions.NegativeBinomial`` has the same
    distribution in other parameters. For large :math:`r` its terms are of the size of :math:`r \log r` and cancel: in
    float32 nothing is left at :math:`\log r = 15`. Here values and derivatives are computed in float64, from terms that
    do not cancel (:mod:`pyro_hyperbolic.ops.counts`), and rounded to the dtype of the parameters.

    :param log_mean: :math:`\log m`.
    :param log_total_count: :math:`\log r`; 1/r is the dispersion.

    Shapes: batch shape as the parameters broadcast, event shape ``()``.

    >>> counts = NegativeBinomial(torch.tensor(1.0), torch.tensor([0.0, 30.0]))
    >>> counts.log_prob(torch.tensor(2.0))
    tensor([-1.9398, -1.4114])
    >>> torch.distributions.Poisson(torch.tensor(1.0).exp()).log_prob(torch.tensor(2.0))
    tensor(-1.4114)
    """

    arg_constraints = {"log_mean": constraints.real, "log_total_count": constraints.real}
    support = constraints.nonnegative_integer

    def __init__(
        self, log_mean: Tensor | float, log_total_count: Tensor | float, validate_args: bool | None = None
    ) -> None:
        self.log_mean, self.log_total_count = broadcast_all(log_mean, log_total_count)
        super().__init__(self.log_mean.shape, validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NegativeBinomial:
        new = self._get_checked_instance(NegativeBinomial, _instance)
        batch_shape = torch.Size(batch_shape)
        new.log_mean = self.log_mean.expand(batch_shape)
        new.log_total_count = self.log_total_count.expand(batch_shape)
        super(NegativeBinomial, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        return self.log_mean.exp()

    @property
    def variance(self) -> Tensor:
        return self.mean * (1 + (self.log_mean - self.log_total_count).exp())

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        """A Poisson variable whose mean is ``m/r`` times a gamma variable of shape ``r``."""
        with torch.no_grad():
            shape = self._extended_shape(sample_shape)
            log_total_count = self.log_total_count.double()
            gamma = torch.distributions.Gamma(log_total_count.exp(), log_total_count.exp(), validate_args=False)
            rate = self.log_mean.double().exp() * gamma.expand(self.batch_shape).sample(sample_shape)
            return torch.poisson(rate.expand(shape)).to(self.log_mean.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        dtype = torch.promote_types(value.dtype, self.log_mean.dtype)
        # Functions of a parameter that all data share, which comes expanded, are computed once for all.
        log_mean, log_r = (_narrowed(parameter).double() for parameter in (self.log_mean, self.log_total_count))
        return log_mass(value.double(), log_mean, log_r).to(dtype)


def _narrowed(parameter: Tensor) -> Tensor:
    """Without the copies that ``expand`` makes."""
    for dim in range(parameter.dim()):
        if parameter.stride(dim) == 0 and parameter.shape[dim] > 1:
            parameter = parameter.narrow(dim, 0, 1)
    return parameter
