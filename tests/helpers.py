"""What tests share: the oracle's rows, and the tolerances, one table per kind of quantity and dtype."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = [torch.float64, torch.float32]

# What must hold against the oracle, relative (absolute below one) unless the test says otherwise.
GEOMETRY = {torch.float64: 1e-9, torch.float32: 1e-3}
LOG_PROB = {torch.float64: 1e-9, torch.float32: 1e-3}
LOG_Z = {torch.float64: 1e-10, torch.float32: 1e-5}
QUANTILE = {torch.float64: 1e-6, torch.float32: 1e-4}
QUANTILE_SLOPE = {torch.float64: 1e-4, torch.float32: 1e-2}
CDF = {torch.float64: 1e-9, torch.float32: 1e-4}

# A handful of roundings, for identities that hold exactly; and what one cancellation in a derivative costs.
ROUNDING = {torch.float64: 32 * 2.0**-52, torch.float32: 32 * 2.0**-23}
SLOPE = {torch.float64: 256 * 2.0**-52, torch.float32: 256 * 2.0**-23}


def in_turns(rows: Iterable[Any], others: Iterable[Any] = DTYPES) -> list[tuple[Any, Any]]:
    """Each row once, with the others in turns: where both are checked, but not every pair of them is news.

    >>> in_turns("abc", [1, 2])
    [('a', 1), ('b', 2), ('c', 1)]
    """
    return list(zip(rows, itertools.cycle(others), strict=False))


def each(names: str | tuple[str, ...], rows: Sequence[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As ``pytest.mark.parametrize``, but in one test: for rows that take no longer than what pytest does for a test.

    Every row has the seed that a test begins with, and an error names its row.

    >>> each("number", [1, 2])(lambda number: print(number))()
    1
    2
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_rows(*args: Any, **others: Any) -> None:
            for row in rows:
                pyro.set_rng_seed(0)
                pyro.clear_param_store()
                try:
                    test(
                        *args,
                        **others,
                        **({names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))),
                    )
                except (Exception, pytest.fail.Exception) as error:
                    raise AssertionError(f"{names} = {row}: {error}") from error

        signature = inspect.signature(test)
        given = [
            parameter
            for name, parameter in signature.parameters.items()
            if name not in ({names} if isinstance(names, str) else names)
        ]
        vars(all_rows).update(__signature__=signature.replace(parameters=given), rows=rows)
        return all_rows

    return decorate


@functools.cache
def gauss_legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on (-1, 1)."""
    return np.polynomial.legendre.leggauss(count)


@functools.cache
def _oracle_file() -> dict[str, list[dict[str, Any]]]:
    return json.loads((Path(__file__).parent / "oracle" / "oracle.json").read_text())


def oracle(name: str) -> list[dict[str, Any]]:
    """Rows of 50-digit arithmetic: ``"radius"``, ``"geometry"`` or ``"log_prob"``.

    In the rows of ``"geometry"``, ``gyroplane_signed_distance`` is the distance of ``y`` to the plane ``(p, a)``.
    """
    return _oracle_file()[name]


def same(actual: Any, expected: Any, tolerance: float, *, scale: Any = 1.0) -> None:
    """Assert that ``actual`` is ``expected`` to ``tolerance`` times the larger of ``scale`` and ``|expected|``."""
    actual, expected, scale = (torch.as_tensor(t, dtype=torch.float64).detach() for t in (actual, expected, scale))
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert actual.isfinite().all(), f"not finite: {actual}"
    assert expected.isfinite().all(), f"the expected value is not finite: {expected}"
    error = (actual - expected).abs() / torch.maximum(expected.abs(), scale)
    # Where both are zero and nothing scales them, there is no error.
    error = error.nan_to_num(nan=0.0)
    worst = error.argmax()
    assert error.max() <= tolerance, (
        f"relative error {error.max():.3g} exceeds {tolerance:.3g}: entry {worst.item()} is "
        f"{actual.flatten()[worst]:.17g}, expected {expected.flatten()[worst]:.17g}"
    )


class LargestStorage(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation inside allocates or touches.

    >>> with LargestStorage() as largest:
    ...     _ = torch.ones(2, 1) + torch.ones(3)
    >>> largest.numel
    6
    """

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.untyped_storage().nbytes() // t.element_size())
        return out
