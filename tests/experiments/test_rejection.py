from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from experiments.rejection import PROPOSALS, acceptance_rate, sample_radius
from pyro_hyperbolic.distributions import HyperbolicRadius
from pyro_hyperbolic.ops import radial

DIMS = (1, 2, 3, 5, 10, 20, 50, 100, 500)
SCALES = (0.005, 0.1, 0.3, 1.0, 2.0, 6.0)
# (dim, scale, c); the last two are Euclidean.
PARAMETERS = [
    (1, 0.7, 1.0),
    (2, 1.0, 1.0),
    (2, 0.1, 1.4),
    (3, 2.0, 0.3),
    (5, 0.3, 1.0),
    (10, 0.5, 0.2),
    (20, 1.5, 0.1),
] + [
    (40, 1.7, 1.0),
    (1, 2.0, 0.0),
    (3, 2.0, 0.0),
]


def radius_of(dim: int, scale: float, c: float = 1.0) -> HyperbolicRadius:
    return HyperbolicRadius(dim, torch.tensor(scale, dtype=torch.float64), c)


def rate(dim: int, scale: float, c: float, proposal: str) -> float:
    return float(acceptance_rate(radius_of(dim, scale, c), proposal))


def decreases(values: list[float]) -> bool:
    # A rate that has underflowed to 0 stays there.
    return all(b < a or a == b == 0 for a, b in itertools.pairwise(values))


CASES = [(*params, name) for params in PARAMETERS for name in PROPOSALS if rate(*params, name) > 1e-3]


def test_cases_cover_every_proposal() -> None:
    counts = {name: sum(case[-1] == name for case in CASES) for name in PROPOSALS}
    assert counts["piecewise_exponential"] == len(PARAMETERS)
    assert min(counts.values()) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "scale", "c", "proposal"), CASES)
def test_samples_follow_the_distribution_at_the_expected_rate(dim: int, scale: float, c: float, proposal: str) -> None:
    radius = radius_of(dim, scale, c)
    drawn = sample_radius(radius, 2000, proposal)
    assert drawn.samples.shape == (2000,)
    assert drawn.samples.dtype == torch.float64
    uniform = radius.cdf(drawn.samples)
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-4

    expected = rate(dim, scale, c, proposal)
    error = math.sqrt(expected * (1 - expected) / drawn.num_proposed)
    assert abs(drawn.acceptance_rate - expected) <= 5 * error + 1e-12


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("q", [0.0, 1e-6, 0.01, 1.0, 36.0])
@pytest.mark.parametrize("dim", [1, 2, 3, 10, 300])
def test_envelope_lies_above_the_density_and_touches_it(dim: int, q: float, proposal: str) -> None:
    n, at = dim - 1, torch.tensor(q, dtype=torch.float64)
    envelope = PROPOSALS[proposal](at, n)
    if not envelope.log_integral.isfinite():
        assert (proposal, n > 0, q) in {("gamma", False, q), ("truncated_normal", True, 0.0)}
        return
    mode = radial.mode(at, n)
    grid = torch.linspace(1e-3, 1, 2_001, dtype=torch.float64)
    y = torch.cat([grid * mode, mode + 30 * grid])
    log_ratio = envelope.log_ratio(y)
    rounding = 1e-13 * float(1 + radial.log_kernel(y, at, n).abs().max())
    assert log_ratio.max() <= rounding
    # The truncated normal touches at infinity, which is beyond this grid for small q.
    assert log_ratio.max() > (-math.inf if proposal == "truncated_normal" else -1e-3)


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize(("dim", "q"), [(2, 0.5), (5, 2.0), (12, 0.2)])
def test_envelope_is_what_is_integrated_and_drawn(dim: int, q: float, proposal: str) -> None:
    at = torch.tensor(q, dtype=torch.float64)
    envelope = PROPOSALS[proposal](at, dim - 1)
    y = torch.linspace(1e-6, 60, 100_001, dtype=torch.float64)
    log_envelope = radial.log_kernel(y, at, dim - 1) - envelope.log_ratio(y)
    cdf = torch.cumulative_trapezoid((log_envelope - envelope.log_integral).exp(), y)
    assert cdf[-1] == pytest.approx(1, rel=1e-6)

    # Fine bins see what happens within a piece of the piecewise exponential, which a test of the samples hardly does.
    bins = torch.searchsorted(cdf, torch.linspace(0, 1, 101, dtype=torch.float64)[1:-1])
    counts = torch.bucketize(envelope.draw(100_000, None), y[bins + 1]).bincount(minlength=100)
    mass = torch.cat([cdf[bins], cdf[-1:]]).diff(prepend=torch.zeros(1, dtype=torch.float64))
    assert stats.chisquare(counts.numpy(), (mass / mass.sum() * 100_000).numpy()).pvalue > 1e-4


