"""Mixtures of distributions on a manifold."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import biject_to, constraints, transform_to
from torch.distributions.constraints import Constraint, MixtureSameFamilyConstraint

from pyro_hyperbolic.distributions.constraints import OnManifold, on


class ManifoldMixture(dist.MixtureSameFamily):
    r"""A mixture of distributions on one manifold.

    .. math:: p(z) = \sum_j \pi_j\, p_j(z)

    It is Pyro's ``MixtureSameFamily``, which takes our distributions too, with the support that its components have
    and without the mean of that class, the average of coordinates.

    :param mixture_distribution: the weights, ``dist.Categorical`` with ``k`` categories.
    :param component_distribution: the components, batch shape ``(..., k)``. A batch of curvatures has size 1 in the
        last dimension, as the components lie on one manifold.

    Shapes: batch shape as that of the components without the last dimension, event shape ``(d,)``.

    >>> import torch
    >>> from pyro_hyperbolic import PoincareBall
    >>> from pyro_hyperbolic.distributions import WrappedNormal
    >>> components = WrappedNormal(torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), 0.3, PoincareBall(1.0))
    >>> mixture = ManifoldMixture(dist.Categorical(torch.tensor([0.3, 0.7])), components)
    >>> mixture.log_prob(mixture.sample((5,))).shape
    torch.Size([5])
    >>> mixture.support
    on(PoincareBall(c=1.0))
    """

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> Constraint:
        return mixture_support(MixtureSameFamilyConstraint(self.component_distribution.support))

    @property
    def mean(self) -> Tensor:
        raise NotImplementedError(
            "the Fréchet mean of a mixture has no closed form; use geometry.frechet_mean(manifold,"
            " mixture.sample((10000,))), or component_distribution.mean for the means of the components."
        )


def mixture_support(constraint: MixtureSameFamilyConstraint) -> Constraint:
    """The support of a mixture of distributions on a manifold; of any other mixture the constraint itself."""
    base: Any = constraint.base_constraint
    event_dims = 0
    while isinstance(base, constraints.independent):
        event_dims += base.reinterpreted_batch_ndims
        base = base.base_constraint
    if not isinstance(base, OnManifold):
        return constraint
    curvatures = [_of_all_components(c, -1 - event_dims) for c in base.manifold.curvatures]
    if any(new is not old for new, old in zip(curvatures, base.manifold.curvatures, strict=True)):
        base = on(base.manifold.with_curvatures(curvatures))
    return constraints.independent(base, event_dims) if event_dims else base


def _of_all_components(c: float | Tensor, dim: int) -> float | Tensor:
    if not isinstance(c, Tensor) or c.dim() < -dim:
        return c
    if c.shape[dim] != 1:
        raise ValueError(
            f"the components of a mixture must lie on one manifold, got curvatures of shape {tuple(c.shape)}; give them"
            f" size 1 in dimension {dim}, that of the components, as in c.unsqueeze({dim})."
        )
    return c.squeeze(dim)


@biject_to.register(MixtureSameFamilyConstraint)
def _biject_to_mixture(constraint: MixtureSameFamilyConstraint) -> Any:
    return biject_to(_of_ours(constraint))


@transform_to.register(MixtureSameFamilyConstraint)
def _transform_to_mixture(constraint: MixtureSameFamilyConstraint) -> Any:
    return transform_to(_of_ours(constraint))


def _of_ours(constraint: MixtureSameFamilyConstraint) -> Constraint:
    """The support of a mixture of our distributions; any other mixture is refused, as torch does."""
    support = mixture_support(constraint)
    if support is constraint:
        raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
    return support
