"""Pareto-smoothed weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pyro_hyperbolic.ops.pareto import pareto_smoothed


@pytest.mark.parametrize("count", [25, 101, 1000])
def test_agrees_with_arviz(count: int) -> None:
    arviz = pytest.importorskip("arviz")
    torch.manual_seed(count)
    noise = torch.empty(4, count, dtype=torch.float64).exponential_()
    log_weights = torch.stack([0.3 * noise[0], 1.2 * noise[1], 8 * noise[2], -noise[3]], 1) - 500
    smoothed, k = pareto_smoothed(log_weights)
    for i in range(4):
        expected, expected_k = arviz.psislw(log_weights[:, i].numpy().copy())
        assert k[i].item() == pytest.approx(float(expected_k), rel=1e-6)
        np.testing.assert_allclose(smoothed[:, i].log_softmax(0), np.asarray(expected), rtol=1e-6, atol=1e-9)


def test_finds_the_shape() -> None:
    """P(w > t) = t**(-1/k)."""
    torch.manual_seed(0)
    k = torch.tensor([0.2, 0.5, 0.7, 1.0, 2.0])
    log_weights = k * torch.empty(100_000, 5).exponential_()
    assert torch.allclose(pareto_smoothed(log_weights)[1].float(), k, atol=0.12)


def test_weights_without_a_tail() -> None:
    nothing = -torch.inf
    log_weights = torch.full((100, 8), nothing)
    log_weights[:, 1] = 3.0  # all equal
    log_weights[0, 2] = 0.0  # one has all the weight
    log_weights[:, 3] = torch.linspace(-1e4, 0.0, 100)  # the next but one has none in float64
    log_weights[:, 4] = 0.0
    log_weights[:3, 4] = 1e-6  # all equal but for their rounding
    log_weights[:3, 5] = 0.0  # a few have all the weight
    log_weights[:, 6] = 1e-8 * torch.linspace(0.01, 0.99, 100) ** -2  # so are these, though a fit finds a heavy tail
    log_weights[:, 7] = torch.linspace(0.01, 0.99, 100).log()
    smoothed, k = pareto_smoothed(log_weights.reshape(100, 4, 2))
    assert k[0, 0].isnan()  # no weight at all
    assert k.flatten().tolist()[1:][:-1] == [0.0, torch.inf, torch.inf, 0.0, torch.inf, 0.0]
    assert k[-1, -1] < 0  # a fit, with a bound
    assert torch.equal(smoothed[:, 0, 1], torch.zeros(100, dtype=torch.float64))
    assert smoothed[:, 1, 0].exp().tolist() == [1.0] + 99 * [0.0]
    with pytest.raises(ValueError, match="at least 25 in the first dimension, got 24"):
        pareto_smoothed(torch.zeros(24))
