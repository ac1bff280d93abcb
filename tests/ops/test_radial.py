"""The radial distribution against the oracle, against high-precision quadrature and against its own limits."""

from __future__ import annotations

import functools
import math

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from torch.autograd import gradcheck
from torch.func import grad, vmap

from pyro_hyperbolic.ops import radial
from pyro_hyperbolic.ops.special import log_sinhc
from pyro_hyperbolic.ops.tables import Tables, gauss_legendre
from tests.helpers import CDF, DTYPES, LOG_Z, QUANTILE, QUANTILE_SLOPE, ROUNDING, SLOPE, each, oracle, same
from tests.helpers import gauss_legendre as legendre

MP = mpmath.mp.clone()
MP.dps = 30

DIMS = [1, 2, 3, 20, 500]
dims = each("dim", DIMS)
dtypes = each("dtype", DTYPES)
# Zero, the analytic neighbourhood of zero, the bulk, and far beyond the end of every table but that of d = 1.
Q = [0.0, 1e-12, 1e-4, 0.03, 1.0, 7.0, 60.0, 1e3, 1e6]
# Scores that a sampler meets: probabilities from 1e-5 to 1 - 1e-5.
SCORES = torch.linspace(-4.25, 4.25, 35, dtype=torch.float64)


def _log_kernel(y: np.ndarray, q: float, n: int) -> np.ndarray:
    """h(y) in extended precision, from sinh itself rather than from log_sinhc."""
    if n == 0 or q == 0:
        return -y * y / 2 + (n * np.log(y) if n else 0)
    root = np.sqrt(np.longdouble(q))
    s = root * y
    log_sinh = np.where(s < 1, np.log(np.sinh(np.minimum(s, 1))), s + np.log1p(-np.exp(-2 * s)) - np.log(2.0))
    return -y * y / 2 + n * (log_sinh - np.log(root))


@functools.cache
def _mode(q: float, n: int) -> float:
    """Root of y tanh(root(q) y) / root(q) = n, in 30 digits."""
    if n == 0 or q == 0:
        return math.sqrt(n)
    root = MP.sqrt(q)
    return float(MP.findroot(lambda y: y * MP.tanh(root * y) / root - n, math.sqrt(n + n * n * q)))


@functools.cache
def _mass(q: float, n: int, low: float, high: float) -> tuple[float, float]:
    """The integral of exp(h - h(mode)) in extended precision, 1040 nodes, and h(mode)."""
    top = _mode(q, n)
    low, high = max(0.0, top - 13, low), min(top + 13, high)
    x, weight = legendre(20)
    edges = np.linspace(np.longdouble(low), np.longdouble(high), 53)
    half = np.diff(edges)[:, None] / 2
    y = edges[:-1, None] + half * (1 + x)
    peak = _log_kernel(np.longdouble(top), q, n)
    return (np.exp(_log_kernel(y, q, n) - peak) * weight * half).sum(), peak


@functools.cache
def exact_log_integral(q: float, n: int) -> float:
    total, peak = _mass(q, n, 0.0, math.inf)
    return float(np.log(total) + peak)


def kernel_rounding(q: float, n: int) -> float:
    """What the density loses in float64: it is the exponential of a difference of numbers of size n^2 q/2."""
    return ROUNDING[torch.float64] * n * n * q / 2


# --- against the oracle -----------------------------------------------------------------------------------------

ORACLE_DIMS = sorted({row["d"] for row in oracle("radius")})
by_dim = each("dim", ORACLE_DIMS)


def oracle_rows(dim: int) -> list[dict]:
    return [row for row in oracle("radius") if row["d"] == dim]


def oracle_quantiles(dim: int, *names: str) -> list[torch.Tensor]:
    """Columns sigma, c and those named, one entry per quantile of every row."""
    table = [
        [row["sigma"], row["c"], *(entry[name] for name in names)]
        for row in oracle_rows(dim)
        for entry in row["quantiles"]
    ]
    return list(torch.tensor(table, dtype=torch.float64).unbind(-1))


