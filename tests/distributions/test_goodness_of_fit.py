"""Samples follow the densities."""

import math

import pytest
import torch
from scipy import stats

import pyro_hyperbolic.distributions as hdist
from tests.distributions.cases import CURVED, HYPERBOLIC, NORMALS
from tests.helpers import DTYPES, in_turns, oracle

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
ROWS = oracle("radius")
SPREAD = [*ROWS[3:81:13], ROWS[82], ROWS[86]]  # low and high dimensions, nearly flat to strongly curved
NUM_RADII = 1_000_000
LEAST_P = 1e-4  # a right sampler fails one of ten thousand tests, and the seeds are fixed


def _row_id(row):
    return f"d{row['d']}-c{row['c']:.3g}-sigma{row['sigma']:.3g}" if isinstance(row, dict) else str(row)


def _ks_p_value(sample, cdf, every=1):
    """Kolmogorov's test on every so manieth order statistic: the distribution of the others is pinned between them."""
    ordered = sample.flatten().sort().values
    n = ordered.numel()
    rank = torch.arange(0, n, every)
    distance = (cdf(ordered[rank]).double() - (rank + 0.5) / n).abs().max() + 0.5 / n
    return stats.kstwobign.sf(math.sqrt(n) * distance.item())


def _assert_radii_fit(row, dtype, count=NUM_RADII):
    scale, c = (torch.tensor(row[key], dtype=dtype) for key in ("sigma", "c"))
    distribution = hdist.HyperbolicRadius(row["d"], scale, c)
    sample = torch.cat([distribution.sample((count // 20,)) for _ in range(20)])
    exact = hdist.HyperbolicRadius(row["d"], scale.double(), c.double())  # quadrature: not what the sampler uses
    assert _ks_p_value(sample.double(), exact.cdf, every=count // 2000) > LEAST_P


@pytest.mark.parametrize(("row", "dtype"), in_turns(SPREAD), ids=_row_id)
def test_radii(row, dtype):
    _assert_radii_fit(row, dtype, NUM_RADII // 5)


@pytest.mark.slow
@every_dtype
@pytest.mark.parametrize("row", ROWS, ids=_row_id)
def test_radii_of_every_row(row, dtype):
    _assert_radii_fit(row, dtype)


def test_the_test_of_radii_can_fail():
    distribution = hdist.HyperbolicRadius(5, 1.0, 1.0)
    sample = hdist.HyperbolicRadius(5, 1.003, 1.0).sample((NUM_RADII,))
    assert _ks_p_value(sample, distribution.cdf, every=500) < LEAST_P


@pytest.mark.parametrize(("dim", "dtype"), in_turns([2, 3, 10, 50]), ids=str)
def test_directions_are_uniform(dim, dtype):
    sample = hdist.HypersphericalUniform(dim, dtype=dtype).sample((100_000,))
    axes = torch.linalg.qr(torch.randn(dim, dim, dtype=dtype))[0]
    for axis in axes[:2]:
        # The square of one coordinate is Beta(1/2, (d - 1)/2) and its sign is fair.
        component = sample @ axis
        squares = stats.beta(0.5, (dim - 1) / 2)
        assert stats.kstest(component.square().numpy(), squares.cdf).pvalue > LEAST_P
        assert stats.binomtest(int((component > 0).sum()), 100_000).pvalue > LEAST_P


def test_directions_in_one_dimension_are_signs():
    sample = hdist.HypersphericalUniform(1).sample((100_000,))
    assert set(sample.flatten().tolist()) == {-1.0, 1.0}
    assert stats.binomtest(int((sample > 0).sum()), 100_000).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("case", "dtype"), in_turns(case for case in NORMALS if case.distribution is hdist.WrappedNormal), ids=str
)
def test_normal_coordinates_of_the_wrapped_normal_are_gaussian(case, dtype):
    distribution = case.make(dtype=dtype)
    v = distribution.manifold.to_normal_coords(distribution.loc, distribution.sample((100_000,)))
    root = torch.linalg.cholesky(distribution.covariance_matrix)
    white = torch.linalg.solve_triangular(root, v.mT, upper=False)
    for component in white:
        assert stats.kstest(component.numpy(), "norm").pvalue > LEAST_P
    # An entry of the sample covariance of a standard Gaussian has variance at most 2/n.
    error = torch.cov(white).reshape(case.dim, case.dim) - torch.eye(case.dim, dtype=dtype)
    assert error.abs().max() < 5 * math.sqrt(2 / 100_000)


@pytest.mark.parametrize(
    ("case", "dtype"), in_turns(case for case in HYPERBOLIC if case.distribution is hdist.RiemannianNormal), ids=str
)
def test_normal_coordinates_of_the_riemannian_normal_are_radius_and_direction(case, dtype):
    distribution = case.make(dtype=dtype)
    v = distribution.manifold.to_normal_coords(distribution.loc, distribution.sample((100_000,))).double()
    r = v.norm(dim=-1)
    radius = hdist.HyperbolicRadius(case.dim, distribution.scale.double().squeeze(-1), case.c)
    assert _ks_p_value(r, radius.cdf, every=50) > LEAST_P
    # The direction is independent of the radius: its mean is 0 whatever weight the radius has.
    for weight in (torch.ones_like(r), r, (r > r.median()).double()):
        moment = weight.unsqueeze(-1) * v / r.unsqueeze(-1)
        assert (moment.mean(0).abs() < 5 * moment.std(0) / math.sqrt(100_000)).all()


@pytest.mark.parametrize("case", {(case.distribution, case.chart): case for case in CURVED}.values(), ids=str)
def test_frechet_mean_of_samples_is_loc(case):
    distribution = case.make()
    sample = distribution.sample((20_000,))
    error = distribution.manifold.to_normal_coords(distribution.loc, distribution.manifold.frechet_mean(sample))
    # The Hessian of half the squared distance is at least 1, so the error is at most that of the mean coordinates.
    spread = distribution.manifold.dist(distribution.loc, sample).square().mean().sqrt()
    assert error.norm() < 5 * spread / math.sqrt(20_000)
