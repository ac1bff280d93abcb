"""A batch of curvatures against a loop over scalar ones: the same values and derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.helpers import same

# Batch shapes of the curvature and of everything else.
SHAPES = [((2,), ()), ((1,), (2,)), ((2, 1), (2,)), ((2,), (2, 1))]
CURVATURES = [1.4, 0.3, 1e-5, 0.0, 2.0, 0.7]


def curvatures(shape: tuple[int, ...], *, flat: bool, dtype: torch.dtype = torch.float64) -> Tensor:
    """A leaf of the shape, filled with different curvatures; ``flat``: 0 is among them."""
    values = CURVATURES if flat else [c for c in CURVATURES if c > 0]
    count = math.prod(shape)
    chosen = [values[(3 + i) % len(values)] for i in range(count)]
    return torch.tensor(chosen, dtype=dtype).reshape(shape).requires_grad_()


def equals_loop(
    f: Callable[..., Tensor],
    c: Tensor,
    arguments: list[Tensor],
    events: list[int],
    tolerance: float,
    shared: Sequence[Tensor] = (),
) -> None:
    """``f(c, *arguments)`` is what one call for every element gives, with its derivatives in all leaves.

    ``events`` are the numbers of event dimensions of the arguments; ``f`` may depend on the leaves ``shared`` too.
    Errors are relative to the largest entry, or absolute below one.
    """
    leaves = [c, *arguments, *shared]
    batch = torch.broadcast_shapes(c.shape, *[a.shape[: a.dim() - e] for a, e in zip(arguments, events, strict=True)])
    parts = [(c, 0), *zip(arguments, events, strict=True)]
    whole = [a.expand(batch + a.shape[a.dim() - e :]) for a, e in parts]
    rows = [f(*[t[index] for t in whole]) for index in itertools.product(*map(range, batch))]
    expected = torch.stack(rows).reshape(batch + rows[0].shape)
    actual = f(c, *arguments)
    same(actual, expected, tolerance, scale=expected.detach().abs().max().clamp(min=1))
    if not expected.requires_grad:
        return
    weights = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(7))
    ours, theirs = (torch.autograd.grad(out, leaves, weights, allow_unused=True) for out in (actual, expected))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            same(mine, other, 100 * tolerance, scale=other.abs().max().clamp(min=1))
