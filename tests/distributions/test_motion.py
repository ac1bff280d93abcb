"""What a distribution makes of a draw of its twin: the gradient of its density by way of the draw's own coordinates."""

import pytest
import torch

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.geometry import Lorentz
from tests.distributions.cases import NORMALS
from tests.helpers import each, same

every_normal = each("case", NORMALS)


def leaves_of(case, dtype=torch.float64, batch=(4,)):
    params = case.coords(batch, dtype=dtype)
    return params, {k: t.clone().requires_grad_() for k, t in params.items() if isinstance(t, torch.Tensor)}


def gradients_agree(a, b, leaves):
    for x, y in zip(*[torch.autograd.grad(t.sum(), leaves, retain_graph=True) for t in (a, b)], strict=True):
        same(x, y, 1e-9)


def adopted(fixed, distribution, z):
    own = z.view_as(z)
    fixed.adopt(own, *distribution.draw_motion())
    return fixed.log_prob(own)


@every_normal
def test_gradient_is_that_of_the_log_map(case):
    params, leaves = leaves_of(case)
    distribution, fixed = case.on({**params, **leaves}), case.on(params)
    z = distribution.rsample()
    own = adopted(fixed, distribution, z)
    foreign = fixed.log_prob(z)
    torch.testing.assert_close(own, distribution.log_prob(z), rtol=0, atol=0)
    gradients_agree(own, foreign, [*leaves.values()])


@every_normal
def test_gradient_in_the_distribution_that_scores(case):
    # Its own place may depend on other draws.
    params, leaves = leaves_of(case)
    distribution, other = case.on(params), case.on({**params, **leaves})
    z = distribution.rsample()
    own = adopted(other, distribution, z.clone().requires_grad_())
    foreign = other.log_prob(z.clone().requires_grad_())
    gradients_agree(own, foreign, [*leaves.values()])


@pytest.mark.parametrize("distribution", [hdist.WrappedNormal, hdist.RiemannianNormal])
def test_gradient_keeps_its_digits_where_the_log_map_is_lost(distribution):
    noise = torch.Generator().manual_seed(0)
    u = torch.randn(200, 3, generator=noise, dtype=torch.float64)
    u = 25 * u / u.norm(dim=-1, keepdim=True)

    def gradients(dtype, own):
        chart, coords = Lorentz(1.0), u.to(dtype).requires_grad_()
        loc = chart.from_normal_coords(None, coords)
        q, fixed = (distribution(x, 0.5, chart, validate_args=False) for x in (loc, loc.detach()))
        torch.manual_seed(1)
        v = 0.5 * torch.randn(200, 3, dtype=torch.float64).to(dtype)
        z = q._point(v)
        log_prob = adopted(fixed, q, z) if own else fixed.log_prob(z)
        return torch.autograd.grad(log_prob.sum(), coords)[0].double()

    exact = gradients(torch.float64, own=True)
    own, foreign = (
        ((gradients(torch.float32, own=which) - exact).norm(dim=-1) / exact.norm(dim=-1)).median()
        for which in (True, False)
    )
    assert own < 1e-4
    assert not foreign < 0.1


def test_only_the_last_sample_is_the_distributions_own():
    case = NORMALS[0]
    distribution = case.make()
    first, last = distribution.rsample(), distribution.rsample()
    assert distribution.drew(last)
    assert not distribution.drew(first)
    assert not distribution.drew(last.clone())
    assert not distribution.expand((2,)).drew(last)


@pytest.mark.parametrize("case", [case for case in NORMALS if case.distribution is hdist.WrappedNormal], ids=str)
def test_the_wrapped_normal_is_a_function_of_white_noise(case):
    distribution = case.make((4,))
    torch.manual_seed(3)
    noise = torch.randn(7, 4, case.dim, dtype=torch.float64)
    torch.manual_seed(3)
    torch.testing.assert_close(distribution.from_noise(noise), distribution.rsample((7,)), rtol=0, atol=0)
    same(distribution.to_noise(distribution.from_noise(noise).clone()), noise, 1e-9)
