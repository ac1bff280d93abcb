"""Distances to learned points: a skeleton to copy for a layer. docs/extending.rst shows it, a test runs it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.nn import ManifoldModule
from pyro_hyperbolic.nn.manifold import as_module


class Prototypes(nn.Module):
    r"""Distances to learned points: :math:`f_k(z) = d(z, p_k)`.

    A point is stored by its normal coordinates at the origin, :math:`p_k = \exp_0(p_k'/2)`, so that any optimiser
    serves and the curvature may change.

    :param in_features: dimension ``d`` of the space.
    :param out_features: number of points.
    :param manifold: a manifold, or the :class:`ManifoldModule` that a model shares between its parts.

    >>> from pyro_hyperbolic import PoincareBall
    >>> Prototypes(2, 5, PoincareBall(1.0))(torch.zeros(7, 2)).shape
    torch.Size([7, 5])
    """

    def __init__(self, in_features: int, out_features: int, manifold: Manifold | ManifoldModule) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.manifold = as_module(manifold)
        self.points = nn.Parameter(torch.randn(out_features, in_features) / math.sqrt(in_features))

    def forward(self, z: Tensor) -> Tensor:
        manifold = self.manifold()
        p = manifold.from_normal_coords(None, self.points.to(z.dtype))
        return manifold.pairwise_dist(z, p).to(self.points.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"
