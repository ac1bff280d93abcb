"""Latent spaces of the models: their prior, their posterior family and their distances."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn
from torch.distributions import AffineTransform, ComposeTransform, Transform

from pyro_hyperbolic.distributions import (
    ExpMapTransform,
    ManifoldTransform,
    RiemannianNormal,
    WrappedNormal,
    conditional_manifold_flow,
    manifold_flow,
)
from pyro_hyperbolic.distributions.base import MASS_SCORE, ManifoldDistribution
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Lorentz, Manifold, PoincareBall
from pyro_hyperbolic.nn import ManifoldModule, exp0
from pyro_hyperbolic.nn.manifold import as_module
from pyro_hyperbolic.ops.checks import check_choice, check_sizes, checked_integer, inspectable, is_number
from pyro_hyperbolic.ops.special import safe_norm

DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "wrapped": WrappedNormal,
    "riemannian": RiemannianNormal,
}
"""Priors and posteriors on a manifold, by name."""

FLOW = "flow"
"""The name of a prior or a posterior that is a flow of the wrapped one."""

POSTERIOR_SCALES = ("diagonal", "isotropic")

_MOST_RADII = 4.0  # of a posterior on a sphere; below WIDEST, so that rounding does not matter

# Shares of the reach of a dtype. A posterior whose mass is within the first stays as it is, and all are within the
# second. A location keeps the third, for at the border of a ball rounding moves points that far.
_KEPT, _MOST, _MARGIN = 0.96, 0.985, 0.045
_WIDEST = 0.9  # of the radius of the mass alone, so that there is room for the location
_KEPT_SCALE = 0.95  # share of the greatest scale


class Latent(nn.Module):
    """Base class of the latent spaces: the size of the parameters and the scale of the prior.

    :param dim: dimension of the space.
    :param prior_scale: scale of the prior.
    :param posterior_scale: ``"isotropic"`` or ``"diagonal"``.
    :param learn_prior_scale: learn the prior's scale as the exponential of a parameter.
    """

    log_scale: Tensor

    def __init__(
        self,
        dim: int,
        *,
        prior_scale: float = 1.0,
        posterior_scale: str = "isotropic",
        learn_prior_scale: bool = False,
    ) -> None:
        super().__init__()
        check_choice("posterior_scale", posterior_scale, POSTERIOR_SCALES)
        if not (is_number(prior_scale) and 0 < prior_scale < math.inf):
            raise ValueError(f"prior_scale must be a positive number, got {prior_scale!r}.")
        self.dim = checked_integer("latent_dim", dim, least=1)
        self.scale_dim = 1 if posterior_scale == "isotropic" else self.dim
        log_scale = torch.tensor(math.log(prior_scale))
        if learn_prior_scale:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    def prior(self) -> Any:
        """The distribution p(z) of one latent."""
        raise NotImplementedError

    def posterior(self, loc: Tensor, scale: Tensor) -> Any:
        """The distribution q(z | x) from an encoder's Euclidean location and positive scale."""
        raise NotImplementedError

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Distances between paired points, ``(...)``."""
        raise NotImplementedError

    def pairwise_dist(self, z: Tensor) -> Tensor:
        """All distances between points ``(..., N, D)``, as ``(..., N, N)``."""
        raise NotImplementedError

    def chart(self, centre: Tensor) -> Transform:
        """One-to-one from vectors ``(..., N, d)`` to points, with 0 at the ``centre`` ``(N, D)``.

        The Jacobian is that in the measure which the density of the prior refers to.
        """
        raise NotImplementedError

    def check(self, z: Tensor) -> None:
        """Raise an error for what are no points of the space."""


class ManifoldLatent(Latent):
    """A latent space with geodesic distances, where prior and posterior are normals of a manifold.

    On :class:`~pyro_hyperbolic.Euclidean` both are plain Gaussians, by either name. Where geodesics close, the scales
    of a wrapped posterior are bounded (:func:`~pyro_hyperbolic.models.latent.bounded`), and elsewhere its location and
    scale stay within the reach of the dtype (:func:`~pyro_hyperbolic.models.latent.within_reach`).

    The prior ``"flow"`` is a flow of the wrapped one (:func:`~pyro_hyperbolic.distributions.manifold_flow`). The
    posterior ``"flow"`` is a :class:`FlowPosterior`, whose flow depends on location and scale. Both start as the
    wrapped ones, up to the coordinates of a :class:`FlowPosterior` on spheres.

    :param manifold: the space, or its signature; a :class:`~pyro_hyperbolic.nn.ManifoldModule` is shared, not copied.
    :param dim: its dimension.
    :param prior: a name in ``DISTRIBUTIONS``, or ``"flow"``.
    :param posterior: a name in ``DISTRIBUTIONS``, or ``"flow"``.
    :param flow: options of :func:`~pyro_hyperbolic.distributions.manifold_flow` for the flows, such as
        ``{"layers": 8}``.
    :param dtype: dtype of the latent arithmetic; that of the network by default.
    :param options: those of :class:`Latent`.
    """

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        dim: int,
        *,
        prior: str = "wrapped",
        posterior: str = "wrapped",
        flow: Mapping[str, Any] | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        check_choice("prior", prior, (*DISTRIBUTIONS, FLOW))
        check_choice("posterior", posterior, (*DISTRIBUTIONS, FLOW))
        if flow is not None and FLOW not in (prior, posterior):
            raise ValueError("flow holds the options of a prior or a posterior 'flow', of which there is none.")
        if options.get("posterior_scale") == "diagonal" and posterior == "riemannian":
            raise ValueError(f"posterior_scale 'diagonal' needs posterior 'wrapped', got posterior {posterior!r}.")
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"latent_dtype must be float32, float64 or None, got {dtype}.")
        super().__init__(dim, **options)
        self.manifold = as_module(manifold)
        self.manifold.check_dim("latent_dim", self.dim)
        self.size = self.manifold().ambient_dim(self.dim)
        is_flat = isinstance(self.manifold(), Euclidean)
        self.prior_distribution, self.posterior_distribution = (
            _gaussian if is_flat else DISTRIBUTIONS["wrapped" if name == FLOW else name] for name in (prior, posterior)
        )
        settings = dict(flow or {})
        self.prior_flow = manifold_flow(self.manifold().snapshot(), self.dim, **settings) if prior == FLOW else None
        self.posterior_flow = None
        if posterior == FLOW:
            context = self.dim + self.scale_dim
            self.posterior_flow = conditional_manifold_flow(Euclidean(), self.dim, context, **settings)
        self.dtype = dtype

    def prior(self) -> Any:
        manifold = self.manifold()
        dtype = self.dtype or self.log_scale.dtype
        origin = manifold.origin(self.dim, dtype, self.log_scale.device)
        normal = self.prior_distribution(origin, self.log_scale.exp().to(dtype), manifold)
        if isinstance(normal, ManifoldDistribution):
            normal = normal.at_origin()
        if self.prior_flow is None:
            return normal
        return dist.TransformedDistribution(normal, [self.prior_flow.on(manifold)])

    def posterior(self, loc: Tensor, scale: Tensor) -> Any:
        manifold = self.manifold()
        dtype = self.dtype or torch.promote_types(loc.dtype, torch.float32)  # under autocast loc has half precision
        loc, scale = loc.to(dtype), scale.to(dtype)
        if self.posterior_distribution is WrappedNormal:
            scale = bounded(scale, manifold, self.dim)
        if self.posterior_distribution is not _gaussian:
            loc, scale = within_reach(loc, scale, manifold, self.posterior_distribution)
        centre = exp0(manifold, loc)
        if self.posterior_flow is None:
            return self.posterior_distribution(centre, scale, manifold)
        flow = self.posterior_flow.condition(torch.cat([loc, scale.log()], -1))
        noise = dist.Normal(torch.zeros_like(loc), 1.0).to_event(1)
        spread = AffineTransform(0.0, scale.expand_as(loc), event_dim=1, cache_size=1)
        return FlowPosterior(noise, [flow, spread, self.chart(centre).with_cache()])

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold().dist(x, y)

    def pairwise_dist(self, z: Tensor) -> Tensor:
        return self.manifold().pairwise_dist(z, z)

    def chart(self, centre: Tensor) -> Transform:
        manifold = self.manifold()
        at_centre = ExpMapTransform(manifold, centre)
        if not manifold.geodesics_close:
            return at_centre
        # An isometry takes the chart at the origin to the centre.
        return ComposeTransform([ManifoldTransform(manifold), ExpMapTransform(manifold).inv, at_centre])

    def check(self, z: Tensor) -> None:
        check_sizes(z)
        size = z.shape[-1]
        if type(size) is int and size != self.size:
            raise ValueError(f"z must have shape (..., {self.size}), points of the latent space, got {tuple(z.shape)}.")
        if is_validation_enabled() and inspectable(z):
            inside = self.manifold().contains(z)
            if not bool(inside.all()):
                raise ValueError(
                    f"z must hold points of {self.manifold()!r}, got {int((~inside).sum())} that are none; take them"
                    " from encode or prior, or from manifold.projx(z)."
                )


class FlowPosterior(dist.TransformedDistribution):
    r"""A posterior that is a flow.

    .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad z = \exp_\mu(\sigma f(\epsilon)/\lambda_\mu)

    with a flow :math:`f` of flat space that depends on :math:`\mu` and :math:`\sigma`. On spheres the stereographic
    projection from the antipode of :math:`\mu` takes the place of the exponential map.
    """

    @property
    def loc(self) -> Tensor:
        """The image of the noise 0, which stands for the centre; the mean has no closed form."""
        point = torch.zeros(self.base_dist.batch_shape + self.base_dist.event_shape).to(self.base_dist.mean)
        for transform in self.transforms:
            point = transform(point)
        return point


def hyperbolic(manifold: Manifold | ManifoldModule | str, kind: str) -> ManifoldModule:
    """The manifold as a module, if it is a chart of hyperbolic space; ``kind`` is the model's, for the error."""
    module = as_module(manifold)
    if not isinstance(module(), (PoincareBall, Lorentz)):
        raise ValueError(
            f"manifold of Hyperbolic{kind} must be a chart of hyperbolic space, PoincareBall(c) or Lorentz(c), got"
            f" {module()!r}; use Manifold{kind}, which takes every space."
        )
    return module


