"""Mixtures fitted to points of every space, against a direct search of the likelihood."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic import Euclidean, PoincareBall, Sphere
from pyro_hyperbolic.analysis import clusters, fit_mixture
from pyro_hyperbolic.analysis.mixtures import _Scales
from pyro_hyperbolic.distributions import RiemannianNormal
from tests.analysis.cases import spaces
from tests.geometry.spaces import SPACES, SpaceCase
from tests.helpers import DTYPES, same


def two_groups(case: SpaceCase, count: int = 40, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points of two components of different scales that overlap."""
    places = torch.zeros(2, case.dim, dtype=torch.float64)
    places[:, 0] = torch.tensor([-0.7, 0.8])
    size = torch.tensor([0.25, 0.5], dtype=torch.float64).view(2, 1, 1)
    centres = case.space.from_normal_coords(None, places).unsqueeze(1)
    x = case.space.from_normal_coords(centres, size * case.coords(2, count // 2, size=1.0)).flatten(0, 1)
    return case.space.projx(x.to(dtype))


def log_likelihood(case: SpaceCase, x: Tensor, logits: Tensor, coords: Tensor, log_scale: Tensor) -> Tensor:
    """By the distributions of the package, of parameters without constraints."""
    loc = case.space.from_normal_coords(None, coords)
    distribution = RiemannianNormal(loc, log_scale.exp().unsqueeze(-1), case.space, validate_args=False)
    return (distribution.log_prob(x.unsqueeze(1)) + logits.log_softmax(-1)).logsumexp(-1).mean()


@spaces
def test_gradient_vanishes(case: SpaceCase) -> None:
    x = two_groups(case)
    fit = fit_mixture(x, case.space, 2, restarts=1, tolerance=1e-11)
    found = [fit.weights.log(), case.space.to_normal_coords(None, fit.loc), fit.scale.squeeze(-1).log()]
    found = [value.requires_grad_() for value in found]
    value = log_likelihood(case, x, *found)
    same(value, fit.history[-1], 1e-9)
    for slope in torch.autograd.grad(value, found):
        same(slope, torch.zeros_like(slope), 1e-4)


@pytest.mark.parametrize("case", [SPACES[0], SPACES[4]], ids=str)
def test_as_good_as_a_direct_search(case: SpaceCase) -> None:
    x = two_groups(case)
    fit = fit_mixture(x, case.space, 2, restarts=1, tolerance=1e-11, max_steps=3000)
    assert fit.converged
    found = [fit.weights.log(), case.space.to_normal_coords(None, fit.loc), fit.scale.squeeze(-1).log()]
    noise = torch.Generator().manual_seed(1)
    moved = [value + 0.1 * torch.randn(value.shape, generator=noise, dtype=torch.float64) for value in found]
    start = [value.requires_grad_() for value in moved]
    options = {"max_iter": 500, "tolerance_grad": 1e-9, "tolerance_change": 1e-13}
    search = torch.optim.LBFGS(start, line_search_fn="strong_wolfe", **options)

    def loss() -> Tensor:
        search.zero_grad()
        value = -log_likelihood(case, x, *start)
        value.backward()
        return value

    search.step(loss)
    best = log_likelihood(case, x, *start)
    same(fit.history[-1], best, 1e-8)
    same(fit.weights, start[0].softmax(-1), 1e-4)
    same(fit.scale.squeeze(-1), start[2].exp(), 1e-4)


@pytest.mark.slow
@spaces
def test_likelihood_never_falls(case: SpaceCase) -> None:
    x = case.points(60, size=0.8)
    fit = fit_mixture(x, case.space, 3, restarts=1, tolerance=0.0, max_steps=7)
    assert len(fit.history) > 5
    assert fit.history[-1] > fit.history[0]
    assert fit.history.diff().min() > -1e-12 * fit.history.abs().max()


@pytest.mark.slow
@spaces
def test_both_precisions_and_pyro(case: SpaceCase) -> None:
    dtype = DTYPES[SPACES.index(case) % 2]
    x = two_groups(case, 100, dtype)
    fit = fit_mixture(x, case.space, 2, restarts=1)
    assert {fit.weights.dtype, fit.loc.dtype, fit.scale.dtype} == {dtype}
    same(fit.weights.sum(), 1.0, 1e-6)
    assert fit.scale.shape == (2, 1)
    mixture = fit.distribution
    assert (mixture.batch_shape, mixture.event_shape) == ((), x.shape[-1:])
    same(mixture.log_prob(x).mean(), fit.history[-1], 1e-9 if dtype == torch.float64 else 1e-4)
    share = fit.responsibilities(x)
    same(share.sum(-1), torch.ones(100), 1e-6)
    same(share.mean(0), fit.weights, 1e-3)
    first = int(fit.responsibilities(x[:1]).argmax())
    assert (share.argmax(-1) == first).sum() == pytest.approx(50, abs=8)
    torch.manual_seed(0)
    assert case.space.contains(mixture.sample((5,))).all()


@spaces
def test_one_component_is_its_moments(case: SpaceCase) -> None:
    x = case.points(30)
    fit = fit_mixture(x, case.space, 1)
    mean = case.space.frechet_mean(x)
    same(case.space.dist(fit.loc[0], mean), 0.0, 1e-7)
    # The mean squared distance under the normal is that of the points.
    distribution = RiemannianNormal(fit.loc[0], fit.scale[0], case.space)
    square = case.space.dist(x, mean).square().mean()
    same(2 * fit.scale[0, 0].square() * (distribution.entropy() - distribution.log_normalizer), square, 1e-7)


def test_flat_space_is_the_textbook() -> None:
    x = torch.randn(400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fit = fit_mixture(x, Euclidean(), 1)
    same(fit.loc[0], x.mean(0), 1e-9)
    same(fit.scale[0, 0], (x - x.mean(0)).square().mean().sqrt(), 1e-9)
    same(fit.bic(x), 4 * math.log(len(x)) - 2 * fit.distribution.log_prob(x).sum(), 1e-12)


def test_criterion_finds_the_number_of_components() -> None:
    ball = PoincareBall(1.0)
    torch.manual_seed(0)
    places = ball.from_normal_coords(None, 2.0 * torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.0, -1.0]]))
    x = RiemannianNormal(places, 0.4, ball).sample((200,)).flatten(0, 1)
    criteria = [fit_mixture(x, ball, k, restarts=1, tolerance=1e-4).bic(x) for k in (2, 3, 4)]
    assert criteria.index(min(criteria)) == 1


