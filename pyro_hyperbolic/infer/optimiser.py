"""One torch optimiser in the place of Pyro's one per parameter."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from pyro.params.param_store import module_from_param_with_module_name, normalize_param_name, user_param_name
from torch import Tensor
from torch.optim import Optimizer

Factory = Callable[[Any], Optimizer]


class OneOptimiser:
    """Steps all parameters at once, with the options that Pyro would give to each of them.

    :param optim: a ``PyroOptim``, with options and clipping per parameter and a learning-rate schedule where it has
        them, or a function from parameters to a torch optimiser.
    :param tensors: the parameters by name.
    :param names: their names in Pyro's store, from which options per parameter are chosen.
    :param capture: the steps will be captured in a CUDA graph.
    :param stacked: the first dimension of every parameter runs over members, whose gradients are clipped apart.
    """

    def __init__(
        self,
        optim: PyroOptim | Factory,
        tensors: dict[str, Tensor],
        names: dict[str, str],
        capture: bool,
        stacked: bool = False,
    ) -> None:
        self._stacked = stacked
        self._clip: list[tuple[Tensor, dict[str, Any]]] = []
        self.scheduler: Any = None
        if not isinstance(optim, PyroOptim):
            if not callable(optim):
                raise ValueError(f"optim must be a PyroOptim or a function of the parameters, got {optim!r}.")
            self.torch = optim(list(tensors.values()))
            return
        groups: list[tuple[dict[str, Any], list[Tensor]]] = []
        for key, tensor in tensors.items():
            name = names[key]
            options = _options(optim.pt_optim_args, name)
            for known, members in groups:
                if known == options:
                    members.append(tensor)
                    break
            else:
                groups.append((options, [tensor]))
            clip = _options(optim.pt_clip_args, name)
            if clip:
                self._clip.append((tensor, clip))
        device = next(iter(tensors.values())).device
        extra = _fast_options(optim.pt_optim_constructor, groups, device, capture)
        self.torch = optim.pt_optim_constructor(
            [{"params": members, **options, **extra(options)} for options, members in groups]
        )
        if isinstance(optim, PyroLRScheduler):
            self.scheduler = optim.pt_scheduler_constructor(self.torch, **optim.kwargs)
            # The user goes on calling optim.step(), which steps every scheduler that it knows.
            optim.optim_objs = {next(iter(tensors.values())): self.scheduler}

    def zero_grad(self) -> None:
        self.torch.zero_grad(set_to_none=True)

    def step(self) -> None:
        for tensor, options in self._clip:
            if tensor.grad is not None:
                _clip(tensor.grad, self._stacked, **options)
        self.torch.step()

    def state_dict(self) -> dict[str, Any]:
        """A copy: torch's own would go on changing with the steps."""
        state = {"optimiser": self.torch.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.torch.load_state_dict(state["optimiser"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])


def _clip(grad: Tensor, stacked: bool, clip_norm: float | None = None, clip_value: float | None = None) -> None:
    """Clip in place as Pyro does, by the norm of each parameter and then by value."""
    if clip_norm is not None:
        flat = grad.flatten(1) if stacked and grad.dim() > 1 else grad.reshape(len(grad) if stacked else 1, -1)
        factor = (clip_norm / (torch.linalg.vector_norm(flat, dim=-1) + 1e-6)).clamp(max=1.0)
        grad.mul_(factor.reshape(-1, *[1] * (grad.dim() - 1)) if stacked else factor.squeeze(0))
    if clip_value is not None:
        grad.clamp_(-clip_value, clip_value)


def _options(options: Any, name: str) -> dict[str, Any]:
    """The options of one parameter: a dictionary for all, or a function of its name, or of its module's and its own."""
    if not callable(options):
        return dict(options)
    if len(inspect.signature(options).parameters) == 1:
        return dict(options(normalize_param_name(name)))
    return dict(options(module_from_param_with_module_name(name), user_param_name(name)))


def _fast_options(
    constructor: Any, groups: list[tuple[dict[str, Any], list[Tensor]]], device: torch.device, capture: bool
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Options that change the speed of an optimiser but not what it computes."""
    accepted = inspect.signature(constructor).parameters
    if capture and "capturable" not in accepted:
        raise ValueError(
            f"{constructor.__name__} keeps its state on the host, which a CUDA graph cannot replay; use pyro.optim.Adam"
            " (clip_args clips), or capture=False."
        )
    fused = "fused" in accepted and all(t.is_floating_point() for _, members in groups for t in members)

    def extra(options: dict[str, Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if fused and "foreach" not in options:
            out["fused"] = True
        if capture:
            # A number would be baked into the graph; a tensor can be changed by a schedule.
            out |= {"capturable": True, "lr": torch.tensor(float(options.get("lr", 1e-3)), device=device)}
        return out

    return extra
