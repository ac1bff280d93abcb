"""Batches on their way to the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.ops.nested import flatten, unflatten


class Transfer:
    """Brings batches from the host to a CUDA device, while the device is at work on the steps before.

    They go through pinned memory and on a stream of their own, so that neither the host nor the steps wait for the
    copies of other batches. What is on a device already, and what is no tensor, is passed on; so is every batch where
    the steps are not on a CUDA device.

    :param place: where the steps are; ``None`` as long as that is not known, or where nothing is to be moved.
    """

    def __init__(self, place: Callable[[], torch.device | None]) -> None:
        self._place = place
        self._stream: Any = None

    def __call__(self, batch: Any) -> Any:
        device = self._place()
        if device is None or device.type != "cuda":
            return batch
        leaves, spec = flatten(batch)
        moved = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.device.type == "cpu"}
        if not moved:
            return batch
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            for i, leaf in moved.items():
                pinned = leaf if leaf.is_pinned() else leaf.pin_memory()
                moved[i] = pinned.to(device, non_blocking=True)
        steps = torch.cuda.current_stream(device)
        steps.wait_stream(self._stream)
        for tensor in moved.values():
            # Its memory was made on the stream of the copies, and must not go to another one before the step is done.
            tensor.record_stream(steps)
        return unflatten([moved.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