@pytest.mark.slow
def test_piecewise_exponential_accepts_nearly_all_everywhere() -> None:
    rates = {d: [rate(d, scale, 1.0, "piecewise_exponential") for scale in (1e-4, *SCALES, 30.0)] for d in DIMS}
    assert min(min(row) for row in rates.values()) > 0.96
    assert max(max(row) for row in rates.values()) < 1
    # It does not get worse: from three dimensions on less than a hundredth is rejected.
    assert min(min(rates[d]) for d in DIMS[2:]) > 0.99


def test_gamma_falls_with_dimension_and_scale() -> None:
    for scale in SCALES:
        assert decreases([rate(d, scale, 1.0, "gamma") for d in DIMS[1:]])
    for dim in DIMS[3:]:
        assert decreases([rate(dim, scale, 1.0, "gamma") for scale in SCALES])
    assert rate(2, 1.0, 1.0, "gamma") > 0.6
    assert rate(10, 1.0, 1.0, "gamma") < 2e-3
    assert rate(50, 1.0, 1.0, "gamma") < 1e-19
    # The asymptotic form of the docstring.
    mu = 9 * 6.0
    assert rate(10, 6.0, 1.0, "gamma") == pytest.approx(math.sqrt(2 * math.pi) * mu * math.exp(-mu - 0.5), rel=0.02)


def test_truncated_normal_falls_with_dimension_at_small_scale_only() -> None:
    assert decreases([rate(d, 0.005, 1.0, "truncated_normal") for d in DIMS])
    assert decreases([rate(d, 0.1, 1.0, "truncated_normal") for d in DIMS[:7]])
    assert rate(10, 0.1, 1.0, "truncated_normal") < 1e-4
    # The paper says that it does not scale with d and sigma; but both raise it to 1 where (d - 1) c sigma^2 is large.
    for dim in DIMS[1:]:
        assert decreases([-rate(dim, scale, 1.0, "truncated_normal") for scale in (0.02, 0.05, 0.1)])
    assert min(rate(d, 1.0, 1.0, "truncated_normal") for d in DIMS[4:]) > 0.999
    # In the Euclidean limit it falls like q^(n/2): a hundredth of q is a hundredth of the rate in three dimensions.
    ratio = rate(3, 1e-5, 1.0, "truncated_normal") / rate(3, 1e-4, 1.0, "truncated_normal")
    assert ratio == pytest.approx(1e-2, rel=1e-3)


def _log_printed_gamma_constant(dim: int, scale: float, c: float) -> float:
    n = dim - 1
    log_z = dim * math.log(scale) + float(radial.log_integral(torch.tensor(c * scale**2).double(), n))
    return 2 * math.log(scale) - log_z + n / 2 * math.log(c) + 0.5 * (n * math.sqrt(c) * scale + 1) ** 2


def test_printed_gamma_constant() -> None:
    # No M below that of the supremum is a bound. At c = 1 the printed one is above it, for small c it is not,
    # and with its power of c removed it is above for d = 2 but still not for d > 2.
    for dim in (2, 3, 5, 10):
        for tau in (0.1, 0.3, 1.0, 2.0):
            least = -math.log(rate(dim, tau, 1.0, "gamma"))
            for c in (1.0, 2.0, 9.0):
                assert _log_printed_gamma_constant(dim, tau / math.sqrt(c), c) >= least
            small = _log_printed_gamma_constant(dim, tau / math.sqrt(1e-4), 1e-4)
            assert small < least
            mended = small - (dim - 1) / 2 * math.log(1e-4)
            assert (mended >= least) == (dim == 2)
            # The least constant knows no unit of length.
            assert rate(dim, 100 * tau, 1e-4, "gamma") == pytest.approx(math.exp(-least), rel=1e-9)
    # The paper's own settings are affected: c = 0.1, sigma = 1, d = 20 would need an M of less than one.
    assert _log_printed_gamma_constant(20, 1.0, 0.1) < 0


