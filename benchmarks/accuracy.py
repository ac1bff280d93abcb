r"""How exact every operation is, far from the origin: the tables of the documentation.

    python -m benchmarks.accuracy
    python -m benchmarks.accuracy --check --output tables

Two points at a distance ``s`` from the origin (curvature -1), 1 from each other (*near*), 3 (*apart*), or on opposite
sides of it (*across*), and what is computed from them, against a reference in a hundred digits
(:mod:`benchmarks.exact`). Beside the error stands the *rounding limit*: how far the exact answer moves when every
number that comes in, and the result, is moved by half a unit in its last place. An algorithm cannot be expected to do
better. Errors of points are distances, those of vectors lengths, both in the metric of the space.

The run takes five minutes. ``--check`` ends with status 1 if an operation is worse than ten times its rounding limit,
where that leaves digits to speak of.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from benchmarks import exact
from benchmarks.exact import Array
from benchmarks.results import output_file
from examples.command import command, folder, make_parser, positive
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import Manifold, ScaledManifold

DIM, SAMPLES, MOVES = 3, 200, 4
DISTANCES = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
DTYPES = (torch.float32, torch.float64)
CHARTS: dict[str, tuple[type[ScaledManifold], Any]] = {
    "ball": (PoincareBall, exact.Ball),
    "hyperboloid": (Lorentz, exact.Hyperboloid),
}
SCALE = 0.5
ALLOWED = 10.0
LOST = 0.1  # a limit beyond which there are no digits to keep

# Arguments: "x y p" points, "v" normal coordinates at x, "u" a tangent vector at x, "a" one at p, "w" components of one
# at p, "t" a time.
BASE = {"u": "x", "a": "p"}


@dataclass(frozen=True)
class Operation:
    """One row of the table.

    :param name: what users call it.
    :param place: ``"near"``, ``"apart"`` or ``"across"``.
    :param arguments: one letter each.
    :param compute: from the manifold and the arguments as tensors.
    :param truth: from the arguments as :mod:`benchmarks.exact` has them.
    :param result: ``"number"``, ``"point"``, ``"coords"``, or the letter of the point where it is a vector;
        ``"slope x"`` for derivatives in the argument ``x``.
    """

    name: str
    place: str
    arguments: str
    compute: Callable[..., Tensor]
    truth: Callable[..., Array]
    result: str


@dataclass(frozen=True)
class Errors:
    """Of one operation at one distance: the median and the largest error, and the largest rounding limit."""

    median: float
    worst: float
    limit: float

    @property
    def ok(self) -> bool:
        return self.worst <= ALLOWED * self.limit or LOST < self.limit <= self.worst < math.inf

    def __str__(self) -> str:
        return " ".join(f"{e:.0e}".replace("e-0", "e-").replace("e+0", "e") for e in self.numbers)

    @property
    def numbers(self) -> tuple[float, float, float]:
        return self.median, self.worst, self.limit


def _slope(function: Callable[..., Tensor], index: int) -> Callable[..., Tensor]:
    """The derivatives of a number in one of its arguments."""

    def compute(manifold: Manifold, *args: Tensor) -> Tensor:
        leaves = [a.clone().requires_grad_(i == index) for i, a in enumerate(args)]
        return torch.autograd.grad(function(manifold, *leaves).sum(), leaves[index])[0]

    return compute


def _true_slope(function: Callable[..., Array], index: int) -> Callable[..., Array]:
    def truth(*args: Array) -> Array:
        return exact.gradient(lambda z: function(*args[:index], z, *args[index + 1 :]), args[index])

    return truth


def _planes(manifold: Manifold, x: Tensor, p: Tensor, a: Tensor) -> Tensor:
    """All points against all planes, as a layer does it, and of these the pairs that belong together."""
    return manifold.dist2plane(x=x.unsqueeze(-2), p=p, a=a).diagonal()


def _planes0(manifold: Manifold, x: Tensor, p: Tensor, w: Tensor) -> Tensor:
    return manifold.dist2plane0(x=x.unsqueeze(-2), p=p, v=w).diagonal()


def _wrapped(manifold: Manifold, y: Tensor, x: Tensor) -> Tensor:
    return hdist.WrappedNormal(x, SCALE, manifold, validate_args=False).log_prob(y)


_true_wrapped = partial(exact.wrapped_log_prob, scale=exact.Decimal(SCALE))

_pair = (lambda m, x, y: m.dist(x, y), exact.dist)
_plane = (lambda m, x, p, a: m.dist2plane(x=x, p=p, a=a), exact.dist2plane)
_log = (lambda m, x, y: m.to_normal_coords(x, y), exact.logmap)
_step = (lambda m, x, v: m.from_normal_coords(x, v), exact.expmap)
_line = (lambda m, t, x, y: m.geodesic(t, x, y), exact.geodesic)
_carried = (lambda m, x, y, u: m.transp(x, y, u), exact.transp)

OPERATIONS = [
    Operation("dist0", "near", "x", lambda m, x: m.dist0(x), lambda x: exact.dist(x, exact.origin_like(x)), "number"),
    Operation("dist", "near", "xy", *_pair, "number"),
    Operation("dist", "across", "xy", *_pair, "number"),
    Operation("pairwise_dist", "near", "xy", lambda m, x, y: m.pairwise_dist(x, y).diagonal(), exact.dist, "number"),
    Operation("to_normal_coords", "near", "xy", *_log, "coords"),
    Operation("to_normal_coords", "across", "xy", *_log, "coords"),
    Operation("logmap", "near", "xy", lambda m, x, y: m.logmap(x, y), exact.logmap, "x"),
    Operation("from_normal_coords", "near", "xv", *_step, "point"),
    Operation("from_normal_coords", "apart", "xv", *_step, "point"),
    Operation("from_normal_coords", "across", "xv", *_step, "point"),
    Operation("expmap", "near", "xu", lambda m, x, u: m.expmap(x, u), exact.expmap, "point"),
    Operation("geodesic", "near", "txy", *_line, "point"),
    Operation("geodesic", "across", "txy", *_line, "point"),
    Operation("mobius_add", "near", "zy", lambda m, z, y: m.mobius_add(z, y), exact.mobius_add, "point"),
    Operation("transp", "near", "xyu", *_carried, "y"),
    Operation("transp", "apart", "xyu", *_carried, "y"),
    Operation("transp", "across", "xyu", *_carried, "y"),
    Operation("dist2plane", "near", "xpa", *_plane, "number"),
    Operation("dist2plane", "apart", "xpa", *_plane, "number"),
    Operation("dist2plane, all pairs", "near", "xpa", _planes, exact.dist2plane, "number"),
    Operation("dist2plane0, all pairs", "near", "xpw", _planes0, exact.dist2plane, "number"),
    Operation("WrappedNormal.log_prob", "near", "yx", _wrapped, _true_wrapped, "number"),
    Operation("gradient of dist", "near", "xy", _slope(_pair[0], 0), _true_slope(_pair[1], 0), "slope x"),
    Operation("gradient of dist2plane", "near", "xpa", _slope(_plane[0], 0), _true_slope(_plane[1], 0), "slope x"),
    Operation(
        "gradient of dist2plane, all pairs", "near", "xpa", _slope(_planes, 0), _true_slope(_plane[1], 0), "slope x"
    ),
    Operation("gradient of log_prob", "near", "yx", _slope(_wrapped, 0), _true_slope(_true_wrapped, 0), "slope y"),
]


def inputs(chart: Any, place: str, s: float, dtype: torch.dtype, samples: int) -> dict[str, Tensor]:
    """Arguments by their letters, in the coordinates of the chart."""
    rng = np.random.default_rng(0)

    def direction() -> Array:
        raw = rng.normal(size=(samples, DIM))
        return exact.decimals(raw / np.linalg.norm(raw, axis=-1, keepdims=True))

    u = direction()
    origin = exact.lift(0 * u)
    distance = exact.Decimal(s)
    x = exact.expmap(origin, distance * u)
    # The opposite point is a few degrees off the line, where rounding has something to turn.
    other = -u + exact.Decimal("0.1") * direction()
    steps = {"near": 1, "apart": 3}
    y = exact.expmap(x, steps[place] * direction()) if place in steps else exact.expmap(origin, distance * other)
    points = {"x": x, "y": y, "p": y, "z": exact.lift(-x[..., 1:])}
    made = {name: exact.to_tensor(chart.coordinates(point), dtype) for name, point in points.items()}
    # Where the rounded point is, not where it was meant to be: a vector belongs there.
    there = {name: chart.point(exact.decimals(made[name])) for name in points}
    for name, base in BASE.items():
        made[name] = exact.to_tensor(chart.vector_coordinates(there[base], direction()), dtype)
    made["v"] = exact.to_tensor(direction() if place == "near" else exact.logmap(there["x"], there["y"]), dtype)
    made["w"] = exact.to_tensor(direction(), dtype)
    made["t"] = torch.from_numpy(rng.uniform(size=samples)).to(dtype)
    return made


def measure(operation: Operation, name: str, dtype: torch.dtype, s: float, samples: int = SAMPLES) -> Errors:
    kind, chart = CHARTS[name]
    with exact.digits():
        given = inputs(chart, operation.place, s, dtype, samples)
        tensors = [given[letter] for letter in operation.arguments]
        numbers = [exact.decimals(t) for t in tensors]
        found = exact.decimals(operation.compute(kind(1.0), *tensors))
        points, truth = _truth(operation, chart, numbers)
        errors = _difference(operation, chart, points, _decode(operation, chart, points, found), truth)
        rng = np.random.default_rng(1)
        moved = _rounding_limit(operation, chart, dtype, numbers, points, truth, rng)
        return Errors(float(np.median(errors)), float(errors.max()), float(moved.max()))


def _truth(operation: Operation, chart: Any, numbers: list[Array]) -> tuple[dict[str, Array], Array]:
    """The points among the arguments, by their letters, and the exact result."""
    named = dict(zip(operation.arguments, numbers, strict=True))
    points = {letter: chart.point(n) for letter, n in named.items() if letter in "xypz"}
    meant = []
    for letter, n in named.items():
        if letter in points:
            meant.append(points[letter])
        else:
            meant.append(chart.vector(points[BASE[letter]], n) if letter in BASE else n)
    return points, operation.truth(*meant)


def _decode(operation: Operation, chart: Any, points: dict[str, Array], found: Array) -> Array:
    """What the floats that an operation returns stand for."""
    if operation.result == "point":
        return chart.point(found)
    if operation.result in points:
        return chart.vector(points[operation.result], found)
    if operation.result.startswith("slope"):
        return chart.slope(points[operation.result[-1]], found)
    return found


def _encode(operation: Operation, chart: Any, points: dict[str, Array], truth: Array) -> Array | None:
    """The floats that the exact result would be rounded to; none for derivatives, whose coordinates are not unique."""
    if operation.result == "point":
        return chart.coordinates(truth)
    if operation.result in points:
        return chart.vector_coordinates(points[operation.result], truth)
    return None if operation.result.startswith("slope") else truth


def _difference(operation: Operation, chart: Any, points: dict[str, Array], found: Array, truth: Array) -> np.ndarray:
    if operation.result == "point":
        out = exact.dist(found, truth)
    elif operation.result == "number":
        out = abs(found - truth)
    else:
        out = exact.norm(found - truth)
    # What is not a number is not near either.
    return np.nan_to_num(out.astype(float), nan=np.inf)


def _rounding_limit(
    operation: Operation,
    chart: Any,
    dtype: torch.dtype,
    numbers: list[Array],
    points: dict[str, Array],
    truth: Array,
    rng: np.random.Generator,
) -> np.ndarray:
    """The largest of the moves of the exact result."""
    moved = np.zeros(len(truth))

    def move(values: Array) -> Array:
        return values + exact.rounding(values, dtype) * exact.decimals(rng.choice([-1.0, 1.0], size=values.shape))

    for _ in range(MOVES):
        others = [move(n) for n in numbers]
        _, result = _truth(operation, chart, others)
        moved = np.maximum(moved, _difference(operation, chart, points, result, truth))
        rounded = _encode(operation, chart, points, truth)
        if rounded is not None:
            result = _decode(operation, chart, points, move(rounded))
            moved = np.maximum(moved, _difference(operation, chart, points, result, truth))
    return moved


def rows(name: str, samples: int = SAMPLES) -> Iterator[tuple[Operation, torch.dtype, dict[float, Errors]]]:
    """Every operation on a chart, in both precisions, at the distances that the coordinates hold."""
    for operation in OPERATIONS:
        for dtype in DTYPES:
            reach = CHARTS[name][0](1.0).reach(dtype)
            distances = [s for s in DISTANCES if s + 1 <= reach]
            yield operation, dtype, {s: measure(operation, name, dtype, s, samples) for s in distances}


def run(args: argparse.Namespace) -> int:
    args.output.mkdir(exist_ok=True)
    worse = 0
    for name in CHARTS:
        with _table(args.output, name).open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["operation", "points", "dtype", *(f"s = {s:g}" for s in DISTANCES)])
            for operation, dtype, errors in rows(name, args.samples):
                cells = [str(errors[s]) if s in errors else "" for s in DISTANCES]
                row = [operation.name, operation.place, str(dtype).removeprefix("torch."), *cells]
                table.writerow(row)
                bad = [s for s, e in errors.items() if not e.ok]
                worse += len(bad)
                print(f"{name:<12}{row[0]:<34}{row[1]:<7}{row[2]:<8}", *(f"{c:<18}" for c in cells), bad, flush=True)
    print(f"{worse} of the errors above exceed {ALLOWED:g} times their rounding limit")
    return int(args.check and worse > 0)


def _table(output: Path, name: str) -> Path:
    return output / f"accuracy_{name}.csv"


def tables(text: str) -> Path:
    """A folder that the tables can be written to."""
    path = folder(text)
    if path.is_dir():
        for name in CHARTS:
            output_file(str(_table(path, name)))
    return path


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.accuracy")
    docs = Path(__file__).resolve().parents[1] / "docs" / "tables"
    p.add_argument("--output", type=tables, default=str(docs), help="folder for the tables")
    p.add_argument("--samples", type=positive(int), default=SAMPLES, help="points per number")
    text = f"end with status 1 if an error exceeds {ALLOWED:g} times its rounding limit"
    p.add_argument("--check", action="store_true", help=text)
    return p


main = command(parser, run, go_on="start again")


if __name__ == "__main__":
    raise SystemExit(main())
