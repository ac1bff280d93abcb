"""Euclidean distances of all pairs and their derivatives."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_hyperbolic.ops.pairs import broadcast_square, norm_by_columns, pairwise_norm
from tests.helpers import same


def points(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("norm", [pairwise_norm, norm_by_columns])
@pytest.mark.parametrize("dim", [1, 2, 7])
def test_values(norm, dim):
    x, y = points(5, dim), points(4, dim)
    same(norm(x, y), torch.linalg.vector_norm(x.unsqueeze(1) - y, dim=-1), 1e-14)


@pytest.mark.parametrize("norm", [pairwise_norm, norm_by_columns])
def test_near_pairs_do_not_cancel(norm):
    x = torch.tensor([[1.0, 1.0]])
    y = torch.tensor([[1.0, 1.0 + 2**-20]])
    assert norm(x, y).item() == 2**-20


@pytest.mark.parametrize("leading", [((), ()), ((3,), ()), ((3, 1), (2,))])
def test_leading_dimensions_broadcast(leading):
    x, y = points(*leading[0], 5, 2), points(*leading[1], 4, 2)
    together = pairwise_norm(x, y)
    same(together, torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), dim=-1), 1e-14)
    assert gradcheck(pairwise_norm, (x, y))


def test_derivatives():
    x, y = points(4, 3), points(5, 3)
    assert gradcheck(pairwise_norm, (x, y))
    assert gradgradcheck(pairwise_norm, (x, y))
    assert gradcheck(lambda x: pairwise_norm(x, x[1:] + 1.0), (x,))


def test_derivatives_at_distance_zero_are_zero():
    x = points(3, 2)
    norm = pairwise_norm(x, x)
    (first,) = torch.autograd.grad(norm.diagonal().sum(), x, create_graph=True)
    assert (first == 0).all()
    (first,) = torch.autograd.grad(norm.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.isfinite().all()


def test_transforms():
    x, y = points(6, 4, 3).detach(), points(5, 3).detach()

    def total(x: torch.Tensor) -> torch.Tensor:
        return pairwise_norm(x, y).sin().sum()

    expected = torch.stack([grad(total)(own) for own in x])
    same(vmap(grad(total))(x), expected, 1e-13)
    traced = make_fx(vmap(grad(total)))(x)
    same(traced(x + 0.5), vmap(grad(total))(x + 0.5), 1e-13)


BROADCAST = [
    ((5, 1, 3), (4, 3)),
    ((2, 5, 1, 3), (2, 1, 4, 3)),
    ((2, 5, 1, 3), (4, 3)),
    ((5, 1, 3), (5, 4, 3)),
    ((3,), (4, 3)),
]


@pytest.mark.parametrize(("first", "second"), BROADCAST, ids=str)
def test_squares(first, second):
    x, y = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (first, second))
    torch.testing.assert_close(broadcast_square(x, y), (x - y).square().sum(-1))
    assert gradcheck(broadcast_square, (x, y), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(broadcast_square, (x, y))


def test_squares_of_near_points_do_not_cancel():
    x = torch.ones(1, 1, 2, dtype=torch.float64)
    torch.testing.assert_close(broadcast_square(x, x[0] + 2.0**-40), torch.full((1, 1), 2.0**-79, dtype=torch.float64))
