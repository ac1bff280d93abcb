"""Densities, moments and quantiles against 50-digit arithmetic."""

import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from tests.helpers import DTYPES, LOG_PROB, LOG_Z, QUANTILE, QUANTILE_SLOPE, each, oracle, same

DIMS = sorted({row["d"] for row in oracle("radius")})
every_dtype = each("dtype", DTYPES)
every_dim = each("dim", DIMS)
TINY = 1e-30  # as a scale it makes a tolerance relative


def _rows(dim):
    return [row for row in oracle("radius") if row["d"] == dim]


def _column(dim, key):
    return torch.tensor([row[key] for row in _rows(dim)], dtype=torch.float64)


def _quantiles(dim, key):
    return torch.tensor([[q[key] for q in row["quantiles"]] for row in _rows(dim)], dtype=torch.float64)


def _radius(dim, dtype):
    """All rows of one dimension as one distribution, ``(rows, 1)``."""
    return hdist.HyperbolicRadius(
        dim, _column(dim, "sigma").to(dtype).unsqueeze(-1), _column(dim, "c").to(dtype).unsqueeze(-1)
    )


def _distribution(row, kind, dtype):
    ball, loc = PoincareBall(row["c"]), torch.tensor(row["loc"], dtype=dtype)
    if kind == "riemannian":
        return hdist.RiemannianNormal(loc, row["scale"], ball)
    if kind == "wrapped_full":
        return hdist.WrappedNormal(loc, scale_tril=torch.tensor(row["scale_tril"], dtype=dtype), manifold=ball)
    scale = torch.tensor(row["scale_diag"], dtype=dtype) if kind == "wrapped_diagonal" else row["scale"]
    return hdist.WrappedNormal(loc, scale, ball)


@pytest.mark.parametrize("kind", ["wrapped_isotropic", "wrapped_diagonal", "wrapped_full", "riemannian"])
@every_dtype
def test_log_prob(dtype, kind):
    rows = oracle("log_prob")
    actual = [_distribution(row, kind, dtype).log_prob(torch.tensor(row["value"], dtype=dtype)) for row in rows]
    same(torch.stack(actual), [row[kind] for row in rows], LOG_PROB[dtype])


@every_dtype
def test_lebesgue_log_prob(dtype):
    rows = oracle("log_prob")
    actual = [
        _distribution(row, "riemannian", dtype).lebesgue_log_prob(torch.tensor(row["value"], dtype=dtype))
        for row in rows
    ]
    same(torch.stack(actual), [row["riemannian"] + row["log_sqrt_det_metric"] for row in rows], LOG_PROB[dtype])


@every_dtype
@every_dim
def test_log_normalizer_of_the_radius(dim, dtype):
    same(_radius(dim, dtype).log_normalizer.squeeze(-1), _column(dim, "log_Zr"), LOG_Z[dtype])


@every_dtype
@every_dim
def test_log_normalizer_of_the_riemannian_normal(dim, dtype):
    actual = [
        hdist.RiemannianNormal(torch.zeros(dim, dtype=dtype), row["sigma"], PoincareBall(row["c"])).log_normalizer
        for row in _rows(dim)
    ]
    same(torch.stack(actual), _column(dim, "log_Z"), LOG_Z[dtype])


@every_dtype
@every_dim
def test_mean(dim, dtype):
    same(_radius(dim, dtype).mean.squeeze(-1), _column(dim, "mean"), LOG_Z[dtype], scale=TINY)


@every_dtype
@every_dim
def test_variance(dim, dtype):
    same(_radius(dim, dtype).variance.squeeze(-1), _column(dim, "var"), LOG_Z[dtype], scale=TINY)


@every_dtype
@every_dim
def test_quantiles(dim, dtype):
    same(_radius(dim, dtype).icdf(_quantiles(dim, "u").to(dtype)), _quantiles(dim, "r"), QUANTILE[dtype], scale=TINY)


@every_dtype
@every_dim
def test_cdf(dim, dtype):
    same(_radius(dim, dtype).cdf(_quantiles(dim, "r").to(dtype)), _quantiles(dim, "u"), QUANTILE[dtype], scale=TINY)


@every_dim
def test_cdf_inverts_icdf(dim):
    u = torch.linspace(1e-5, 1 - 1e-5, 101, dtype=torch.float64)
    radius = _radius(dim, torch.float64)
    same(radius.cdf(radius.icdf(u)), u.expand(len(_rows(dim)), -1), 1e-6)


@every_dtype
@every_dim
def test_log_density(dim, dtype):
    actual = _radius(dim, dtype).log_prob(_quantiles(dim, "r").to(dtype))
    same(actual, _quantiles(dim, "log_rho"), LOG_PROB[dtype])


@pytest.mark.parametrize("name", ["sigma", "c"])
@every_dtype
@every_dim
def test_implicit_gradient(dim, dtype, name):
    params = {key: _column(dim, key).to(dtype).unsqueeze(-1).expand(-1, 5).clone() for key in ("sigma", "c")}
    params[name].requires_grad_()
    r = hdist.HyperbolicRadius(dim, params["sigma"], params["c"]).icdf(_quantiles(dim, "u").to(dtype))
    (slope,) = torch.autograd.grad(r.sum(), params[name])
    # In one dimension curvature has no effect: the oracle's dr/dc is the rounding of its 50 digits.
    scale = 1e-8 if dim == 1 else TINY
    same(slope, _quantiles(dim, f"dr_d{name}"), QUANTILE_SLOPE[dtype], scale=scale)
