"""Points as functions of their normal coordinates at the origin."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions import ManifoldTransform
from pyro_hyperbolic.distributions.base import ManifoldDistribution, base_distribution
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.match import manifold_of
from pyro_hyperbolic.infer.reparam.point_reparam import PointReparam, wrapped_as
from pyro_hyperbolic.ops.checks import inspectable


class ManifoldReparam(PointReparam):
    r"""Draws a point as a function of its normal coordinates at the origin.

    .. math::

        z = \exp_0(v/2), \qquad
        \log p(v) = \log p(z) + (d - 1) \log\frac{\sinh(\sqrt{c}\,|v|)}{\sqrt{c}\,|v|}

    The site ``"<name>_coords"`` is :math:`v`, ``(..., d)``, with its density with respect to Lebesgue measure, and the
    site itself becomes a function of it and of the present curvature. Neither :math:`\mathbb{R}^d` nor
    its measure depends on ``c``, so every algorithm of Pyro is right for a curvature that is drawn or learned.
    It takes any distribution on a manifold; where a factor is a sphere :math:`v` is the vector of
    :class:`~pyro_hyperbolic.distributions.ManifoldTransform`, since normal coordinates are not one-to-one there. This
    is the centred form, for points about which the data say much; :class:`NoiseReparam` is the other.

    **Observed points.** Coordinates that are given as data have a likelihood with respect to a measure that does not
    depend on ``c`` either: on the ball the site gets its density with respect to Lebesgue measure of the coordinates
    (``lebesgue_log_prob``). A point of the hyperboloid lies on one hyperboloid only and leaves ``c`` no
    choice; that is an error.

    **Scales.** ``poutine.scale`` and masks around the site hold for the density of the coordinates, with its measure,
    as they do for the sites that Pyro's own reparametrisers make. :func:`~pyro_hyperbolic.infer.sample_posterior`
    scales the density of the point alone.

    ``to_event``, ``mask``, ``expand`` and initial values are respected:

    >>> import pyro
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> def model():
    ...     c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
    ...     with pyro.plate("data", 3):
    ...         return pyro.sample("z", WrappedNormal(torch.zeros(2), 1.0, PoincareBall(c)))
    >>> reparametrised = pyro.poutine.reparam(model, config={"z": ManifoldReparam()})
    >>> trace = pyro.poutine.trace(reparametrised).get_trace()
    >>> trace.stochastic_nodes, trace.nodes["z_coords"]["value"].shape
    (['c', 'data', 'z_coords'], torch.Size([3, 2]))

    :param at_origin: that the distribution has its ``loc`` at the origin, where no geodesic closes, is known. Then the
        density of the coordinates needs no map of the space, which makes for much smaller compiled code.
    """

    suffix = "coords"

    def __init__(self, at_origin: bool = False) -> None:
        super().__init__()
        self.at_origin = at_origin

    def site(self, name: str, fn: Any) -> Any:
        distribution = base_distribution(fn)
        support = manifold_of(distribution)
        if support is None:
            raise ValueError(
                f"site {name!r} is drawn from {type(distribution).__name__}, which has no points of a manifold;"
                " take it out of the config of poutine.reparam."
            )
        return NormalCoordinates(distribution, support.manifold, at_origin=self.at_origin, validate_args=False)

    def to_point(self, fn: Any, value: Tensor) -> Tensor:
        return self._map(fn)(value)

    def from_point(self, fn: Any, point: Tensor) -> Tensor:
        return self._map(fn).inv(point)

    def observed(self, msg: Any) -> Any:
        distribution = base_distribution(msg["fn"])
        manifold = self._map(distribution).manifold
        dim = manifold.intrinsic_dim(distribution.event_shape[-1])
        if manifold.ambient_dim(dim) != dim or not isinstance(distribution, ManifoldDistribution):
            raise ValueError(
                f"site {msg['name']!r} observes a point of {manifold!r}, whose curvature is not fixed."
                " Points of a hyperboloid or a sphere determine it; observe points of the ball, with WrappedNormal or"
                " RiemannianNormal, or functions of points such as distances."
            )
        return {**msg, "fn": wrapped_as(msg["fn"], BallCoordinates(distribution, validate_args=False))}

    def _map(self, fn: Any) -> ManifoldTransform:
        support = manifold_of(base_distribution(fn))
        assert support is not None  # for the type checker: site() refuses the others
        # Of the present curvature; what ``biject_to`` gives is for algorithms that keep it.
        return ManifoldTransform(support.manifold)


class NormalCoordinates(dist.TorchDistribution):
    """The normal coordinates at the origin of a point, with respect to Lebesgue measure.

    :param distribution: the distribution of the point.
    :param manifold: where it lives.
    :param at_origin: as in :class:`ManifoldReparam`.
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.real_vector

    def __init__(
        self, distribution: Any, manifold: Manifold, *, at_origin: bool = False, validate_args: bool | None = None
    ) -> None:
        self.distribution, self.manifold, self.at_origin = distribution, manifold, at_origin
        self.has_rsample = distribution.has_rsample
        size = manifold.intrinsic_dim(distribution.event_shape[-1])
        super().__init__(distribution.batch_shape, torch.Size([size]), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NormalCoordinates:
        expanded = self.distribution.expand(batch_shape)
        return NormalCoordinates(expanded, self.manifold, at_origin=self.at_origin, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Those of ``loc``, or of the mean of a distribution without one: a centre to start from."""
        centre = (
            self.distribution.loc if isinstance(self.distribution, ManifoldDistribution) else self.distribution.mean
        )
        return self.manifold.to_normal_coords(None, centre)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:
        with torch.no_grad():
            return self.manifold.to_unconstrained(self.distribution.sample(sample_shape))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        return self.manifold.to_unconstrained(self.distribution.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        if self.at_origin:
            return self.distribution._log_coords_density(value)
        chart = ManifoldTransform(self.manifold)
        if isinstance(self.distribution, ManifoldDistribution) and not self.manifold.geodesics_close:
            density = self.distribution._log_density(self._coords_at_loc(value))
        elif isinstance(self.distribution, ManifoldDistribution):
            density = self.distribution._density(chart(value))
        else:
            density = self.distribution.log_prob(chart(value))
        return density + chart.log_abs_det_jacobian(value, value)

    def _coords_at_loc(self, value: Tensor) -> Tensor:
        """Without the point itself, whose coordinates may not reach as far as an algorithm goes."""
        loc = self.distribution.loc
        m = self.manifold.to_normal_coords(None, loc)
        if not loc.requires_grad and loc.device.type == "cpu" and inspectable(m) and not m.any():
            return value  # at the origin: half of the work
        return self.manifold.recentre(m, value)


class BallCoordinates(dist.TorchDistribution):
    """A point of the ball, with respect to Lebesgue measure of its coordinates.

    :param distribution: the distribution of the point.
    """

    arg_constraints: dict[str, Any] = {}
    has_rsample = True

    def __init__(self, distribution: ManifoldDistribution, validate_args: bool | None = None) -> None:
        self.distribution = distribution
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        return self.distribution.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> BallCoordinates:
        return BallCoordinates(self.distribution.expand(batch_shape), validate_args=False)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:
        return self.distribution.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        # A given point lies outside of the balls of some curvatures, which then are impossible: that is no mistake.
        return self.distribution._lebesgue_density(value)
