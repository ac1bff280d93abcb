"""Captured steps: what a graph is given, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.optim
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_hyperbolic.infer import FastSVI
from tests.accelerate.nets import Net, losses, trainer
from tests.helpers import same

pytestmark = pytest.mark.usefixtures("double")


def test_tensors_in_containers_are_given_to_the_graph(x, replayed):
    class Nested(Net):
        def model(self, batch: Any) -> None:
            super().model(batch["x"])

        def guide(self, batch: Any) -> None:
            super().guide(batch["x"])

    runs = []
    for kind, options in ((SVI, {}), (FastSVI, {"capture": True})):
        svi = trainer(kind, Nested(), **options)
        runs.append(torch.stack([torch.as_tensor(svi.step({"x": i * x})) for i in range(5)]))
    same(runs[1], runs[0], 1e-8)  # a captured learning rate is float32


def test_warm_up_leaves_no_trace_in_buffers(x, replayed):
    net = Net(lambda: nn.BatchNorm1d(6))
    losses(trainer(FastSVI, net, capture=True), x, steps=5)
    assert net.encoder[1].num_batches_tracked == 5


def test_optimiser_of_torch(x, replayed):
    expected = losses(trainer(FastSVI, Net(), lambda p: torch.optim.Adam(p, lr=0.01)), x)
    svi = trainer(FastSVI, Net(), lambda p: torch.optim.Adam(p, lr=0.01, fused=True), capture=True)
    same(losses(svi, x), expected, 1e-6)
    assert svi._optimiser.torch.param_groups[0]["capturable"]


def test_optimiser_that_cannot_be_captured(x):
    with pytest.raises(ValueError, match=r"steps of ClippedAdam cannot be captured.*capture=False"):
        trainer(FastSVI, Net(), pyro.optim.ClippedAdam({"lr": 0.01}), capture=True).step(x)


def test_argument_that_is_no_plain_value(x, replayed):
    class Anything(Net):
        def model(self, x: Tensor, other: Any) -> None:
            super().model(x)

        def guide(self, x: Tensor, other: Any) -> None:
            super().guide(x)

    svi = trainer(FastSVI, Anything(), capture=True)
    with pytest.raises(ValueError, match="must be a tensor or a plain value, got bytearray"):
        losses(svi, x, bytearray(2))