@by_dim
@dtypes
def test_log_normalizer_of_the_oracle(dim, dtype):
    rows = oracle_rows(dim)
    sigma, c = (torch.tensor([row[k] for row in rows], dtype=torch.float64) for k in ("sigma", "c"))
    ratio = radial.log_integral_ratio((c * sigma**2).to(dtype), dim).double()
    actual = dim * sigma.log() + radial.log_chi_integral(dim) + ratio
    same(actual, [row["log_Zr"] for row in rows], LOG_Z[dtype])


@by_dim
@dtypes
def test_quantiles_of_the_oracle(dim, dtype):
    sigma, c, u, r = oracle_quantiles(dim, "u", "r")
    y = radial.quantile(torch.special.ndtri(u).to(dtype), (c * sigma**2).to(dtype), dim)
    same(sigma * y.double(), r, QUANTILE[dtype], scale=0)


def radius_derivatives(dim, dtype, sigma, c, u):
    def radius(sigma, c, z):
        return sigma * radial.quantile(z, c * sigma**2, dim)

    return vmap(grad(radius, argnums=(0, 1)))(sigma.to(dtype), c.to(dtype), torch.special.ndtri(u).to(dtype))


@by_dim
@dtypes
def test_derivatives_in_sigma_of_the_oracle(dim, dtype):
    sigma, c, u, expected = oracle_quantiles(dim, "u", "dr_dsigma")
    same(radius_derivatives(dim, dtype, sigma, c, u)[0], expected, QUANTILE_SLOPE[dtype], scale=0)


@pytest.mark.parametrize("dim", [d for d in ORACLE_DIMS if d > 1])
@dtypes
def test_derivatives_in_c_of_the_oracle(dim, dtype):
    sigma, c, u, expected = oracle_quantiles(dim, "u", "dr_dc")
    same(radius_derivatives(dim, dtype, sigma, c, u)[1], expected, QUANTILE_SLOPE[dtype], scale=0)


@dtypes
def test_derivatives_in_c_vanish_in_one_dimension(dtype):
    sigma, c, u = oracle_quantiles(1, "u")
    same(radius_derivatives(1, dtype, sigma, c, u)[1], torch.zeros_like(c), 1e-10)


# In float64, as its callers do: the exponent is a difference of numbers of size n^2 q/2.
@by_dim
@pytest.mark.parametrize("upper", [False, True])
def test_tail_mass_of_the_oracle(dim, upper):
    sigma, c, u, r = oracle_quantiles(dim, "u", "r")
    mass = radial.tail_mass(r / sigma, c * sigma**2, dim - 1, upper)
    same(mass, 1 - u if upper else u, CDF[torch.float64])


# --- against high-precision quadrature --------------------------------------------------------------------------


@dims
def test_quadrature(dim):
    q = torch.tensor(Q, dtype=torch.float64)
    same(radial.log_integral(q, dim - 1), [exact_log_integral(v, dim - 1) for v in Q], LOG_Z[torch.float64])


@dims
@dtypes
def test_table_of_the_integral(dim, dtype):
    q = torch.tensor(Q, dtype=dtype)
    expected = [exact_log_integral(v, dim - 1) for v in q.double().tolist()]
    same(radial.log_integral_ratio(q, dim).double() + radial.log_chi_integral(dim), expected, LOG_Z[dtype])


@dims
def test_log_chi_integral(dim):
    same(radial.log_chi_integral(dim), exact_log_integral(0.0, dim - 1), LOG_Z[torch.float64])


@dims
@pytest.mark.parametrize(
    ("q", "shift"),
    [(q, shift) for i, q in enumerate((0.0, 0.03, 7.0, 1e3)) for shift in [(-3.0, 0.5), (-0.5, 3.0)][i % 2]],
)
def test_tail_mass(dim, q, shift):
    n = dim - 1
    y = max(_mode(q, n) + shift, 0.3)
    (total, _), (below, _), (above, _) = (_mass(q, n, *ends) for ends in [(0, math.inf), (0, y), (y, math.inf)])
    actual = [
        radial.tail_mass(torch.tensor(y, dtype=torch.float64), torch.tensor(q, dtype=torch.float64), n, upper)
        for upper in (False, True)
    ]
    expected = [float(below / total), float(above / total)]
    same(torch.stack(actual), expected, CDF[torch.float64] + kernel_rounding(q, n))