def test_single_points_have_the_least_scale() -> None:
    x = torch.tensor([[0.0, 0.0], [0.01, 0.0], [0.0, 0.01], [0.8, 0.3]], dtype=torch.float64)
    fit = fit_mixture(x, PoincareBall(1.0), 2, min_scale=0.05)
    same(fit.scale[1, 0], 0.05, 1e-12)
    same(fit.weights[1], 0.25, 1e-6)


def test_uniform_points_of_a_sphere_have_the_greatest_scale() -> None:
    x = torch.randn(400, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, -x]) / x.norm(dim=-1).repeat(2).unsqueeze(-1)
    fit = fit_mixture(x, Sphere(1.0), 1)
    assert fit.converged
    assert fit.scale.item() > 5
    same(fit.history[-1], -math.log(4 * math.pi), 1e-2)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0])
@spaces
def test_scale_of_a_mean_square(case: SpaceCase, scale: float) -> None:
    solver = _Scales(case.points(50), case.space, 1e-6)
    solver.set_bounds(1e-6, 50.0)
    wanted = torch.full((2,), scale, dtype=torch.float64)
    square = solver._log_mean_square(wanted.log())[0].exp()
    same(solver.best(square, torch.ones_like(square)), wanted, 1e-8)


def test_starts_at_once_are_those_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, ball = two_groups(SPACES[0]), SPACES[0].space
    together = fit_mixture(x, ball, 3, restarts=3, max_steps=5)
    monkeypatch.setattr(clusters, "_COORDINATES", 1)
    apart = fit_mixture(x, ball, 3, restarts=3, max_steps=5)
    for name in ("weights", "loc", "scale", "history"):
        same(getattr(together, name), getattr(apart, name), 1e-9)


def test_steps_are_limited() -> None:
    x, ball = two_groups(SPACES[0]), SPACES[0].space
    fit = fit_mixture(x, ball, 3, restarts=2, max_steps=2)
    assert not fit.converged
    assert len(fit.history) == 3
    same(fit.distribution.log_prob(x).mean(), fit.history[-1], 1e-12)


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        (torch.eye(2), {}, "fit_mixture: points must lie on"),
        (torch.zeros(3, 2), {"k": 1}, "all points are the same, and no scale fits them; pass min_scale"),
        (torch.rand(3, 2) / 2, {"k": 4}, "fit_mixture: k must be an integer from 1 to 3, got 4"),
        (torch.rand(3, 2) / 2, {"tolerance": -1.0}, "tolerance must not be negative, got -1.0"),
        (torch.rand(3, 2) / 2, {"tolerance": math.nan}, "tolerance must not be negative, got nan"),
        (torch.rand(3, 2) / 2, {"min_scale": 0.0}, "min_scale must be positive and finite, got 0.0"),
        (torch.rand(3, 2) / 2, {"restarts": 0}, "restarts must be a positive integer"),
        (torch.rand(3, 2) / 2, {"max_steps": 0}, "max_steps must be a positive integer"),
        (torch.rand(3, 2) / 2, {"seed": "a"}, "fit_mixture: seed must be an integer, got 'a'"),
    ],
)
def test_errors(points, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        fit_mixture(points, PoincareBall(1.0), **({"k": 2} | options))
