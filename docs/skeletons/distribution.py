"""The wrapped Laplace distribution: a skeleton to copy for a distribution of points.

docs/extending.rst shows it, and a test runs it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.distributions import HypersphericalUniform, ManifoldDistribution
from pyro_hyperbolic.distributions.base import as_param, broadcast_batch, check_point_args, expand_to
from pyro_hyperbolic.distributions.constraints import on, positive_vector
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.ops.special import safe_norm


class WrappedLaplace(ManifoldDistribution):
    r"""The distribution :math:`e^{-|v|/s}` of the tangent space carried to the manifold by the exponential map.

    .. math:: p(z) = \frac{e^{-r/s}}{A_{d-1}\,\Gamma(d)\,s^d} \left(\frac{\sqrt{c}\,r}{\sinh(\sqrt{c}\,r)}\right)^{d-1},
              \qquad r = d(\mu, z),

    with respect to the Riemannian volume; :math:`A_{d-1}` is the area of the unit sphere.

    :param loc: the Fréchet mean :math:`\mu`, ``(..., d)``, a point of the manifold.
    :param scale: :math:`s > 0`, a number or ``(..., 1)``.
    :param manifold: where the distribution lives; a batch of curvatures makes a batch of distributions.

    Shapes: batch shape as the arguments and the manifold's ``c`` broadcast, event shape ``(d,)``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> q = WrappedLaplace(torch.zeros(3, 2), 0.5, PoincareBall(1.0))
    >>> q.log_prob(q.rsample()).shape
    torch.Size([3])
    """

    scale: Tensor

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float,
        manifold: Manifold | None = None,
        validate_args: bool | None = None,
    ) -> None:
        manifold = check_point_args("WrappedLaplace", loc, manifold)
        value = as_param("WrappedLaplace: scale", scale, loc)
        if value.dim() == 0:
            value = value.unsqueeze(-1)
        if value.shape[-1] != 1:
            raise ValueError(
                f"WrappedLaplace: scale must be a number or (..., 1), got {tuple(value.shape)}; for one scale per batch"
                " element use scale.unsqueeze(-1)."
            )
        if manifold.geodesics_close:
            raise ValueError(
                f"WrappedLaplace: manifold must have no closed geodesics, got {manifold!r}: the density would be a sum"
                " over all preimages of a point; use WrappedNormal."
            )
        batch_shape = broadcast_batch(
            "WrappedLaplace", loc=loc.shape[:-1], scale=value.shape[:-1], c=manifold.batch_shape
        )
        self.scale = expand_to(value, batch_shape + (1,))
        self._set_loc(expand_to(loc, batch_shape + loc.shape[-1:]), manifold)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, Any]:
        return {"loc": on(self.manifold), "scale": positive_vector}

    def expand(self, batch_shape: Any, _instance: Any = None) -> WrappedLaplace:
        new = self._get_checked_instance(WrappedLaplace, _instance)
        batch_shape = torch.Size(batch_shape)
        new._set_loc(self.loc.expand(batch_shape + self.event_shape), self.manifold)
        new.scale = self.scale.expand(batch_shape + (1,))
        super(WrappedLaplace, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def _spread(self) -> str:
        return "scale, the mean distance to loc divided by the dimension"

    def _rsample_coords(self, sample_shape: torch.Size) -> Tensor:
        shape = sample_shape + self.batch_shape
        direction = HypersphericalUniform(self.dim, self.loc.dtype, self.loc.device).rsample(shape)
        # The radius is a Gamma variable: for an integer shape d the sum of d exponential ones.
        noise = torch.rand(shape + (self.dim,), dtype=self.loc.dtype, device=self.loc.device)
        return self.scale * -torch.log1p(-noise).sum(-1, keepdim=True) * direction

    def _log_density(self, v: Tensor) -> Tensor:
        log_constant = HypersphericalUniform(self.dim).log_area + math.lgamma(self.dim)
        log_scale = self.scale.log().squeeze(-1)
        in_tangent_space = -(safe_norm(v) / self.scale).squeeze(-1) - self.dim * log_scale - log_constant
        return in_tangent_space - self.manifold.log_det_exp(v)

    def _outer_radii(self) -> list[Tensor]:
        # The Wilson-Hilferty quantile of a Gamma variable at the normal score 3, which is 99.9%.
        d = self.dim
        return [self.scale.squeeze(-1) * d * (1 - 1 / (9 * d) + 1 / math.sqrt(d)) ** 3] * len(self._leaves)