def bounded(scale: Tensor, manifold: Manifold, dim: int) -> Tensor:
    r"""Bound the scales of a wrapped normal, which must not go around a sphere too often.

    .. math:: \sigma \mapsto \frac{\sigma}{\sqrt{1 + k\sigma^2/16}}

    for a factor of curvature ``k > 0``. The result is smooth in ``k`` and below :math:`4/\sqrt k`, four radii. In all
    other factors the scale stays as it is. The library has no density for a wrapped normal wider than
    :data:`~pyro_hyperbolic.distributions.windings.WIDEST`, and an encoder does not know that.

    :param scale: positive scales, ``(..., 1)`` for all factors, or ``(..., d)``.
    :param manifold: the space.
    :param dim: its dimension.
    """
    if not manifold.geodesics_close:
        return scale
    leaves = manifold.leaves(dim)
    curvatures = torch.broadcast_tensors(*[_closing(leaf, scale) for leaf, _ in leaves])
    each = torch.cat([k.expand(k.shape[:-1] + (n,)) for k, (_, n) in zip(curvatures, leaves, strict=True)], -1)
    if scale.shape[-1] == 1:
        each = each.amax(-1, keepdim=True)
    return scale / (1 + each * (scale / _MOST_RADII).square()).sqrt()


def _closing(leaf: Manifold, scale: Tensor) -> Tensor:
    """The curvature of a sphere whose geodesics close as those of the space do, ``(..., 1)``; 0 where none closes."""
    zero = torch.zeros_like(scale[..., :1])
    if isinstance(leaf, ConstantCurvature):
        return torch.relu(zero - leaf.opposite(scale))  # smooth through 0
    period = leaf.period(scale)
    return zero if period is None else zero + (2 * math.pi / period) ** 2


