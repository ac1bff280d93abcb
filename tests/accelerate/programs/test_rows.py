"""Functions of rows that the cores of a CPU share, and their loops without Python."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler import changes
from pyro_hyperbolic.accelerate.hmc import Metric, State, leapfrog
from pyro_hyperbolic.accelerate.leapfrog import leapfrog_of
from pyro_hyperbolic.accelerate.programs.compiled import compile_function
from pyro_hyperbolic.accelerate.programs.rows import CompiledRows
from pyro_hyperbolic.private import switched_off


@pytest.fixture
def cores() -> Iterator[None]:
    """Two of them, wherever the tests run, and processes that compile."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch._inductor.config.patch(compile_threads=2):
        yield
    torch.set_num_threads(before)


def energy(x: Tensor, width: Tensor) -> Tensor:
    return 0.25 * (x / width).pow(4).sum(-1) + x.exp().logsumexp(-1)


def gradients(x: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    return torch.func.vmap(torch.func.grad_and_value(energy), (0, None))(x, width)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_of_each_core(dtype: torch.dtype) -> None:
    """An odd number of rows, and a shared tensor that changes in place; then steps of dynamics with all metrics."""
    torch.manual_seed(0)
    x, width = torch.randn(5, 6, dtype=dtype), torch.ones(6, dtype=dtype)
    rows = CompiledRows(gradients, [x], width)
    assert len(rows._recordings) == 2
    for own in (x, x + 1, x.flip(0)):
        width.mul_(1.5)
        found = rows(own)
        for part, expected in zip(found, gradients(own, width), strict=True):
            torch.testing.assert_close(part, expected)
        kept = found[0].clone()
        rows(-own)
        assert torch.equal(found[0], kept)  # a result is no part of the memory that the next call writes

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        gradient, value = gradients(x, width)
        return value, gradient

    def many(*args) -> tuple[Tensor, ...]:
        x, p, (gradient, value) = rows.leap(*args)
        return x, p, value, gradient

    assert rows.can_leap
    start, p = State.at(plain, x), torch.randn_like(x)
    for root in (torch.rand(6, dtype=dtype), torch.eye(6, dtype=dtype) + torch.rand(6, 6, dtype=dtype).tril()):
        for length in (0.02, 0.02 * torch.rand(5, 1, dtype=dtype)):
            (ours, own), (theirs, other) = (
                leap(start, p, Metric(root), length, 7) for leap in (leapfrog_of(many, plain), leapfrog(plain))
            )
            for name in ("x", "energy", "gradient"):
                torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
            torch.testing.assert_close(own, other)


@pytest.mark.usefixtures("cores")
def test_what_is_no_loop() -> None:
    """A product of large matrices and a sum along the way are called between loops; or there is no recording."""
    x, matrix = torch.randn(3, 300, dtype=torch.float64), torch.randn(300, 300, dtype=torch.float64)

    def function(x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        y = (2 * x.sin()) @ m
        return y.cos().cumprod(-1), y.exp()

    rows = CompiledRows(function, [x], matrix)
    assert len(rows._recordings) == 2
    assert not rows.can_leap
    for number in range(3):
        matrix.mul_(0.5)
        for found, expected in zip(rows(x + number), function(x + number, matrix), strict=True):
            torch.testing.assert_close(found, expected)

    assert not CompiledRows(lambda x, m: x @ m, [x], matrix).can_leap
    # Loops that are called by Python alone: one that does not read the rows would be left out without a word.
    one_process = torch._inductor.config.patch(compile_threads=1)
    for without in (changes.left_out("files"), switched_off(), one_process):
        with without:
            rows = CompiledRows(lambda x, m: x @ m.cos(), [x], matrix)
            assert not rows._recordings
            matrix.mul_(2.0)
            torch.testing.assert_close(rows(x + 1), (x + 1) @ matrix.cos())


@pytest.mark.usefixtures("cores")
def test_what_goes_wrong_in_a_loop() -> None:
    """It is an error, as it is without a recording, and the next call is right."""
    table = torch.arange(10.0)

    def function(x: Tensor, table: Tensor) -> Tensor:
        return (table[x.long()] * x).sum(-1)

    x = torch.rand(4, 6) * 9
    rows = CompiledRows(function, [x], table)
    assert len(rows._recordings) == 2
    with pytest.raises(RuntimeError, match="index out of bounds"):
        rows(x + 100)
    torch.testing.assert_close(rows(x), function(x, table))


@pytest.mark.usefixtures("cores")
def test_rows_beside_the_given_ones() -> None:
    """What is computed to fill the cores is of a row that was given, and of as many as were compiled."""
    table = torch.arange(10.0)

    def function(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        energy = torch.func.grad_and_value(lambda v: (table[v.detach().long()] * v).sum() + v.abs().sqrt().sum())
        return torch.func.vmap(energy)(x)

    first = torch.rand(5, 6) * 9
    first[-1] = 0.0  # where the gradient is infinite
    rows = CompiledRows(function, [first], table)
    x = (torch.rand(5, 6) * 5 + 2).requires_grad_()
    there, _, (gradient, _) = rows.leap(x, torch.zeros(5, 6), torch.tensor(0.001), torch.ones(6), 3)
    assert gradient.isfinite().all()
    torch.testing.assert_close(rows(there)[0], function(there, table)[0])
    assert not rows(x)[0].requires_grad
    with pytest.raises(ValueError, match="rows must be 5, as those that were compiled, got 1"):
        rows(x[:1])


def test_where_a_trial_fails() -> None:
    """An operation that is an error for numbers that nobody gave."""
    eye = torch.eye(40, dtype=torch.float64)

    def function(z: Tensor) -> Tensor:
        return torch.linalg.cholesky(eye * (2.0005 - z[0])).diagonal().log().sum() + z.sin().sum()

    z = torch.full((50,), 2.0, dtype=torch.float64)
    torch.testing.assert_close(compile_function(function, z).fixed(z)(z), function(z))


@pytest.mark.usefixtures("cores")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_that_was_forked() -> None:
    """OpenMP would wait there for threads that it does not have."""
    x = torch.randn(4, 6)
    rows = CompiledRows(lambda x: x.sin().exp().sum(-1), [x])
    rows(x)
    process = torch.multiprocessing.get_context("fork").Process(target=rows, args=(x,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
