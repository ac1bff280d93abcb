r"""Kullback-Leibler divergences of distributions on a manifold, registered with ``torch.distributions.kl_divergence``.

Two wrapped normals with the same mean are images of Gaussians under the same map, so their divergence is that of the
Gaussians. Two Riemannian normals with the same mean differ only in the radius:

.. math::

    \mathrm{KL} = \log\frac{Z(\sigma_2)}{Z(\sigma_1)}
    + \tfrac12\,\mathbb{E}_{\sigma_1}[r^2] \left(\frac{1}{\sigma_2^2} - \frac{1}{\sigma_1^2}\right) .

In :class:`~pyro_hyperbolic.geometry.Euclidean` space both are Gaussians, whatever their means. In all other
spaces there is no closed form for different means. ``kl_divergence`` then raises ``NotImplementedError``, and Pyro's
``TraceMeanField_ELBO`` uses the Monte Carlo estimate. Means count as the same if they are the same tensor, or constants
with equal values that can be inspected (see :func:`~pyro_hyperbolic.ops.checks.inspectable`). Whether two learned means
happen to be equal at a step does not decide which estimator the step uses.
"""

from __future__ import annotations

import functools

import torch
from pyro.distributions import Delta, Independent, MaskedDistribution
from torch import Tensor
from torch.distributions import register_kl

from pyro_hyperbolic.distributions.base import ManifoldNormal, base_distribution
from pyro_hyperbolic.distributions.hyperspherical_uniform import HypersphericalUniform
from pyro_hyperbolic.distributions.riemannian_normal import RiemannianNormal
from pyro_hyperbolic.distributions.spherical import AngularDistribution, PowerSpherical, VonMisesFisher
from pyro_hyperbolic.distributions.wrapped_normal import WrappedNormal
from pyro_hyperbolic.geometry import Euclidean, Sphere
from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.private import viewed


@register_kl(WrappedNormal, WrappedNormal)
def _kl_wrapped_wrapped(p: WrappedNormal, q: WrappedNormal) -> Tensor:
    shift = _shift(p, q)
    if p._winds:
        raise NotImplementedError("no closed form for sums over windings; use a Monte Carlo estimate")
    if not (p._is_full or q._is_full):
        log_ratio = (p.scale / q.scale).log()
        gaussian = 0.5 * torch.expm1(2 * log_ratio) - log_ratio
        divergence = gaussian.sum(-1) * (p.dim / gaussian.shape[-1])  # an isotropic scale stands for all dimensions
        return divergence if shift is None else divergence + 0.5 * (shift / q.scale).square().sum(-1)
    ratio = torch.linalg.solve_triangular(_factor(q), _factor(p), upper=False)
    log_det = ratio.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    divergence = 0.5 * (ratio.square().sum((-2, -1)) - p.dim) - log_det
    if shift is None:
        return divergence
    apart = torch.linalg.solve_triangular(_factor(q), shift.unsqueeze(-1), upper=False)
    return divergence + 0.5 * apart.square().sum((-2, -1))


@register_kl(RiemannianNormal, RiemannianNormal)
def _kl_riemannian_riemannian(p: RiemannianNormal, q: RiemannianNormal) -> Tensor:
    shift = _shift(p, q)
    radii = zip(p._radii, q._radii, strict=True)  # of one kind each, since the manifolds are equal
    terms = [a._divergence(b) for a, b in radii]  # type: ignore[arg-type]
    divergence = functools.reduce(torch.add, terms).to(p.loc.dtype)
    return divergence if shift is None else divergence + 0.5 * (shift / q.scale).square().sum(-1)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_fisher_fisher(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    # Of any two means: that of cos is one number times the direction.
    _check_spaces(p, q)
    far = 1 - p.mean_resultant_length * p.cosine_to(q)
    return q.log_normalizer - p.entropy() + q._kappa * far


@register_kl(PowerSpherical, PowerSpherical)
def _kl_power_power(p: PowerSpherical, q: PowerSpherical) -> Tensor:
    _check_means(p, q)
    return q.log_normalizer - p.log_normalizer + (q._kappa - p._kappa) * p.mean_energy()


@register_kl(AngularDistribution, HypersphericalUniform)
def _kl_angular_uniform(p: AngularDistribution, q: HypersphericalUniform) -> Tensor:
    if p.manifold != Sphere(1.0) or p.event_shape != q.event_shape:
        raise ValueError(
            f"the uniform distribution is that of the unit sphere in {q.dim} dimensions, but p is one of points"
            f" {tuple(p.event_shape)} of {p.manifold!r}; use Sphere(1.0) and as many coordinates."
        )
    return q.log_area - p.entropy()


@register_kl(Delta, MaskedDistribution)
@register_kl(Delta, Independent)
@register_kl(Delta, ManifoldNormal)
def _kl_delta(p: Delta, q: ManifoldNormal | Independent | MaskedDistribution) -> Tensor:
    """Pyro's own leaves out the density of the ``Delta``, where autoguides keep the Jacobian of their map."""
    if not isinstance(base_distribution(q), ManifoldNormal):
        return -q.log_prob(p.v)  # as Pyro has it
    # A mask is one of q alone: the automatic guides, which draw the Delta, have none.
    return p.log_density - q.log_prob(p.v)


def _factor(distribution: WrappedNormal) -> Tensor:
    """The Cholesky factor of the covariance."""
    return (
        distribution.scale_tril
        if distribution._is_full
        else torch.diag_embed(distribution.scale.expand(distribution.batch_shape + (distribution.dim,)))
    )


def _check_spaces(p: ManifoldNormal, q: ManifoldNormal) -> None:
    curvatures = [c for distribution in (p, q) for c in distribution.manifold.curvatures if isinstance(c, Tensor)]
    if p.manifold != q.manifold:
        if type(p.manifold) is type(q.manifold) and not inspectable(*curvatures):
            raise NotImplementedError(
                "no closed form where the curvatures cannot be compared; use a Monte Carlo estimate"
            )
        raise ValueError(
            f"the distributions live on different manifolds, {p.manifold!r} and {q.manifold!r}; use the same manifold"
            " in both."
        )


def _shift(p: ManifoldNormal, q: ManifoldNormal) -> Tensor | None:
    """How far apart the means of two Gaussians are; nothing on other spaces, where they have to be the same."""
    if isinstance(p.manifold, Euclidean):
        _check_spaces(p, q)
        return p.loc - q.loc
    _check_means(p, q)
    return None


def _check_means(p: ManifoldNormal, q: ManifoldNormal) -> None:
    _check_spaces(p, q)
    if not _same_tensor(p.loc, q.loc) and not _equal_constants(p.loc, q.loc):
        raise NotImplementedError("no closed form for different means; use a Monte Carlo estimate")


def _same_tensor(a: Tensor, b: Tensor) -> bool:
    """Whether both are views of one tensor that differ in expanded dimensions at most."""
    bases = [viewed(t) for t in (a, b)]
    return bases[0] is bases[1] and _layout(a) == _layout(b)


def _layout(t: Tensor) -> tuple[int, list[tuple[int, int, int]]]:
    """Where the elements lie: of each dimension that is not expanded its place from the right, size and stride."""
    sizes = zip(range(-t.dim(), 0), t.shape, t.stride(), strict=True)
    return int(t.storage_offset()), [(i, n, s) for i, n, s in sizes if s != 0 and n != 1]


def _equal_constants(a: Tensor, b: Tensor) -> bool:
    return not a.requires_grad and not b.requires_grad and inspectable(a, b) and bool((a == b).all())
