"""Base class of the projections to fewer dimensions."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.analysis.inputs import checked_space
from pyro_hyperbolic.analysis.widening import plain, widened
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.ops.checks import checked_integer

# Points whose pairs are compared to say how much of their distances a projection keeps.
_COMPARED = 2000


class Projection(ABC):
    """A map from points to a space of the same kind and curvature with fewer dimensions.

    ``fit`` sets

    * ``mean``, the Fréchet mean of the points, which goes to the origin;
    * ``directions``, orthonormal rows ``(dim, d)`` in the frame at the mean;
    * ``explained_variance_ratio``, the share of the mean squared distance between pairs that is left (of at most 2,000
      points).
    """

    mean: Tensor
    directions: Tensor
    explained_variance_ratio: float

    def __init__(self, dim: int = 2, seed: int = 0) -> None:
        self.dim = checked_integer(f"{type(self).__name__}: dim", dim, least=1)
        self.seed = checked_integer(f"{type(self).__name__}: seed", seed)
        self._space: ConstantCurvature | None = None

    @torch.no_grad()
    def fit(self, points: Tensor, manifold: Manifold) -> Self:
        """Find the directions.

        :param points: ``(N, D)``, with ``N > dim`` and at least ``dim`` dimensions.
        :param manifold: their space, with one curvature, which is constant; no product.
        """
        space = self._checked_space(manifold)
        x = self._checked_points(points, space)
        size = space.intrinsic_dim(x.shape[-1])
        if len(x) <= self.dim or size < self.dim:
            raise ValueError(
                f"{type(self).__name__}: there must be more than dim = {self.dim} points, of at least {self.dim}"
                f" dimensions, got {tuple(points.shape)}."
            )
        self._space = space
        self.mean = space.frechet_mean(x)
        generator = torch.Generator().manual_seed(self.seed)
        coords = space.to_normal_coords(self.mean, x)
        self.directions = self._directions(coords, generator)
        few = torch.randperm(len(x), generator=generator)[:_COMPARED]
        flat = space.from_normal_coords(None, self._project(coords[few]))
        before, after = (space.pairwise_dist(t, t).square().mean() for t in (x[few], flat))
        self.explained_variance_ratio = float(after / before) if before > 0 else 1.0
        return self

    @property
    def is_fitted(self) -> bool:
        """Whether ``fit`` has been called."""
        return self._space is not None

    @torch.no_grad()
    def transform(self, points: Tensor) -> Tensor:
        """The projected points ``(..., D')`` of the same manifold in ``dim`` dimensions, in the dtype of ``points``."""
        if self._space is None:
            raise ValueError(f"{type(self).__name__}: call fit before transform.")
        x = self._checked_points(points, self._space)
        coords = self._space.to_normal_coords(self.mean, x)
        return self._space.from_normal_coords(None, self._project(coords)).to(points.dtype)

    def fit_transform(self, points: Tensor, manifold: Manifold) -> Tensor:
        """:meth:`fit`, then :meth:`transform` of the same points."""
        return self.fit(points, manifold).transform(points)

    @abstractmethod
    def _directions(self, coords: Tensor, generator: torch.Generator) -> Tensor:
        """From normal coordinates ``(N, d)`` at the mean."""

    @abstractmethod
    def _project(self, coords: Tensor) -> Tensor:
        """Normal coordinates ``(..., dim)`` at the origin from those at the mean."""

    def _checked_space(self, manifold: Manifold) -> ConstantCurvature:
        space = plain(checked_space(f"{type(self).__name__}: manifold", manifold))
        if not isinstance(space, ConstantCurvature):
            # Elsewhere a subspace of the tangent space need not lead to a space of the same kind.
            raise ValueError(
                f"{type(self).__name__}: manifold must be of constant curvature, and no product, got {manifold!r};"
                " project the factors of manifold.split(points) one by one."
            )
        return space

    def _checked_points(self, points: Tensor, space: Manifold) -> Tensor:
        x = points.detach().cpu()
        if x.dim() < 2 or not bool(space.contains(x).all()):
            raise ValueError(
                f"{type(self).__name__}: points must be (N, D) points of {space!r}, got {tuple(points.shape)} with some"
                " that are not; use the manifold that made them."
            )
        return widened(x, space)


def principal_directions(coords: Tensor, dim: int) -> Tensor:
    """The ``dim`` orthonormal rows that keep most of the second moments of ``coords``; the largest part is positive."""
    rows = torch.linalg.eigh(coords.mT @ coords).eigenvectors.flip(-1).mT[:dim]
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return rows * largest.sign()
