"""How coordinates change with the point they are taken at, against the derivative of the maps themselves."""

import pytest
import torch

from pyro_hyperbolic.geometry import Lorentz, PoincareBall
from pyro_hyperbolic.geometry.variation import base_point_variation
from tests.helpers import same

CHARTS = [PoincareBall(0.0), PoincareBall(0.7), PoincareBall(1.4), Lorentz(0.7), Lorentz(1.4)]
every_chart = pytest.mark.parametrize("chart", CHARTS, ids=repr)


def draws(dim, *lengths, count=50):
    noise = torch.Generator().manual_seed(dim)
    v = [torch.randn(count, dim, generator=noise, dtype=torch.float64) for _ in lengths]
    return [length * x / x.norm(dim=-1, keepdim=True) for length, x in zip(lengths, v, strict=True)]


@every_chart
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("far", [1.0, 4.0])
def test_it_is_the_derivative_of_the_logarithm_of_the_exponential(chart, dim, far):
    m, v, dm = draws(dim, far, 1.3, 1.0)
    x = chart.from_normal_coords(None, m)

    def coords(moved):
        return chart.to_normal_coords(x, chart.from_normal_coords(chart.from_normal_coords(None, moved), v))

    value, slope = torch.autograd.functional.jvp(coords, m, dm)
    same(value, v, 1e-9)
    same(base_point_variation(m, v, dm, chart.c), slope, 1e-9)


@pytest.mark.parametrize("c", [0.0, 1.0])
def test_at_the_origin_and_at_the_point_itself(c):
    zero, (v, dm) = torch.zeros(50, 3, dtype=torch.float64), draws(3, 1.3, 1.0)
    torch.testing.assert_close(base_point_variation(zero, zero, dm, c), dm)
    along = base_point_variation(zero, v, v, c)
    torch.testing.assert_close(along, v)


@pytest.mark.parametrize("far", [10.0, 40.0, 80.0])
def test_it_keeps_its_digits_far_out(far):
    # There the coordinates of the two points do not tell one from the other.
    m, v, dm = draws(3, far, 1.3, 1.0)
    exact = base_point_variation(m, v, dm, 1.0)
    single = base_point_variation(m.float(), v.float(), dm.float(), 1.0)
    same(single, exact, 1e-4, scale=exact.norm(dim=-1, keepdim=True))
