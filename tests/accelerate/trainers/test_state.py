"""The state of a trainer: what is refused, and that nothing of it is taken over."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.optim
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import Tensor

from pyro_hyperbolic.infer import EnsembleSVI, FastSVI
from tests.accelerate.nets import Net

pytestmark = pytest.mark.usefixtures("double")


def single() -> tuple[FastSVI, dict[str, Any]]:
    net = Net()
    return FastSVI(net.model, net.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()), {}


def together() -> tuple[EnsembleSVI, dict[str, Any]]:
    nets = [Net(seed=i) for i in range(2)]
    members = [(net.model, net.guide) for net in nets]
    return EnsembleSVI(members, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()), {"shared": True}


TRAINERS = {"single": single, "together": together}


def of_other_trainer(own: dict[str, Any], other: dict[str, Any]) -> Any:
    return other


def without(name: str) -> Any:
    return lambda own, other: {key: value for key, value in own.items() if key != name}


def with_value(name: str, value: Any) -> Any:
    return lambda own, other: own | {name: value}


REFUSED: dict[str, tuple[Any, str]] = {
    "nothing": (lambda own, other: None, r"state must be what state_dict\(\) .* returned, got NoneType"),
    "empty": (lambda own, other: {}, "it lacks 'parameters', 'buffers', 'optimiser', 'steps'"),
    "inside of another": (lambda own, other: {"trainer": own}, "it lacks 'parameters'"),
    "no optimiser": (without("optimiser"), "it lacks 'optimiser'"),
    "empty optimiser": (with_value("optimiser", {}), "belongs to another optimiser"),
    "no dictionary": (with_value("buffers", None), "under 'buffers' there is no dictionary but NoneType"),
    "no tensors": (
        lambda own, other: own | {"parameters": {name: t.tolist() for name, t in own["parameters"].items()}},
        "under 'parameters' .* and .* more must be tensors",
    ),
    "no step": (with_value("steps", "x"), "steps of the state must be an integer of at least 0, got 'x'"),
    "other buffers": (with_value("buffers", {"b": torch.zeros(2)}), "belongs to .*: the buffers 'b' are not the same"),
    "other trainer": (of_other_trainer, r"belongs to .*: the parameters .* are not the same in both; load it into"),
}


@pytest.mark.parametrize(
    ("trainer", "name", "started"),
    [(trainer, name, (i + j) % 2 == 1) for i, trainer in enumerate(TRAINERS) for j, name in enumerate(REFUSED)],
)
def test_what_is_no_state_is_refused(trainer: str, name: str, started: bool, x: Tensor) -> None:
    states = []
    for make in (TRAINERS[trainer], *(make for key, make in TRAINERS.items() if key != trainer)):
        donor, options = make()
        donor.step(x, **options)
        states.append(donor.state_dict())
    change, message = REFUSED[name]
    svi, options = TRAINERS[trainer]()

    def load() -> None:
        svi.load_state_dict(change(*states))
        svi.step(x, **options)

    if started:
        svi.step(x, **options)
        before = svi.state_dict()
    with pytest.raises(ValueError, match=message):
        load()
    if started:  # it is still the trainer that it was
        after = svi.state_dict()
        assert all(torch.equal(after["parameters"][key], value) for key, value in before["parameters"].items())
        assert svi.step(x, **options).isfinite().all()
        assert svi.steps == 2
