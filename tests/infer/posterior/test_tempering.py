"""Exchanges between temperatures."""

from __future__ import annotations

import math

import pytest
import torch

from pyro_hyperbolic.accelerate.hmc import State
from pyro_hyperbolic.infer.posterior.tempering import Ladder, levels_of

pytestmark = pytest.mark.usefixtures("double")

CHAINS, SIZE = 20_000, 3


def energies(x):
    return 0.5 * x.square().sum(-1), x


@pytest.fixture
def ladder():
    torch.manual_seed(0)
    return Ladder(9.0, 4, CHAINS, torch.zeros(()))


def at_all_temperatures(ladder):
    return torch.randn(4 * CHAINS, SIZE) / ladder.rows.sqrt().unsqueeze(-1)


def test_exchanges_leave_every_temperature_as_it_is(ladder):
    gradients = ladder.gradients(energies)
    state = State.at(gradients, at_all_temperatures(ladder))
    before = state.x
    for _ in range(3):
        state = ladder.exchanged(state)
    energy, gradient = gradients(state.x)
    assert torch.allclose(state.energy, energy)
    assert torch.allclose(state.gradient, gradient)
    assert (state.x != before).any(-1).double().mean() > 0.5
    assert torch.equal(state.x.sort(0).values, before.sort(0).values)
    # Of a chi-squared distribution, whatever the temperature.
    squares = 2 * ladder.by_level(state.energy)
    assert ((squares.mean(1) - SIZE).abs() < 4 * math.sqrt(2 * SIZE / CHAINS)).all()
    assert ((squares.var(1) - 2 * SIZE).abs() < 0.5).all()
    # Each column has its own places.
    found, given = ladder.by_level(state.x)[:, :50], ladder.by_level(before)[:, :50]
    assert torch.equal(found.sort(0).values, given.sort(0).values)


def test_temperatures_are_spread_until_exchanges_are_accepted_alike(ladder):
    betas = torch.tensor([1.0, 0.98, 0.95, 1 / 9])
    ladder.load([betas, *ladder.state()[1:]])
    for _ in range(3):
        state = State.at(ladder.gradients(energies), at_all_temperatures(ladder))
        ladder.exchanged(state)
        state = ladder.spread(state)
        assert torch.allclose(state.energy, ladder.gradients(energies)(state.x)[0])
    assert torch.allclose(ladder.betas, 9.0 ** -(torch.arange(4) / 3), rtol=0.05)


def test_trips_from_the_hottest(ladder):
    """All exchanges are accepted: a place goes from 3 to 2 and from there to 0, and one comes to 3 each time."""
    state = State(*(torch.zeros(4 * CHAINS, *shape) for shape in ((SIZE,), (), (SIZE,))))
    trips = []
    for _ in range(4):
        state = ladder.exchanged(state)
        trips.append(ladder.trips)
    assert trips == [0, 0, CHAINS, 2 * CHAINS]
    assert ladder.acceptance == 1.0


def test_pooled(ladder):
    x = at_all_temperatures(ladder) + 5 * torch.arange(4).repeat_interleave(CHAINS).unsqueeze(-1)
    gradient = ladder.rows.unsqueeze(-1) * at_all_temperatures(ladder)
    for part in ladder.pooled([State(x, x[:, 0], gradient)]):
        assert torch.allclose(torch.cov(part.mT), torch.eye(SIZE), atol=0.03)


def test_levels():
    assert levels_of(1.0, 300) == 1
    assert levels_of(4.0, 303) == 36
