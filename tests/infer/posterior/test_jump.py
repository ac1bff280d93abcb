"""Moves of points leave a distribution as it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import State
from pyro_hyperbolic.geometry import Euclidean
from pyro_hyperbolic.infer.posterior.moves import MOVES, Points, jump

F64 = torch.float64


@pytest.mark.parametrize("move", MOVES)
def test_moves_leave_a_normal_distribution_as_it_is(move):
    """Arrangements from which many moves are accepted must not be left for those from which few are."""
    torch.manual_seed(0)
    places = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=F64)

    def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
        away = x - places.flatten()
        return 0.5 * away.square().sum(-1), away

    state = State.at(gradients, places.flatten() + torch.randn(20000, 8, dtype=F64))
    points = Points("z", 0, torch.arange(8).reshape(4, 2), torch.cdist(places, places).argsort(-1), 1.0)
    for _ in range(5):
        state, moved = jump(gradients, state, points, Euclidean(), move)
    assert moved.double().mean() > 0.5
    error = state.energy.std() / len(state.x) ** 0.5
    assert abs(state.energy.mean() - 4.0) < 4 * error
