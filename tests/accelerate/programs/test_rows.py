"""Functions of rows that the cores of a CPU share, and their loops without Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.compiler import changes
from pyro_hyperbolic.accelerate.hmc import Metric, State, leapfrog
from pyro_hyperbolic.accelerate.leapfrog import leapfrog_of
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

    for without in (changes.left_out("files"), switched_off()):
        with without:
            rows = CompiledRows(lambda x: x.sin().sum(-1), [x])
            assert not rows._recordings
            torch.testing.assert_close(rows(x + 1), (x + 1).sin().sum(-1))


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
