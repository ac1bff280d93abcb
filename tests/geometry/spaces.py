"""Every space as one table: a new space is a new row, and gets the tests that all spaces have to pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic
from pyro_hyperbolic.geometry import Manifold


@dataclass(frozen=True)
class SpaceCase:
    """A space of dimension ``dim``, as a function of one curvature that all its curved factors share."""

    name: str
    of: Callable[[Any], Manifold]
    dim: int
    c: float = 1.0
    has_curvature: bool = True
    has_planes: bool = True

    def __str__(self) -> str:
        return f"{self.name}-d{self.dim}-c{self.c:g}"

    @property
    def space(self) -> Any:
        return self.of(self.c)

    def coords(self, *shape: int, size: float = 0.6, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        """Normal coordinates of points within reach of each other."""
        noise = torch.Generator().manual_seed(seed)
        return (size * torch.randn((*shape, self.dim), generator=noise, dtype=torch.float64)).to(dtype)

    def points(self, *shape: int, size: float = 0.6, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
        return self.space.from_normal_coords(None, self.coords(*shape, size=size, dtype=dtype, seed=seed))


class OwnBall(PoincareBall):
    """As a user may derive it, with a constructor of its own."""

    def __init__(self, c: Any = 1.0, *, name: str = "own") -> None:
        super().__init__(c)
        self.name = name


class OwnProduct(Product):
    """Likewise."""

    def __init__(self, c: Any) -> None:
        super().__init__((OwnBall(c), 2), (Sphere(c), 1))


def _mixed(c: Any) -> Product:
    return Product((PoincareBall(c), 2), (Sphere(c), 2), (Euclidean(), 1))


def _nested(c: Any) -> Product:
    return Product(Product((Lorentz(c), 1), (Sphere(c), 1)), (_mixed(c), 5))


SPACES = [
    SpaceCase("PoincareBall", PoincareBall, 3, 1.4),
    SpaceCase("Lorentz", Lorentz, 3, 0.7),
    SpaceCase("Euclidean", lambda c: Euclidean(), 3, has_curvature=False),
    SpaceCase("Sphere", Sphere, 1, 1.4),
    SpaceCase("Sphere", Sphere, 2, 0.7),
    SpaceCase("Sphere", Sphere, 5, 1.0),
    SpaceCase("Stereographic", Stereographic, 3, 0.8),
    SpaceCase("Stereographic", Stereographic, 2, -0.8),
    SpaceCase("Stereographic", Stereographic, 2, 0.0),
    SpaceCase("Product", _mixed, 5),
    SpaceCase("nested Product", _nested, 7),
    SpaceCase("OwnProduct", OwnProduct, 3),
]
CURVED = [case for case in SPACES if case.has_curvature]
