"""The Poincaré ball: values of the oracle, the border of a dtype, the object itself, and a second opinion."""

from __future__ import annotations

import copy
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.ops.tolerances import border_margin
from tests.geometry.cases import OPS, Case, every_case
from tests.helpers import DTYPES, GEOMETRY, ROUNDING, each, oracle, same

dtypes = each("dtype", DTYPES)


# --- the oracle -------------------------------------------------------------------------------------------------

# Column of the oracle: the operation and its arguments; the plane's distance is that of y.
ORACLE = {
    "mobius_add": ("mobius_add", {"x": "x", "y": "y"}),
    "expmap": ("expmap", {"x": "x", "v": "v"}),
    "logmap": ("logmap", {"x": "x", "y": "y"}),
    "dist": ("dist", {"x": "x", "y": "y"}),
    "dist0": ("dist0", {"x": "x"}),
    "lambda_x": ("lambda_x", {"x": "x"}),
    "gyroplane_signed_distance": ("dist2plane", {"x": "y", "p": "p", "a": "a"}),
}


@dtypes
@pytest.mark.parametrize("column", ORACLE)
def test_oracle(column, dtype):
    name, arguments = ORACLE[column]
    for row in oracle("geometry"):
        tensors = {key: torch.tensor(row[source], dtype=dtype) for key, source in arguments.items()}
        actual = getattr(PoincareBall(row["c"]), name)(**tensors)
        assert actual.dtype == dtype
        # A vector is measured by its length.
        size = torch.tensor(row[column], dtype=torch.float64).norm()
        same(actual, row[column], GEOMETRY[dtype], scale=size)


# --- the border -------------------------------------------------------------------------------------------------


@every_case
def test_projection_moves_no_inner_point(case):
    ball, x = case.ball, case.point(20)
    assert torch.equal(ball.projx(x), x)


