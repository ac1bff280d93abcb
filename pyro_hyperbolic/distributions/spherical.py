"""Distributions on a sphere that depend only on the angle to their mean."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions.base import (
    ManifoldDistribution,
    as_param,
    broadcast_batch,
    check_point_args,
    expand_to,
)
from pyro_hyperbolic.distributions.constraints import on
from pyro_hyperbolic.distributions.hyperspherical_uniform import HypersphericalUniform
from pyro_hyperbolic.geometry import Manifold, Sphere
from pyro_hyperbolic.ops import polar
from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.ops.gamma import digamma_difference, log_gamma_ratio
from pyro_hyperbolic.ops.special import safe_norm, squared_norm, unit
from pyro_hyperbolic.ops.tolerances import antipode_tolerance
from pyro_hyperbolic.ops.transport import ends, invert, score


class AngularDistribution(ManifoldDistribution):
    r"""A density :math:`e^{-\kappa\,e(\theta)}/Z` of the angle :math:`\theta` to ``loc``, drawn by inversion.

    A subclass names its energy among those of :mod:`pyro_hyperbolic.ops.polar`.
    """

    energy: str
    manifold: Sphere

    def __init__(
        self,
        loc: Tensor,
        concentration: Tensor | float,
        manifold: Manifold | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        manifold = check_point_args(name, loc, Sphere(1.0) if manifold is None else manifold)
        if not isinstance(manifold, Sphere):
            raise ValueError(f"{name}: manifold must be a Sphere, got {manifold!r}; pass Sphere(1.0).")
        value = as_param(f"{name}: concentration", concentration, loc)
        batch_shape = broadcast_batch(name, loc=loc.shape[:-1], concentration=value.shape, c=manifold.batch_shape)
        self._set_loc(expand_to(loc, batch_shape + loc.shape[-1:]), manifold)
        self.concentration = expand_to(value, batch_shape)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)
        if self._validate_args and inspectable(self.concentration) and bool(self.concentration.isinf().any()):
            raise ValueError(f"{name}: concentration must be finite, got inf; for a single point use Delta.")

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {"loc": on(self.manifold), "concentration": constraints.nonnegative}

    def expand(self, batch_shape: Any, _instance: Any = None) -> AngularDistribution:
        new = self._get_checked_instance(type(self), _instance)
        batch_shape = torch.Size(batch_shape)
        new._set_loc(self.loc.expand(batch_shape + self.event_shape), self.manifold)
        new._is_central = self._is_central
        new.concentration = self.concentration.expand(batch_shape)
        super(AngularDistribution, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @staticmethod
    def infer_shapes(loc: torch.Size, concentration: torch.Size = torch.Size()) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from those of the arguments, for one curvature."""
        return torch.broadcast_shapes(loc[:-1], concentration), torch.Size(loc[-1:])

    @property
    def _spread(self) -> str:
        return "concentration and entropy()"

    @property
    def _kappa(self) -> Tensor:
        """The factor of the energy."""
        return torch.threshold(self.concentration, -torch.finfo(self.loc.dtype).tiny, torch.nan)

    @property
    def _w(self) -> Tensor:
        return self.dim / (self.dim + self._kappa)

    def _log_angular_integral(self) -> Tensor:
        r""":math:`\log\int_0^\pi e^{-\kappa e(\theta)}\sin^{d-1}\theta\,d\theta`."""
        return polar.scaled_log_integral(self._w, self.dim, self.energy) + 0.5 * self.dim * self._w.log()

    @property
    def _log_radius(self) -> Tensor | float:
        c = self.manifold.valid_c
        return -0.5 * c.to(self.loc).log() if isinstance(c, Tensor) else -0.5 * math.log(c)

    @property
    def log_normalizer(self) -> Tensor:
        r"""Logarithm of the integral of :math:`e^{-\kappa\,e}` over the sphere, ``batch_shape``."""
        return self._log_angular_integral() + (HypersphericalUniform(self.dim).log_area + self.dim * self._log_radius)

    def _rsample_coords(self, sample_shape: torch.Size) -> Tensor:
        shape = sample_shape + self.batch_shape
        z = torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        direction = HypersphericalUniform(self.dim, self.loc.dtype, self.loc.device).rsample(shape)
        v = self._quantile(z).unsqueeze(-1) * direction
        return v * self.manifold.period(v) / (2 * math.pi)

    def _quantile(self, z: Tensor) -> Tensor:
        """The angle at a normal score."""
        z, w = torch.broadcast_tensors(z, self._w)
        return w.sqrt() * polar.scaled_quantile(z, w, self.dim, self.energy)

    def from_noise(self, noise: Tensor) -> Tensor:
        """A sample from white noise ``(..., d)``, which is moved along its direction to the angle of the same quantile.

        The map is smooth, also through 0. The inverse, :meth:`to_noise`, has no derivatives.
        """
        return super().from_noise(noise)

    def _stretch(self, rho: Tensor) -> Tensor:
        """The angle of the same quantile as the length of white noise, divided by that."""
        low, high = ends(self.dim)
        return self._quantile(score(rho.clamp(low, high), self.dim)) / rho.clamp(min=low)

    def _colour(self, noise: Tensor) -> Tensor:
        v = self._stretch(safe_norm(noise).squeeze(-1)).unsqueeze(-1) * noise
        return v * self.manifold.period(v) / (2 * math.pi)

    @torch.no_grad()
    def _whiten(self, v: Tensor) -> Tensor:
        angle = self._angle(v)
        low, high = torch.zeros_like(angle), torch.full_like(angle, ends(self.dim)[1])
        length = invert(lambda rho: rho * self._stretch(rho), angle, low=low, high=high)
        return length.unsqueeze(-1) * unit(v)

    def _angle(self, v: Tensor) -> Tensor:
        # The square root has no derivative at 0, and the energies are even.
        square = squared_norm(v).squeeze(-1)
        zero = square == 0
        length = torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())
        period = self.manifold.period(v)
        return 2 * math.pi * length / (period.squeeze(-1) if isinstance(period, Tensor) and period.dim() else period)

    def _log_density(self, v: Tensor) -> Tensor:
        return -self._kappa * polar.ENERGIES[self.energy][0](self._angle(v)) - self.log_normalizer

    def mean_energy(self) -> Tensor:
        """The mean of :math:`e(\\theta)`."""
        kappa = self._kappa.double()
        mean = polar.mean_of(polar.ENERGIES[self.energy][0], kappa, self.dim - 1, self.energy)
        return mean.to(self.loc.dtype)

    def entropy(self) -> Tensor:
        """The entropy with respect to the Riemannian volume."""
        return self.log_normalizer + self._kappa * self.mean_energy()

    def _outer_radii(self) -> list[Tensor]:
        return [0 * self.concentration]  # every point of a sphere can be held