@dims
@pytest.mark.parametrize("q", Q)
def test_quantile_inverts_tail_mass(dim, q):
    n, z = dim - 1, SCORES
    q = torch.full_like(z, q)
    y = radial.quantile(z, q, dim)
    # Each tail from its own side; an error of the mass over the density is an error of the quantile.
    lower = radial.tail_mass(y, q, n, upper=False) - torch.special.ndtr(z)
    upper = torch.special.ndtr(-z) - radial.tail_mass(y, q, n, upper=True)
    density = (radial.log_kernel(y, q, n) - radial.log_integral(q, n)).exp()
    error = torch.where(z < 0, lower, upper) / density
    same(y + error, y, QUANTILE[torch.float64] + kernel_rounding(q[0].item(), n), scale=0)


# --- limits and shapes of the tables ----------------------------------------------------------------------------


@dims
def test_quantile_at_zero_is_that_of_chi(dim):
    y = radial.quantile(SCORES, torch.zeros_like(SCORES), dim)
    u = scipy.stats.norm.cdf(SCORES.numpy())
    same(y, scipy.stats.chi(dim).ppf(u), QUANTILE[torch.float64], scale=0)


@dims
@dtypes
def test_integral_ratio_at_zero(dim, dtype):
    zero = torch.zeros((), dtype=dtype)
    ratio = functools.partial(radial.log_integral_ratio, dim=dim)
    slope = (dim - 1) * dim / 6  # n/6 times the second moment of chi
    same(ratio(zero), 0.0, LOG_Z[dtype])
    same(grad(ratio)(zero), slope, QUANTILE_SLOPE[dtype])


@dims
@pytest.mark.parametrize("q", [1e8, 1e12])
def test_huge_q_is_a_normal_distribution(dim, q):
    z = SCORES
    y = radial.quantile(z, torch.full_like(z, q), dim)
    expected = (dim - 1) * math.sqrt(q) + z if dim > 1 else torch.tensor(scipy.stats.chi(1).ppf(torch.special.ndtr(z)))
    same(y, expected, QUANTILE[torch.float64], scale=0)


@dims
@dtypes
@pytest.mark.parametrize("q", [0.0, 1e-30, 1e12, 1e30])
def test_extreme_q_is_finite_with_its_derivatives(dim, dtype, q):
    q = torch.tensor(q, dtype=dtype)
    z = torch.tensor([-9.0, 0.0, 9.0], dtype=dtype)
    outputs = [
        radial.log_integral_ratio(q, dim),
        grad(radial.log_integral_ratio)(q, dim),
        *vmap(lambda z: radial.quantile(z, q, dim))(z),
        *torch.cat(vmap(grad(lambda z, q: radial.quantile(z, q, dim), argnums=(0, 1)), (0, None))(z, q)),
    ]
    assert torch.stack(outputs).isfinite().all()


@dims
@dtypes
def test_quantile_increases_with_the_score(dim, dtype):
    z = torch.linspace(-9, 9, 1000, dtype=dtype)
    for q in Q[:6]:
        assert (radial.quantile(z, torch.full_like(z, q), dim).diff() > 0).all()


@pytest.mark.parametrize("dim", [d for d in DIMS if d > 1])
@dtypes
def test_integral_ratio_is_continuous_at_the_end_of_the_table(dim, dtype):
    end = torch.tensor(radial._table_end(dim), dtype=dtype)
    q = end * torch.tensor([1 - 1e-6, 1 + 1e-6], dtype=dtype)
    ratio = functools.partial(radial.log_integral_ratio, dim=dim)
    inside, outside = ratio(q)
    same(outside - inside, grad(ratio)(end) * (q[1] - q[0]), LOG_Z[dtype], scale=inside)
    inside, outside = vmap(grad(ratio))(q)
    same(outside, inside, QUANTILE_SLOPE[dtype], scale=0)


@pytest.mark.parametrize("dim", [d for d in DIMS if d > 1])
@dtypes
def test_quantile_is_continuous_at_the_end_of_the_table(dim, dtype):
    end = torch.tensor(radial._table_end(dim), dtype=dtype)
    z = SCORES.to(dtype)
    inside, outside = (torch.full_like(z, end * (1 + side * 1e-6)) for side in (-1, 1))
    slope = vmap(grad(lambda q, z: radial.quantile(z, q, dim)))
    same(radial.quantile(z, outside, dim), radial.quantile(z, inside, dim), 4 * QUANTILE[dtype], scale=0)
    same(slope(outside, z), slope(inside, z), QUANTILE_SLOPE[dtype], scale=0)


