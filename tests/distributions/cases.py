"""The case table: one row per distribution, parameters and manifold.

A new distribution or chart is new rows, and they give its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.geometry import Euclidean, Lorentz, Manifold, Product, Sphere, Stereographic

Shape = tuple[int, ...]


@dataclass(frozen=True)
class NormalCase:
    """A normal on a chart; ``kind`` says how its scale is given."""

    distribution: type[TorchDistribution]
    kind: str  # "number", "isotropic", "diagonal" or "full"
    dim: int
    c: float
    chart: Callable[[Any], Manifold] = PoincareBall

    def __str__(self) -> str:
        return f"{self.distribution.__name__}-{self.kind}-{self.chart.__name__}-d{self.dim}-c{self.c:g}"

    @property
    def manifold(self) -> Manifold:
        return self.chart(self.c)

    @property
    def event_shape(self) -> Shape:
        return (self.manifold.ambient_dim(self.dim),)

    @property
    def is_isotropic(self) -> bool:
        return self.kind in ("number", "isotropic")

    def coords(self, batch: Shape = (), other: Shape | None = None, dtype: torch.dtype = torch.float64) -> dict:
        """As :meth:`params`, with the normal coordinates ``u`` of ``loc``, which know no chart and no curvature."""
        noise = torch.Generator().manual_seed(20)
        other = batch if other is None else other

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise, dtype=torch.float64)

        u = (0.7 * draw(*batch, self.dim)).to(dtype)
        if self.kind == "number":
            return {"u": u, "scale": 0.8}
        if self.kind == "full":
            scale_tril = 0.2 * draw(*other, self.dim, self.dim).tril(-1)
            scale_tril = scale_tril + torch.diag_embed(0.6 * (0.3 * draw(*other, self.dim)).exp())
            return {"u": u, "scale_tril": scale_tril.to(dtype)}
        size = self.dim if self.kind == "diagonal" else 1
        return {"u": u, "scale": (0.6 * (0.3 * draw(*other, size)).exp()).to(dtype)}

    def params(self, batch: Shape = (), other: Shape | None = None, dtype: torch.dtype = torch.float64) -> dict:
        """``loc`` of batch shape ``batch`` and a scale of batch shape ``other`` (``batch`` when it is not given)."""
        coords = self.coords(batch, other, dtype)
        return {"loc": self.manifold.from_normal_coords(None, coords.pop("u")), **coords}

    def make(
        self,
        batch: Shape = (),
        other: Shape | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ) -> TorchDistribution:
        return self.on(self.params(batch, other, dtype), validate_args)

    def on(self, params: dict[str, Any], validate_args: bool | None = None, c: Any = None) -> TorchDistribution:
        """The distribution with these parameters (``u`` for ``loc``), of this case's curvature or of another."""
        manifold = self.manifold if c is None else self.chart(c)
        if "u" in params:
            loc = manifold.from_normal_coords(None, params["u"])
            params = {"loc": loc, **{name: value for name, value in params.items() if name != "u"}}
        return self.distribution(**params, manifold=manifold, validate_args=validate_args)


@dataclass(frozen=True)
class RadiusCase:
    """A distribution of the radius."""

    dim: int
    c: float
    distribution: type[TorchDistribution] = hdist.HyperbolicRadius
    event_shape: Shape = ()

    def __str__(self) -> str:
        return f"{self.distribution.__name__}-d{self.dim}-c{self.c:g}"

    def params(self, batch: Shape = (), other: Shape | None = None, dtype: torch.dtype = torch.float64) -> dict:
        noise = torch.Generator().manual_seed(21)
        other = batch if other is None else other
        scale = 0.6 * (0.3 * torch.randn(batch, generator=noise, dtype=torch.float64)).exp()
        c = self.c * (0.3 * torch.randn(other, generator=noise, dtype=torch.float64)).exp()
        return {"scale": scale.to(dtype), "c": c.to(dtype)}

    def make(
        self,
        batch: Shape = (),
        other: Shape | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ) -> TorchDistribution:
        return self.on(self.params(batch, other, dtype), validate_args)

    def on(self, params: dict[str, Any], validate_args: bool | None = None) -> TorchDistribution:
        return self.distribution(self.dim, **params, validate_args=validate_args)


