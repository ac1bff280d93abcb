"""The evidence of models whose integrals are known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, Sphere, infer
from pyro_hyperbolic.infer.posterior.bridge import bennett
from pyro_hyperbolic.infer.posterior.haar import log_mean_exp_trace
from tests.helpers import gauss_legendre
from tests.infer.posterior.records import F64, posterior
from tests.infer.posterior.test_sampler import far_apart

SHORT = {"num_samples": 400, "warmup": 200, "progress": False}
DATA = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.2]], dtype=F64)


def conjugate(data: Tensor, scale: float = 2.0) -> None:
    loc = pyro.sample("loc", dist.Normal(data.new_zeros(2), scale).to_event(1))
    with pyro.plate("data", len(data)):
        pyro.sample("x", dist.Normal(loc, 1.0).to_event(1), obs=data)


def exact(data: Tensor, scale: float = 2.0) -> float:
    covariance = torch.eye(len(data), dtype=F64) + scale**2
    return dist.MultivariateNormal(data.new_zeros(len(data)), covariance).log_prob(data.mT).sum().item()


def test_a_conjugate_model_has_its_evidence_and_its_place_among_others():
    before = torch.get_rng_state()
    one = infer.log_evidence(conjugate, DATA, **SHORT)
    assert torch.equal(before, torch.get_rng_state())
    assert abs(one.value - exact(DATA)) < 0.02
    assert one.standard_error < 0.01
    assert one.converged
    assert repr(one) == f"Evidence({one.value:.3f} ± {one.standard_error:.3f})"
    other = dataclasses.replace(one, value=one.value - 5.0, standard_error=0.1)
    found = infer.Comparison({"wide": other, "narrow": one})
    best, last = found.rows
    assert (best.name, last.name) == ("narrow", "wide")
    assert last.difference == pytest.approx(-5.0)
    assert last.difference_error == pytest.approx(math.hypot(0.1, one.standard_error))
    assert last.probability == pytest.approx(1 / (1 + math.exp(5.0)))
    lines = str(found).splitlines()
    assert lines[2].split() == ["wide", f"{other.value:.3f}", "0.100", "-5.000", "0.100", "0.00669", "yes"]
    assert lines[-1] == "The data prefer 'narrow': it is 148 times as probable as 'wide', the next one."


@pytest.mark.parametrize(
    ("away", "error", "words"),
    [
        (0.2, 0.1, "'a' and 'b' differ by less than the errors tell; a smaller tolerance may."),
        (2.0, 0.1, "The data prefer 'a', but do not rule out 'b'."),
    ],
)
def test_words_of_a_comparison(away, error, words):
    draws = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0), dtype=F64)
    one = infer.Evidence(0.0, error, 0, posterior({"x": draws}))
    assert infer.Comparison({"b": dataclasses.replace(one, value=-away), "a": one}).verdict == words
    stuck = infer.Evidence(-away, error, 0, posterior({"x": draws + torch.arange(4.0)[:, None]}))
    doubt = "Do not believe it yet: the chains of 'b' did not converge. If they had: "
    assert infer.Comparison({"b": stuck, "a": one}).verdict == doubt + words
    assert repr(stuck).endswith(", chains did not converge)")


def test_levels_between_are_as_good_as_none():
    """From a normal distribution that is far from the posterior, which few draws and a poor fit give."""
    few = {"num_samples": 8, "warmup": 100, "progress": False}
    found = infer.log_evidence(conjugate, DATA, tolerance=1e-3, most_levels=40, **few)
    assert found.levels == 39
    assert abs(found.value - exact(DATA)) < 0.05


def test_the_error_is_that_of_repetitions():
    torch.manual_seed(0)
    there, back = torch.randn(2, 100, 500, dtype=F64)  # of normal weights there, and of those shifted by 1 back
    ratios = [bennett(one - 0.5, (other + 0.5).reshape(50, 10)) for one, other in zip(there, back, strict=True)]
    logs = torch.tensor([ratio.log for ratio in ratios])
    assert abs(logs.mean()) < 4 * logs.std() / 100**0.5
    assert torch.tensor([ratio.error for ratio in ratios]).mean() == pytest.approx(logs.std().item(), rel=0.25)


def test_means_over_orthogonal_matrices():
    """Against draws, and Bessel functions in the plane where ``kappa`` is large."""
    torch.manual_seed(0)
    for dim in range(1, 6):
        q, r = torch.linalg.qr(torch.randn(100_000, dim, dim, dtype=F64))
        trace = (q.diagonal(dim1=-2, dim2=-1) * r.diagonal(dim1=-2, dim2=-1).sign()).sum(-1)
        values = trace.exp()
        error = (values.std() / values.mean() / len(values) ** 0.5).item()
        assert abs(log_mean_exp_trace(1.0, dim) - values.mean().log().item()) < 4 * error
    bessel = torch.special.i0e(torch.tensor(100.0, dtype=F64)).item()
    assert log_mean_exp_trace(50.0, 2) == pytest.approx(100.0 + math.log((bessel + math.exp(-100.0)) / 2), abs=1e-12)
    assert log_mean_exp_trace(50.0, 5) == pytest.approx(224.86124975, abs=1e-8)  # by Baik and Rains
    assert log_mean_exp_trace(0.0, 9) == pytest.approx(0.0, abs=1e-12)
    i0, i1 = (f(torch.tensor(3.0, dtype=F64)).item() for f in (torch.special.i0, torch.special.i1))
    assert log_mean_exp_trace(1.5, 2, proper=True) == pytest.approx(math.log(i0), abs=1e-12)
    assert log_mean_exp_trace(1.5, 3, proper=True) == pytest.approx(1.5 + math.log(i0 - i1), abs=1e-12)


@pytest.mark.slow
def test_mirror_images_that_are_told_apart():
    """Five points in space by their distances, and an assay that one of the mirror images explains better."""
    places = 0.8 * torch.tensor(
        [[1.0, 1.0, 1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0], [0.3, 0.9, 1.8]], dtype=F64
    )
    i, j = torch.triu_indices(5, 5, 1)
    observed = (places[i] - places[j]).norm(dim=-1)

    def model(assay: float) -> None:
        with pyro.plate("points", 5):
            z = pyro.sample("z", dist.Normal(torch.zeros(3, dtype=F64), 1.5).to_event(1))
        with pyro.plate("pairs", len(i)):
            pyro.sample("d", dist.Normal((z[i] - z[j]).norm(dim=-1), 0.1), obs=observed)
        sides = z[:3] - z[3]
        volume = (sides[0] * torch.linalg.cross(sides[1], sides[2])).sum(-1)
        pyro.factor("assay", (0.5 + assay * (volume > 0).to(F64) - 0.5 * assay).log())

    either, told = (infer.log_evidence(model, assay, progress=False) for assay in (0.0, 0.6))
    assert either.converged
    assert not told.converged  # chains do not go from one to the other
    assert told.value == pytest.approx(either.value, abs=4 * told.standard_error)
    assert told.standard_error < 0.1
    hands = told.posterior.samples["handedness of z"]
    assert (hands == hands[:, :1]).all()
    assert 0 < (hands[:, 0] > 0).sum() < len(hands)
    weights = [mode["weight"] for mode in told.posterior.modes]
    assert sorted(weights) == pytest.approx([0.2, 0.8], abs=0.02)
    assert "handedness of z" not in either.posterior.samples


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_chains": 2}, "num_chains"),
        ({"num_samples": 3}, "num_samples"),
        ({"tolerance": 0.0}, "tolerance must be a positive number"),
        ({"most_levels": 0}, "most_levels"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        infer.log_evidence(conjugate, DATA, **options)


@pytest.mark.parametrize(("models", "words"), [({}, "models must be"), ({"a": 1}, r"models\['a'\]")])
def test_bad_models(models, words):
    with pytest.raises(ValueError, match=words):
        infer.compare(models, DATA)


def quadrature(count: int, low: float, high: float) -> tuple[Tensor, Tensor]:
    nodes, weights = gauss_legendre(count)
    middle, half = (low + high) / 2, (high - low) / 2
    return torch.tensor(middle + half * nodes), torch.tensor(half * np.asarray(weights))


ANCHORS = torch.tensor([[0.8, 0.3], [-0.5, 0.9]], dtype=F64)
SPACES: dict[str, Callable[[Tensor], PoincareBall | Sphere]] = {"H2": PoincareBall, "S2": Sphere}


def prior(space: PoincareBall | Sphere) -> hdist.WrappedNormal:
    origin = space.from_normal_coords(None, torch.zeros(2, dtype=F64))
    return hdist.WrappedNormal(origin, torch.tensor(0.8, dtype=F64), space)


def likelihood(distance: Tensor) -> dist.StudentT:
    return dist.StudentT(3.0, distance, 0.3)


def polar(space: PoincareBall | Sphere, radii: int, angles: int) -> tuple[Tensor, Tensor]:
    """Points ``(radii, angles, 2)``, and their shares of the volume."""
    root = float(space.c) ** 0.5
    curve, end = (torch.sinh, 9.0) if isinstance(space, PoincareBall) else (torch.sin, math.pi / root)
    r, weights = quadrature(radii, 0.0, end)
    angle = torch.arange(angles, dtype=F64) * (2 * math.pi / angles)
    v = r[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)
    volume = weights * curve(root * r) / root * (2 * math.pi / angles)
    return space.from_normal_coords(None, v), volume.unsqueeze(-1)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "noise"), [("H2", False), ("S2", False), ("S2", True)])
def test_one_point_and_a_drawn_curvature(name, noise):
    observed = torch.tensor([0.6, 1.5], dtype=F64)

    def model(observed: Tensor) -> None:
        c = pyro.sample("c", dist.LogNormal(torch.zeros((), dtype=F64), 0.5))
        space = SPACES[name](c)
        z = pyro.sample("z", prior(space), infer={"noise": noise})
        with pyro.plate("anchors", 2):
            distances = space.dist(z, space.from_normal_coords(None, ANCHORS))
            pyro.sample("d", likelihood(distances), obs=observed)

    total = 0.0
    for log_c, weight in zip(*quadrature(40, -2.5, 2.5), strict=True):
        space = SPACES[name](log_c.exp())
        z, volume = polar(space, 200, 100)
        anchors = space.from_normal_coords(None, ANCHORS)
        log_joint = prior(space).log_prob(z) + dist.Normal(0.0, 0.5).log_prob(log_c)
        log_joint = log_joint + likelihood(space.dist(z.unsqueeze(-2), anchors)).log_prob(observed).sum(-1)
        total += (weight * log_joint.exp() * volume).sum().item()
    found = infer.log_evidence(model, observed, progress=False)
    assert {*found.posterior.samples} == {"c", "z"}
    assert isinstance(found.posterior.manifolds["z"], SPACES[name])
    assert found.standard_error < 0.02
    assert abs(found.value - math.log(total)) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_two_points_that_turn_together(name):
    """Known by their distances to the origin and to each other."""
    space = SPACES[name](torch.tensor(0.7, dtype=F64))
    origin = prior(space).loc
    observed = torch.tensor([1.2, 1.0, 1.3], dtype=F64)

    def seen(one: Tensor, other: Tensor) -> dist.Normal:
        distances = space.dist(one, origin), space.dist(other, origin), space.dist(one, other)
        return dist.Normal(torch.stack(torch.broadcast_tensors(*distances), -1), 0.2)

    def model(observed: Tensor) -> None:
        with pyro.plate("points", 2):
            z = pyro.sample("z", prior(space))
        pyro.sample("d", seen(z[..., 0, :], z[..., 1, :]).to_event(1), obs=observed)

    z, volume = polar(space, 150, 100)
    one, other = z[:, :1].unsqueeze(1), z  # the first point lies on one ray, which stands for all
    log_joint = prior(space).log_prob(one) + prior(space).log_prob(other)
    log_joint = log_joint + seen(one, other).log_prob(observed).sum(-1)
    total = (log_joint.exp() * volume * (100 * volume).unsqueeze(-1)).sum().log().item()
    found = infer.log_evidence(model, observed, progress=False)
    assert found.posterior.gauges == [["z"]]
    assert found.standard_error < 0.02
    assert abs(found.value - total) < 0.05


@pytest.mark.slow
def test_temperatures_weigh_modes():
    """Of which chains alone do not find one."""
    wide, narrow = (
        2 * dist.Normal(0.0, (900 + sd**2) ** 0.5).log_prob(torch.tensor(at)) for sd, at in ((1.0, 0.0), (0.5, 8.0))
    )
    known = torch.logaddexp(wide + math.log(0.7), narrow + math.log(0.3)).item()
    found = infer.log_evidence(far_apart, torch.tensor(0.3), num_chains=8, num_samples=1000, hottest=20, progress=False)
    assert abs(found.value - known) < 4 * found.standard_error
    assert found.standard_error < 0.15
