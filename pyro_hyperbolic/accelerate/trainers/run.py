"""Many steps in one call."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.trainers.minibatch import Epoch

# Steps in one captured graph: enough to take the host out, few enough that an interrupt is soon heard.
_FEWEST, _MOST = 24, 64


def run_steps(
    batches: Iterable[Any],
    step: Callable[[Any], Tensor],
    block: Callable[[Epoch, Tensor], Tensor | None],
    transfer: Callable[[Any], Any],
    progress: bool,
) -> list[Tensor]:
    """Steps over all batches; their losses, the first dimension of each over steps.

    :param step: one step with what the batches yield.
    :param block: the steps with the batches whose rows ``(steps, ...)`` it is given, in one go; or ``None`` where that
        cannot be done (yet).
    :param transfer: brings what the batches yield to where the steps are.
    :param progress: show a progress bar.
    """
    total = operator.length_hint(batches) or None  # also of a loader that has a length but cannot tell it
    losses: list[Tensor] = []
    with tqdm(total=total, unit=" steps", disable=None if progress else True) as bar:
        source = _iterator(batches)
        while True:
            together = _next_block(source, block)
            if together is None:
                try:
                    batch = next(source)
                except StopIteration:
                    return losses
                together = step(transfer(batch)).unsqueeze(0)
            losses.append(together)
            bar.update(len(together))


def _iterator(batches: Any) -> Any:
    """Of the batches, or an error that says what to pass."""
    if not isinstance(batches, (str, Mapping)):
        try:
            return iter(batches)
        except TypeError:
            if hasattr(batches, "__iter__"):
                raise  # of its own
    raise ValueError(
        f"batches must be an iterable of batches, got {type(batches).__name__}; pass Minibatches, a list of batches or"
        " a DataLoader."
    )


def _next_block(source: Any, block: Callable[[Epoch, Tensor], Tensor | None]) -> Tensor | None:
    if not isinstance(source, Epoch):
        return None
    length = block_length(source.source.num_whole)
    rows = source.rows(length) if length else None
    losses = None if rows is None else block(source, rows)
    if losses is not None:
        source.skip(length)
    return losses


def block_length(count: int) -> int:
    """How many of the steps of an epoch are taken in one graph; 0 where they are too few.

    >>> block_length(468), block_length(467), block_length(10)
    (52, 64, 0)
    """
    if count < _FEWEST:
        return 0
    divisors = [length for length in range(_FEWEST, _MOST + 1) if count % length == 0]
    return max(divisors, default=min(count, _MOST))
