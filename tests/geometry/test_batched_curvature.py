"""A curvature with a batch shape: every operation equals a loop over scalar curvatures."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry.variation import base_point_variation
from tests.helpers import DTYPES, ROUNDING, in_turns, same
from tests.loop import SHAPES, curvatures, equals_loop

D = 3
CHARTS = [PoincareBall, Lorentz]
every_chart = pytest.mark.parametrize("chart", CHARTS)

# Operations on points x, y, the tangent vectors u and v at x, w at the origin, a number t and a matrix m.
OPS = {
    "mobius_add": lambda M, a: M.mobius_add(a.x, a.y),
    "mobius_sub": lambda M, a: M.mobius_sub(a.x, a.y),
    "mobius_coadd": lambda M, a: M.mobius_coadd(a.x, a.y),
    "mobius_cosub": lambda M, a: M.mobius_cosub(a.x, a.y),
    "mobius_pointwise_mul": lambda M, a: M.mobius_pointwise_mul(a.coords, a.x),
    "mobius_fn_apply_chain": lambda M, a: M.mobius_fn_apply_chain(a.x, torch.tanh, torch.neg),
    "mobius_scalar_mul": lambda M, a: M.mobius_scalar_mul(a.t, a.x),
    "mobius_matvec": lambda M, a: M.mobius_matvec(a.m, a.x),
    "gyration": lambda M, a: M.gyration(a.x, a.y, a.w),
    "inner": lambda M, a: M.inner(a.x, a.u, a.v),
    "norm": lambda M, a: M.norm(a.x, a.u),
    "expmap": lambda M, a: M.expmap(a.x, a.u),
    "logmap": lambda M, a: M.logmap(a.x, a.y),
    "expmap0": lambda M, a: M.expmap0(a.w),
    "logmap0": lambda M, a: M.logmap0(a.x),
    "from_normal_coords": lambda M, a: M.from_normal_coords(a.x, a.coords),
    "to_normal_coords": lambda M, a: M.to_normal_coords(a.x, a.y),
    "to_normal_coords0": lambda M, a: M.to_normal_coords(None, a.x),
    "frame": lambda M, a: M.frame(a.x, a.coords),
    "dist": lambda M, a: M.dist(a.x, a.y),
    "dist0": lambda M, a: M.dist0(a.x),
    "transp": lambda M, a: M.transp(a.x, a.y, a.u),
    "transp0": lambda M, a: M.transp0(a.x, a.w),
    "geodesic": lambda M, a: M.geodesic(a.t, a.x, a.y),
    "geodesic_unit": lambda M, a: M.geodesic_unit(a.t, a.x, a.u),
    "transp0back": lambda M, a: M.transp0back(a.x, a.u),
    "coframe": lambda M, a: M.coframe(a.x, a.u),
    "proju": lambda M, a: M.proju(a.x, a.u.flip(-1)),
    "egrad2rgrad": lambda M, a: M.egrad2rgrad(a.x, a.u.flip(-1)),
    "weighted_midpoint": lambda M, a: M.unsqueeze().weighted_midpoint(torch.stack([a.x, a.y], -2), reducedim=[-2]),
    "dist2plane": lambda M, a: M.dist2plane(a.x, a.y, M.transp(a.x, a.y, a.u)),
    "dist2plane-unsigned": lambda M, a: M.dist2plane(a.x, a.y, M.transp(a.x, a.y, a.u), signed=False),
    "projx": lambda M, a: M.projx(2 * a.x),
    "contains": lambda M, a: M.contains(a.x).double(),
    "log_volume_element": lambda M, a: M.log_volume_element(a.x),
    "origin": lambda M, a: M.dist(M.origin(D, torch.float64), a.x),
    "variation": lambda M, a: base_point_variation(
        a.coords, a.coords.flip(-1), a.t.unsqueeze(-1) * a.coords, M.aligned_c(a.x)
    ),
}
OF_ONE_CHART = {
    "lambda_x": (PoincareBall, lambda M, a: M.lambda_x(a.x)),
    "inner0": (Lorentz, lambda M, a: M.inner0(a.x)),
    "to_poincare": (Lorentz, lambda M, a: M.to_poincare(a.x)),
    "from_poincare": (Lorentz, lambda M, a: M.from_poincare(0.5 * a.coords)),
}
ROWS = [(name, chart, op) for name, op in OPS.items() for chart in CHARTS]
ROWS += [(name, chart, op) for name, (chart, op) in OF_ONE_CHART.items()]


class Arguments:
    """Arguments of an operation on a manifold, from tensors that know no curvature: ``(..., 5, d)``."""

    def __init__(self, manifold, coords, t, m):
        self.coords, self.t, self.m = 0.3 * coords[..., 0, :], t, m
        self.x, self.y = (manifold.from_normal_coords(None, coords[..., i, :]) for i in (0, 1))
        self.u, self.v = (manifold.frame(self.x, coords[..., i, :]) for i in (2, 3))
        w = coords[..., 4, :]
        self.w = w if isinstance(manifold, PoincareBall) else torch.cat([torch.zeros_like(w[..., :1]), w], -1)


def leaves(batch, dtype=torch.float64):
    noise = torch.Generator().manual_seed(3)
    shapes = [(5, D), (), (D, D)]
    tensors = [torch.randn((*batch, *shape), generator=noise, dtype=torch.float64).to(dtype) for shape in shapes]
    return [(0.4 * t).requires_grad_() for t in tensors]


# One of the shapes for each operation and chart, in turns.
SHAPED = [(*row, *shape) for row, shape in in_turns(ROWS, SHAPES)]


@pytest.mark.parametrize(
    ("chart", "op", "shape", "batch"),
    [row[1:] for row in SHAPED],
    ids=[f"{name}-{chart.__name__}-{shape}-{batch}" for name, chart, _, shape, batch in SHAPED],
)
def test_operation_equals_loop(chart, op, shape, batch):
    def f(c, coords, t, m):
        manifold = chart(c)
        return op(manifold, Arguments(manifold, coords, t, m))

    c = curvatures(shape, flat=chart is PoincareBall)
    equals_loop(f, c, leaves(batch), [2, 0, 2], ROUNDING[torch.float64])


# Operations that join the points of a set (..., N, D): c has size 1 in its last dimension.
SETS = {
    "pairwise_dist": lambda M, x, y, weights: M.pairwise_dist(x, y),
    "frechet_mean": lambda M, x, y, weights: M.frechet_mean(x),
    "frechet_mean-weights": lambda M, x, y, weights: M.frechet_mean(x, weights),
}


@every_chart
@pytest.mark.parametrize("op", SETS.values(), ids=SETS)
@pytest.mark.parametrize(("shape", "batch"), [((1,), ()), ((2, 1), ()), ((2, 1), (2,)), ((3, 1, 1), (2,))], ids=str)
def test_operation_on_sets_equals_loop(chart, op, shape, batch):
    def f(c, x, y, weights):
        manifold = chart(c.unsqueeze(-1))
        return op(manifold, manifold.from_normal_coords(None, x), manifold.from_normal_coords(None, y), weights)

    noise = torch.Generator().manual_seed(4)
    x, y = (torch.randn((*batch, n, D), generator=noise, dtype=torch.float64).requires_grad_() for n in (4, 5))
    weights = torch.rand((*batch, 4), generator=noise, dtype=torch.float64).requires_grad_()
    c = curvatures(shape[:-1], flat=chart is PoincareBall)
    equals_loop(f, c, [x, y, weights], [2, 2, 1], 10 * ROUNDING[torch.float64])


@every_chart
@pytest.mark.parametrize("op", SETS.values(), ids=SETS)
def test_a_curvature_per_point_of_a_set_is_refused(chart, op):
    manifold = chart(torch.ones(4))
    x = manifold.from_normal_coords(None, torch.zeros(4, D))
    with pytest.raises(ValueError, match=r"c must have size 1 in its last dimension.*got shape \(4,\).*unsqueeze"):
        op(manifold, x, x, torch.ones(4))


@every_chart
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_points_decide_the_dtype(chart, shape, dtype):
    for kind in DTYPES:
        manifold = chart(torch.ones(shape, dtype=kind))
        x = manifold.from_normal_coords(None, torch.ones(D, dtype=dtype))
        assert x.dtype == manifold.dist0(x).dtype == manifold.origin(D, dtype).dtype == dtype


@every_chart
def test_function_transforms(chart):
    c, v = curvatures((3,), flat=False).detach(), torch.randn(3, D, dtype=torch.float64)

    def f(c, v):
        manifold = chart(c)
        return manifold.dist(manifold.from_normal_coords(None, v), manifold.from_normal_coords(None, v.flip(-1)))

    same(torch.func.vmap(f)(c, v), f(c, v), ROUNDING[torch.float64])
    same(torch.func.vmap(torch.func.grad(f))(c, v), torch.func.grad(lambda c: f(c, v).sum())(c), 1e-12)
    tangents = torch.ones_like(c)
    same(torch.func.jvp(lambda c: f(c, v), (c,), (tangents,))[1], torch.func.grad(lambda c: f(c, v).sum())(c), 1e-12)


def test_shape_of_the_origin():
    c = torch.tensor([[1.0], [4.0]])
    origin = Lorentz(c).origin(D)
    assert origin.shape == (2, 1, D + 1)
    same(origin[..., 0], 1 / c.sqrt(), 1e-6)
    assert PoincareBall(c).origin(D).shape == (D,)


@every_chart
def test_reach_is_one_number_per_curvature(chart):
    c = torch.tensor([1.0, 4.0])
    reach = chart(c).reach(torch.float32)
    same(reach, [chart(value.item()).reach(torch.float32) for value in c], 1e-12)


@every_chart
def test_equality(chart):
    c = torch.tensor([1.0, 2.0])
    assert chart(c) == chart(c.clone()) == chart(c.unsqueeze(0)) == chart(c.double())
    assert chart(torch.ones(1)) == chart(1.0)
    assert chart(c) != chart(torch.tensor([1.0, 2.5]))
    assert chart(c) != chart(torch.ones(3))
    assert chart(c) != chart(1.0)
    assert hash(chart(c)) == hash(chart(c.clone()))


@every_chart
def test_copies(chart):
    manifold = chart(torch.tensor([1.0, 2.0], requires_grad=True))
    for twin in (copy.deepcopy(manifold), pickle.loads(pickle.dumps(manifold))):
        assert twin == manifold
        assert twin.c is not manifold.c


@every_chart
def test_repr(chart):
    name = chart.__name__
    assert repr(chart(torch.tensor([1.0, 0.5]))) == f"{name}(c=[1, 0.5] of shape (2,))"
    assert repr(chart(torch.ones(3, 4))) == f"{name}(c=[1, 1, 1, 1, ...] of shape (3, 4))"
    shown = []
    torch.func.vmap(lambda c: shown.append(repr(chart(c))) or c)(torch.ones(2))
    assert shown == [f"{name}(c=<torch.float32 of shape ()>)"]


@every_chart
def test_the_value_that_is_no_curvature_is_named(chart):
    with pytest.raises(ValueError, match=r"c must be non-negative and finite, got -2\.0; pass"):
        chart(torch.tensor([1.0, -2.0]))
    with pytest.raises(ValueError, match=r"got torch.int64 of shape \(2,\); .*c\.float\(\)"):
        chart(torch.tensor([1, 2]))
