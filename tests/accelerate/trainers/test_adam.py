"""Adam in one launch: the steps of torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from pyro_hyperbolic.accelerate.trainers.adam import OneLaunch
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedStep
from tests.helpers import same

pytestmark = pytest.mark.gpu

STEPS = 60
SHAPES = [(3,), (40, 50), (1025,), (), (2, 300, 7)]
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (Adam, {}),
    "betas": (Adam, {"betas": (0.5, 0.9), "eps": 1e-4}),
    "decay": (Adam, {"weight_decay": 0.1}),
    "decoupled decay": (AdamW, {"weight_decay": 0.1}),
    "ascent": (Adam, {"maximize": True}),
}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).cuda()) for shape in SHAPES]


def gradient(tensors: list[nn.Parameter], noise: Tensor, number: Tensor) -> None:
    """Gradients of very different sizes."""
    for i, t in enumerate(tensors):
        t.grad = (t.detach() + (noise[: t.numel()] * (number + i)).sin().reshape(t.shape)) * 10.0 ** (i - 2)


def make(constructor: Any, options: dict[str, Any], tensors: list[nn.Parameter]) -> Any:
    # Two groups, with learning rates of their own.
    rates = [torch.tensor(rate, device="cuda") for rate in (1e-2, 3e-3)]
    groups = [{"params": tensors[:3], "lr": rates[0]}, {"params": tensors[3:], "lr": rates[1]}]
    return constructor(groups, capturable=True, fused=True, **options)


@pytest.mark.parametrize("block", [1, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_captured_steps_are_those_of_torch(name: str, block: int) -> None:
    """Several steps in one graph, whose gradients share its memory with what other steps need."""
    noise = torch.linspace(1, 9, 5000, device="cuda")
    numbers = torch.arange(STEPS, device="cuda", dtype=torch.float32)
    own, expected = parameters(), parameters()
    optimiser, reference = make(*OPTIONS[name], own), make(*OPTIONS[name], expected)
    launch = OneLaunch(optimiser)
    assert launch.fits(optimiser)
    gradient(own, noise, numbers[0])
    assert not launch.step()  # it leaves the state to torch
    optimiser.step()
    taken = []

    def steps(number: Tensor) -> Tensor:
        for one in number:
            spoiled = [torch.randn(100_000, device="cuda") for _ in range(3)]
            gradient(own, noise, one)
            taken.append(launch.step())
            del spoiled
        return number.sum()

    state = [v for s in optimiser.state.values() for v in s.values()]
    graph = CapturedStep(steps, (numbers[1 : 1 + block],), {}, [*own, *state], launch.tables)
    assert all(taken)
    gradient(expected, noise, numbers[0])
    reference.step()
    for first in range(1, STEPS - block, block):
        if first > STEPS // 2:  # a schedule
            for group in [*optimiser.param_groups, *reference.param_groups]:
                group["lr"].fill_(5e-3)
        graph.replay((numbers[first : first + block],), {})
        for number in numbers[first : first + block]:
            gradient(expected, noise, number)
            reference.step()
    for mine, theirs in zip(own, expected, strict=True):
        same(mine, theirs, 1e-5)
    assert [s["step"].item() for s in optimiser.state.values()] == [s["step"].item() for s in reference.state.values()]


@pytest.mark.parametrize("change", [{"amsgrad": True}, {"betas": (0.0, 0.9)}])
def test_what_it_leaves_to_torch(change: dict[str, Any]) -> None:
    assert not OneLaunch.fits(make(Adam, change, parameters()))
