"""Points as functions of white noise."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.infer.reparam.point_reparam import PointReparam


class NoiseReparam(PointReparam):
    r"""Draws a point as a function of white noise, for distributions that have ``from_noise`` and ``to_noise``.

    .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad z = f(\epsilon)

    with :meth:`WrappedNormal.from_noise <pyro_hyperbolic.distributions.WrappedNormal.from_noise>`
    :math:`f(\epsilon) = \exp_\mu(L\epsilon/\lambda_\mu)`, :math:`LL^T = \Sigma`, and likewise for
    :class:`~pyro_hyperbolic.distributions.RiemannianNormal`, where the direction of the noise is that of the point and
    its length is carried to the radius of the same quantile.

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
    >>> from pyro_hyperbolic.distributions import RiemannianNormal
    >>> ball = PoincareBall(1.0)
    >>> def model():
    ...     scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.2))
    ...     with pyro.plate("data", 3):
    ...         return pyro.sample("z", RiemannianNormal(torch.zeros(2), scale.unsqueeze(-1), ball))
    >>> reparametrised = pyro.poutine.reparam(model, config={"z": NoiseReparam()})
    >>> trace = pyro.poutine.trace(reparametrised).get_trace()
    >>> trace.stochastic_nodes, trace.nodes["z"]["value"].shape
    (['scale', 'data', 'z_base'], torch.Size([3, 2]))
    """

    suffix = "base"

    def site(self, name: str, fn: Any) -> Any:
        distribution = base_distribution(fn)
        if not is_made_of_noise(distribution):
            raise ValueError(
                f"site {name!r} is drawn from {type(distribution).__name__}, which is no function of white noise"
                " (from_noise); use ManifoldReparam, which takes any distribution of points."
            )
        zero = torch.zeros(
            distribution.batch_shape + (distribution.dim,), dtype=distribution.loc.dtype, device=distribution.loc.device
        )
        white = _White(zero, 1.0)
        white.checked = distribution
        return white.to_event(1)

    def to_point(self, fn: Any, value: Tensor) -> Tensor:
        distribution = base_distribution(fn)
        return distribution._point(distribution._colour(value))  # from_noise without its check of the reach

    def from_point(self, fn: Any, point: Tensor) -> Tensor:
        return base_distribution(fn).to_noise(point)


def is_made_of_noise(distribution: Any) -> bool:
    """Whether a distribution gives its points as a function of white noise."""
    own = isinstance(distribution, ManifoldDistribution)
    return own and type(distribution)._colour is not ManifoldDistribution._colour


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