def within_reach(
    loc: Tensor, scale: Tensor, manifold: Manifold, distribution: Callable[..., Any]
) -> tuple[Tensor, Tensor]:
    r"""Bound location and scale of a posterior, so that coordinates of their dtype hold its mass.

    A ball in float32 ends at distance :math:`15.2/\sqrt c`, and an encoder does not know that. If the distance of the
    location and the radius of the mass around it add up to less than 96% of the reach of the dtype, and the radius
    alone to less than 70%, nothing changes (on hyperboloids, half of these). Beyond, first the scale and then the
    distance :math:`r` follow

    .. math:: r \mapsto a + \frac{w u}{\sqrt{1 + u^2}}, \qquad u = \frac{r - a}{w}

    from the point :math:`a` on, with two continuous derivatives, and stay below :math:`a + w`.

    :param loc: location, ``(..., d)``, in the coordinates of :func:`~pyro_hyperbolic.nn.exp0`.
    :param scale: positive scales, ``(..., 1)`` or ``(..., d)``.
    :param manifold: the space.
    :param distribution: the posterior, of those in ``DISTRIBUTIONS``.
    """
    dim, far = loc.shape[-1], _far(loc)
    leaves = manifold.leaves(dim)
    # Of a leaf without a limit all stays as it is.
    limits = [leaf.reach(loc.dtype) for leaf, _ in leaves]
    limited = [not (isinstance(limit, float) and limit > far) for limit in limits]
    if not any(limited):
        return loc, scale
    # The outer radius of a wrapped normal is at most (sqrt(d) + 3) s, and that of a Riemannian one
    # (d - 1) sqrt(c) s^2 + (sqrt(d - 1) + 3) s.
    reaches, widest = [], []
    for (leaf, n), limit, has_limit in zip(leaves, limits, limited, strict=True):
        if not has_limit:
            reaches.append(torch.full_like(scale[..., :1], far))
            widest.append(reaches[-1])
            continue
        root = _root(leaf, scale)
        reach = _reach(limit, root)
        n, square = (n, 0.0) if distribution is WrappedNormal else (n - 1, (n - 1) * root)
        linear = math.sqrt(n) + MASS_SCORE
        reaches.append(reach)
        widest.append(2 * _WIDEST * reach / (linear + (linear**2 + 4 * square * _WIDEST * reach).sqrt()))
    batch = torch.broadcast_shapes(loc.shape[:-1], *[reach.shape[:-1] for reach in reaches])
    if scale.shape[-1] == dim:
        most = torch.cat([w.expand(batch + (n,)) for w, (_, n) in zip(widest, leaves, strict=True)], -1)
    else:
        most = functools.reduce(torch.minimum, itertools.compress(widest, limited))
    scale = scale * _share(scale, _KEPT_SCALE * most, most)
    origin = manifold.origin(dim, loc.dtype, loc.device)
    radii = distribution(origin, scale, manifold, validate_args=False)._outer_radii()
    places = []
    split = loc.expand(batch + (dim,)).split([n for _, n in leaves], -1)
    for place, reach, radius, has_limit in zip(split, reaches, radii, limited, strict=True):
        if has_limit:
            inner = torch.maximum(radius.unsqueeze(-1), _MARGIN * reach)
            place = place * _share(2 * safe_norm(place), _KEPT * reach - inner, _MOST * reach - inner)
        places.append(place)
    return torch.cat(places, -1), scale


