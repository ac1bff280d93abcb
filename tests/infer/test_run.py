"""Many steps in one call, in graphs that draw their batches too."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, Minibatches
from pyro_hyperbolic.infer.trainers.graphs import CapturedStep
from pyro_hyperbolic.models import HyperbolicVAE
from tests.helpers import same

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
DATA, BATCH, MEMBERS = 107, 4, 3  # 26 whole batches, and one of 3


@pytest.fixture
def graphs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: str) -> list[int]:
    """How many steps each captured graph has taken at a time, by replay; on a CPU they are run again instead."""
    if device == "cpu":
        request.getfixturevalue("replayed")
    taken: list[int] = []
    original = CapturedStep.replay

    def replay(self: Any, args: Any, kwargs: Any) -> Tensor:
        losses = original(self, args, kwargs)
        taken.append(len(losses) if isinstance(args[0], Tensor) and not args[0].is_floating_point() else 1)
        return losses

    monkeypatch.setattr(CapturedStep, "replay", replay)
    return taken


def vae(seed: int, device: str) -> HyperbolicVAE:
    pyro.set_rng_seed(seed)
    return HyperbolicVAE(PoincareBall(1.0), 2, 3, hidden_dim=5, likelihood="normal").to(device)


def single(device: str, **options: Any) -> tuple[FastSVI, Minibatches]:
    programs = vae(0, device)
    svi = FastSVI(programs.model, programs.guide, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO(), capture=True, **options)
    pyro.set_rng_seed(1)
    return svi, Minibatches(torch.randn(DATA, 3).to(device), BATCH, seed=3)


def ensemble(device: str, **options: Any) -> tuple[EnsembleSVI, Minibatches]:
    members = [vae(i, device) for i in range(MEMBERS)]
    pairs = [(member.model, member.guide) for member in members]
    svi = EnsembleSVI(pairs, pyro.optim.Adam({"lr": 1e-2}), Trace_ELBO(), capture=True, **options)
    pyro.set_rng_seed(1)
    return svi, Minibatches(torch.randn(DATA, 3).to(device), BATCH, seed=3, members=MEMBERS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [single, ensemble])
def test_the_losses_and_parameters_are_those_of_single_steps(make: Any, device: str, graphs: list[int]) -> None:
    """Two epochs, the last batch of each smaller."""
    svi, batches = make(device)
    losses = torch.cat([svi.run(batches.epoch(number)) for number in range(2)])
    state = svi.state_dict()
    assert 26 in graphs  # whole epochs without the host
    svi, batches = make(device)
    expected = torch.stack([svi.step(batch) for number in range(2) for batch in batches.epoch(number)])
    same(losses, expected, 1e-5)
    assert svi.steps == state["steps"] == len(losses) == 2 * 27
    for name, value in svi.state_dict()["parameters"].items():
        same(state["parameters"][name], value, 1e-5)


@pytest.mark.parametrize("device", ["cpu"])
def test_an_interrupt_leaves_a_run_that_goes_on(
    device: str, graphs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    svi, batches = single(device)
    svi.run(batches.epoch(0))

    def interrupted(*args: Any) -> Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(svi, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            svi.run(batches.epoch(1))
    assert svi.steps == 27 + 26  # the graph before the interrupt counts
    assert len(svi.run(batches.epoch(1, start=26))) == 1
    assert svi.steps == 2 * 27


@pytest.mark.parametrize("device", ["cpu"])
def test_the_first_loss_that_is_not_finite_is_named(device: str, graphs: list[int]) -> None:
    svi, batches = single(device)
    svi.run(batches.epoch(0))
    batches.data[5] = torch.nan
    place = next(i for i, rows in enumerate(batches._order(3 * 1_000_003 + 1, 0)) if 5 in rows)
    with pytest.warns(UserWarning, match=f"not finite since step {27 + place + 1}$"):
        svi.run(batches.epoch(1))


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize("make", [single, ensemble])
def test_validation_comes_as_often_as_in_single_steps(make: Any, device: str, graphs: list[int]) -> None:
    counts = []
    for whole in (True, False):
        svi, batches = make(device, validate_every=20)
        loss, evaluations = svi.loss, 0

        def counted(*args: Any, _loss: Any = loss, **kwargs: Any) -> Tensor:
            nonlocal evaluations
            evaluations += torch.distributions.Distribution._validate_args
            return _loss(*args, **kwargs)

        svi.run(batches.epoch(0))
        svi.loss = counted
        for number in (1,):
            if whole:
                svi.run(batches.epoch(number))
            else:
                for batch in batches.epoch(number):
                    svi.step(batch)
        counts.append(evaluations)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("device", ["cpu"])
def test_any_iterable_and_a_bar(device: str, graphs: list[int]) -> None:
    svi, batches = single(device)
    generator = (batch for batch in batches.epoch(0))
    losses = svi.run(generator, progress=True)
    assert len(losses) == 27
    assert set(graphs) == {1}
