"""Random points of the hyperboloid, its operations as one table, and points far out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from pyro_hyperbolic import Lorentz
from tests.geometry.cases import OPS, POINTS, Case, Op, cases
from tests.helpers import DTYPES

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FAR = {torch.float32: 60.0, torch.float64: 300.0}  # sqrt(c) times the distance to the origin
FAR_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}


def every_case(test):
    """Run ``test(case)`` over random cases of a curved space, the same ones in every run."""
    curved = cases().filter(lambda case: case.c > 0)
    return settings(derandomize=True, deadline=None, max_examples=12, database=None)(given(case=curved)(test))


def lorentz(case: Case) -> Lorentz:
    return Lorentz(case.c)


def point(case: Case, *shape: int) -> torch.Tensor:
    """Random points of the hyperboloid."""
    return lorentz(case).from_poincare(case.point(*shape).double()).to(case.dtype)


def tangent(case: Case, x: torch.Tensor) -> torch.Tensor:
    """Random tangent vectors at ``x``, about as long as the points are far."""
    return lorentz(case).frame(x, coordinates(case, *x.shape[:-1]))


def coordinates(case: Case, *shape: int) -> torch.Tensor:
    """Random normal coordinates, about as long as the points are far."""
    return 2 * case.vector(*shape)


def far_coordinates(dtype, c, share, seed=0, dim=3):
    n = torch.randn(dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (share * FAR[dtype] / math.sqrt(c) * n / n.norm()).to(dtype)


# Where the tangent vectors of an operation live: an argument, or the origin ("0"); "-" are components in a frame.
PLACES = {
    "mobius_add": "",
    "mobius_sub": "",
    "mobius_coadd": "",
    "mobius_cosub": "",
    "mobius_scalar_mul": "",
    "mobius_matvec": "",
    "gyration": "00",
    "inner": "xx",
    "norm": "x",
    "expmap": "x",
    "logmap": "x",
    "expmap0": "0",
    "logmap0": "0",
    "from_normal_coords": "-",
    "to_normal_coords": "-",
    "dist": "",
    "dist0": "",
    "transp": "xy",
    "transp0": "0y",
    "transp0back": "x0",
    "geodesic": "",
    "coframe": "x-",
    "dist2plane": "p",
}

# Arguments of the operations as functions of coordinates that are free: a point is made of its normal coordinates.
OPERATIONS = {name: OPS[name] for name in PLACES} | {
    "frame": Op("xw", "vector"),
    "coframe": Op("xv", "coordinates"),
    "log_volume_element": Op("x", "number"),
    "projx": Op("x", "point"),
    "geodesic_unit": OPS["geodesic_unit"],
    "to_poincare": Op("x", "coordinates"),
    "from_normal_coords": Op("xw", "point"),
    "to_normal_coords": Op("xy", "coordinates"),
}
operations = pytest.mark.parametrize("name", OPERATIONS)


def free_arguments(case: Case, op: Op, *shape: int) -> list[torch.Tensor]:
    """Normal coordinates of points, components of vectors, numbers and matrices."""
    made = []
    for key in op.arguments:
        if key == "m":
            made.append(case.vector(*shape, case.dim) / case.radius)
        elif key == "t":
            made.append(torch.rand(shape, generator=case.generator, dtype=case.dtype))
        else:
            made.append(coordinates(case, *shape))
    return made


def apply(name: str, h: Lorentz, free: list[torch.Tensor]) -> torch.Tensor:
    op = OPERATIONS[name]
    values = dict(zip(op.arguments, free, strict=True))
    made = {}
    for key, value in values.items():
        if key in POINTS:
            made[key] = h.from_normal_coords(None, value)
    for key, value in values.items():
        if key in "uva":
            origin = h.origin(value.shape[-1], value.dtype)
            place = "" if name in ("gyration", "expmap0", "transp0") else "p" if key == "a" else "x"
            made[key] = h.frame(made.get(place, origin), value)
        elif key not in POINTS:
            made[key] = value
    return getattr(h, name)(*(made[key] for key in op.arguments))


def plain(dtype: torch.dtype, c: float) -> dict[str, torch.Tensor]:
    """Free arguments by name, of points about 0.6 / sqrt(c) from the origin."""
    v = torch.tensor([0.5, -0.3, 0.2], dtype=dtype) / math.sqrt(c)
    values = {"x": v, "y": 2 * v.flip(0), "p": -v, "u": v, "v": v.flip(0), "w": v, "a": v.flip(0)}
    return values | {"t": torch.tensor(0.3, dtype=dtype), "m": torch.eye(3, dtype=dtype)}


def assert_finite(name, h, free, readout):
    out = apply(name, h, free)
    gradients = torch.autograd.grad(readout(out), [h.c, *free], allow_unused=True)
    assert out.isfinite().all(), f"value of {out} with c = {h.c} in {out.dtype}"
    assert all(g.isfinite().all() for g in gradients if g is not None), f"gradient at c = {h.c} in {out.dtype}"
