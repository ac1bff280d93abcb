"""One torch optimiser in the place of Pyro's one per parameter."""

from __future__ import annotations

import copy
import inspect
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from pyro.params.param_store import module_from_param_with_module_name, normalize_param_name, user_param_name
from torch import Tensor
from torch.optim import Optimizer

Factory = Callable[[Any], Optimizer]
_SCHEDULERS: weakref.WeakSet[Any] = weakref.WeakSet()  # those made here


class OneOptimiser:
    """Steps all parameters at once, with the options that Pyro would give to each of them.

    :param optim: a ``PyroOptim``, with options and clipping per parameter and a learning-rate schedule where it has
        them, or a function from parameters to a torch optimiser.
    :param tensors: the parameters by name.
    :param names: their names in Pyro's store, from which options per parameter are chosen.
    :param capture: the steps will be captured in a CUDA graph; with ``None`` where they are on a CUDA device and the
        optimiser allows it.
    :param stacked: the first dimension of every parameter runs over members, whose gradients are clipped apart.
    :ivar captured: whether they will.
    """

    def __init__(
        self,
        optim: PyroOptim | Factory,
        tensors: dict[str, Tensor],
        names: dict[str, str],
        capture: bool | None,
        stacked: bool = False,
    ) -> None:
        self._stacked = stacked
        self._clip: list[tuple[Tensor, dict[str, Any]]] = []
        self.scheduler: Any = None
        device = next(iter(tensors.values())).device
        if not isinstance(optim, PyroOptim):
            if not callable(optim):
                raise ValueError(f"optim must be a PyroOptim or a function of the parameters, got {optim!r}.")
            self.torch = optim(list(tensors.values()))
            self.captured = _can_capture("capturable" in self.torch.defaults, type(self.torch), capture, device)
            if self.captured:
                for group in self.torch.param_groups:
                    group |= _captured_options(group, device)
            self._order = list(tensors)
            return
        _check_state(optim)
        groups: list[tuple[dict[str, Any], list[str]]] = []
        for key, tensor in tensors.items():
            name = names[key]
            options = _options(optim.pt_optim_args, name)
            for known, members in groups:
                if known == options:
                    members.append(key)
                    break
            else:
                groups.append((options, [key]))
            clip = _options(optim.pt_clip_args, name)
            if clip:
                self._clip.append((tensor, clip))
        constructor = optim.pt_optim_constructor
        accepted = inspect.signature(constructor).parameters
        self.captured = _can_capture("capturable" in accepted, constructor, capture, device)
        fused = "fused" in accepted and all(t.is_floating_point() for t in tensors.values())
        # Each group by the constructor, which checks its options and makes the state that it begins with.
        parts = []
        for options, members in groups:
            fast = {"fused": True} if fused and "foreach" not in options else {}
            if self.captured:
                fast |= _captured_options(options, device)
            parts.append(constructor([tensors[key] for key in members], **options | fast))
        self.torch, *others = parts
        for other in others:
            self.torch.add_param_group(other.param_groups[0])
            self.torch.state.update(other.state)
        self._order = [key for _, members in groups for key in members]
        if isinstance(optim, PyroLRScheduler):
            self.scheduler = optim.pt_scheduler_constructor(self.torch, **optim.kwargs)
            # The user goes on calling optim.step(), which steps every scheduler that it knows, whatever its key.
            optim.optim_objs[self.scheduler] = self.scheduler
            _SCHEDULERS.add(self.scheduler)

    def zero_grad(self) -> None:
        self.torch.zero_grad(set_to_none=True)

    def step(self) -> None:
        for tensor, options in self._clip:
            if tensor.grad is not None:
                _clip(tensor.grad, self._stacked, **options)
        self.torch.step()

    def state_dict(self) -> dict[str, Any]:
        """A copy: torch's own would go on changing with the steps."""
        state: dict[str, Any] = {"optimiser": self.torch.state_dict(), "order": self._order}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        here, there = self.torch.state_dict()["param_groups"], state["optimiser"]["param_groups"]
        if [(len(a["params"]), a.keys()) for a in here] != [(len(a["params"]), a.keys()) for a in there]:
            raise ValueError("the state belongs to another optimiser, or to other options per parameter.")
        if state["order"] != self._order:
            # The programs met their parameters in another order, by which torch numbers them.
            if len(here) > 1:
                raise ValueError("the state belongs to parameters in another order, with options per parameter.")
            places = {key: i for i, key in enumerate(self._order)}
            moved = state["optimiser"]["state"].items()
            state["optimiser"]["state"] = {places[state["order"][i]]: value for i, value in moved}
        for own, given in zip(here, there, strict=True):
            # How a step is computed is not part of the state, which may come from another device.
            given |= {key: own[key] for key in ("fused", "foreach", "capturable") if key in own}
        self.torch.load_state_dict(state["optimiser"])
        for group in self.torch.param_groups:
            device = group["params"][0].device
            group |= _captured_options(group, device) if self.captured else {"lr": float(group["lr"])}
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


def _check_state(optim: PyroOptim) -> None:
    """Refuse a state that would be left behind."""
    foreign = [known for known in optim.optim_objs.values() if known not in _SCHEDULERS]
    if foreign or optim._state_waiting_to_be_consumed:
        raise ValueError(
            "optim holds the state of a training by pyro.infer.SVI, which is kept for each parameter and cannot be"
            " taken over; make a new optimiser, or go on with pyro.infer.SVI."
        )


def _can_capture(possible: bool, constructor: Any, capture: bool | None, device: torch.device) -> bool:
    wanted = device.type == "cuda" if capture is None else capture
    if not wanted or possible:
        return wanted
    problem = f"steps of {constructor.__name__} cannot be captured in a CUDA graph"
    if capture is None:
        warnings.warn(f"{problem} and run without; pyro.optim.Adam can be (clip_args clips).", stacklevel=5)
        return False
    raise ValueError(f"{problem}; use pyro.optim.Adam (clip_args clips), or capture=False.")


def _captured_options(options: dict[str, Any], device: torch.device) -> dict[str, Any]:
    # A number would be baked into the graph; a tensor can be changed by a schedule.
    return {"capturable": True, "lr": torch.tensor(float(options.get("lr", 1e-3)), device=device)}
