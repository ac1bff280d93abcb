"""Fixtures of the tests of the trainers."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.arguments import split_tensors
from pyro_hyperbolic.accelerate.trainers import optimiser
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedStep


@pytest.fixture
def x() -> Tensor:
    return torch.randn(12, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.fixture
def replayed(monkeypatch):
    """CUDA graphs that run the step again with what the graph holds, on a CPU."""

    class Stream:
        def wait_stream(self, other: Any) -> None:
            pass

    fakes = {"get_rng_state": torch.get_rng_state, "set_rng_state": torch.set_rng_state, "CUDAGraph": SimpleNamespace}
    generator = SimpleNamespace(clone_state=lambda: None)
    fakes |= {"default_generators": [generator], "current_device": lambda: 0}
    fakes |= {"Stream": Stream, "current_stream": Stream}
    fakes |= {"stream": contextlib.nullcontext, "graph": contextlib.nullcontext}
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    original = CapturedStep.__init__

    def init(self: Any, step: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> None:
        original(self, step, args, kwargs, *rest, **options)
        own_args, own_kwargs = split_tensors(args, kwargs)[1](self._inputs)

        def replay() -> None:
            self._out = step(*own_args, **own_kwargs)

        self._graph.replay = replay

    monkeypatch.setattr(CapturedStep, "__init__", init)
    monkeypatch.setattr(optimiser, "_check_device", lambda device: None)
