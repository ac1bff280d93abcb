"""Operations of the ball as one table, and random configurations of points for their identities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from tests.helpers import DTYPES, ROUNDING


class Op(NamedTuple):
    """Arguments: ``x y p`` are points, ``u v`` tangent vectors, ``a`` a normal, ``t`` a number, ``m`` a matrix."""

    arguments: str
    returns: str  # "point", "vector" or "number"


OPS = {
    "mobius_add": Op("xy", "point"),
    "mobius_sub": Op("xy", "point"),
    "mobius_coadd": Op("xy", "point"),
    "mobius_cosub": Op("xy", "point"),
    "mobius_scalar_mul": Op("tx", "point"),
    "mobius_pointwise_mul": Op("ux", "point"),
    "mobius_matvec": Op("mx", "point"),
    "gyration": Op("xyv", "vector"),
    "lambda_x": Op("x", "number"),
    "inner": Op("xuv", "number"),
    "norm": Op("xv", "number"),
    "expmap": Op("xv", "point"),
    "logmap": Op("xy", "vector"),
    "expmap0": Op("v", "point"),
    "logmap0": Op("y", "vector"),
    "from_normal_coords": Op("xv", "point"),
    "to_normal_coords": Op("xy", "vector"),
    "dist": Op("xy", "number"),
    "dist0": Op("x", "number"),
    "transp": Op("xyv", "vector"),
    "transp0": Op("yv", "vector"),
    "transp0back": Op("xv", "vector"),
    "geodesic": Op("txy", "point"),
    "geodesic_unit": Op("txv", "point"),
    "coframe": Op("xv", "vector"),
    "egrad2rgrad": Op("xv", "vector"),
    "dist2plane": Op("xpa", "number"),
    "projx": Op("x", "point"),
    "log_volume_element": Op("x", "number"),
}
POINTS = "xyp"


def place(direction: Tensor, distance: Tensor | float, c: float) -> Tensor:
    """The point at ``distance`` from the origin; float64, by the textbook formula."""
    unit = direction.double() / direction.double().norm(dim=-1, keepdim=True)
    distance = torch.as_tensor(distance, dtype=torch.float64).unsqueeze(-1)
    root = math.sqrt(c)
    return unit * (torch.tanh(root * distance / 2) / root if c > 0 else distance / 2)


def lost_distance(s: Tensor, dtype: torch.dtype) -> Tensor:
    """Error of sqrt(c) times the distance s to the origin when 1 - c|x|^2 = 1/cosh(s/2)^2 is wrong by 8 eps."""
    return 8 * torch.finfo(dtype).eps * torch.cosh(s / 2) ** 2 + ROUNDING[dtype] * s


@dataclass
class Case:
    """A ball and a source of random points of it, within distance ``radius`` of the origin."""

    dim: int
    c: float
    radius: float
    dtype: torch.dtype = torch.float64
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    @property
    def ball(self) -> PoincareBall:
        return PoincareBall(self.c)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, self.dim, generator=self.generator, dtype=torch.float64)

    def point(self, *shape: int) -> Tensor:
        share = 0.1 + 0.9 * torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return place(self._normal(*shape), self.radius * share, self.c).to(self.dtype)

    def vector(self, *shape: int) -> Tensor:
        """A tangent vector at the origin that reaches as far as the points; lambda is 2 there."""
        v = self._normal(*shape)
        share = 0.1 + 0.9 * torch.rand(shape + (1,), generator=self.generator, dtype=torch.float64)
        return (self.radius / 2 * share * v / v.norm(dim=-1, keepdim=True)).to(self.dtype)

    def tangent(self, x: Tensor) -> Tensor:
        """A tangent vector at ``x`` that reaches as far as the points."""
        return self.vector(*x.shape[:-1]) * (1 - self.c * (x * x).sum(-1, keepdim=True))

    def arguments(self, op: Op, *shape: int) -> list[Tensor]:
        """Generic arguments of an operation."""
        made = []
        for name in op.arguments:
            if name in POINTS:
                made.append(self.point(*shape))
            elif name == "m":
                made.append(self._normal(*shape, self.dim).to(self.dtype) / self.dim)
            elif name == "t":
                made.append(torch.rand(shape, generator=self.generator, dtype=self.dtype))
            else:
                made.append(self.vector(*shape))
        return made

    def tolerance(self, points: int = 2) -> float:
        """What rounding costs, relative, when ``points`` points of this case are combined.

        A coordinate error of eps is a distance error of eps times lambda, and lambda grows like
        ``exp(sqrt(c) distance)``.
        """
        return ROUNDING[self.dtype] * math.exp(points * math.sqrt(self.c) * self.radius)

    def assert_near(self, actual: Tensor, expected: Tensor, points: int = 2) -> None:
        """Two points are the same: their distance is within the tolerance of the case's radius."""
        assert actual.dtype == expected.dtype == self.dtype
        error = PoincareBall(self.c).dist(actual.double(), expected.double()).max() / self.radius
        assert error <= self.tolerance(points), f"{self}: error {error:.3g} exceeds {self.tolerance(points):.3g}"

    def assert_equal(self, actual: Tensor, expected: Tensor | float, scale: Tensor | float, points: int = 2) -> None:
        """Two numbers or vectors are the same within the tolerance times ``scale``."""
        error = (actual.double() - expected).abs().max() / scale
        assert error <= self.tolerance(points), f"{self}: error {error:.3g} exceeds {self.tolerance(points):.3g}"


@st.composite
def cases(draw: st.DrawFn, reach: float = 2.5) -> Case:
    """Dimension, curvature, magnitude and dtype; points up to ``reach / sqrt(c)`` from the origin."""
    c = draw(st.one_of(st.just(0.0), st.floats(-6, 1.2).map(lambda e: 10**e)), label="c")
    size = 10 ** draw(st.floats(-8, math.log10(reach)), label="log10 radius")
    return Case(
        dim=draw(st.sampled_from([1, 2, 3, 7, 20]), label="dim"),
        c=c,
        radius=size / math.sqrt(c) if c > 0 else size,
        dtype=draw(st.sampled_from(DTYPES), label="dtype"),
        seed=draw(st.integers(0, 2**16), label="seed"),
    )


def _over_cases(count: int) -> Callable[[Callable], Callable]:
    def decorate(test: Callable) -> Callable:
        return settings(derandomize=True, deadline=None, max_examples=count, database=None)(given(case=cases())(test))

    return decorate


# Decorators that run ``test(case)`` over random cases, the same ones in every run.
every_case = _over_cases(25)
some_cases = _over_cases(10)  # for tests that iterate
