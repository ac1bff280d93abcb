"""Transforms from Euclidean space onto a manifold, and their entries in torch's registries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, biject_to, constraints, transform_to
from torch.distributions.transforms import IndependentTransform

from pyro_hyperbolic.distributions.constraints import OnManifold, on, positive_vector
from pyro_hyperbolic.distributions.provenance import Origin, mark
from pyro_hyperbolic.geometry import Manifold


class ExpMapTransform(Transform):
    r"""Normal coordinates at ``loc`` to points: :math:`v \mapsto \exp_{loc}(v / \lambda_{loc})`.

    :math:`|v|` is the distance from ``loc``. The Jacobian is with respect to the **Riemannian volume** of the manifold
    (see the conventions page), so the density of a :class:`~torch.distributions.TransformedDistribution` means the same
    as that of our distributions:

    .. math:: \log|J| = (d - 1) \log\frac{\sinh(\sqrt{c}\,|v|)}{\sqrt{c}\,|v|}

    for curvature :math:`-c`. Other spaces have their own (:meth:`~pyro_hyperbolic.geometry.Manifold.log_det_exp`). On a
    sphere the map is onto, but one-to-one only for :math:`|v| < \pi/\sqrt c`, which is the range of its inverse.

    :param manifold: the manifold.
    :param loc: centre ``(..., D)``; the origin by default.
    :param cache_size: with 1, the last pair is kept, and the inverse of a value just made is exact. Otherwise the
        inverse is :math:`\lambda \log_{loc}`, which loses :math:`e^{2\sqrt{c}\,d(0, loc)}` in relative precision.

    >>> from pyro_hyperbolic import PoincareBall
    >>> t = ExpMapTransform(PoincareBall(1.0))
    >>> v = torch.tensor([3.0, 4.0])
    >>> t.manifold.dist0(t(v))
    tensor(5.0000)
    """

    bijective = True
    domain = constraints.real_vector

    def __init__(self, manifold: Manifold, loc: Tensor | None = None, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.manifold = manifold
        self.loc = loc

    @property
    def codomain(self) -> constraints.Constraint:  # type: ignore[override]  # torch: plain attribute
        return on(self.manifold)

    def with_cache(self, cache_size: int = 1) -> ExpMapTransform:
        if self._cache_size == cache_size:
            return self
        return ExpMapTransform(self.manifold, self.loc, cache_size=cache_size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExpMapTransform) or self.manifold != other.manifold:
            return False
        if self.loc is None or other.loc is None:
            return self.loc is other.loc
        return self.loc is other.loc or torch.equal(self.loc, other.loc)

    def __reduce__(self) -> Any:
        # A cached pair belongs to the graph it was made in and cannot be copied.
        return type(self), (self.manifold, self.loc, self._cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.manifold.from_normal_coords(self.loc, x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.manifold.to_normal_coords(self.loc, y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold.log_det_exp(x)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        return self._broadcast(torch.Size((*shape[:-1], self.manifold.ambient_dim(shape[-1]))))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        size = self._broadcast(shape)
        return torch.Size((*size[:-1], self.manifold.intrinsic_dim(shape[-1])))

    def _broadcast(self, shape: torch.Size) -> torch.Size:
        """The shape of points that meet the centre and the batch of curvatures."""
        loc = torch.Size() if self.loc is None else self.loc.shape
        return torch.broadcast_shapes(shape, loc, self.manifold.batch_shape + (1,))


class ManifoldTransform(Transform):
    r"""One-to-one from real vectors to the points of a manifold; what ``biject_to`` gives for every manifold.

    It is the manifold's own :meth:`~pyro_hyperbolic.geometry.Manifold.from_unconstrained`: the exponential map at the
    origin, with :math:`|v|` the distance from there, where that is one-to-one. No map is one-to-one onto a sphere, so
    the one here leaves out the antipode of the origin. It is the inverse of the stereographic projection from there,

    .. math:: v \mapsto \frac{1}{1 + c|v|^2/4} \left(\frac{1 - c|v|^2/4}{\sqrt c}, v\right), \qquad
              \log|J| = -d \log(1 + c|v|^2/4) ,

    and on ``Stereographic(k)`` with ``k > 0`` it is half of ``v`` itself. On a product it acts factor by factor. The
    Jacobian is with respect to the **Riemannian volume**.

    :param manifold: the manifold.

    >>> from pyro_hyperbolic import Sphere
    >>> ManifoldTransform(Sphere(1.0))(torch.tensor([2.0, 0.0]))
    tensor([0., 1., 0.])
    """

    bijective = True
    domain = constraints.real_vector
    _marks = False  # whether its points carry the space that they were made on

    def __init__(self, manifold: Manifold, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.manifold = manifold

    @property
    def codomain(self) -> constraints.Constraint:  # type: ignore[override]  # torch: plain attribute
        return on(self.manifold)

    def with_cache(self, cache_size: int = 1) -> ManifoldTransform:
        if self._cache_size == cache_size:
            return self
        new = ManifoldTransform(self.manifold, cache_size=cache_size)
        new._marks = self._marks
        return new

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ManifoldTransform) and self.manifold == other.manifold

    def _call(self, x: Tensor) -> Tensor:
        y = self.manifold.from_unconstrained(x)
        return mark(y, self.manifold, Origin.KEPT) if self._marks else y

    def _inverse(self, y: Tensor) -> Tensor:
        return self.manifold.to_unconstrained(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.manifold.log_det_unconstrained(x)

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        return self._resized(shape, self.manifold.ambient_dim(shape[-1]))

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return self._resized(shape, self.manifold.intrinsic_dim(shape[-1]))

    def _resized(self, shape: torch.Size, size: int) -> torch.Size:
        batch = torch.broadcast_shapes(shape[:-1], self.manifold.batch_shape)
        return torch.Size((*batch, size))


@biject_to.register(OnManifold)
@transform_to.register(OnManifold)
def _onto_manifold(constraint: OnManifold) -> ManifoldTransform:
    # Algorithms keep it, also when the curvature of the program has moved.
    transform = ManifoldTransform(constraint.manifold)
    transform._marks = True
    return transform


@biject_to.register(positive_vector)
@transform_to.register(positive_vector)
def _positive_entries(constraint: constraints.Constraint) -> IndependentTransform:
    return IndependentTransform(biject_to(constraints.positive), 1)
