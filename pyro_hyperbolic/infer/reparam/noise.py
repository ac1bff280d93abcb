"""Points as functions of white noise."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.infer.reparam.site import PointReparam


class _NoiseReparam(PointReparam):
    suffix = "base"
    kind: type[ManifoldDistribution]

    def site(self, name: str, fn: Any) -> Any:
        distribution = base_distribution(fn)
        if not isinstance(distribution, self.kind):
            raise ValueError(
                f"site {name!r} is drawn from {type(distribution).__name__}, but {type(self).__name__} is for"
                f" {self.kind.__name__}; use ManifoldReparam, which takes any distribution of points."
            )
        zero = torch.zeros(
            distribution.batch_shape + (distribution.dim,), dtype=distribution.loc.dtype, device=distribution.loc.device
        )
        white = _White(zero, 1.0)
        white.checked = distribution
        return white.to_event(1)

    def to_point(self, fn: Any, value: Tensor) -> Tensor:
        distribution = base_distribution(fn)
        return distribution._transform(distribution._colour(value))  # from_noise without its check of the reach

    def from_point(self, fn: Any, point: Tensor) -> Tensor:
        return base_distribution(fn).to_noise(point)


class _White(dist.Normal):
    """White noise that refuses to be drawn for a distribution that its dtype cannot hold.

    Noise that an algorithm proposes is not drawn here: a far point is then a matter of its density.
    """

    checked: ManifoldDistribution

    def expand(self, batch_shape: Any, _instance: Any = None) -> _White:
        new = super().expand(batch_shape, _instance)
        new.checked = self.checked
        return new

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        self.checked._check_reach()
        return super().rsample(sample_shape)


class WrappedNormalReparam(_NoiseReparam):
    r"""Draws a latent with a :class:`~pyro_hyperbolic.distributions.WrappedNormal` as a function of white noise.

    .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad z = \exp_\mu(L\epsilon/\lambda_\mu), \quad LL^T = \Sigma

    The site ``"<name>_base"`` is the noise, ``(..., d)``, and the site itself becomes a deterministic function of
    it. The distribution of the program is the same; what an algorithm sees of the site is a standard normal
    in place of a point whose place and spread depend on other latents. This is the non-centred form of a hierarchical
    model, which HMC and NUTS explore more easily where the data say little about a point (Papaspiliopoulos et al., *A
    general framework for the parametrization of hierarchical models*, 2007), as
    :class:`~pyro.infer.reparam.loc_scale.LocScaleReparam` with ``centered=0`` gives it for a Euclidean distribution.
    The noise does not know the curvature, so a curvature that is drawn or learned is right too;
    :func:`with_drawn_curvature` finds the sites that need that.

    An observed site is left as it is. Use it as any reparametriser of Pyro; ``to_event``, ``mask``, ``expand`` and
    initial values are respected:

    >>> import pyro
    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> def model():
    ...     scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.2))
    ...     with pyro.plate("data", 3):
    ...         return pyro.sample("z", WrappedNormal(torch.zeros(2), scale.unsqueeze(-1), ball))
    >>> reparametrised = pyro.poutine.reparam(model, config={"z": WrappedNormalReparam()})
    >>> trace = pyro.poutine.trace(reparametrised).get_trace()
    >>> trace.stochastic_nodes, trace.nodes["z"]["value"].shape
    (['scale', 'data', 'z_base'], torch.Size([3, 2]))
    """

    kind = WrappedNormal


class RiemannianNormalReparam(_NoiseReparam):
    r"""Draws a latent with a :class:`~pyro_hyperbolic.distributions.RiemannianNormal` as a function of white noise.

    .. math::

        \epsilon \sim \mathcal{N}(0, I), \qquad
        z = \exp_\mu\Big(r\,\frac{\epsilon}{|\epsilon|}\Big/\lambda_\mu\Big), \quad
        F_r(r) = F_{\chi_d}(|\epsilon|)

    The direction of the noise is that of the point, and its length is carried to the radius of the same quantile.
    The map is smooth, also at 0, and at ``c = 0`` it is :math:`\sigma\epsilon`. All else is as for
    :class:`WrappedNormalReparam`: the site ``"<name>_base"`` is the noise, ``(..., d)``.

    >>> import pyro
    >>> from pyro_hyperbolic import PoincareBall
    >>> def model():
    ...     c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
    ...     return pyro.sample("z", RiemannianNormal(torch.zeros(2), 0.5, PoincareBall(c)))
    >>> reparametrised = pyro.poutine.reparam(model, config={"z": RiemannianNormalReparam()})
    >>> pyro.poutine.trace(reparametrised).get_trace().stochastic_nodes
    ['c', 'z_base']
    """

    kind = RiemannianNormal
