"""Coordinates in which numbers do not follow those of a few others."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_hyperbolic.accelerate.hmc import State
from pyro_hyperbolic.infer import sample_posterior
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.infer.posterior.funnel import Funnel
from pyro_hyperbolic.infer.posterior.sampler import seeded

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture(autouse=True)
def _seeded():
    with seeded(0):
        yield


def program(by=0.5):
    """Twenty numbers whose widths a temperature tells, and five others."""
    v = pyro.sample("v", dist.Normal(1.0, 1.0))
    pyro.sample("w", dist.LogNormal(0.0, 1.0))
    x = pyro.sample("x", dist.Normal(0.0, 10.0).expand([20]).to_event(1))
    pyro.sample("y", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    pyro.factor("temperature", -0.5 * (x * (-by * v).exp()).square().sum() - 20 * by * v)


def draws(energy, count, by=0.5):
    v, w = 1 + torch.randn(count, 1), torch.randn(count, 1)
    x = torch.cat([v, w, (by * v).exp() * torch.randn(count, 20), torch.randn(count, 5)], -1)
    gradients, energies = torch.func.vmap(torch.func.grad_and_value(lambda x: energy(x)[0]))(x)
    return State(x, energies, gradients)


def test_a_temperature_leads():
    energy = Energy(program, (), {})
    funnel = Funnel(energy, torch.zeros(1, 27))
    assert funnel.is_flat
    assert funnel.leads == []
    funnel.learn(draws(energy, 2000))
    assert funnel.leads == ["v"]
    seen = draws(energy, 2000)
    entered = funnel.enter(seen)
    x = energy.columns("x").flatten()
    low, high = seen.x[:, 0] < 0.5, seen.x[:, 0] > 1.5
    before, after = (some[high][:, x].std() / some[low][:, x].std() for some in (seen.x, entered.x))
    assert before > 2
    assert after == pytest.approx(1.0, abs=0.2)
    before, after = (torch.cov(torch.stack([some.energy, seen.x[:, 0]]))[0, 1] for some in (seen, entered))
    assert before > 8
    assert abs(after) < 1


def test_energies_and_gradients():
    """With respect to the coordinates, by the derivative of the way back; states come back as they were."""
    energy = Energy(program, (), {})
    funnel = Funnel(energy, torch.zeros(1, 27))
    funnel.learn(draws(energy, 500))
    state = draws(energy, 3)
    entered = funnel.enter(state)
    again = Funnel(energy, torch.zeros(1, 27))
    again.load(funnel.state())
    for own, known in zip(vars(entered).values(), vars(again.enter(state)).values(), strict=True):
        torch.testing.assert_close(own, known)
    for own, back in zip(vars(state).values(), vars(funnel.leave(entered)).values(), strict=True):
        torch.testing.assert_close(back, own)

    def placed(y):
        x, growth = funnel.place(y, *funnel.terms)
        return energy(x)[0] - growth

    mapped = torch.func.vmap(torch.func.grad_and_value(placed))
    with funnel.is_entered():
        found = mapped(entered.x)
    for own, expected in zip(found, (entered.gradient, entered.energy), strict=True):
        torch.testing.assert_close(own, expected)
    for own, expected in zip(mapped(state.x), (state.gradient, state.energy), strict=True):
        assert torch.equal(own, expected)
    zeros = torch.zeros(())

    def back(y):
        return funnel.leave(State(y, zeros, y)).x

    for n, y in enumerate(entered.x):
        jacobian = torch.func.jacrev(back)(y)
        expected = state.energy[n] - torch.linalg.slogdet(jacobian).logabsdet
        known = entered.energy[n] - expected
        torch.testing.assert_close(known, torch.zeros(()), atol=1e-9, rtol=0.0)
        gradient = torch.func.grad(lambda y: energy(back(y))[0] - torch.linalg.slogdet(torch.func.jacrev(back)(y))[1])(
            y
        )
        torch.testing.assert_close(entered.gradient[n], gradient)


def test_where_nothing_leads():
    """Widths that do not change enough, and programs without others."""
    energy = Energy(program, (0.0,), {})
    funnel = Funnel(energy, torch.zeros(1, 27))
    funnel.learn(draws(energy, 500, 0.0))
    assert funnel.is_flat
    state = draws(energy, 3)
    assert funnel.enter(state) is state
    assert funnel.leave(state) is state

    # The same widths around two places that are far from each other.
    energy = Energy(program, (), {})
    two = draws(energy, 500)
    funnel.learn(two)
    assert not funnel.is_flat
    far = torch.zeros(27)
    far[energy.columns("x").flatten()] = 300.0
    there = torch.cat([two.x + far, two.x - far])
    funnel.learn(State(there, two.energy.repeat(2), two.gradient.repeat(2, 1)))
    assert funnel.is_flat
    two.energy[0] = torch.inf
    funnel.learn(two)
    assert funnel.is_flat

    def single():
        pyro.sample("v", dist.LogNormal(0.0, 1.0))

    energy = Energy(single, (), {})
    funnel = Funnel(energy, torch.zeros(1, 1))
    x = torch.randn(100, 1)
    funnel.learn(State(x, x.square().sum(-1) + x[:, 0], x))
    assert funnel.is_flat


def test_chains_in_a_funnel():
    """The temperature has its own distribution, whatever the others do."""
    posterior = sample_posterior(program, num_chains=4, num_samples=1000, warmup=300, progress=False)
    assert posterior.settings["leads"] == ["v"]
    ess = posterior.diagnostics()["v"].ess_bulk
    assert ess > 700  # 170 without
    # The prior of x, of width 10, is part of what there is.
    v = torch.linspace(-8.0, 10.0, 10_001)
    weights = (dist.Normal(1.0, 1.0).log_prob(v) - 10 * torch.log1p((v - math.log(100)).exp())).softmax(0)
    mean = (weights * v).sum().item()
    spread = (weights * (v - mean).square()).sum().sqrt().item()
    found = posterior.samples["v"]
    assert found.mean().item() == pytest.approx(mean, abs=4 * spread / ess**0.5)
    assert found.std().item() == pytest.approx(spread, abs=4 * spread / ess**0.5)
