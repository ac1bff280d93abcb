"""Distributions of the values of edges given a predictor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn import functional as F


class _Poisson(dist.Poisson):
    """By the logarithm of its mean, which may be as small as it likes."""

    def __init__(self, log_rate: Tensor, validate_args: bool | None = None) -> None:
        self.log_rate = log_rate
        super().__init__(log_rate.exp(), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        return _Poisson(self.log_rate.expand(batch_shape), validate_args=self._validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return value * self.log_rate - self.rate - (value + 1).lgamma()


class EdgeLikelihood:
    """Base class: from the predictor :math:`\\eta` of a pair to the distribution of its value.

    :ivar scalars: positive latents of its own by site: location and scale of the log-normal prior.
    """

    scalars: Mapping[str, tuple[float, float]] = {}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor]) -> Any:
        """The distribution of values that are encoded; ``values`` holds those of the ``scalars``."""
        raise NotImplementedError

    def expected(self, eta: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """What a prediction is: the mean of the value."""
        return self.distribution(eta, values).mean

    def encode(self, x: Tensor) -> Tensor:
        """Values of edges as the distribution has them."""
        return x

    def decode(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`encode`."""
        return x

    def check(self, x: Tensor) -> None:
        """Raise an error for values that no edge can have."""


class BernoulliEdges(EdgeLikelihood):
    r"""There is an edge with the probability :math:`\sigma(\eta)`."""

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor]) -> Any:
        return dist.Bernoulli(logits=eta)

    def check(self, x: Tensor) -> None:
        if not bool(((x == 0) | (x == 1)).all()):
            raise ValueError(
                "edges must have the values 0 and 1 for the likelihood 'bernoulli'; use (edges != 0) to drop weights,"
                " or one of the likelihoods 'poisson', 'normal' and 'signed'."
            )


class PoissonEdges(EdgeLikelihood):
    r"""Counts of the mean :math:`e^\eta`."""

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor]) -> Any:
        # No mean is 0: with validation it would be an error of the distribution, not of the model.
        return _Poisson(eta, validate_args=False)

    def check(self, x: Tensor) -> None:
        if not bool(((x >= 0) & (x == x.round())).all()):
            raise ValueError(
                "edges must have counts 0, 1, 2, ... for the likelihood 'poisson'; use 'normal' for others."
            )


class NormalEdges(EdgeLikelihood):
    r"""Weights of the mean :math:`\eta`, with the standard deviation ``"noise"``."""

    scalars = {"noise": (0.0, 1.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor]) -> Any:
        return dist.Normal(eta, values["noise"])


class SignedEdges(EdgeLikelihood):
    r"""Edges of either sign, ordered: friends are near, strangers farther, and enemies farthest from each other.

    .. math:: P(1) = \sigma(\eta), \qquad P(-1) = \sigma(-\eta - g), \qquad P(0) = \sigma(\eta + g) - \sigma(\eta)

    with the latent ``"gap"`` :math:`g > 0`. A prediction is the three probabilities of -1, 0 and 1.
    """

    scalars = {"gap": (1.0, 1.0)}

    def distribution(self, eta: Tensor, values: Mapping[str, Tensor]) -> Any:
        eta, gap = torch.broadcast_tensors(eta, values["gap"])
        # sigma(a) - sigma(b) = sigma(a) sigma(-b) (1 - exp(b - a)), without a cancellation.
        none = F.logsigmoid(eta + gap) + F.logsigmoid(-eta) + torch.log(-torch.expm1(-gap))
        return dist.Categorical(logits=torch.stack([F.logsigmoid(-eta - gap), none, F.logsigmoid(eta)], -1))

    def expected(self, eta: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        return self.distribution(eta, values).probs

    def encode(self, x: Tensor) -> Tensor:
        return x + 1

    def decode(self, x: Tensor) -> Tensor:
        return x - 1

    def check(self, x: Tensor) -> None:
        if not bool(((x == -1) | (x == 0) | (x == 1)).all()):
            raise ValueError("edges must have the values -1, 0 and 1 for the likelihood 'signed'; use edges.sign().")


EDGE_LIKELIHOODS: dict[str, EdgeLikelihood] = {
    "bernoulli": BernoulliEdges(),
    "poisson": PoissonEdges(),
    "normal": NormalEdges(),
    "signed": SignedEdges(),
}
"""Distributions of edges, by name."""