def _root(leaf: Manifold, like: Tensor) -> Tensor:
    r""":math:`\sqrt c` of a leaf of curvature :math:`-c < 0`, ``(..., 1)``; 0 of any other."""
    if not isinstance(leaf, ConstantCurvature):
        return torch.zeros_like(like[..., :1])
    c = torch.zeros_like(like[..., :1]) + leaf.opposite(like)
    return torch.where(c > 0, torch.where(c > 0, c, 1.0).sqrt(), 0.0)


def _reach(limit: float | Tensor, root: Tensor) -> Tensor:
    """The reach of a leaf with this limit, ``(..., 1)``.

    Half of it on a hyperboloid, where products of coordinates must not overflow.
    Half also leaves room for the rare draw from beyond the mass, which is no point of a hyperboloid if it overflows.
    """
    reach = torch.as_tensor(limit, device=root.device).to(root.dtype).unsqueeze(-1)
    half = math.log(torch.finfo(root.dtype).max) / 2
    return torch.minimum(reach, half / torch.where(root > 0, root, half / _far(root)))


def _far(like: Tensor) -> float:
    """A distance that is as good as infinite, but whose square is not."""
    return math.sqrt(torch.finfo(like.dtype).max)


def _share(x: Tensor, kept: Tensor, most: Tensor) -> Tensor:
    """The factor that takes positive ``x`` below ``most``, and is 1 where it is below ``kept``."""
    width = most - kept
    beyond = torch.relu(x - kept)
    share = (kept + width * (beyond / torch.hypot(beyond, width))) / (kept + beyond)
    return torch.where(beyond > 0, share, 1.0)  # the derivatives too are those of nothing changed


def check_posterior(parameters: Any, latent: Latent, batch: tuple[int, ...]) -> None:
    """Refuse what are no location and scale of posteriors of that batch shape."""
    wanted = [(*batch, latent.dim), (*batch, latent.scale_dim)]
    is_pair = isinstance(parameters, (tuple, list)) and all(isinstance(t, Tensor) for t in parameters)
    got = [tuple(t.shape) for t in parameters] if is_pair else type(parameters).__name__
    if got != wanted:
        raise ValueError(f"encoder must return a location and a scale of shapes {wanted}, got {got}.")


def _gaussian(loc: Tensor, scale: Tensor, manifold: Manifold) -> Any:
    return dist.Normal(loc, scale.expand_as(loc)).to_event(1)
