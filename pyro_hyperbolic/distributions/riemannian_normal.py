"""The Riemannian (maximum-entropy) normal."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.distributions.base import (
    MASS_SCORE,
    ManifoldDistribution,
    as_param,
    broadcast_batch,
    check_point_args,
    expand_to,
)
from pyro_hyperbolic.distributions.constraints import on, positive_vector
from pyro_hyperbolic.distributions.hyperbolic_radius import HyperbolicRadius
from pyro_hyperbolic.distributions.hyperspherical_uniform import HypersphericalUniform
from pyro_hyperbolic.distributions.signed_radius import SignedRadius
from pyro_hyperbolic.distributions.spherical_radius import SphericalRadius
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.special import safe_norm


class RiemannianNormal(ManifoldDistribution):
    r"""The distribution of greatest entropy with given Fréchet mean and dispersion.

    .. math:: p(z) = \frac{1}{Z} \exp\left(-\frac{d(\mu, z)^2}{2\sigma^2}\right)

    with respect to the Riemannian volume (the paper's Eq. 1). A sample is
    :math:`z = \exp_\mu(r\alpha/\lambda_\mu)` with a uniform direction :math:`\alpha` and a radius ``r`` from
    :class:`HyperbolicRadius`, drawn by inversion. Its derivatives in :math:`\sigma` and ``c`` are the implicit ones.

    * At ``c = 0`` it is the isotropic Gaussian.
    * On a sphere the radius comes from :class:`SphericalRadius`, and the distribution tends to the uniform one as
      :math:`\sigma` grows.
    * On a product the density factorises, and so does the distribution.

    :param loc: the Fréchet mean :math:`\mu`, ``(..., d)``, a point of the manifold.
    :param scale: :math:`\sigma > 0`, a number or ``(..., 1)``: this distribution is isotropic.
    :param manifold: where the distribution lives; a batch of curvatures makes a batch of distributions.

    Shapes: batch shape as the arguments and the manifold's ``c`` broadcast, event shape ``(d,)``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> p = RiemannianNormal(torch.zeros(2), 1.0, PoincareBall(1.0))
    >>> p.log_normalizer
    tensor(2.1820)
    >>> p.log_prob(p.rsample((5,))).shape
    torch.Size([5])
    """

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        manifold: Manifold | None = None,
        validate_args: bool | None = None,
    ) -> None:
        manifold = check_point_args("RiemannianNormal", loc, manifold)
        value = as_param("RiemannianNormal: scale", scale, loc)
        if value.dim() == 0:
            value = value.unsqueeze(-1)
        if value.shape[-1] != 1:
            raise ValueError(
                f"RiemannianNormal: scale must be a number or (..., 1), got {tuple(value.shape)}: this distribution is"
                " isotropic. For one scale per batch element use scale.unsqueeze(-1); for one per dimension"
                " use WrappedNormal."
            )
        batch_shape = broadcast_batch(
            "RiemannianNormal", loc=loc.shape[:-1], scale=value.shape[:-1], c=manifold.batch_shape
        )
        self._set_loc(expand_to(loc, batch_shape + loc.shape[-1:]), manifold)
        self.scale = expand_to(value, batch_shape + (1,))
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)

    @property
    def _radii(self) -> list[HyperbolicRadius | SphericalRadius | SignedRadius]:
        """The distributions of the distance to ``loc``, by part. Made when asked for: a graph serves once."""
        return [radius_on(leaf, dim, self.scale.squeeze(-1)) for leaf, dim in self._leaves]

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {
            "loc": on(self.manifold),
            "scale": positive_vector,
        }

    def expand(self, batch_shape: Any, _instance: Any = None) -> RiemannianNormal:
        new = self._get_checked_instance(RiemannianNormal, _instance)
        batch_shape = torch.Size(batch_shape)
        new._set_loc(self.loc.expand(batch_shape + self.event_shape), self.manifold)
        new._is_central = self._is_central
        new.scale = self.scale.expand(batch_shape + (1,))
        super(RiemannianNormal, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def log_normalizer(self) -> Tensor:
        r""":math:`\log Z`, ``batch_shape``."""
        terms = [radius._log_integral(HypersphericalUniform(radius.dim).log_area) for radius in self._radii]
        return functools.reduce(torch.add, terms)

    @staticmethod
    def infer_shapes(loc: torch.Size, scale: torch.Size = torch.Size()) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from those of the arguments, for one curvature."""
        return torch.broadcast_shapes(loc[:-1], scale[:-1]), torch.Size(loc[-1:])

    def entropy(self) -> Tensor:
        r""":math:`\log Z + \mathbb{E}[r^2]/2\sigma^2`, with respect to the Riemannian volume."""
        terms = [radius._wide()._entropy_at(HypersphericalUniform(radius.dim).log_area) for radius in self._radii]
        return functools.reduce(torch.add, terms).to(self.scale.dtype)

    @property
    def _spread(self) -> str:
        kinds = {type(radius).__name__: None for radius in self._radii}
        return f"mean and variance of {' and '.join(kinds)}(dim, scale, c), its distance to loc"

    def _rsample_coords(self, sample_shape: torch.Size) -> Tensor:
        parts = []
        for radius in self._radii:
            uniform = HypersphericalUniform(radius.dim, self.loc.dtype, self.loc.device)
            direction = uniform.rsample(sample_shape + self.batch_shape)
            parts.append(radius.rsample(sample_shape).unsqueeze(-1) * direction)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def from_noise(self, noise: Tensor) -> Tensor:
        r"""Move white noise :math:`\epsilon` along its direction, to the radius of the same quantile.

        The map is smooth, also through 0, and at ``c = 0`` it is the identity of the normal coordinates
        :math:`\sigma\epsilon`; see :mod:`pyro_hyperbolic.ops.transport`. The inverse, :meth:`to_noise`, has no
        derivatives.
        """
        return super().from_noise(noise)

    def _colour(self, noise: Tensor) -> Tensor:
        parts = zip(self._split_coords(noise), self._radii, strict=True)
        stretched = [radius._stretch(safe_norm(part).squeeze(-1)).unsqueeze(-1) * part for part, radius in parts]
        return self.scale * torch.cat(stretched, -1)

    def _whiten(self, v: Tensor) -> Tensor:
        out = []
        for part, radius in zip(self._split_coords((v / self.scale).detach()), self._radii, strict=True):
            length = safe_norm(part)
            noise = radius._length_of_noise(length.squeeze(-1)).unsqueeze(-1)
            out.append(part * noise / torch.where(length == 0, 1.0, length))
        return torch.cat(out, -1)

    def _log_density(self, v: Tensor) -> Tensor:
        scaled = (v / self.scale).square().sum(-1)
        return -0.5 * scaled - self.log_normalizer

    def _outer_radii(self) -> list[Tensor]:
        return [radius._outer(MASS_SCORE) for radius in self._radii]


def radius_on(manifold: Manifold, dim: int, scale: Tensor) -> HyperbolicRadius | SphericalRadius | SignedRadius:
    r"""The distribution of the distance to the mean, :math:`\rho(r) \propto e^{-r^2/2\sigma^2}` times the area at r.

    :param manifold: a space of constant curvature, or a part of dimension 1 of any space: a line or a circle.
    :param dim: its dimension.
    :param scale: :math:`\sigma`, ``(...)``.
    """
    if isinstance(manifold, ConstantCurvature):
        c = manifold.valid_c
        # A curvature in another dtype must not decide that of the samples.
        c = c.to(scale) if isinstance(c, Tensor) else c
        if manifold.sign == 0:
            return SignedRadius(dim, scale, torch.as_tensor(c))
        if manifold.sign < 0:
            return SphericalRadius(dim, scale, c if isinstance(c, Tensor) else abs(c), validate_args=False)
        return HyperbolicRadius(dim, scale, c, validate_args=False)
    if dim > 1:
        raise ValueError(
            f"RiemannianNormal: manifold must be of constant curvature, or a product of such spaces, got {manifold!r};"
            " use WrappedNormal."
        )
    period = manifold.period(scale.unsqueeze(-1))
    if period is None:
        return HyperbolicRadius(1, scale, 0.0, validate_args=False)
    if isinstance(period, Tensor):
        period = (period.squeeze(-1) if period.dim() > 0 else period).to(scale)
    root = 2 * math.pi / period
    return SphericalRadius(1, scale, root * root, validate_args=False)
