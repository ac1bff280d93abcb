"""Distributions of data given the output of a decoder."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_hyperbolic.distributions import NegativeBinomial
from pyro_hyperbolic.ops.checks import check_choice

_SCALES = ("unit", "shared", "feature")


class Likelihood(nn.Module):
    """Base class: a module from the output of a decoder to the distribution of the data.

    It may have parameters of its own. A subclass implements :meth:`forward`, and overrides other methods where it
    differs.

    :param data_shape: shape of a datum.
    :ivar num_outputs: how many numbers a decoder has to give for every feature. The output is then
        ``(..., *data_shape)``, or ``(..., num_outputs, *data_shape)`` if there are several.
    :ivar takes_size_factors: whether its mean can be scaled datum by datum.
    """

    num_outputs = 1
    takes_size_factors = False

    def __init__(self, data_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.data_shape = data_shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a decoder's output for one datum."""
        return self.data_shape if self.num_outputs == 1 else (self.num_outputs, *self.data_shape)

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        """The distribution of the data; the last dimensions are those of a datum.

        :param output: ``(..., *output_shape)``.
        :param size_factors: positive, with dimensions of size 1 in place of those of a datum.
        """
        raise NotImplementedError

    def check(self, x: Tensor) -> None:
        """Raise an error for data that the likelihood cannot have produced."""

    def encoder_input(self, x: Tensor, size_factors: Tensor | None = None) -> Tensor:
        """The data as the encoder reads them, with size factors as in :meth:`forward`."""
        return x

    def start(self, mean: Tensor, count: int) -> Tensor:
        """The initial output of a decoder whose mean is that of ``count`` data.

        :param mean: ``data_shape``.
        :returns: ``output_shape``.
        """
        return mean


class BernoulliLikelihood(Likelihood):
    """Logits of binary data. Grey levels are allowed, as in the paper, and give the negative cross entropy."""

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return dist.Bernoulli(logits=output, validate_args=False)

    def check(self, x: Tensor) -> None:
        if not bool(((x >= 0) & (x <= 1)).all()):
            low, high = x.min().item(), x.max().item()
            raise ValueError(
                f"x must lie in [0, 1] for the Bernoulli likelihood, got values from {low:g} to {high:g}; scale grey"
                " levels (divide bytes by 255), or use likelihood='normal'."
            )

    def start(self, mean: Tensor, count: int) -> Tensor:
        # A pixel that is always 0 has no finite logit; half a count in the data is the usual remedy.
        half = 0.5 / count
        return torch.logit((mean * (1 - 2 * half) + half).clamp(half, 1 - half))


class ContinuousBernoulliLikelihood(BernoulliLikelihood):
    """Logits of grey levels, with the normaliser that a Bernoulli likelihood of grey levels lacks."""

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return dist.ContinuousBernoulli(logits=output)


class LocationScaleLikelihood(Likelihood):
    """Centres of a symmetric distribution, with the same scale for all data.

    :param family: ``Normal`` or ``Laplace`` of ``pyro.distributions``.
    :param scale: ``"unit"`` for 1, or learned: one scale ``"shared"`` by all features, or one for each ``"feature"``.
    """

    log_scale: Tensor

    def __init__(self, data_shape: tuple[int, ...], family: Callable[..., Any], scale: str = "unit") -> None:
        super().__init__(data_shape)
        check_choice("scale", scale, _SCALES)
        self.family = family
        if scale != "unit":
            self.log_scale = nn.Parameter(torch.zeros(data_shape if scale == "feature" else ()))
        self._is_learned = scale != "unit"

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return self.family(output, self.log_scale.exp() if self._is_learned else 1.0)

    def check(self, x: Tensor) -> None:
        if not bool(x.isfinite().all()):
            raise ValueError("x must hold finite numbers; leave out or fill in the data that are missing.")


class CountLikelihood(Likelihood):
    """Base class for counts: the log-mean is the decoder's output plus the log of the size factor, if any."""

    takes_size_factors = True

    def check(self, x: Tensor) -> None:
        whole = x == x.round() if x.is_floating_point() else True
        wrong = ~((x >= 0) & whole & (x < math.inf))
        if bool(wrong.any()):
            raise ValueError(
                f"x must hold counts, whole numbers from 0 on, got {x[wrong][0].item():g}; give the raw counts, not"
                " normalised or logarithmic ones."
            )

    def encoder_input(self, x: Tensor, size_factors: Tensor | None = None) -> Tensor:
        return torch.log1p(x if size_factors is None else x / size_factors)

    def start(self, mean: Tensor, count: int) -> Tensor:
        # A feature without counts has no finite logarithm; half a count in the data is the usual remedy.
        return mean.clamp(min=0.5 / count).log()


def _log_mean(output: Tensor, size_factors: Tensor | None) -> Tensor:
    return output if size_factors is None else output + size_factors.log()


