"""Properties over the whole range of dimensions, curvatures, scales and shapes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.helpers import LOG_PROB, same

thorough = settings(
    derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], database=None
)
every_distribution = pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])

dims = st.sampled_from([1, 2, 3, 7, 20])  # a table is made for each
curvatures = st.one_of(st.just(0.0), st.floats(1e-6, 16.0))
scales = st.floats(0.005, 6.0)
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64])
distances = st.floats(0.0, 3.0)


def _distribution(distribution, dim, c, scale, batch, dtype, distance):
    ball = PoincareBall(c)
    direction = torch.randn(*batch, dim, dtype=dtype)
    loc = ball.from_normal_coords(None, distance * direction / direction.norm(dim=-1, keepdim=True))
    return distribution(loc, scale, ball)


def _representable(distribution):
    """Whether the coordinates hold the distribution: the distribution says so itself."""
    try:
        distribution.rsample()
    except ValueError as error:
        if "coordinates end at" not in str(error):
            raise
        return False
    return True


@every_distribution
@given(dim=dims, c=curvatures, scale=scales, batch=shapes, sample_shape=shapes, dtype=dtypes, distance=distances)
@thorough
def test_samples_and_densities(distribution, dim, c, scale, batch, sample_shape, dtype, distance):
    p = _distribution(distribution, dim, c, scale, batch, dtype, distance)
    if not _representable(p):
        return
    z = p.rsample(sample_shape)
    assert z.shape == sample_shape + batch + (dim,)
    assert z.dtype == dtype
    assert p.support.check(z).all()
    for log_prob in (p.log_prob(z), p.log_prob(z.clone())):
        assert log_prob.shape == sample_shape + batch
        assert log_prob.isfinite().all()


@every_distribution
@given(dim=dims, c=curvatures, scale=scales, batch=shapes, dtype=dtypes, distance=distances)
@thorough
def test_density_is_largest_at_loc(distribution, dim, c, scale, batch, dtype, distance):
    p = _distribution(distribution, dim, c, scale, batch, dtype, distance)
    at_loc = p.log_prob(p.loc)
    assert at_loc.isfinite().all()
    if _representable(p):
        z = p.rsample((5,))
        assert (p.log_prob(z) <= at_loc).all()


@every_distribution
@given(dim=dims, c=curvatures, scale=scales, k=st.floats(0.1, 10.0))
@thorough
def test_change_of_unit_of_length(distribution, dim, c, scale, k):
    """Lengths in another unit: curvature divided by ``k^2``, scale and coordinates multiplied by ``k``."""
    point = torch.full((dim,), 0.4 / dim**0.5, dtype=torch.float64) / max(1.0, c) ** 0.5
    loc = -0.5 * point
    one = distribution(loc, scale, PoincareBall(c)).log_prob(point)
    other = distribution(k * loc, k * scale, PoincareBall(c / k**2)).log_prob(k * point)
    same(other + dim * torch.tensor(k, dtype=torch.float64).log(), one, LOG_PROB[torch.float64])


@given(dim=dims, c=curvatures, scale=scales, u=st.floats(1e-4, 1 - 1e-4))
@thorough
def test_quantiles_invert_the_distribution_function(dim, c, scale, u):
    radius = hdist.HyperbolicRadius(dim, torch.tensor(scale, dtype=torch.float64), c)
    same(radius.cdf(radius.icdf(torch.tensor(u, dtype=torch.float64))), u, 1e-6)


@given(dim=dims, c=curvatures, scale=scales, u=st.floats(1e-3, 0.99), v=st.floats(1e-3, 0.99), dtype=dtypes)
@thorough
def test_quantiles_increase(dim, c, scale, u, v, dtype):
    radius = hdist.HyperbolicRadius(dim, torch.tensor(scale, dtype=dtype), c)
    low, high = sorted((u, v))
    assert 0 < radius.icdf(torch.tensor(low, dtype=dtype)) <= radius.icdf(torch.tensor(high, dtype=dtype))


@given(dim=st.sampled_from([2, 3, 7, 20]), c=curvatures, scale=scales, factor=st.floats(1.1, 3.0))
@thorough
def test_radius_grows_with_curvature_and_scale(dim, c, scale, factor):
    mean = hdist.HyperbolicRadius(dim, torch.tensor(scale, dtype=torch.float64), c).mean
    wider = hdist.HyperbolicRadius(dim, torch.tensor(factor * scale, dtype=torch.float64), c).mean
    curved = hdist.HyperbolicRadius(dim, torch.tensor(scale, dtype=torch.float64), factor * c + 0.1).mean
    assert wider > mean
    assert curved > mean
