"""The wrapped normal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from pyro_hyperbolic.distributions.base import (
    LOG_2PI,
    MASS_SCORE,
    ManifoldDistribution,
    as_param,
    broadcast_batch,
    check_point_args,
    expand_to,
)
from pyro_hyperbolic.distributions.constraints import on, positive_vector
from pyro_hyperbolic.distributions.windings import (
    check_preimages,
    check_widths,
    is_bounded,
    is_centred,
    log_windings,
    share_within,
)
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.ops.products import einsum, solve_lower
from pyro_hyperbolic.ops.radial import mean_log_sinhc
from pyro_hyperbolic.ops.special import safe_norm


class WrappedNormal(ManifoldDistribution):
    r"""A Gaussian on the tangent space, carried to the manifold by the exponential map.

    .. math::

        v \sim \mathcal{N}(0, \Sigma), \quad z = \exp_\mu(v/\lambda_\mu), \qquad
        p(z) = \mathcal{N}(v \mid 0, \Sigma)
        \left(\frac{\sqrt{c}\,|v|}{\sinh(\sqrt{c}\,|v|)}\right)^{d-1}

    with respect to the Riemannian volume (the paper's Eq. 2), where :math:`|v| = d(\mu, z)`. At ``c = 0`` it is the
    Gaussian.

    On a sphere every point has many preimages ``v``, and the density is the exact sum over them
    (:mod:`~pyro_hyperbolic.distributions.windings`). On a product ``v`` concatenates the normal coordinates of the
    factors, so a full covariance couples them.

    :param loc: :math:`\mu`, ``(..., d)``, a point of the manifold, from which the normal coordinates are counted. It is
        the Fréchet mean, except of a wide distribution on a sphere: see :attr:`mean`.
    :param scale: standard deviation: isotropic for a number or ``(..., 1)``, diagonal for ``(..., d)``.
    :param manifold: where the distribution lives; a batch of curvatures makes a batch of distributions.
    :param scale_tril: instead of ``scale``, the Cholesky factor of :math:`\Sigma`, ``(..., d, d)``.

    Shapes: batch shape as the arguments and the manifold's ``c`` broadcast, event shape ``(d,)``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> q = WrappedNormal(torch.zeros(3, 2), 0.5, PoincareBall(1.0))
    >>> q.batch_shape, q.event_shape
    (torch.Size([3]), torch.Size([2]))
    >>> q.log_prob(q.rsample()).shape
    torch.Size([3])
    >>> q.log_prob(q.mean)
    tensor([-0.4516, -0.4516, -0.4516])
    """

    scale: Tensor
    scale_tril: Tensor

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float | None = None,
        manifold: Manifold | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        manifold = check_point_args("WrappedNormal", loc, manifold)
        if (scale is None) == (scale_tril is None):
            raise ValueError(
                "WrappedNormal: give exactly one of scale (isotropic or diagonal) and scale_tril (full"
                f" covariance), got {'neither' if scale is None else 'both'}."
            )
        dim = manifold.intrinsic_dim(loc.shape[-1])
        if scale is not None:
            value = as_param("WrappedNormal: scale", scale, loc)
            if value.dim() == 0:
                value = value.unsqueeze(-1)
            if value.shape[-1] not in (1, dim):
                raise ValueError(
                    f"WrappedNormal: scale must be a number, (..., 1) or (..., {dim}), got {tuple(value.shape)};"
                    " for one scale per batch element use scale.unsqueeze(-1)."
                )
            batch_shape = broadcast_batch(
                "WrappedNormal", loc=loc.shape[:-1], scale=value.shape[:-1], c=manifold.batch_shape
            )
            self.scale = expand_to(value, batch_shape + value.shape[-1:])
        else:
            assert scale_tril is not None  # for the type checker: exactly one of the two is given
            if not isinstance(scale_tril, Tensor) or scale_tril.dim() < 2 or scale_tril.shape[-2:] != (dim, dim):
                got = tuple(scale_tril.shape) if isinstance(scale_tril, Tensor) else repr(scale_tril)
                raise ValueError(f"WrappedNormal: scale_tril must be a tensor (..., {dim}, {dim}), got {got}.")
            scale_tril = as_param("WrappedNormal: scale_tril", scale_tril, loc)
            batch_shape = broadcast_batch(
                "WrappedNormal", loc=loc.shape[:-1], scale_tril=scale_tril.shape[:-2], c=manifold.batch_shape
            )
            self.scale_tril = expand_to(scale_tril, batch_shape + (dim, dim))
        self._set_loc(expand_to(loc, batch_shape + loc.shape[-1:]), manifold)
        super().__init__(batch_shape, loc.shape[-1:], validate_args=validate_args)
        if self._winds:
            check_preimages(self._leaves)
        if self._validate_args and self._winds:
            check_widths(self.manifold, self._leaves, self._widths())

    @classmethod
    def rotated(
        cls,
        loc: Tensor,
        scale: Tensor,
        manifold: Manifold,
        validate_args: bool | None = None,
    ) -> WrappedNormal:
        r"""The rotated wrapped normal (RoWN): the first scale is along the radius, the others are across it.

        .. math:: \Sigma = R\,\operatorname{diag}(\sigma^2)\,R^T

        with the rotation ``R`` that takes the first axis to the direction of ``loc`` as seen from the origin, in the
        plane of the two (Cho et al., *A rotated hyperbolic wrapped normal distribution for hierarchical representation
        learning*, 2022, arXiv:2205.13371). A diagonal covariance, by contrast, keeps the axes of the coordinates
        wherever ``loc`` is.

        :param loc: as in the class; at the origin, which has no direction, ``R`` is the identity.
        :param scale: ``(..., d)``.
        :param manifold: a space that is not a product.

        >>> from pyro_hyperbolic import PoincareBall
        >>> loc, scale = torch.tensor([0.0, 0.5]), torch.tensor([1.0, 0.1])
        >>> WrappedNormal.rotated(loc, scale, PoincareBall(1.0)).covariance_matrix
        tensor([[0.0100, 0.0000],
                [0.0000, 1.0000]])
        """
        manifold = check_point_args("WrappedNormal.rotated", loc, manifold)
        dim = manifold.intrinsic_dim(loc.shape[-1])
        if len(manifold.leaves(dim)) > 1:
            raise ValueError(f"WrappedNormal.rotated: manifold must be no product, got {manifold!r}; use scale_tril.")
        if not isinstance(scale, Tensor) or scale.dim() == 0 or scale.shape[-1] != dim:
            got = tuple(scale.shape) if isinstance(scale, Tensor) else repr(scale)
            raise ValueError(f"WrappedNormal.rotated: scale must be a tensor (..., {dim}), got {got}.")
        scale = as_param("WrappedNormal.rotated: scale", scale, loc)
        root = _rotation_to(manifold.to_normal_coords(None, loc)) * scale.unsqueeze(-2)
        return cls(
            loc, manifold=manifold, scale_tril=torch.linalg.cholesky(root @ root.mT), validate_args=validate_args
        )

    @property
    def arg_constraints(self) -> dict[str, Any]:
        loc = on(self.manifold)
        if self._is_full:
            return {"loc": loc, "scale_tril": constraints.lower_cholesky}
        return {"loc": loc, "scale": positive_vector}

    @property
    def _is_full(self) -> bool:
        return "scale_tril" in self.__dict__

    def expand(self, batch_shape: Any, _instance: Any = None) -> WrappedNormal:
        new = self._get_checked_instance(WrappedNormal, _instance)
        batch_shape = torch.Size(batch_shape)
        new._set_loc(self.loc.expand(batch_shape + self.event_shape), self.manifold)
        new._is_central = self._is_central
        if self._is_full:
            new.scale_tril = self.scale_tril.expand(batch_shape + self.scale_tril.shape[-2:])
        else:
            new.scale = self.scale.expand(batch_shape + self.scale.shape[-1:])
        super(WrappedNormal, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Tensor:
        r"""The Fréchet mean, which is ``loc``.

        On a sphere of radius ``R`` and dimension :math:`d > 1` it is that only up to a standard deviation of
        :math:`\pi R/2\sqrt{d + 2}` (:mod:`~pyro_hyperbolic.distributions.windings`). A wider distribution raises
        ``NotImplementedError``, or gives ``nan`` where values cannot be read: its Fréchet mean may be elsewhere, and
        it need not be unique. ``loc`` is still the centre of its normal coordinates.
        """
        return self._loc_if(
            is_centred,
            "loc need not be the Fréchet mean of so wide a distribution, nor need that be unique; use loc, the centre"
            " of the normal coordinates, or manifold.frechet_mean(samples)",
        )

    @property
    def mode(self) -> Tensor:
        """The mode, which is ``loc``.

        On a sphere of two dimensions or more there is none: ``NotImplementedError``, or ``nan`` where values cannot be
        read.
        """
        return self._loc_if(
            is_bounded,
            "there is no mode, because the density is infinite at loc and at its antipode; use loc",
        )

    def _loc_if(self, condition: Callable[[Manifold, int, Tensor], Tensor], words: str) -> Tensor:
        """``loc``, if a condition holds on every factor."""
        if not self._winds:
            return self.loc
        holds = torch.ones(self.batch_shape, dtype=torch.bool, device=self.loc.device)
        for (leaf, dim), variances in zip(self._leaves, self._principal_variances(), strict=True):
            holds = holds & condition(leaf, dim, variances.detach().amax(-1).sqrt())
        if inspectable(holds) and not bool(holds.all()):
            raise NotImplementedError(f"WrappedNormal on {self.manifold!r}: {words}.")
        return torch.where(holds.unsqueeze(-1), self.loc, torch.nan)

    @property
    def covariance_matrix(self) -> Tensor:
        r""":math:`\Sigma` of the normal coordinates, ``(..., d, d)``."""
        if self._is_full:
            return einsum("...ij,...kj->...ik", self.scale_tril, self.scale_tril)
        variance = self.scale.square().expand(self.batch_shape + (self.dim,))
        return torch.diag_embed(variance)

    @staticmethod
    def infer_shapes(
        loc: torch.Size, scale: torch.Size = torch.Size(), scale_tril: torch.Size | None = None
    ) -> tuple[torch.Size, torch.Size]:
        """Batch and event shape from those of the arguments, for one curvature."""
        other = scale[:-1] if scale_tril is None else scale_tril[:-2]
        return torch.broadcast_shapes(loc[:-1], other), torch.Size(loc[-1:])

    def entropy(self) -> Tensor:
        r""":math:`\tfrac12\log\det 2\pi e\Sigma + (d-1)\,\mathbb{E}\log\frac{\sinh(\sqrt{c}\,|v|)}{\sqrt{c}\,|v|}`.

        The entropy with respect to the Riemannian volume. The expectation is a single integral for every
        :math:`\Sigma` (:func:`~pyro_hyperbolic.ops.radial.mean_log_sinhc`), computed in float64.
        """
        if self._winds:
            raise NotImplementedError("the entropy of a sum over windings has no closed form; use samples")
        out = 0.5 * self.dim * (1 + LOG_2PI) + self._half_log_det()
        for (leaf, dim), variances in zip(self._leaves, self._principal_variances(), strict=True):
            if dim == 1:
                continue
            if not isinstance(leaf, ConstantCurvature):
                raise NotImplementedError(f"the entropy on {leaf!r} has no closed form; use samples")
            c = torch.as_tensor(leaf.valid_c, dtype=torch.float64, device=variances.device)
            out = out + (dim - 1) * mean_log_sinhc(c.unsqueeze(-1) * variances).to(out.dtype)
        return out

    def _principal_variances(self) -> list[Tensor]:
        """Of the normal coordinates in each factor, along the axes of their covariance; float64."""
        if not self._is_full:
            return [v.double() for v in self._variances()]
        return [torch.linalg.eigvalsh(block.double()) for block in self._blocks()]

    def _blocks(self) -> list[Tensor]:
        """The covariance matrices of the factors."""
        out, start, covariance = [], 0, self.covariance_matrix
        for _, dim in self._leaves:
            out.append(covariance[..., start : start + dim, start : start + dim])
            start += dim
        return out

    @property
    def _spread(self) -> str:
        return "covariance_matrix, that of the normal coordinates"

    def from_noise(self, noise: Tensor) -> Tensor:
        r""":math:`\exp_\mu(L\epsilon/\lambda_\mu)`, :math:`LL^T = \Sigma`: a sample if ``noise`` is normal."""
        return super().from_noise(noise)

    def to_noise(self, value: Tensor) -> Tensor:
        """The inverse of :meth:`from_noise`, ``(..., d)``. On a sphere, where it is not unique, the shortest.

        So there the noise of a sample is not normal.
        """
        return super().to_noise(value)

    def _share_within(self, value: Tensor, radius: float) -> Tensor:
        if not self._winds:
            return super()._share_within(value, radius)
        return share_within(self._coords(value), self._leaves, self._whiten, self._widths(), radius)

    def _rsample_coords(self, sample_shape: torch.Size) -> Tensor:
        shape = sample_shape + self.batch_shape + (self.dim,)
        return self._colour(torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device))

    def _colour(self, noise: Tensor) -> Tensor:
        if self._is_full:
            return einsum("...ij,...j->...i", self.scale_tril, noise)
        return self.scale * noise

    def _whiten(self, v: Tensor) -> Tensor:
        if self._is_full:
            return solve_lower(self.scale_tril, v)
        return v / self.scale

    def _log_density(self, v: Tensor) -> Tensor:
        if not self._winds:
            return self._log_coords_density(v) - self.manifold.log_det_exp(v)
        windings = log_windings(v, self._leaves, self._whiten, self._is_full, self._widths())
        return self._log_constant() + windings

    def _log_coords_density(self, v: Tensor) -> Tensor:
        return self._log_constant() - 0.5 * self._whiten(v).square().sum(-1)

    def _log_constant(self) -> Tensor:
        return -0.5 * self.dim * LOG_2PI - self._half_log_det()

    @property
    def _winds(self) -> bool:
        """Whether geodesics may close, so that points have many preimages."""
        return self.manifold.geodesics_close

    def _half_log_det(self) -> Tensor:
        if self._is_full:
            return self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return self.scale.log().sum(-1) * (self.dim / self.scale.shape[-1])

    def _variances(self) -> tuple[Tensor, ...]:
        """Of the normal coordinates, by factor."""
        if self._is_full:
            return self._split_coords(self.scale_tril.square().sum(-1))
        return self._split_coords(self.scale.square().expand(self.batch_shape + (self.dim,)))

    def _outer_radii(self) -> list[Tensor]:
        if not self._is_full and self.scale.shape[-1] == 1:
            return [(math.sqrt(dim) + MASS_SCORE) * self.scale.squeeze(-1) for _, dim in self._leaves]
        return [v.sum(-1).sqrt() + MASS_SCORE * v.amax(-1).sqrt() for v in self._variances()]

    def _widths(self) -> list[Tensor]:
        """A bound of the standard deviation in any direction, by factor."""
        if not self._is_full:
            return [v.amax(-1).sqrt() for v in self._variances()]
        return [block.abs().sum(-1).amax(-1).sqrt() for block in self._blocks()]


def _rotation_to(m: Tensor) -> Tensor:
    """The rotation from the first axis to the line through ``m``, in their plane, ``(..., d, d)``."""
    length = safe_norm(m)
    eye = torch.eye(m.shape[-1], dtype=m.dtype, device=m.device)
    first = eye[0]
    unit = torch.where(length == 0, first, m / torch.where(length == 0, 1.0, length))
    # Of the two directions of a line the nearer one: the rotation by half a turn has no plane.
    unit = torch.where(unit[..., :1] < 0, -unit, unit)
    middle = unit + first
    turn = middle.unsqueeze(-1) * middle.unsqueeze(-2) / (1 + unit[..., :1]).unsqueeze(-1)
    return eye - turn + 2 * unit.unsqueeze(-1) * first