class PoissonLikelihood(CountLikelihood):
    """Poisson counts; the decoder gives the logarithms of their means."""

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return dist.Poisson(_log_mean(output, size_factors).exp())


class NegativeBinomialLikelihood(CountLikelihood):
    r"""Counts with variance :math:`m + m^2 / r`; the decoder gives the logarithms of their means :math:`m`.

    The inverse dispersion :math:`r` is learned, one for each feature, and may grow without bound: see
    :class:`~pyro_hyperbolic.distributions.NegativeBinomial`. Densities are computed from logarithms, so no output of a
    decoder overflows.
    """

    def __init__(self, data_shape: tuple[int, ...]) -> None:
        super().__init__(data_shape)
        self.log_inverse_dispersion = nn.Parameter(torch.zeros(data_shape))

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return NegativeBinomial(_log_mean(output, size_factors), self.log_inverse_dispersion)


class ZeroInflatedNegativeBinomialLikelihood(NegativeBinomialLikelihood):
    """Negative binomial counts with extra zeros; the decoder gives log-means, and logits of being 0 instead."""

    num_outputs = 2

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        log_mean, gate = output.unbind(-1 - len(self.data_shape))
        counts = NegativeBinomial(_log_mean(log_mean, size_factors), self.log_inverse_dispersion)
        return dist.ZeroInflatedDistribution(counts, gate_logits=gate.expand(counts.batch_shape))

    def start(self, mean: Tensor, count: int) -> Tensor:
        # Zeros beyond those of the counts are few at first; with gates half open the means would be too high.
        gate = torch.full_like(mean, -2.0)
        return torch.stack([super().start(mean, count) + nn.functional.softplus(gate), gate])


class CategoricalLikelihood(Likelihood):
    """Logits of categories. Data are one-hot in their last dimension, which runs over the categories."""

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return dist.OneHotCategorical(logits=output)

    def check(self, x: Tensor) -> None:
        if not bool((((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)).all()):
            raise ValueError(
                "x must be one-hot in its last dimension for the categorical likelihood: one 1, all others 0; turn"
                " numbers of categories into such vectors by torch.nn.functional.one_hot."
            )

    def start(self, mean: Tensor, count: int) -> Tensor:
        return mean.clamp(min=0.5 / count).log()


class FunctionLikelihood(Likelihood):
    """A likelihood from your own function.

    :param function: from the decoder's output to a Pyro distribution. If the model is given size factors, the function
        gets them as the keyword ``size_factors``.
    """

    takes_size_factors = True

    def __init__(self, data_shape: tuple[int, ...], function: Callable[..., Any]) -> None:
        super().__init__(data_shape)
        self.function = function

    def forward(self, output: Tensor, size_factors: Tensor | None = None) -> Any:
        return self.function(output) if size_factors is None else self.function(output, size_factors=size_factors)

    def start(self, mean: Tensor, count: int) -> Tensor:
        raise ValueError("a likelihood that is a function does not say which output has the mean of the data.")


LIKELIHOODS: dict[str, Callable[[tuple[int, ...]], Likelihood]] = {
    "bernoulli": BernoulliLikelihood,
    "categorical": CategoricalLikelihood,
    "continuous_bernoulli": ContinuousBernoulliLikelihood,
    "laplace": functools.partial(LocationScaleLikelihood, family=dist.Laplace),
    "laplace_feature": functools.partial(LocationScaleLikelihood, family=dist.Laplace, scale="feature"),
    "laplace_shared": functools.partial(LocationScaleLikelihood, family=dist.Laplace, scale="shared"),
    "negative_binomial": NegativeBinomialLikelihood,
    "normal": functools.partial(LocationScaleLikelihood, family=dist.Normal),
    "normal_feature": functools.partial(LocationScaleLikelihood, family=dist.Normal, scale="feature"),
    "normal_shared": functools.partial(LocationScaleLikelihood, family=dist.Normal, scale="shared"),
    "poisson": PoissonLikelihood,
    "zero_inflated_negative_binomial": ZeroInflatedNegativeBinomialLikelihood,
}
"""Likelihoods by name: from the shape of a datum to a :class:`Likelihood`.

``"normal"`` and ``"laplace"`` have scale 1; with ``_shared`` it is learned, with ``_feature`` each feature has its own.
"""


def build_likelihood(likelihood: str | Likelihood | Callable[..., Any], data_shape: tuple[int, ...]) -> Likelihood:
    """The likelihood for a name, an object or a function."""
    if isinstance(likelihood, Likelihood):
        if likelihood.data_shape != data_shape:
            raise ValueError(f"likelihood must be for data of shape {data_shape}, got one for {likelihood.data_shape}.")
        return likelihood
    if callable(likelihood):
        return FunctionLikelihood(data_shape, likelihood)
    check_choice("likelihood", likelihood, LIKELIHOODS)
    return LIKELIHOODS[likelihood](data_shape)
