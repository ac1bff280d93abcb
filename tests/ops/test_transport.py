"""White noise carried to the radius of the Riemannian normal."""

import pytest
import torch
from scipy import stats
from torch.autograd import gradcheck

from pyro_hyperbolic.distributions import HyperbolicRadius
from pyro_hyperbolic.ops.transport import length_of_noise, stretch
from tests.helpers import same

RHO = torch.logspace(-2, 1.2, 50, dtype=torch.float64)
every_dim = pytest.mark.parametrize("dim", [1, 2, 5, 50])
every_q = pytest.mark.parametrize("q", [0.0, 1e-8, 0.5, 4.0, 1e4])


@every_dim
@every_q
def test_quantiles_are_kept(dim, q):
    y = RHO * stretch(RHO, torch.full_like(RHO, q), dim)
    expected = torch.from_numpy(stats.chi(dim).cdf(RHO.numpy()))
    inside = (expected > 1e-5) & (expected < 1 - 1e-5)
    actual = HyperbolicRadius(dim, torch.ones((), dtype=torch.float64), q).cdf(y)
    same(actual[inside], expected[inside], 1e-5)


@every_dim
@every_q
def test_the_inverse(dim, q):
    q = torch.full_like(RHO, q)
    same(length_of_noise(RHO * stretch(RHO, q, dim), q, dim) / RHO, torch.ones_like(RHO), 1e-9)


@every_dim
def test_flat_space_is_left_alone(dim):
    same(stretch(RHO, torch.zeros_like(RHO), dim), torch.ones_like(RHO), 1e-6)


@every_dim
def test_no_end_in_either_direction(dim):
    # Beyond the quantiles of the table, down to the centre and far out.
    rho = torch.tensor([0.0, 1e-9, 1e-3, 9.0, 15.0, 40.0], dtype=torch.float64, requires_grad=True)
    y = rho * stretch(rho, torch.full_like(rho, 0.5), dim)
    assert (y.diff() > 0).all()
    (slope,) = torch.autograd.grad(y.sum(), rho)
    assert (slope > 0).all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("dim", [2, 5])
def test_derivatives(dim):
    rho = torch.tensor([0.4, 1.3, 3.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.5, 0.1, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda rho, q: stretch(rho, q, dim), (rho, q))


@every_dim
@pytest.mark.parametrize("q", [torch.inf, torch.nan])
def test_what_is_no_curvature_gives_no_number(dim, q):
    assert not stretch(torch.ones(1), torch.tensor([q]), dim).isfinite().any()
