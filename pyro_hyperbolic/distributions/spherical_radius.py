"""The radius of the Riemannian normal on a sphere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions.radius import Radius
from pyro_hyperbolic.ops import polar
from pyro_hyperbolic.ops.special import log_sinhc
from pyro_hyperbolic.ops.transport import ends, invert, score


class SphericalRadius(Radius):
    r"""Distance from a Riemannian normal variable on a sphere to its mean, the twin of :class:`HyperbolicRadius`.

    .. math::

        \rho(r) = \frac{1}{Z_r} e^{-r^2/2\sigma^2}
        \left(\frac{\sin(\sqrt{c}\,r)}{\sqrt{c}}\right)^{d-1}, \quad 0 \le r \le \frac{\pi}{\sqrt c}

    :math:`Z_r` and the quantiles come from the tables of :mod:`pyro_hyperbolic.ops.polar`. As ``c`` goes to 0, the
    radius tends to :math:`\sigma` times a chi variable with ``d`` degrees of freedom. As :math:`\sigma` grows, it tends
    to the distance of a uniform point.

    :param dim: dimension ``d >= 1`` of the sphere.
    :param scale: :math:`\sigma > 0`.
    :param c: the curvature, ``> 0``.

    Shapes: batch shape as ``scale`` and ``c`` broadcast, event shape ``()``.

    >>> radius = SphericalRadius(2, torch.tensor(1.0), 1.0)
    >>> radius.mean
    tensor(1.0508)
    >>> radius.cdf(radius.icdf(torch.tensor(0.3)))
    tensor(0.3000)
    """

    arg_constraints = {"scale": constraints.positive, "c": constraints.positive}

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.interval(0.0, math.pi / self.c.sqrt())

    @property
    def _dq(self) -> Tensor:
        """:math:`d\\,c\\sigma^2`."""
        dq = self.dim * self.c * self.scale.square()
        # The table would continue below 0.
        return torch.threshold(dq, -torch.finfo(dq.dtype).tiny, torch.nan)

    @property
    def _w(self) -> Tensor:
        return self._dq / (1 + self._dq)

    @property
    def _unit(self) -> Tensor:
        r""":math:`\sqrt{w/c}`, the unit of the radius that stays finite as ``c`` goes to 0."""
        return self.scale * (self.dim / (1 + self._dq)).sqrt()

    def _log_integral(self, log_factor: float) -> Tensor:
        return polar.scaled_log_integral(self._w, self.dim, "square") + log_factor + self.dim * self._unit.log()

    @property
    def mean(self) -> Tensor:
        return self._moment(lambda r: r)

    @property
    def variance(self) -> Tensor:
        wide = self._wide()
        mean = wide.mean
        return wide._moment(lambda r: (r - mean.unsqueeze(-1)).square()).to(self.scale.dtype)

    def _moment(self, function: Any) -> Tensor:
        wide = self._wide()
        root = wide.c.sqrt()
        mean = polar.mean_of(lambda t: function(t / root.unsqueeze(-1)), wide._kappa, self.dim - 1, "square")
        return mean.to(self.scale.dtype)

    @property
    def _kappa(self) -> Tensor:
        return 1 / (self.c * self.scale.square())

    def _stretch(self, rho: Tensor) -> Tensor:
        """The scaled radius of the same quantile as the length of white noise, divided by that."""
        low, high = ends(self.dim)
        return self._quantile(score(rho.clamp(low, high), self.dim)) / (self.scale * rho.clamp(min=low))

    @torch.no_grad()
    def _length_of_noise(self, y: Tensor) -> Tensor:
        """The inverse: the length of white noise from the scaled radius; no derivatives."""
        # The sphere is smaller than flat space: the length is never less than the scaled radius.
        return invert(lambda rho: rho * self._stretch(rho), y, low=y, high=torch.full_like(y, ends(self.dim)[1]))

    def _outer(self, score: float) -> Tensor:
        """The largest distance there is."""
        return math.pi / self.c.sqrt()

    def _entropy_at(self, log_area: float) -> Tensor:
        r""":math:`\log Z + \mathbb{E}[r^2]/2\sigma^2` of the Riemannian normal; in float64."""
        return self._log_integral(log_area) + 0.5 * self._moment(lambda r: r.square()) / self.scale.square()

    def entropy(self) -> Tensor:
        """The entropy, by quadrature."""
        wide = self._wide()
        jacobian = wide._moment(lambda r: r.log() + log_sinhc(-wide.c.unsqueeze(-1) * r * r, -1))
        return (wide._entropy_at(0.0) - (self.dim - 1) * jacobian).to(self.scale.dtype)

    def _divergence(self, other: SphericalRadius) -> Tensor:
        """The Kullback-Leibler divergence from this distribution to one of another scale."""
        a, b = self._wide(), other._wide()
        square = a._moment(lambda r: r.square())
        return b.log_normalizer - a.log_normalizer + 0.5 * square * (b.scale**-2 - a.scale**-2)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n, wide, r = self.dim - 1, self._wide(), value.double()
        log_density = n * log_sinhc(-wide.c * r * r, -1) - 0.5 * (r / wide.scale).square() - wide.log_normalizer
        if n > 0:
            log_density = log_density + n * r.log()
        return log_density.to(torch.promote_types(value.dtype, self.scale.dtype))

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        wide = self._wide()
        angle, kappa = torch.broadcast_tensors(value.double() * wide.c.sqrt(), wide._kappa)
        return polar.cdf(angle, kappa, self.dim - 1, "square").to(torch.promote_types(value.dtype, self.scale.dtype))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile, differentiable in the probability, and in ``scale`` and ``c`` at fixed probability.

        Probabilities below :math:`10^{-19}` get the quantile of :math:`10^{-19}`.
        """
        return self._quantile(self._score_of(value)[1])

    def _quantile(self, z: Tensor) -> Tensor:
        z, w = torch.broadcast_tensors(z, self._w)
        r = self._unit * polar.scaled_quantile(z, w, self.dim, "square")
        # The polynomial may pass the antipode by its own error.
        return torch.minimum(r, math.pi / self.c.sqrt())
