"""What makes programs fit for function transforms and CUDA graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch._subclasses import FakeTensorMode
from torch.distributions import Normal

from pyro_hyperbolic.accelerate.programs import modes
from pyro_hyperbolic.accelerate.programs.compiled import compile_function
from pyro_hyperbolic.accelerate.programs.modes import ConstantMasks, ConstantsOnDevice, DecompositionsOnDevice
from pyro_hyperbolic.accelerate.trainers.graphs import CapturedStep
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import ManifoldVAE
from tests.helpers import each, same


@pytest.mark.parametrize("value", [1.5, 2, True])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"dtype": None}, {"device": "meta"}])
@pytest.mark.parametrize("function", [torch.tensor, torch.as_tensor])
def test_constants_are_the_same(function: Any, options: dict[str, Any], value: Any) -> None:
    expected = function(value, **options)
    with ConstantsOnDevice():
        made = function(value, **options)
    assert (made.shape, made.dtype, made.device) == (expected.shape, expected.dtype, expected.device)
    assert made.device.type == "meta" or made.item() == expected.item()


def test_constant_like_another_tensor() -> None:
    like = torch.ones(2, dtype=torch.float64)
    with ConstantsOnDevice():
        made = like.new_tensor(3)
    assert (made.item(), made.dtype) == (3.0, torch.float64)


def test_a_distribution_with_a_plain_number_makes_no_constant_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    full = torch.full
    monkeypatch.setattr(modes.torch, "full", lambda *args, **kwargs: calls.append(args) or full(*args, **kwargs))
    with ConstantsOnDevice():
        distribution = Normal(torch.zeros(3), 2.0)
    assert calls == [((), 2.0)]
    assert distribution.scale.tolist() == [2.0] * 3


def test_other_tensors_pass() -> None:
    with ConstantsOnDevice():
        assert torch.tensor(np.float64(0.1)).dtype == torch.float64
        assert torch.tensor([1.0, 2.0]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("function", [torch.linalg.cholesky, torch.linalg.inv, torch.inverse, torch.Tensor.inverse])
def test_decomposition_that_fails_is_nan(function: Any) -> None:
    good = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    matrices = torch.stack([good, torch.zeros(2, 2)])
    with DecompositionsOnDevice():
        result = function(matrices)
    torch.testing.assert_close(result[0], function(good))
    assert result[1].isnan().all()


@pytest.mark.gpu
def test_capture_that_fails_leaves_no_trace() -> None:
    state = torch.zeros(1, device="cuda")
    calls = 0

    def step() -> torch.Tensor:
        nonlocal calls
        calls += 1
        state.add_(torch.randn(1, device="cuda"))
        return state.cpu() if calls > 3 else state  # a copy to the host, which only the capture meets

    torch.cuda.manual_seed(3)
    expected = torch.randn(2, device="cuda")
    torch.cuda.manual_seed(3)
    with pytest.raises(RuntimeError):
        CapturedStep(step, (), {}, [state])
    torch.cuda.synchronize()
    assert state.item() == 0
    assert torch.equal(torch.randn(2, device="cuda"), expected)


KNOWN = torch.tensor([True, False, True])


def changed(change: Any) -> torch.Tensor:
    mask = torch.zeros(3, 3, dtype=torch.bool)
    change(mask)
    return mask


def filled_by_or(mask: torch.Tensor) -> None:
    mask |= mask.logical_not()


CHANGES: list[Any] = [
    filled_by_or,
    lambda mask: mask.__setitem__(0, True),
    lambda mask: mask[0].fill_(True),
    lambda mask: mask.diagonal().fill_(True),
    lambda mask: torch.logical_not(mask, out=mask),
]

MASKS: dict[str, Any] = {
    "there before": lambda x: x[KNOWN],
    "of a triangle": lambda x: torch.outer(x, x)[..., torch.arange(3) < torch.arange(3).view(-1, 1)],
    "set": lambda x: torch.distributions.utils.vec_to_tril_matrix(x),
    "with numbers": lambda x: torch.outer(x, x)[1:, ~KNOWN],
    "of ones": lambda x: torch.outer(x, x)[torch.ones(3, 3, dtype=torch.bool).tril()],
}


@each("name", MASKS)
def test_masks_of_constants_are_traced(name: str) -> None:
    x = torch.randn(4, 3, dtype=torch.float64)

    def function(x: torch.Tensor) -> torch.Tensor:
        with ConstantMasks():
            return MASKS[name](x).square().sum()

    mapped = torch.func.vmap(torch.func.grad_and_value(function))
    gradients, values = compile_function(mapped, x)(x)
    for row, gradient, value in zip(x.requires_grad_().unbind(), gradients, values, strict=True):
        own = MASKS[name](row).square().sum()
        same(value, own, 1e-12)
        same(gradient, torch.autograd.grad(own, row)[0], 1e-12)


def test_masks_that_depend_on_values_stay() -> None:
    """What a compiled function takes depends on them in every call; of those that were changed nothing is known."""

    def positive(x: torch.Tensor) -> torch.Tensor:
        with ConstantMasks():
            return x[x > 0].sum()

    compiled = compile_function(positive, torch.ones(3))
    assert [compiled(number * torch.ones(3)).item() for number in (1.0, -1.0, 2.0)] == [3.0, 0.0, 6.0]
    with FakeTensorMode(), ConstantMasks() as masks:
        assert masks._values(torch.arange(3) > 0).tolist() == [False, True, True]
        for change in CHANGES:
            assert masks._values(changed(change)) is None


@pytest.mark.slow
@pytest.mark.parametrize("signature", ["h1,s1", "h2", "s2", "u2"])
def test_traced_steps_hold_no_number_of_the_host(signature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph cannot capture the copy of a constant from the host to the device."""
    graphs: list[Any] = []
    monkeypatch.setattr(
        "pyro_hyperbolic.accelerate.compiler.graphs.run_compiler", lambda graph, *_, **__: graphs.append(graph) or graph
    )
    vae = ManifoldVAE(signature, 2, 3, hidden_dim=4, likelihood="normal")
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 1e-3}), Trace_ELBO(), compile=True)
    for _ in range(2):
        svi.step(torch.randn(5, 3))
    (graph,) = graphs
    constants = [getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"]
    assert not [value for value in constants if value.numel()]


def test_indices_that_python_reads() -> None:
    """A trace knows those that a tensor has now, in its dtype, and no others."""
    found: list[Any] = []

    def known(x: torch.Tensor) -> torch.Tensor:
        indices = torch.arange(2, 5)
        found.extend([[i.item() for i in indices], [int(i) for i in indices], indices.tolist()])
        return x

    compile_function(known, torch.ones(3))
    assert found == 3 * [[2, 3, 4]]

    def changed() -> torch.Tensor:
        indices = torch.arange(3)
        indices[0] = 7
        return indices

    unknown = [
        changed,
        lambda: torch.arange(3).add_(1),
        lambda: torch.arange(0, 4, step=2),
        lambda: torch.arange(end=3),
        lambda: torch.arange(3, dtype=torch.float64),
    ]
    for make in unknown:
        for read in (lambda t: next(iter(t)).item(), torch.Tensor.tolist):
            with pytest.raises(RuntimeError, match=r"Python reads the value of a tensor|tolist\(\) is not supported"):
                compile_function(lambda x, make=make, read=read: x * torch.tensor(read(make())), torch.ones(3))
