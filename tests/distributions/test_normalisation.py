"""Densities integrate to one, over points that know nothing of the distribution."""

import math

import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.distributions.cases import NORMALS, NormalCase
from tests.helpers import gauss_legendre

DISC = [case for case in NORMALS if case.dim == 2 and case.chart is PoincareBall] + [
    NormalCase(hdist.WrappedNormal, "diagonal", 2, 1.4),
    NormalCase(hdist.WrappedNormal, "full", 2, 0.7),
    NormalCase(hdist.RiemannianNormal, "isotropic", 2, 0.3),
]
LINE = [case for case in NORMALS if case.dim == 1 and case.chart is PoincareBall]
REACH = 12.0  # distance from the origin beyond which none of the distributions has mass


def _gauss(count, low, high):
    nodes, weights = gauss_legendre(count)
    half = (high - low) / 2
    return torch.tensor(low + half * (1 + nodes)), torch.tensor(half * weights)


def _disc(c):
    """Points of the disc with their radius, the radius in the ball and the weights of (radius, angle)."""
    r, weight = _gauss(240, 0.0, REACH)
    angle = 2 * math.pi * torch.arange(240, dtype=torch.float64) / 240
    unit = torch.stack([angle.cos(), angle.sin()], -1)
    rho = torch.tanh(math.sqrt(c) * r / 2) / math.sqrt(c) if c > 0 else r / 2
    points = rho[:, None, None] * unit
    return points, r, rho, (weight * 2 * math.pi / 240)[:, None]


@pytest.mark.parametrize("case", DISC, ids=str)
def test_riemannian_density_on_the_disc(case):
    points, r, _, weight = _disc(case.c)
    circumference = torch.sinh(math.sqrt(case.c) * r) / math.sqrt(case.c) if case.c > 0 else r
    total = (case.make().log_prob(points).exp() * circumference[:, None] * weight).sum()
    assert total.item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("case", DISC, ids=str)
def test_lebesgue_density_on_the_disc(case):
    points, r, rho, weight = _disc(case.c)
    slope = 0.5 / torch.cosh(math.sqrt(case.c) * r / 2) ** 2  # d rho / d r
    total = (case.make().lebesgue_log_prob(points).exp() * (rho * slope)[:, None] * weight).sum()
    assert total.item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("case", LINE, ids=str)
def test_riemannian_density_on_the_line(case):
    x, weight = _gauss(400, -REACH, REACH)
    points = torch.tanh(math.sqrt(case.c) * x / 2) / math.sqrt(case.c)
    total = (case.make().log_prob(points.unsqueeze(-1)).exp() * weight).sum()
    assert total.item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("case", LINE, ids=str)
def test_lebesgue_density_on_the_line(case):
    points, weight = _gauss(400, -1 / math.sqrt(case.c), 1 / math.sqrt(case.c))
    total = (case.make().lebesgue_log_prob(points.unsqueeze(-1)).exp() * weight).sum()
    assert total.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("c", [1e-6, 0.1, 1.4])
@pytest.mark.parametrize("scale", [0.1, 0.5])
@pytest.mark.parametrize("dim", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_isotropic_density_by_radial_quadrature(distribution, dim, scale, c):
    ball = PoincareBall(c)
    loc = torch.zeros(dim, dtype=torch.float64)
    far = scale * (8 + math.sqrt(dim) + dim * math.sqrt(c) * scale)
    r, weight = _gauss(600, 0.0, min(far, ball.reach(torch.float64)))
    direction = torch.ones(dim, dtype=torch.float64) / math.sqrt(dim)
    points = ball.from_normal_coords(loc, r.unsqueeze(-1) * direction)
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    log_shell = log_area + (dim - 1) * torch.log(torch.sinh(math.sqrt(c) * r) / math.sqrt(c))
    total = ((distribution(loc, scale, ball).log_prob(points) + log_shell).exp() * weight).sum()
    assert total.item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("c", [0.0, 0.1, 1.4])
@pytest.mark.parametrize("dim", [1, 2, 10, 100])
def test_density_of_the_radius(dim, c):
    radius = hdist.HyperbolicRadius(dim, torch.tensor(0.7, dtype=torch.float64), c)
    low, high = (radius.mean - 9 * 0.7).clamp(min=0).item(), (radius.mean + 9 * 0.7).item()
    r, weight = _gauss(200, low, high)
    assert (radius.log_prob(r).exp() * weight).sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_density_of_the_sphere_is_one_over_its_area(dim):
    area = {1: 2.0, 2: 2 * math.pi, 3: 4 * math.pi, 8: math.pi**4 / 3}[dim]
    distribution = hdist.HypersphericalUniform(dim, dtype=torch.float64)
    assert distribution.log_prob(distribution.sample()).exp().item() == pytest.approx(1 / area)
