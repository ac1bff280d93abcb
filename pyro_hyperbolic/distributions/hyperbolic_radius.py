"""The radius of the Riemannian normal."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions.radius import Radius
from pyro_hyperbolic.ops import radial
from pyro_hyperbolic.ops.special import log_sinhc
from pyro_hyperbolic.ops.tables import SCORE_MAX
from pyro_hyperbolic.ops.transport import length_of_noise, stretch


class HyperbolicRadius(Radius):
    r"""Distance from a Riemannian normal variable to its mean.

    .. math::

        \rho(r) = \frac{1}{Z_r} e^{-r^2/2\sigma^2}
        \left(\frac{\sinh(\sqrt{c}\,r)}{\sqrt{c}}\right)^{d-1}, \quad r \ge 0

    (the paper's appendix, "Maximum entropy hyperbolic normal distribution"). :math:`Z_r` comes from quadrature and the
    quantiles from inversion, for every ``d``, ``c`` and :math:`\sigma`; see :mod:`pyro_hyperbolic.ops.radial`. At
    ``c = 0`` the radius is :math:`\sigma` times a chi variable with ``d`` degrees of freedom. Density, distribution
    function and moments are differences of terms that grow like :math:`d^2 c\sigma^2`, so they are computed in float64
    and returned in the caller's dtype.

    :param dim: dimension ``d >= 1`` of the space.
    :param scale: :math:`\sigma > 0`.
    :param c: minus the curvature, ``>= 0``.

    Shapes: batch shape as ``scale`` and ``c`` broadcast, event shape ``()``.

    >>> radius = HyperbolicRadius(2, torch.tensor(1.0), 1.0)
    >>> radius.mean
    tensor(1.4648)
    >>> radius.cdf(radius.icdf(torch.tensor(0.3)))
    tensor(0.3000)
    """

    arg_constraints = {"scale": constraints.positive, "c": constraints.nonnegative}
    support = constraints.nonnegative

    @property
    def _q(self) -> Tensor:
        q = self.c * self.scale.square()
        # The table would continue below 0.
        return torch.threshold(q, -torch.finfo(q.dtype).tiny, torch.nan)

    def _log_integral(self, log_factor: float) -> Tensor:
        constant = radial.log_chi_integral(self.dim) + log_factor
        chi = self.dim * self.scale.double().log() + constant
        return chi.to(self.scale.dtype) + radial.log_integral_ratio(self._q, self.dim)

    @property
    def mean(self) -> Tensor:
        wide = self._wide()
        return (wide.scale * radial.moments(wide._q, self.dim)[0]).to(self.scale.dtype)

    @property
    def variance(self) -> Tensor:
        wide = self._wide()
        return (wide.scale.square() * radial.moments(wide._q, self.dim)[1]).to(self.scale.dtype)

    def entropy(self) -> Tensor:
        """The entropy, by quadrature."""
        wide = self._wide()
        return (radial.entropy(wide._q, self.dim) + wide.scale.log()).to(self.scale.dtype)

    def _stretch(self, rho: Tensor) -> Tensor:
        """The scaled radius of the same quantile as the length of white noise, divided by that."""
        rho, q = torch.broadcast_tensors(rho, self._q)
        return stretch(rho, q, self.dim)

    def _length_of_noise(self, y: Tensor) -> Tensor:
        """The inverse: the length of white noise from the scaled radius; no derivatives."""
        y, q = torch.broadcast_tensors(y, self._q)
        return length_of_noise(y, q, self.dim)

    def _outer(self, score: float) -> Tensor:
        """A bound of the quantile at a normal score."""
        # tanh(s) >= s / sqrt(1 + s^2) bounds the mode, and the radius is never wider than scale around it.
        n = self.dim - 1
        if n == 0:  # the mode is 0, and its root below has no derivative
            return self.scale * score
        square = n * n * self.c * self.scale.square()
        mode = (0.5 * (square + (square * square + 4 * n * n).sqrt())).sqrt()
        return self.scale * (mode + score)

    def _entropy_at(self, log_area: float) -> Tensor:
        r""":math:`\log Z + \mathbb{E}[r^2]/2\sigma^2` of the Riemannian normal; in float64."""
        mean, variance = radial.moments(self._q, self.dim)
        return self._log_integral(log_area) + 0.5 * (variance + mean.square())

    def _divergence(self, other: HyperbolicRadius) -> Tensor:
        """The Kullback-Leibler divergence from this distribution to one of another scale."""
        # The terms grow like d^2 c sigma^2 and nearly cancel where the scales are close.
        a, b = self._wide(), other._wide()
        mean, variance = radial.moments(a._q, self.dim)
        ratio = (a.scale / b.scale).square()
        log_z = radial.log_integral_ratio(b._q, self.dim) - radial.log_integral_ratio(a._q, self.dim)
        return log_z - 0.5 * self.dim * ratio.log() + 0.5 * (variance + mean.square()) * (ratio - 1)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n, wide, r = self.dim - 1, self._wide(), value.double()
        infinite = r == math.inf
        r = torch.where(infinite, 1.0, r)
        area = n * log_sinhc(wide.c * r * r)
        if n > 0:
            area = area + n * r.log()
        log_density = area - 0.5 * (r / wide.scale).square() - wide.log_normalizer
        y, q = torch.broadcast_tensors(r / wide.scale, wide._q)
        far, score = radial.gaussian_score(y, q, self.dim)
        gaussian = -0.5 * (score.square() + math.log(2 * math.pi)) - wide.scale.log()
        log_density = torch.where(infinite, -math.inf, torch.where(far, gaussian, log_density))
        return log_density.to(torch.promote_types(value.dtype, self.scale.dtype))

    def cdf(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        n, wide = self.dim - 1, self._wide()
        y, q = torch.broadcast_tensors(value.double() / wide.scale, wide._q)
        infinite = y == math.inf
        y = torch.where(infinite, 1.0, y)
        upper = y > radial.mode(q, n)
        lower_mass = radial.tail_mass(torch.where(upper, torch.ones_like(y), y), q, n, upper=False)
        upper_mass = radial.tail_mass(torch.where(upper, y, torch.ones_like(y)), q, n, upper=True)
        far, score = radial.gaussian_score(y, q, self.dim)
        mass = torch.where(far, torch.special.ndtr(score), torch.where(upper, 1 - upper_mass, lower_mass))
        mass = torch.where(infinite, 1.0, mass)
        return mass.to(torch.promote_types(value.dtype, self.scale.dtype))

    def icdf(self, value: Tensor) -> Tensor:
        """The quantile, differentiable in the probability, and in ``scale`` and ``c`` at fixed probability.

        Its relative accuracy is 1e-6 for probabilities from 1e-5 to 1 - 1e-5. Below :math:`10^{-19}` it follows the
        power of the radius that the density has at 0.
        """
        z, inner = self._score_of(value)
        log_ratio = torch.where(z < -SCORE_MAX, value.log() - radial.log_ndtr(-SCORE_MAX), 0.0)
        beyond = self.scale * (z - SCORE_MAX).clamp(min=0)
        return self._quantile(inner) * (log_ratio / self.dim).exp() + beyond

    def _quantile(self, z: Tensor) -> Tensor:
        z, q = torch.broadcast_tensors(z, self._q)
        return self.scale * radial.quantile(z, q, self.dim)
