"""Adam for all parameters in one launch.

A step of Adam only moves memory: 28 bytes per number. torch's fused step cuts the parameters into pieces of 65,536, so
that those of one model occupy a fraction of a GPU; here they are pieces of 1,024. The arithmetic is torch's.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from pyro_hyperbolic.accelerate.compiler.changes import is_made
from pyro_hyperbolic.accelerate.private import add_to_all, has_no_hooks

BLOCK = 1024
_ALIGNED = 16  # bytes; what the kernel assumes of every address
_SPARE = 256  # tables of a shape that are kept for captures


class OneLaunch:
    """Steps an ``Adam`` or ``AdamW`` of torch, whose state and options it works on.

    A captured step finds the addresses of its tensors in a table, which is filled after the capture by :meth:`tables`.
    The table must not lie in the memory of the graph, where other steps would write over it, so the steps before the
    capture leave theirs for it.

    :param optimiser: the optimiser.
    """

    def __init__(self, optimiser: Optimizer) -> None:
        self._optimiser = optimiser
        self._layouts: dict[Any, tuple[Tensor, Tensor, Tensor]] = {}
        self._spare: dict[int, list[Tensor]] = {}
        self._unfilled: list[tuple[Tensor, Tensor]] = []

    @staticmethod
    def fits(optimiser: Optimizer) -> bool:
        """Whether the steps of an optimiser are ones that the kernel knows, on a device that it runs on."""
        plain = is_made("one launch") and type(optimiser) in (Adam, AdamW)
        if not plain or not has_no_hooks(optimiser) or importlib.util.find_spec("triton") is None:
            return False
        tensors = [t for group in optimiser.param_groups for t in group["params"]]
        usual = all(_is_usual(group) for group in optimiser.param_groups)
        return usual and all(t.is_cuda and t.dtype == torch.float32 for t in tensors)

    def step(self) -> bool:
        """One step; ``False`` where it was left to torch, which also makes the state."""
        parts = []
        for group in self._optimiser.param_groups:
            stepped = [t for t in group["params"] if t.grad is not None]
            states = [self._optimiser.state[t] for t in stepped]
            if not all(
                "exp_avg" in state and state["step"].device == t.device
                for t, state in zip(stepped, states, strict=True)
            ):
                return False
            for t in stepped:
                assert t.grad is not None
                if t.grad.data_ptr() % _ALIGNED:
                    t.grad = t.grad.clone()  # a part of a larger gradient
            moved = [x for t, state in zip(stepped, states, strict=True) for x in _moved(t, state)]
            if not all(x.is_contiguous() and x.data_ptr() % _ALIGNED == 0 for x in moved):
                return False
            if stepped:
                parts.append((group, stepped, states))
        if _capturing() and not self._is_prepared([len(stepped) for _, stepped, _ in parts]):
            return False
        if not parts:
            return True
        add_to_all([state["step"] for _, _, states in parts for state in states], 1.0)
        for group, stepped, states in parts:
            self._launch(group, stepped, states)
        return True

    def tables(self) -> list[Tensor]:
        """Fill the tables of what has been captured, which must live as long as the graph."""
        filled = []
        for table, addresses in self._unfilled:
            filled.append(table.copy_(addresses))
        self._unfilled.clear()
        return filled

    def _launch(self, group: dict[str, Any], stepped: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from pyro_hyperbolic.accelerate.trainers.adam_kernel import adam_kernel

        sizes, parameter_of_block, block_of_parameter = self._layout(stepped)
        rows = [
            [x.data_ptr() for x in (*_moved(own, state), state["step"])]
            for own, state in zip(stepped, states, strict=True)
        ]
        addresses = torch.tensor(rows, dtype=torch.int64, device="cpu")
        beta1, beta2 = group["betas"]
        adam_kernel[(len(parameter_of_block),)](
            self._table(addresses, stepped[0].device),
            sizes,
            parameter_of_block,
            block_of_parameter,
            group["lr"],
            BETA1=beta1,
            BETA2=beta2,
            LOG_BETA1=math.log(beta1),
            LOG_BETA2=math.log(beta2),
            EPS=float(group["eps"]),
            DECAY=float(group["weight_decay"]),
            DECOUPLED=group.get("decoupled_weight_decay", isinstance(self._optimiser, AdamW)),
            MAXIMIZE=group["maximize"],
            BLOCK=BLOCK,
        )

    def _table(self, addresses: Tensor, device: torch.device) -> Tensor:
        if _capturing():
            table = self._spare[len(addresses)].pop()
            self._unfilled.append((table, addresses))
            return table
        table = addresses.to(device)
        spare = self._spare.setdefault(len(addresses), [])
        if len(spare) < _SPARE:
            spare.append(table)
        return table

    def _is_prepared(self, lengths: list[int]) -> bool:
        """Whether the steps before a capture have left all that it needs."""
        return all(len(self._spare.get(length, ())) >= lengths.count(length) for length in lengths)

    def _layout(self, stepped: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Sizes of the parameters, and of every block its parameter and its place in it."""
        counts = [t.numel() for t in stepped]
        key = tuple(counts)
        if key not in self._layouts:
            device = stepped[0].device
            blocks = torch.tensor([-(-count // BLOCK) for count in counts], device="cpu")
            owners = torch.arange(len(counts), device="cpu").repeat_interleave(blocks)
            places = torch.arange(len(owners), device="cpu") - (blocks.cumsum(0) - blocks)[owners]
            layout = torch.tensor(counts, device="cpu"), owners.int(), places.int()
            self._layouts[key] = tuple(t.to(device) for t in layout)  # type: ignore[assignment]  # of three
        return self._layouts[key]


def _is_usual(group: dict[str, Any]) -> bool:
    betas = all(isinstance(beta, float) and beta > 0 for beta in group["betas"])
    return betas and isinstance(group["lr"], Tensor) and not (group["amsgrad"] or group["differentiable"])


def _moved(parameter: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """What a step reads and writes number by number."""
    assert parameter.grad is not None
    return parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
