"""The radius of the Riemannian normal where the curvature may have either sign."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_hyperbolic.distributions.hyperbolic_radius import HyperbolicRadius
from pyro_hyperbolic.distributions.spherical_radius import SphericalRadius


class SignedRadius:
    """:class:`HyperbolicRadius` or :class:`SphericalRadius`, element by element.

    :param dim: dimension of the space.
    :param scale: scale, ``(...)``.
    :param c: minus the curvature, which broadcasts with it.
    """

    def __init__(self, dim: int, scale: Tensor, c: Tensor) -> None:
        self.dim, self.scale, self.c = dim, scale, c
        self._closed = c < 0

    # Each sees only curvatures that it can take; nan is one of the first. Made when asked for: a graph serves once.

    @property
    def _open_radius(self) -> HyperbolicRadius:
        return HyperbolicRadius(self.dim, self.scale, torch.where(self._closed, 0.0, self.c), validate_args=False)

    @property
    def _closed_radius(self) -> SphericalRadius:
        return SphericalRadius(self.dim, self.scale, torch.where(self._closed, -self.c, 1.0), validate_args=False)

    def _choose(self, value: Callable[[HyperbolicRadius | SphericalRadius], Tensor]) -> Tensor:
        return torch.where(self._closed, value(self._closed_radius), value(self._open_radius))

    def _wide(self) -> SignedRadius:
        return SignedRadius(self.dim, self.scale.double(), self.c.double())

    def rsample(self, sample_shape: torch.Size) -> Tensor:
        shape = sample_shape + torch.broadcast_shapes(self.scale.shape, self.c.shape)
        z = torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device)
        return self._choose(lambda radius: radius._quantile(z))

    def _log_integral(self, log_factor: float) -> Tensor:
        return self._choose(lambda radius: radius._log_integral(log_factor))

    def _entropy_at(self, log_area: float) -> Tensor:
        return self._choose(lambda radius: radius._entropy_at(log_area))

    def _stretch(self, rho: Tensor) -> Tensor:
        return self._choose(lambda radius: radius._stretch(rho))

    def _length_of_noise(self, y: Tensor) -> Tensor:
        return self._choose(lambda radius: radius._length_of_noise(y))

    def _outer(self, score: float) -> Tensor:
        return self._choose(lambda radius: radius._outer(score))

    def _divergence(self, other: SignedRadius) -> Tensor:
        outer = self._open_radius._divergence(other._open_radius)
        return torch.where(self._closed, self._closed_radius._divergence(other._closed_radius), outer)