def test_one_dimension_does_not_depend_on_q():
    z = SCORES
    first = radial.quantile(z, torch.zeros_like(z), 1)
    for q in Q[1:]:
        same(radial.quantile(z, torch.full_like(z, q), 1), first, SLOPE[torch.float64], scale=0)


@dims
@dtypes
def test_mode_solves_its_equation(dim, dtype):
    n, q = dim - 1, torch.tensor(Q, dtype=dtype)
    expected = [_mode(v, n) for v in q.double().tolist()]
    same(radial.mode(q, n), expected, ROUNDING[dtype])


@dims
def test_mode_is_the_maximum(dim):
    n, q = dim - 1, torch.tensor(Q, dtype=torch.float64)
    top = radial.mode(q, n)
    for step in (-1e-2, 1e-2):
        assert (radial.log_kernel((top + step).abs(), q, n) < radial.log_kernel(top, q, n)).all()


@dims
def test_tail_masses_are_complementary(dim):
    n = dim - 1
    for q in Q[:-1]:
        y = (_mode(q, n) + torch.linspace(-6, 6, 61, dtype=torch.float64)).clamp(min=0)
        lower, upper = (radial.tail_mass(y, torch.full_like(y, q), n, side) for side in (False, True))
        same(lower + upper, torch.ones_like(y), CDF[torch.float64] + kernel_rounding(q, n))


@dims
@pytest.mark.parametrize("upper", [False, True])
def test_tail_mass_is_monotone(dim, upper):
    n = dim - 1
    for q in Q:
        # Each tail on its own side of the mode, down to 1e-15.
        y = _mode(q, n) + (1 if upper else -1) * torch.linspace(0, 8, 81, dtype=torch.float64)
        y = y[y >= 0]
        assert (radial.tail_mass(y, torch.full_like(y, q), n, upper).diff() < 0).all()


@dims
@pytest.mark.parametrize("upper", [False, True])
def test_tail_mass_has_the_density_as_its_derivative(dim, upper):
    n = dim - 1
    q = torch.tensor([0.03, 1.0, 7.0], dtype=torch.float64)
    y = radial.mode(q, n) + 0.7
    slope = vmap(grad(lambda y, q: radial.tail_mass(y, q, n, upper)))(y, q)
    density = (radial.log_kernel(y, q, n) - radial.log_integral(q, n)).exp()
    same(slope, -density if upper else density, CDF[torch.float64])


@dims
@pytest.mark.parametrize("upper", [False, True])
def test_tail_mass_gradcheck(dim, upper):
    q = torch.tensor([0.03, 1.0], dtype=torch.float64)
    y = (radial.mode(q, dim - 1) + 0.7).requires_grad_()
    assert gradcheck(lambda y, q: radial.tail_mass(y, q, dim - 1, upper), (y, q.requires_grad_()), atol=1e-6)


@dims
@pytest.mark.parametrize("q", [0.01, 0.5, 3.0])
def test_integral_ratio_has_the_moment_as_its_derivative(dim, q):
    q = torch.tensor(q, dtype=torch.float64)
    by_table = grad(radial.log_integral_ratio)(q, dim)
    by_quadrature = grad(radial.log_integral)(q, dim - 1)
    same(by_table, by_quadrature, QUANTILE[torch.float64])


@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3)])
def test_shapes(shape):
    q, z = torch.rand(shape), torch.randn(shape)
    assert radial.log_integral_ratio(q, 3).shape == shape
    assert radial.quantile(z, q, 3).shape == shape
    assert radial.tail_mass(z.abs(), q, 2, upper=True).shape == shape
    assert radial.nodes(q, 2)[0].shape == shape + (64,)


def test_tables_are_made_once(monkeypatch):
    makes = [radial._make_table]
    monkeypatch.setattr(radial, "_tables", Tables(lambda dim: makes.pop()(dim)))
    first = radial._quantile_table(1, torch.float32, torch.device("cpu"))
    assert radial._quantile_table(1, torch.float32, torch.device("cpu")) is first
    assert radial._integral_table(1, torch.float64, torch.device("cpu")).dtype == torch.float64