def test_gamma_constant_is_the_supremum() -> None:
    for dim, scale, c in [(3, 1.0, 1.0), (3, 0.2, 0.5), (3, 5.0, 2.0)]:
        radius = radius_of(dim, scale, c)
        r = scale * torch.linspace(1e-3, 80, 50_001, dtype=torch.float64)
        log_g = r.log() - r / scale - 2 * math.log(scale)
        least = (radius.log_prob(r) - log_g).max()
        assert acceptance_rate(radius, "gamma").log() == pytest.approx(-float(least), rel=1e-6)


def test_one_dimension_is_the_half_normal() -> None:
    assert rate(1, 0.7, 2.0, "truncated_normal") == pytest.approx(1, abs=1e-12)
    assert rate(1, 0.7, 2.0, "gamma") == 0
    drawn = sample_radius(radius_of(1, 0.7, 2.0), 2000)
    assert stats.kstest(drawn.samples.numpy() / 0.7, "halfnorm").pvalue > 1e-4


def test_dtype_generator_and_gradient() -> None:
    scale = torch.tensor(1.0, requires_grad=True)
    radius = HyperbolicRadius(4, scale, 1.0)

    def draw(proposal: str) -> Tensor:
        return sample_radius(radius, 100, proposal, torch.Generator().manual_seed(1)).samples

    for proposal in PROPOSALS:
        first = draw(proposal)
        torch.rand(3)
        assert torch.equal(first, draw(proposal))
        assert first.dtype == torch.float32
        assert not first.requires_grad
        assert acceptance_rate(radius, proposal).dtype == torch.float32


def test_more_samples_than_one_round_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.rejection._CHUNK", 64)
    drawn = sample_radius(radius_of(3, 1.0), 1000, "gamma")
    assert drawn.samples.shape == (1000,)
    assert drawn.num_proposed >= 1000
    assert drawn.num_proposed == pytest.approx(1000 / rate(3, 1.0, 1.0, "gamma"), rel=0.2)


def test_rounds_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # An envelope that accepts nothing, against its promise.
    never = type("Never", (PROPOSALS["gamma"],), {"log_ratio": lambda self, y: torch.full_like(y, -math.inf)})
    monkeypatch.setitem(PROPOSALS, "gamma", never)
    with pytest.raises(RuntimeError, match=r"accepted 0 of \d+ proposals.*HyperbolicRadius\.rsample"):
        sample_radius(radius_of(3, 1.0), 10, "gamma")


@pytest.mark.parametrize(
    ("dim", "scale", "c", "proposal"),
    [(50, 1.0, 1.0, "gamma"), (1, 1.0, 1.0, "gamma"), (3, 1.0, 0.0, "truncated_normal")],
)
def test_hopeless_rate_is_an_error(dim: int, scale: float, c: float, proposal: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{proposal} proposal accepts .*\(dim={dim}.*HyperbolicRadius\.rsample"):
        sample_radius(radius_of(dim, scale, c), 10, proposal)


def test_errors_name_argument_value_and_remedy() -> None:
    radius = radius_of(2, 1.0)
    with pytest.raises(ValueError, match=r"proposal must be one of 'piecewise_exponential'.*got 'normal'"):
        sample_radius(radius, 10, "normal")
    with pytest.raises(ValueError, match="acceptance_rate: proposal"):
        acceptance_rate(radius, "normal")
    batch = HyperbolicRadius(2, torch.ones(3), 1.0)
    with pytest.raises(ValueError, match=r"batch shape \(\), got \(3,\).*rsample"):
        sample_radius(batch, 10)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="num_samples must be a positive integer"):
            sample_radius(radius, wrong)  # type: ignore[arg-type]