@dtypes
@pytest.mark.parametrize("c", [1e-4, 1.0, 7.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_projection_lands_inside_at_the_margin(dtype, c, dim):
    x = 3 / math.sqrt(c) * torch.nn.functional.normalize(torch.randn(100, dim, dtype=dtype), dim=-1)
    ball = PoincareBall(c)
    inner = ball.projx(x)
    gap = 1 - c * inner.double().square().sum(-1)
    assert ball.contains(inner).all()
    assert ((gap > 0) & (gap < 2 * border_margin(dtype))).all()
    same(inner, x / 3, ROUNDING[dtype], scale=1 / math.sqrt(c))


@dtypes
@pytest.mark.parametrize("c", [1e-4, 1.0, 7.0])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_projection_is_idempotent(dtype, c, dim):
    ball = PoincareBall(c)
    once = ball.projx(3 / math.sqrt(c) * torch.nn.functional.normalize(torch.randn(100, dim, dtype=dtype), dim=-1))
    same(ball.projx(once), once, ROUNDING[dtype], scale=1 / math.sqrt(c))


def test_euclidean_space_has_no_border():
    x = 1e6 * torch.randn(5, 3)
    assert torch.equal(PoincareBall(0.0).projx(x), x)
    assert PoincareBall(0.0).contains(x).all()


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_contains(c):
    x = torch.tensor([[0.0, 0.0], [0.99, 0.0], [1.0, 0.0], [0.8, 0.8], [math.nan, 0.0], [math.inf, 0.0]]) / math.sqrt(c)
    assert PoincareBall(c).contains(x).tolist() == [True, True, False, False, False, False]


@dtypes
@pytest.mark.parametrize("c", [0.01, 1.0, 4.0])
def test_reach_is_the_distance_of_the_outermost_point(dtype, c):
    ball = PoincareBall(c)
    outermost = ball.projx(torch.tensor([10.0 / math.sqrt(c), 0.0], dtype=dtype))
    # The margin is eight eps, known to one.
    same(ball.dist0(outermost), ball.reach(dtype), 0.25 / math.sqrt(c), scale=1.0)


def test_reach_of_a_learnable_curvature():
    c = torch.tensor(4.0, requires_grad=True)
    assert PoincareBall(c).reach(torch.float32) == PoincareBall(4.0).reach(torch.float32)


def test_reach_of_euclidean_space_is_infinite():
    assert PoincareBall(0.0).reach(torch.float32) == math.inf


# --- the object -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "c",
    [-1.0, -1e-9, math.nan, math.inf, True, np.True_, "1", None, [1.0], 1j]
    + [torch.tensor(v) for v in (-1.0, math.nan, math.inf)]
    + [torch.tensor([1.0, -2.0]), torch.ones(2, dtype=torch.complex64), torch.tensor(1), torch.tensor(True)],
    ids=repr,
)
def test_bad_curvature(c):
    with pytest.raises(ValueError, match="c must be"):
        PoincareBall(c)


@pytest.mark.parametrize(
    "c", [0, 1, 0.5, np.int64(1), np.float32(0.5), torch.tensor(0.0), torch.tensor(2.0, dtype=torch.float64)], ids=repr
)
def test_good_curvature(c):
    assert PoincareBall(c).c == c


def test_curvature_is_kept_as_it_is():
    c = torch.tensor(1.0, requires_grad=True)
    assert PoincareBall(c).c is c


def test_curvature_known_to_be_valid_is_not_looked_at():
    c = torch.tensor(1.0, device="meta")
    assert PoincareBall(1.0).with_curvatures([c]).c is c


def test_equality():
    assert PoincareBall(1.0) == PoincareBall(1)
    assert PoincareBall(0.5) == PoincareBall(torch.tensor(0.5))
    assert PoincareBall(torch.tensor(0.5)) == PoincareBall(torch.tensor(0.5, dtype=torch.float64))
    assert PoincareBall(1.0) != PoincareBall(2.0)
    assert PoincareBall(1.0) != 1.0


def test_equal_balls_hash_alike():
    assert len({PoincareBall(0.5), PoincareBall(torch.tensor(0.5)), PoincareBall(0.5)}) == 1


@pytest.mark.parametrize("c", [0.5, torch.tensor(0.5), torch.tensor(0.5, requires_grad=True)], ids=repr)
def test_repr(c):
    assert repr(PoincareBall(c)) == "PoincareBall(c=0.5)"


@pytest.mark.parametrize("c", [0.5, torch.tensor(0.5, requires_grad=True)], ids=["float", "tensor"])
@pytest.mark.parametrize(
    "copy_of", [copy.deepcopy, lambda ball: pickle.loads(pickle.dumps(ball))], ids=["copy", "pickle"]
)
def test_copies(c, copy_of):
    ball = PoincareBall(c)
    other = copy_of(ball)
    assert other == ball
    assert other is not ball
    assert getattr(other.c, "requires_grad", None) == getattr(c, "requires_grad", None)


def test_copy_of_a_learnable_curvature_is_independent():
    c = torch.tensor(0.5, requires_grad=True)
    other = copy.deepcopy(PoincareBall(c))
    with torch.no_grad():
        c.fill_(2.0)
    assert other.c == 0.5


def test_origin():
    origin = PoincareBall(1.0).origin(3, dtype=torch.float64)
    assert torch.equal(origin, torch.zeros(3, dtype=torch.float64))


def test_one_coordinate_per_dimension():
    ball = PoincareBall(1.0)
    assert (ball.intrinsic_dim(5), ball.ambient_dim(5)) == (5, 5)


# --- a second opinion -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def geoopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it scripts its functions, which this torch calls deprecated
        return pytest.importorskip("geoopt")


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])  # it keeps c in float32
@pytest.mark.parametrize(
    "name",
    # Not inner, which sums over the batch there; the others are ours alone.
    sorted(OPS.keys() - {"inner", "coframe", "from_normal_coords", "to_normal_coords", "log_volume_element"}),
)
def test_geoopt_agrees(geoopt, name, c):
    case = Case(dim=4, c=c, radius=2 / math.sqrt(c))
    theirs = geoopt.PoincareBall(c=c)
    arguments = case.arguments(OPS[name], 50)
    options = {"signed": True} if name == "dist2plane" else {}
    other = list(arguments)
    if name in ("mobius_scalar_mul", "geodesic", "geodesic_unit"):
        other[0] = other[0].unsqueeze(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(theirs, name)(*other, **options)
    same(getattr(case.ball, name)(*arguments), expected, GEOMETRY[torch.float64])