@dataclass(frozen=True)
class AngularCase:
    """A distribution of the angle to a point of a sphere."""

    distribution: type[TorchDistribution]
    dim: int
    c: float = 1.0

    def __str__(self) -> str:
        return f"{self.distribution.__name__}-d{self.dim}-c{self.c:g}"

    @property
    def event_shape(self) -> Shape:
        return (self.dim + 1,)

    def params(self, batch: Shape = (), other: Shape | None = None, dtype: torch.dtype = torch.float64) -> dict:
        noise = torch.Generator().manual_seed(22)
        other = batch if other is None else other
        u = torch.randn((*batch, self.dim), generator=noise, dtype=torch.float64)
        concentration = 3 * torch.rand(other, generator=noise, dtype=torch.float64)
        loc = Sphere(self.c).from_normal_coords(None, u)
        return {"loc": loc.to(dtype), "concentration": concentration.to(dtype)}

    def make(
        self,
        batch: Shape = (),
        other: Shape | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ) -> TorchDistribution:
        return self.on(self.params(batch, other, dtype), validate_args)

    def on(self, params: dict[str, Any], validate_args: bool | None = None) -> TorchDistribution:
        return self.distribution(**params, manifold=Sphere(self.c), validate_args=validate_args)


@dataclass(frozen=True)
class SphereCase:
    """A uniform distribution on a sphere, which has no parameters: its batch comes from ``expand``."""

    dim: int
    distribution: type[TorchDistribution] = hdist.HypersphericalUniform

    def __str__(self) -> str:
        return f"HypersphericalUniform-d{self.dim}"

    @property
    def event_shape(self) -> Shape:
        return (self.dim,)

    def make(
        self,
        batch: Shape = (),
        other: Shape | None = None,
        dtype: torch.dtype = torch.float64,
        validate_args: bool | None = None,
    ) -> TorchDistribution:
        shape = torch.broadcast_shapes(batch, batch if other is None else other)
        return self.distribution(self.dim, dtype=dtype, validate_args=validate_args).expand(shape)


def flat(c: Any) -> Euclidean:
    """Euclidean space, which has no curvature."""
    return Euclidean()


def mixed(c: Any) -> Product:
    """A product of three dimensions, whose curved factors share a curvature."""
    return Product((PoincareBall(c), 1), (Sphere(c), 1), (Euclidean(), 1))


def open_product(c: Any) -> Product:
    """A product of three dimensions in which no geodesic closes."""
    return Product((Lorentz(c), 2), (Euclidean(), 1))


