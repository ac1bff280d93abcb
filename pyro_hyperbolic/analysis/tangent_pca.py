"""Principal components of the tangent space."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.analysis.components import Projection, principal_directions


class TangentPCA(Projection):
    r"""Principal components of the tangent space at the Fréchet mean.

    .. math:: x \mapsto \exp_0(W \log_m x)

    with the rows of ``W`` that keep most of :math:`\sum_i |\log_m x_i|^2`. Points in a geodesic subspace of ``dim``
    dimensions through their mean keep all their distances. Between other points, far from the mean, distances are lost
    or gained, because the exponential map does not preserve distances across its rays. The method works in every
    space except products.

    :param dim: dimensions of the result.
    :param seed: seed of the pairs that measure ``explained_variance_ratio``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> points = ball.expmap0(torch.randn(50, 5) * torch.tensor([0.8, 0.05, 0.5, 0.05, 0.05]))
    >>> pca = TangentPCA(2).fit(points, ball)
    >>> pca.transform(points).shape, pca.explained_variance_ratio > 0.9
    (torch.Size([50, 2]), True)
    """

    def _directions(self, coords: Tensor, generator: torch.Generator) -> Tensor:
        return principal_directions(coords, self.dim)

    def _project(self, coords: Tensor) -> Tensor:
        return coords @ self.directions.mT
