"""Normal coordinates at another point than the origin, without the point."""

import pytest
import torch
from torch.autograd import gradcheck

from pyro_hyperbolic.geometry import Lorentz, PoincareBall
from pyro_hyperbolic.geometry.recentre import recentre
from tests.helpers import same


def coords(scale, dim=3, count=50):
    generator = torch.Generator().manual_seed(dim)
    return scale * torch.randn(count, dim, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("chart", [PoincareBall, Lorentz])
@pytest.mark.parametrize("c", [1e-8, 1e-3, 0.7, 16.0])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_as_by_the_points(chart, c, dim):
    space = chart(c)
    m, v = coords(0.5, dim), coords(1.0, dim).flip(0)
    x, z = (space.from_normal_coords(None, u) for u in (m, v))
    same(recentre(m, v, c), space.to_normal_coords(x, z), 1e-9)


def test_flat_space():
    m, v = coords(2.0), coords(1.0).flip(0)
    same(recentre(m, v, 0.0), v - m, 1e-14)


@pytest.mark.parametrize("reach", [15.0, 25.0, 100.0, 300.0])
def test_beyond_the_reach_of_the_ball(reach):
    # The hyperboloid still holds these.
    space = Lorentz(1.0)
    m, v = coords(1.0), coords(1.0).flip(0)
    v = reach * v / v.norm(dim=-1, keepdim=True)
    x, z = (space.from_normal_coords(None, u) for u in (m, v))
    same(recentre(m, v, 1.0), space.to_normal_coords(x, z), 1e-8)


def test_no_end():
    v = torch.tensor([[1e2, 0.0], [1e4, 0.0], [1e8, 0.0]], requires_grad=True)
    w = recentre(torch.tensor([0.5, 0.2]), v, 1.0).norm(dim=-1)
    assert (w.diff() > 0).all()
    (slope,) = torch.autograd.grad(w.sum(), v)
    assert slope.isfinite().all()


def test_derivatives():
    m = torch.tensor([[0.3, 0.2], [0.0, 0.0], [0.3, 0.2], [25.0, 0.0]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([[1.0, 2.0], [0.5, 0.0], [30.0, 5.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    c = torch.tensor([[0.7], [0.7], [0.7], [1.0]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(recentre, (m, v, c))


@pytest.mark.parametrize("c", [0.0, 0.7])
def test_derivatives_are_finite_where_point_and_centre_meet(c):
    m = torch.tensor([[0.3, 0.2], [0.0, 0.0], [30.0, 0.0]], requires_grad=True)
    v, c = m.detach().clone().requires_grad_(), torch.tensor(c, requires_grad=True)
    w = recentre(m, v, c)
    assert (w == 0).all()
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(w.sum(), (m, v, c)))


@pytest.mark.parametrize("c", [torch.inf, torch.nan, -1.0])
def test_what_is_no_curvature_gives_no_number(c):
    assert recentre(torch.ones(2), torch.tensor([0.5, 2.0]), torch.tensor([c])).isnan().any()
