"""Derivatives: implicit ones of quantiles, reparametrised ones of samples, and those of densities."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import pyro_hyperbolic.distributions as hdist
from tests.distributions.cases import CURVED, ISOTROPIC, NORMALS, ON_THE_BALL, tensors

every_normal = pytest.mark.parametrize("case", NORMALS, ids=str)
every_curved = pytest.mark.parametrize("case", CURVED, ids=str)

# One distribution in its Gaussian regime, one around the mode's change of nature, one far out; and flat ones.
RADII = [(1, 0.7, 1.0), (2, 0.1, 0.5), (2, 1.5, 1.0), (5, 0.8, 1.4), (20, 2.0, 0.7), (100, 0.1, 0.01), (3, 1.0, 0.0)]
every_radius = pytest.mark.parametrize(("dim", "scale", "c"), RADII)
PROBABILITIES = torch.tensor([0.01, 0.2, 0.5, 0.8, 0.99], dtype=torch.float64)


def _leaf(value, like=PROBABILITIES):
    return torch.full_like(like, value).requires_grad_()


@every_radius
def test_implicit_gradient_of_a_quantile_is_minus_the_ratio_of_those_of_the_cdf(dim, scale, c):
    # F(r; theta) = u gives dr/dtheta = -F_theta / f; the cdf is quadrature, the quantile is not.
    scales, cs = _leaf(scale), _leaf(c)
    distribution = hdist.HyperbolicRadius(dim, scales, cs)
    r = distribution.icdf(PROBABILITIES)
    slopes = torch.autograd.grad(r.sum(), (scales, cs))
    mass = distribution.cdf(r.detach())
    for slope, of_mass in zip(slopes, torch.autograd.grad(mass.sum(), (scales, cs)), strict=True):
        expected = -of_mass / distribution.log_prob(r.detach()).exp()
        torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-10)


@every_radius
def test_derivative_of_a_quantile_in_the_probability_is_one_over_the_density(dim, scale, c):
    u = PROBABILITIES.clone().requires_grad_()
    distribution = hdist.HyperbolicRadius(dim, torch.tensor(scale, dtype=torch.float64), c)
    r = distribution.icdf(u)
    (slope,) = torch.autograd.grad(r.sum(), u)
    torch.testing.assert_close(slope, (-distribution.log_prob(r.detach())).exp(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["scale", "c"])
@every_radius
def test_implicit_gradient_by_differences(dim, scale, c, name):
    params = {"scale": scale, "c": c}
    step = 1e-3 * max(params[name], 0.01)

    def quantile(shift):
        moved = {key: value + (shift if key == name else 0) for key, value in params.items()}
        moved = {key: torch.full_like(PROBABILITIES, value).requires_grad_() for key, value in moved.items()}
        return hdist.HyperbolicRadius(dim, **moved).icdf(PROBABILITIES), moved[name]

    if c == 0 and name == "c":  # one-sided, of second order
        difference = (4 * quantile(step)[0] - quantile(2 * step)[0] - 3 * quantile(0.0)[0]) / (2 * step)
    else:
        difference = (quantile(step)[0] - quantile(-step)[0]) / (2 * step)
    r, leaf = quantile(0.0)
    (slope,) = torch.autograd.grad(r.sum(), leaf)
    torch.testing.assert_close(slope, difference.detach(), rtol=2e-4, atol=1e-8)


@pytest.mark.parametrize("name", ["scale", "c"])
@every_radius
def test_mean_of_the_pathwise_derivative_is_the_derivative_of_the_mean(dim, scale, c, name):
    many = torch.zeros(40_000, dtype=torch.float64)
    params = {"scale": _leaf(scale, many), "c": _leaf(c, many)}
    r = hdist.HyperbolicRadius(dim, **params).rsample()
    (pathwise,) = torch.autograd.grad(r.sum(), params[name])
    leaves = {"scale": _leaf(scale, PROBABILITIES[0]), "c": _leaf(c, PROBABILITIES[0])}
    (exact,) = torch.autograd.grad(hdist.HyperbolicRadius(dim, **leaves).mean, leaves[name])
    assert (pathwise.mean() - exact).abs() <= 5 * pathwise.std() / 200 + 1e-8


def _cost(distribution, z):
    """A smooth function of a point with no symmetry."""
    v = distribution.manifold.to_normal_coords(None, z)
    return (v.sin() * torch.arange(1, distribution.dim + 1)).sum(-1) + 0.1 * v.square().sum(-1)


@every_curved
def test_reparametrised_gradients_by_differences(case):
    """Common random numbers: the mean cost is a smooth function of the parameters, and its derivative is known."""
    params = {**tensors(case.coords((2,))), "c": torch.tensor(case.c, dtype=torch.float64, requires_grad=True)}
    fixed = {k: v for k, v in case.coords((2,)).items() if k not in params}

    def mean_cost(values):
        torch.manual_seed(11)
        distribution = case.on({**fixed, **{k: v for k, v in values.items() if k != "c"}}, c=values["c"])
        return _cost(distribution, distribution.rsample((200,))).mean()

    gradients = torch.autograd.grad(mean_cost(params), list(params.values()))
    for name, gradient in zip(params, gradients, strict=True):
        direction = torch.randn(params[name].shape, dtype=torch.float64).abs()
        direction = direction.tril() if name == "scale_tril" else direction
        detached = {k: v.detach() for k, v in params.items()}
        up, down = ({**detached, name: detached[name] + sign * 1e-4 * direction} for sign in (1, -1))
        difference = (mean_cost(up) - mean_cost(down)) / 2e-4
        torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-4, atol=1e-6)


@every_normal
def test_gradients_of_the_density(case):
    value = case.make().sample().requires_grad_()
    leaves = tensors(case.params())
    fixed = {k: v for k, v in case.params().items() if k not in leaves}
    names = list(leaves)

    def log_prob(value, *args):
        params = dict(zip(names, args, strict=True))
        if "scale_tril" in params:
            params["scale_tril"] = params["scale_tril"].tril()
        return case.on({**fixed, **params}, validate_args=False).log_prob(value)

    assert gradcheck(log_prob, (value, *leaves.values()))


@every_curved
def test_gradients_of_the_density_in_the_curvature(case):
    v = torch.randn(2, case.dim, dtype=torch.float64)
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)

    def log_prob(c):
        return case.on(case.coords((2,)), c=c).log_prob(case.chart(c).from_normal_coords(None, v))

    assert gradcheck(log_prob, (c,))


@pytest.mark.parametrize("case", ON_THE_BALL, ids=str)
def test_gradients_of_the_density_in_the_curvature_at_fixed_points_of_the_ball(case):
    value = case.make().sample((2,))
    c = torch.tensor(case.c, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda c: case.on(case.params((2,)), c=c).log_prob(value), (c,))


@every_normal
def test_second_derivatives_of_the_density(case):
    value = case.make().sample().requires_grad_()
    assert gradgradcheck(lambda value: case.make(validate_args=False).log_prob(value), (value,))


@pytest.mark.parametrize("case", ISOTROPIC, ids=str)
def test_own_density_does_not_depend_on_loc(case):
    # The density of a sample is that of its distance to loc, which the noise alone determines.
    leaves = tensors(case.coords())
    distribution = case.on({**case.coords(), **leaves})
    value = distribution.rsample((20,))
    own = distribution.log_prob(value).sum()
    if own.requires_grad:
        assert torch.autograd.grad(own, leaves["u"], allow_unused=True, retain_graph=True) == (None,)
    (through_the_log_map,) = torch.autograd.grad(distribution.log_prob(value.clone()).sum(), leaves["u"])
    assert through_the_log_map.abs().max() < 1e-10