HYPERBOLIC = [
    NormalCase(hdist.WrappedNormal, "number", 2, 1.0),
    NormalCase(hdist.WrappedNormal, "isotropic", 2, 0.7),
    NormalCase(hdist.WrappedNormal, "isotropic", 1, 1.4),
    NormalCase(hdist.WrappedNormal, "isotropic", 3, 0.0),
    NormalCase(hdist.WrappedNormal, "diagonal", 3, 1.4),
    NormalCase(hdist.WrappedNormal, "full", 3, 0.3),
    NormalCase(hdist.WrappedNormal, "full", 2, 0.0),
    NormalCase(hdist.RiemannianNormal, "number", 2, 1.0),
    NormalCase(hdist.RiemannianNormal, "isotropic", 5, 0.7),
    NormalCase(hdist.RiemannianNormal, "isotropic", 1, 1.4),
    NormalCase(hdist.RiemannianNormal, "isotropic", 3, 0.0),
    NormalCase(hdist.WrappedNormal, "isotropic", 2, 0.7, Lorentz),
    NormalCase(hdist.WrappedNormal, "diagonal", 3, 1.4, Lorentz),
    NormalCase(hdist.WrappedNormal, "full", 2, 0.3, Lorentz),
    NormalCase(hdist.RiemannianNormal, "number", 2, 1.0, Lorentz),
    NormalCase(hdist.RiemannianNormal, "isotropic", 1, 1.4, Lorentz),
]
SPHERICAL = [
    NormalCase(hdist.WrappedNormal, "isotropic", 1, 0.7, Sphere),
    NormalCase(hdist.WrappedNormal, "diagonal", 3, 1.4, Sphere),
    NormalCase(hdist.WrappedNormal, "full", 2, 0.7, Sphere),
    NormalCase(hdist.RiemannianNormal, "isotropic", 2, 0.7, Sphere),
    NormalCase(hdist.RiemannianNormal, "number", 1, 1.4, Sphere),
]
SIGNED = [
    NormalCase(hdist.WrappedNormal, "diagonal", 2, 0.7, Stereographic),
    NormalCase(hdist.WrappedNormal, "full", 2, -0.7, Stereographic),
    NormalCase(hdist.RiemannianNormal, "isotropic", 2, 0.7, Stereographic),
    NormalCase(hdist.RiemannianNormal, "isotropic", 3, -0.7, Stereographic),
]
PRODUCTS = [
    NormalCase(hdist.WrappedNormal, "isotropic", 3, 0.7, mixed),
    NormalCase(hdist.WrappedNormal, "full", 3, 0.7, mixed),
    NormalCase(hdist.WrappedNormal, "full", 3, 0.7, open_product),
    NormalCase(hdist.RiemannianNormal, "isotropic", 3, 0.7, mixed),
]
EUCLIDEAN = [
    NormalCase(hdist.WrappedNormal, "diagonal", 2, 0.0, flat),
    NormalCase(hdist.RiemannianNormal, "isotropic", 3, 0.0, flat),
]
NORMALS = [*HYPERBOLIC, *SPHERICAL, *SIGNED, *PRODUCTS, *EUCLIDEAN]
# Those whose points have one preimage under the exponential map.
ONE_TO_ONE = [case for case in NORMALS if case.chart not in (Sphere, mixed) and case not in SIGNED[::2]]
WINDING = [case for case in NORMALS if case not in ONE_TO_ONE and case.distribution is hdist.WrappedNormal]
RADII = [
    RadiusCase(1, 1.0),
    RadiusCase(2, 0.0),
    RadiusCase(3, 0.7),
    RadiusCase(20, 0.1),
    RadiusCase(1, 0.7, hdist.SphericalRadius),
    RadiusCase(3, 1.4, hdist.SphericalRadius),
]
ANGULAR = [
    AngularCase(hdist.VonMisesFisher, 1),
    AngularCase(hdist.VonMisesFisher, 4, 0.5),
    AngularCase(hdist.PowerSpherical, 2),
    AngularCase(hdist.PowerSpherical, 3, 2.0),
]
SPHERES = [SphereCase(1), SphereCase(2), SphereCase(5)]

DISTRIBUTIONS = [*NORMALS, *RADII, *SPHERES, *ANGULAR]
WITH_PARAMETERS = [*NORMALS, *RADII, *ANGULAR]
ISOTROPIC = [case for case in NORMALS if case.is_isotropic]
CURVED = [case for case in NORMALS if case.c > 0]
ON_THE_BALL = [case for case in CURVED if case.chart is PoincareBall]
FLAT = [case for case in HYPERBOLIC if case.c == 0]

# Shapes of the two parameters, and the batch shape that they make.
BROADCASTS: list[tuple[Shape, Shape, Shape]] = [
    ((), (), ()),
    ((3,), (), (3,)),
    ((), (3,), (3,)),
    ((3,), (3,), (3,)),
    ((1,), (4,), (4,)),
    ((2, 1), (3,), (2, 3)),
    ((2, 3), (3,), (2, 3)),
    ((3,), (2, 1), (2, 3)),
]


def with_shapes(cases: Sequence[Any]) -> list[tuple[Any, Shape, Shape, Shape]]:
    """Rows with all shapes for the first of each distribution and kind of scale, and with two for the others."""
    rows, seen = [], set()
    for case in cases:
        kind = type(case), getattr(case, "distribution", None), getattr(case, "kind", None)
        rows += [(case, *shapes) for shapes in (BROADCASTS[::5] if kind in seen else BROADCASTS)]
        seen.add(kind)
    return rows


def tensors(params: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters that are tensors, as leaves that require gradients."""
    return {k: v.detach().clone().requires_grad_() for k, v in params.items() if isinstance(v, Tensor)}
