"""Latent spaces of the models: their prior, their posterior family and their distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn

from pyro_hyperbolic.distributions import RiemannianNormal, WrappedNormal
from pyro_hyperbolic.geometry import ConstantCurvature, Euclidean, Manifold
from pyro_hyperbolic.nn import ManifoldModule, exp0
from pyro_hyperbolic.nn.manifold import as_module
from pyro_hyperbolic.ops.checks import check_choice, check_sizes, checked_integer, inspectable, is_number

DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "wrapped": WrappedNormal,
    "riemannian": RiemannianNormal,
}
"""Priors and posteriors on a manifold, by name."""

POSTERIOR_SCALES = ("diagonal", "isotropic")

_MOST_RADII = 4.0  # of a posterior on a sphere; below WIDEST, so that rounding does not matter


class Latent(nn.Module):
    """Base class of the latent spaces: the size of the parameters and the scale of the prior.

    :param dim: dimension of the space.
    :param prior_scale: scale of the prior.
    :param posterior_scale: ``"isotropic"`` or ``"diagonal"``.
    :param learn_prior_scale: learn the prior's scale as the exponential of a parameter.
    """

    log_scale: Tensor

    def __init__(self, dim: int, prior_scale: float, posterior_scale: str, learn_prior_scale: bool) -> None:
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

    def check(self, z: Tensor) -> None:
        """Raise an error for what are no points of the space."""


class HyperbolicLatent(Latent):
    """A latent space with geodesic distances, where prior and posterior are normals of a manifold.

    On :class:`~pyro_hyperbolic.Euclidean` both are plain Gaussians, by either name. Where geodesics close, the scales
    of a wrapped posterior are bounded (:func:`~pyro_hyperbolic.models.latent.bounded`).

    :param manifold: the space, or its signature; a :class:`~pyro_hyperbolic.nn.ManifoldModule` is shared, not copied.
    :param prior: a name in ``DISTRIBUTIONS``.
    :param posterior: a name in ``DISTRIBUTIONS``.
    :param dtype: dtype of the latent arithmetic; that of the network by default.
    """

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        dim: int,
        prior: str,
        posterior: str,
        prior_scale: float,
        posterior_scale: str,
        learn_prior_scale: bool,
        dtype: torch.dtype | None,
    ) -> None:
        check_choice("prior", prior, DISTRIBUTIONS)
        check_choice("posterior", posterior, DISTRIBUTIONS)
        if posterior_scale == "diagonal" and posterior != "wrapped":
            raise ValueError(f"posterior_scale 'diagonal' needs posterior 'wrapped', got posterior {posterior!r}.")
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"latent_dtype must be float32, float64 or None, got {dtype}.")
        super().__init__(dim, prior_scale, posterior_scale, learn_prior_scale)
        self.manifold = as_module(manifold)
        self.manifold.check_dim("latent_dim", self.dim)
        self.size = self.manifold().ambient_dim(self.dim)
        is_flat = isinstance(self.manifold(), Euclidean)
        self.prior_distribution, self.posterior_distribution = (
            _gaussian if is_flat else DISTRIBUTIONS[name] for name in (prior, posterior)
        )
        self.dtype = dtype

    def prior(self) -> Any:
        manifold = self.manifold()
        dtype = self.dtype or self.log_scale.dtype
        origin = manifold.origin(self.dim, dtype, self.log_scale.device)
        return self.prior_distribution(origin, self.log_scale.exp().to(dtype), manifold)

    def posterior(self, loc: Tensor, scale: Tensor) -> Any:
        manifold = self.manifold()
        dtype = self.dtype or torch.promote_types(loc.dtype, torch.float32)  # under autocast loc has half precision
        scale = scale.to(dtype)
        if self.posterior_distribution is WrappedNormal:
            scale = bounded(scale, manifold, self.dim)
        return self.posterior_distribution(exp0(manifold, loc.to(dtype)), scale, manifold)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold().dist(x, y)

    def pairwise_dist(self, z: Tensor) -> Tensor:
        return self.manifold().pairwise_dist(z, z)

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


class EuclideanLatent(HyperbolicLatent):
    """Gaussian prior and posterior, Euclidean distances: :class:`HyperbolicLatent` on Euclidean space."""

    def __init__(self, dim: int, prior_scale: float, posterior_scale: str, learn_prior_scale: bool) -> None:
        super().__init__(
            Euclidean(), dim, "wrapped", "wrapped", prior_scale, posterior_scale, learn_prior_scale, dtype=None
        )


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


def _gaussian(loc: Tensor, scale: Tensor, manifold: Manifold) -> Any:
    return dist.Normal(loc, scale.expand_as(loc)).to_event(1)
