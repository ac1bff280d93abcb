"""Operations of the Poincaré ball: how they broadcast, their dtypes and their memory."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from pyro_hyperbolic import PoincareBall
from tests.geometry.cases import OPS, Case
from tests.helpers import ROUNDING, LargestStorage, each, same

operations = each("name", OPS)


@operations
def test_leading_dimensions_broadcast(name):
    op, case = OPS[name], Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    for leading in [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((0,), ())]:
        shapes = [leading[i % 2] for i in range(len(op.arguments))]
        arguments = [case.arguments(op, *shape)[i] for i, shape in enumerate(shapes)]
        out = getattr(case.ball, name)(*arguments)
        expected = torch.broadcast_shapes(*shapes)
        assert out.shape == (expected if op.returns == "number" else expected + (5,)), leading


@operations
def test_broadcast_values_are_those_of_the_rows(name):
    op, case = OPS[name], Case(dim=5, c=0.7, radius=1.0)
    arguments = [a[0] if i % 2 else a for i, a in enumerate(case.arguments(op, 3))]
    f = getattr(case.ball, name)
    rows = [f(*(a if i % 2 else a[k] for i, a in enumerate(arguments))) for k in range(3)]
    same(f(*arguments), torch.stack(rows), ROUNDING[torch.float64])


@operations
def test_vmap_over_points_and_curvature(name):
    op, case = OPS[name], Case(dim=3, c=0.7, radius=1.0)
    arguments = case.arguments(op, 4)
    c = torch.tensor([0.0, 0.1, 0.5, 0.7], dtype=torch.float64)
    actual = vmap(lambda c, *args: getattr(PoincareBall(c), name)(*args))(c, *arguments)
    rows = [getattr(PoincareBall(c[k]), name)(*(a[k] for a in arguments)) for k in range(4)]
    same(actual, torch.stack(rows), ROUNDING[torch.float64])


@operations
@pytest.mark.parametrize("c", [0.0, 0.7])
def test_tensor_curvature_gives_the_same_values(name, c):
    op, case = OPS[name], Case(dim=3, c=c, radius=1.0)
    arguments = case.arguments(op, 4)
    by_tensor = getattr(PoincareBall(torch.tensor(c, dtype=torch.float64)), name)(*arguments)
    same(by_tensor, getattr(PoincareBall(c), name)(*arguments), ROUNDING[torch.float64])


@operations
@pytest.mark.parametrize("shape", [(), (4,)])
def test_dtype_is_that_of_the_points(name, shape):
    op, case = OPS[name], Case(dim=3, c=0.7, radius=1.0, dtype=torch.float32)
    for c in (0.7, torch.tensor(0.7), torch.tensor(0.7, dtype=torch.float64)):
        assert getattr(PoincareBall(c), name)(*case.arguments(op, *shape)).dtype == torch.float32


@pytest.mark.parametrize("leading", [((), ()), ((3,), ()), ((2, 1), (3,))])
def test_pairwise_distances_broadcast(leading):
    case = Case(dim=5, c=0.7, radius=1.0, dtype=torch.float32)
    out = case.ball.pairwise_dist(case.point(*leading[0], 4), case.point(*leading[1], 6))
    assert out.shape == torch.broadcast_shapes(*leading) + (4, 6)


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_pairwise_distances_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, y = case.point(30).requires_grad_(), case.point(40).requires_grad_()
    with LargestStorage() as largest:
        PoincareBall(c).pairwise_dist(x, y).sum().backward()
    assert largest.numel == 40 * 100  # the larger input, not 30 * 40 * 100


@pytest.mark.parametrize("c", [0.7, torch.tensor(0.7, requires_grad=True)], ids=["float", "tensor"])
def test_many_gyroplanes_take_memory_for_the_pairs_only(c):
    case = Case(dim=100, c=0.7, radius=1.0, dtype=torch.float32)
    x, p, a = case.point(30, 1).requires_grad_(), case.point(40).requires_grad_(), case.vector(40).requires_grad_()
    with LargestStorage() as largest:
        PoincareBall(c).dist2plane(x=x, p=p, a=a).sum().backward()
    assert largest.numel == 40 * 101  # the planes, not 30 * 40 * 100
