"""What holds in spaces of constant curvature alone."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.geometry.recentre import recentre
from pyro_hyperbolic.geometry.scaled import ScaledManifold
from pyro_hyperbolic.geometry.variation import base_point_variation
from pyro_hyperbolic.ops.products import einsum
from pyro_hyperbolic.ops.special import cosh_sqrt, log_sinhc, squared_norm, tanhc


class ConstantCurvature(ScaledManifold):
    r"""A space of constant curvature in one of its charts.

    The curvature is :math:`-c` in the hyperbolic charts and :math:`+c` on the sphere, ``c >= 0``; 0 is flat. Normal
    coordinates are the same in every chart of one space, and so are the formulae here.

    :param c: minus the curvature, a float or a floating tensor of any shape, ``c >= 0``.
    """

    sign = 1  # what minus the curvature can be: 1 for >= 0, -1 for <= 0, 0 for both

    @property
    def geodesics_close(self) -> bool:
        return self.sign <= 0

    def opposite(self, x: Tensor, *others: Tensor) -> float | Tensor:
        """Minus the curvature as a factor of the coordinates of ``x``: the ``c`` of formulae for both signs."""
        c = self.aligned_c(x, *others)
        return c if self.sign > 0 else -c

    def log_det_exp(self, v: Tensor) -> Tensor:
        r"""Logarithm of the Jacobian of the exponential map at normal coordinates ``v``, in the Riemannian volume.

        .. math:: (d - 1) \log\frac{\sinh(\sqrt{c}\,|v|)}{\sqrt{c}\,|v|}

        for curvature :math:`-c`, with the sine for a positive one.
        """
        square = squared_norm(v)
        return (v.shape[-1] - 1) * log_sinhc(self.opposite(square) * square, self.sign).squeeze(-1)

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        r"""Hessian, at a point, of :math:`\tfrac12\sum_i w_i\,d(\cdot, x_i)^2` in normal coordinates there.

        That of :math:`\tfrac12 d^2` is 1 along the geodesic and :math:`s\coth s`, :math:`s = \sqrt{c}\,d`, across it;
        :math:`s\cot s` for a positive curvature.
        """
        square = squared_norm(v)
        across = 1 / tanhc(self.opposite(square) * square, self.sign)
        unit = v / torch.where(square == 0, 1.0, square).sqrt()
        eye = torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)
        along = einsum("...ni,...nj->...ij", weights * (1 - across) * unit, unit)
        return (weights * across).sum(-2, keepdim=True) * eye + along

    def conditioning(self, x: Tensor) -> Tensor:
        r"""How much rounding is magnified at ``x``: :math:`\cosh(\sqrt{c}\,d(0, x))`, 1 on a sphere."""
        distance = self.dist0(x).unsqueeze(-1)
        if self.sign < 0:
            return torch.ones_like(distance).squeeze(-1)
        return cosh_sqrt(self.opposite(distance) * distance.square()).squeeze(-1)

    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        return base_point_variation(m, v, dm, self.opposite(m, v, dm), self.sign)

    def recentre(self, m: Tensor, v: Tensor) -> Tensor:
        """Normal coordinates, at the point with coordinates ``m`` at the origin, of the one with ``v`` there.

        In hyperbolic space without the points themselves: see :mod:`pyro_hyperbolic.geometry.recentre`.
        """
        return recentre(m, v, self.aligned_c(v, m)) if self.sign > 0 else super().recentre(m, v)