def test_tables_do_not_depend_on_the_default_dtype(monkeypatch):
    first = radial._quantile_table(1, torch.float64, torch.device("cpu"))
    monkeypatch.setattr(radial, "_tables", Tables(radial._make_table))
    torch.set_default_dtype(torch.float16)  # the fixture of conftest.py sets it back
    assert torch.equal(radial._quantile_table(1, torch.float64, torch.device("cpu")), first)


def test_tables_are_made_outside_of_any_mode(monkeypatch):
    monkeypatch.setattr(radial, "_tables", Tables(radial._make_table))
    with torch.device("meta"):
        table = radial._quantile_table(1, torch.float64, torch.device("cpu"))
    assert table.isfinite().all()


def test_compiles_without_a_break():
    z, q = torch.randn(5), torch.rand(5)
    compiled = torch.compile(radial.quantile, backend="eager", fullgraph=True)
    same(compiled(z, q, 3), radial.quantile(z, q, 3), ROUNDING[torch.float32])


@pytest.mark.parametrize("dim", [2, 20, 500])
@pytest.mark.parametrize("q", [150.0, 576.0, 1e4])
def test_far_distribution_is_gaussian_to_the_last_digit(dim: int, q: float) -> None:
    q_tensor = torch.tensor(q, dtype=torch.float64)
    mean, variance = radial.moments(q_tensor, dim)
    same(mean, (dim - 1) * q_tensor.sqrt(), 1e-14)
    same(variance, torch.ones_like(variance), 1e-14)
    far, score = radial.gaussian_score(mean + 0.7, q_tensor, dim)
    assert bool(far)
    same(score, torch.full_like(score, 0.7), 1e-10)


def test_gaussian_score_is_for_far_points_of_far_distributions_only() -> None:
    q = torch.tensor([1e-3, 576.0, 576.0], dtype=torch.float64)
    y = torch.tensor([9000.0, 0.1, 9000.0], dtype=torch.float64)
    assert radial.gaussian_score(y, q, 500)[0].tolist() == [False, False, True]
    assert radial.gaussian_score(y, q, 1)[0].tolist() == [False, False, False]


@pytest.mark.parametrize("dim", [1, 2, 5, 50])
@pytest.mark.parametrize("scale", [1e-4, 0.1, 1.0, 5.0, 40.0])
def test_mean_log_sinhc_is_that_of_chi(dim: int, scale: float) -> None:
    # With equal variances the length is a chi variable, whose nodes are those of the table at q = 0.
    zero = torch.zeros((), dtype=torch.float64)
    y, log_weight = radial.nodes(zero, dim - 1)
    mass = (radial.log_kernel(y, zero, dim - 1) + log_weight).softmax(-1)
    expected = (mass * log_sinhc((scale * y).square())).sum()
    actual = radial.mean_log_sinhc(torch.full((dim,), scale**2, dtype=torch.float64))
    # Beyond, it is the nodes that miss the kink at 0.
    same(actual, expected, 1e-12 if scale < 10 else 1e-9, scale=0)


def test_mean_log_sinhc_of_unequal_variances() -> None:
    # In two dimensions the angle is uniform and the length, given it, is Rayleigh distributed: two plain integrals.
    variances = torch.tensor([0.3, 4.0], dtype=torch.float64)
    angle = torch.arange(400, dtype=torch.float64) * (2 * math.pi / 400)
    share = (variances * torch.stack([angle.cos(), angle.sin()], -1).square()).sum(-1)
    y, weight = gauss_legendre(200, torch.linspace(0, 1, 2, dtype=torch.float64))
    y = 12 * y
    rayleigh = 12 * weight * y * (-y.square() / 2).exp()
    expected = (rayleigh * log_sinhc(share.unsqueeze(-1) * y.square())).sum(-1).mean()
    same(radial.mean_log_sinhc(variances), expected, 1e-12, scale=0)


@pytest.mark.parametrize("dim", [1, 2, 20])
def test_entropy_is_continuous_at_the_end_of_the_table(dim: int) -> None:
    end = radial._table_end(dim)
    q = torch.tensor([end * (1 - 1e-12), end * (1 + 1e-12)], dtype=torch.float64)
    inside, beyond = radial.entropy(q, dim)
    same(inside, beyond, 1e-9)