class VonMisesFisher(AngularDistribution):
    r"""The von Mises-Fisher distribution, :math:`p(z) \propto e^{\kappa\cos\theta}` for the angle to ``loc``.

    The density is with respect to the Riemannian volume. Samples are drawn by inverting the distribution function of
    the angle, so their derivatives in :math:`\kappa` are right. The usual rejection sampler ignores the acceptance step
    in its derivatives.

    :param loc: the mean direction, ``(..., d + 1)``, a point of the sphere.
    :param concentration: :math:`\kappa \ge 0`, a number or ``(...)``; 0 is the uniform distribution.
    :param manifold: the sphere; by default the one of radius 1.

    Shapes: batch shape as the arguments and the manifold's ``c`` broadcast, event shape ``(d + 1,)``.

    >>> p = VonMisesFisher(torch.tensor([1.0, 0.0, 0.0]), 2.0)
    >>> p.log_prob(p.mean), p.mean_resultant_length
    (tensor(-1.1262), tensor(0.5373))
    >>> p.rsample((5,)).shape
    torch.Size([5, 3])
    """

    energy = "cosine"

    @property
    def mean_resultant_length(self) -> Tensor:
        r""":math:`E[\cos\theta] = I_{p/2}(\kappa)/I_{p/2 - 1}(\kappa)`, ``p`` the number of coordinates."""
        return 1 - self.mean_energy()

    def _energy_of(self, other: VonMisesFisher) -> Tensor:
        """The energy of the mean of another, 1 less the cosine of the angle between the means."""
        c = self.manifold.aligned_c(self.loc)
        return (0.5 * c * squared_norm(self.loc - other.loc)).squeeze(-1)


class PowerSpherical(AngularDistribution):
    r"""The power spherical distribution, :math:`p(z) \propto (1 + \cos\theta)^\kappa` for the angle to ``loc``.

    De Cao and Aziz, *The power spherical distribution* (2020). It is close to :class:`VonMisesFisher`, with normaliser
    and entropy in closed form. Its density is with respect to the Riemannian volume, and samples are drawn as there.

    :param loc: the mean direction, ``(..., d + 1)``, a point of the sphere.
    :param concentration: :math:`\kappa \ge 0`, a number or ``(...)``; 0 is the uniform distribution.
    :param manifold: the sphere; by default the one of radius 1.

    Shapes: batch shape as the arguments and the manifold's ``c`` broadcast, event shape ``(d + 1,)``.

    >>> p = PowerSpherical(torch.tensor([1.0, 0.0, 0.0]), 2.0)
    >>> p.log_prob(p.mean), p.entropy()
    (tensor(-1.4324), tensor(2.0991))
    """

    energy = "power"

    @property
    def _kappa(self) -> Tensor:
        return 0.5 * super()._kappa

    def _log_angular_integral(self) -> Tensor:
        # With t = cos^2(theta/2) it is 2^(d-1) B(d/2 + kappa, d/2).
        a, b = self._beta
        constant = (self.dim - 1) * math.log(2) + math.lgamma(b)
        return (constant - b * a.log() - log_gamma_ratio(a, b)).to(self.loc.dtype)

    @property
    def _beta(self) -> tuple[Tensor, float]:
        return self.dim / 2 + 2 * self._kappa.double(), self.dim / 2

    def mean_energy(self) -> Tensor:
        return (2 * digamma_difference(*self._beta)).to(self.loc.dtype)

    def _log_density(self, v: Tensor) -> Tensor:
        angle = self._angle(v)
        # At the antipode the energy is infinite. A sample may pass it by the error of its quantile.
        there = (math.pi - angle).abs() <= antipode_tolerance(angle.dtype)
        angle = torch.where(there, 0.0, torch.where(angle > math.pi, 2 * math.pi - angle, angle))
        log_density = -self._kappa * polar.ENERGIES[self.energy][0](angle) - self.log_normalizer
        return torch.where(there & (self._kappa > 0), -math.inf, log_density)
