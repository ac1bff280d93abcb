"""Hamiltonian Monte Carlo of many chains at once."""

from __future__ import annotations

import pytest
import torch

from pyro_hyperbolic.accelerate.hmc import Metric, State, StepSize, eigh, leapfrog, trajectories
from pyro_hyperbolic.accelerate.leapfrog import CapturedLeapfrog


def test_every_target_has_its_own_metric_and_step_size() -> None:
    """Correlated normals of widths from 0.2 to 5, of which 200 chains each start at one point."""
    torch.manual_seed(0)
    widths = torch.tensor([0.2, 1.0, 5.0])
    shape = torch.linalg.cholesky(torch.tensor([[1.0, 0.95], [0.95, 1.0]]))
    root = shape * widths[:, None, None]
    precision = torch.linalg.inv(root @ root.mT)

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = (precision @ x.unsqueeze(-1)).squeeze(-1)
        return 0.5 * (x * gradient).sum(-1), gradient

    state = State.at(gradients, 2 * widths.reshape(1, 3, 1).expand(200, 3, 2).clone())
    metric, size = Metric(shape.expand(3, 2, 2)), StepSize(torch.ones(3))
    for turn in range(50):
        state, sweep = trajectories(leapfrog(gradients), state, metric, size.size, 3 + turn % 5)
        size.see(sweep.acceptance.mean(0))
    assert sweep.acceptance.shape == sweep.diverged.shape == (200, 3)
    assert torch.allclose(size.mean / size.mean[1], widths, rtol=0.2)
    noise = torch.linalg.solve(root, state.x.unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(noise.mean(0), torch.zeros(3, 2), atol=4 / 200**0.5)
    for of_one in noise.unbind(1):
        assert torch.allclose(torch.cov(of_one.mT), torch.eye(2), atol=4 * (2 / 200) ** 0.5)


def test_one_metric_is_that_of_every_chain() -> None:
    torch.manual_seed(0)
    x, root = torch.randn(50, 3), torch.randn(3, 3).tril() + 3 * torch.eye(3)
    one, each = Metric(root), Metric(root.expand(50, 3, 3))
    for method in ("times", "transposed"):
        assert torch.allclose(getattr(one, method)(x), getattr(each, method)(x), atol=1e-5)
    sizes = StepSize(0.3), StepSize(torch.tensor([0.3]))
    for acceptance in (0.9, 0.2, 0.7):
        sizes[0].see(acceptance)
        sizes[1].see(torch.tensor([acceptance]))
        assert sizes[0].size == pytest.approx(sizes[1].size.item(), rel=1e-5)


def test_a_gradient_that_is_no_number_teaches_nothing() -> None:
    metric, draws = Metric(torch.eye(2)), torch.randn(10, 2)
    assert metric.learned(draws, draws) is not metric
    assert metric.learned(draws, torch.where(draws == draws.max(), torch.nan, draws)) is metric


@pytest.mark.gpu
def test_eigenvalues_where_the_gpu_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]], device="cuda")
    known, found = torch.linalg.eigh(matrix), torch.linalg.eigh

    def fails(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if a.is_cuda:
            raise torch.linalg.LinAlgError("did not converge")
        return found(a)

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    values, vectors = eigh(matrix)
    assert values.is_cuda
    assert torch.allclose(values, known[0])
    assert torch.allclose((vectors.mT @ known[1]).abs(), torch.eye(2, device="cuda"), atol=1e-5)


@pytest.mark.parametrize("steps", [3, 8, 21])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_captured_steps_are_those_of_the_loop(steps: int, device: str) -> None:
    torch.manual_seed(0)
    with torch.device(device):
        state = State.at(_quartic, torch.randn(6, 3, dtype=torch.float64))
        captured, plain = CapturedLeapfrog(_quartic), leapfrog(_quartic)
        for root, size in ((torch.eye(3), 0.1), (torch.rand(3, 3).tril(), torch.rand(6, 1)), (2 * torch.eye(3), 0.2)):
            p, metric = torch.randn_like(state.x), Metric(root.double())
            ours, theirs = (run(state, p, metric, 0.1 * size, steps) for run in (captured, plain))
            captured(state, -p, metric, 0.1 * size, steps)  # which leaves what was found before alone
            for part in ("x", "energy", "gradient"):
                assert torch.allclose(getattr(ours[0], part), getattr(theirs[0], part))
            assert torch.allclose(ours[1], theirs[1])


def _quartic(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 0.25 * x.pow(4).sum(-1), x.pow(3)
