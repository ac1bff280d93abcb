"""One torch optimiser in the place of Pyro's one per parameter."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler
from pyro.params.param_store import module_from_param_with_module_name, normalize_param_name, user_param_name
from torch import Tensor
from torch.optim import Optimizer

from pyro_hyperbolic.accelerate import private
from pyro_hyperbolic.accelerate.programs.warning import warn_user
from pyro_hyperbolic.accelerate.trainers.adam import OneLaunch

Factory = Callable[[Any], Optimizer]

_MECHANICS = ("fused", "foreach", "capturable")  # how a step is computed, not what it does


class OneOptimiser:
    """Steps all parameters at once, as a ``PyroOptim`` would step each of them.

    A ``PyroOptim`` keeps a torch optimiser (or a schedule of one) per parameter in ``optim.optim_objs``. These are made
    here as Pyro makes them, and the one that does the steps works on *their* state: what ``optim.get_state()`` saves,
    ``optim.set_state()`` has loaded, another trainer with the same ``optim`` has done, or a user or a schedule has
    written into their ``param_groups`` is therefore always what the steps go on from.

    :param optim: a ``PyroOptim``, with options and clipping per parameter and a learning-rate schedule where it has
        them, or a function from parameters to a torch optimiser.
    :param tensors: the parameters by name.
    :param names: their names in Pyro's store, from which options per parameter are chosen.
    :param capture: the steps will be captured in a CUDA graph; with ``None`` where they are on a CUDA device and the
        optimiser allows it.
    :param stacked: the first dimension of every parameter runs over members, whose gradients are clipped apart.
    :ivar torch: the optimiser that does the steps.
    :ivar captured: whether they will be captured.
    """

    torch: Optimizer

    def __init__(
        self,
        optim: PyroOptim | Factory,
        tensors: dict[str, Tensor],
        names: dict[str, str],
        capture: bool | None,
        stacked: bool = False,
    ) -> None:
        self.optim = optim
        self._tensors, self._names, self._stacked = tensors, names, stacked
        self._device = next(iter(tensors.values())).device
        self._own: dict[str, Any] = {}
        self._seen: dict[str, dict[str, Any]] = {}
        self._members: list[list[str]] = []
        self._clip: list[tuple[Tensor, dict[str, Any]]] = []
        self._launched: tuple[Optimizer, OneLaunch] | None = None
        if not isinstance(optim, PyroOptim):
            self.torch = _made_by(optim, list(tensors.values()))
            self.captured = _can_capture("capturable" in self.torch.defaults, type(self.torch), capture, self._device)
            if self.captured:
                for group in self.torch.param_groups:
                    group |= _captured_options(group["lr"], self._device)
            return
        constructor = optim.pt_optim_constructor
        self._accepted = inspect.signature(constructor).parameters
        self.captured = _can_capture("capturable" in self._accepted, constructor, capture, self._device)
        for key, tensor in tensors.items():
            clip = _options(optim.pt_clip_args, names[key])
            if clip:
                self._clip.append((tensor, clip))
            self._adopt(key)
        self._unite()

    @property
    def start_rates(self) -> set[float]:
        """The learning rates of the parameters at the start of a schedule."""
        groups = [own.param_groups[0] for own in self._own.values()] or self.torch.param_groups
        return {float(group.get("initial_lr", group["lr"])) for group in groups if "lr" in group}

    def sync(self) -> bool:
        """Take over what has happened to ``optim`` since the last step.

        :returns: whether a captured graph of the steps is out of date.
        """
        if not isinstance(self.optim, PyroOptim):
            return self._rates_as_tensors()
        stale = changed = False
        for key, tensor in self._tensors.items():
            own = self._own[key]
            if _optimiser_of(self.optim.optim_objs.get(tensor)) is not own:
                self._adopt(key)
                stale = True
            elif own.state.get(tensor) is not self.torch.state.get(tensor):
                stale = True
            elif own.param_groups[0] != self._seen[key]:
                changed = True
        if stale:
            self._unite()
        elif changed:
            stale = self._regroup()
        return stale

    def zero_grad(self) -> None:
        self.torch.zero_grad(set_to_none=True)

    def step(self) -> None:
        for tensor, options in self._clip:
            if tensor.grad is not None:
                _clip(tensor.grad, self._stacked, **options)
        launch = self._launch()
        if launch is None or not launch.step():
            self.torch.step()
        if not self.captured:
            self._write_rates()

    def state_tensors(self) -> list[Tensor]:
        """The tensors among the state, which a step changes."""
        return [v for state in self.torch.state.values() for v in state.values() if isinstance(v, Tensor)]

    def tables(self) -> list[Tensor]:
        """What a captured graph of the steps reads beside parameters, gradients and state."""
        return [] if self._launched is None else self._launched[1].tables()

    def _launch(self) -> OneLaunch | None:
        """The faster way to do captured steps, where the optimiser has one."""
        if not self.captured:
            return None
        if self._launched is None or self._launched[0] is not self.torch:
            self._launched = self.torch, OneLaunch(self.torch)
        return self._launched[1] if OneLaunch.fits(self.torch) else None

    def state_dict(self) -> dict[str, Any]:
        """A copy: torch's own would go on changing with the steps."""
        return copy.deepcopy(self._state())

    def _state(self) -> dict[str, Any]:
        if not self._own:
            return {"optimiser": self.torch.state_dict(), "order": list(self._tensors)}
        return {key: _state_of(self._entry(key)) for key in self._tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if _form(state) != _form(self._state()):
            raise ValueError("the state belongs to another optimiser, or to other options per parameter.")
        state = copy.deepcopy(state)
        if not self._own:
            self._load_torch(state)
            return
        for key in self._tensors:
            _load(self._entry(key), state[key])
        self._unite()

    def _load_torch(self, state: dict[str, Any]) -> None:
        here = self.torch.state_dict()["param_groups"]
        given = state["optimiser"]
        if state["order"] != list(self._tensors):
            # The programs met their parameters in another order, by which torch numbers them.
            if len(here) > 1:
                raise ValueError("the state belongs to parameters in another order, with options per parameter.")
            places = {key: i for i, key in enumerate(self._tensors)}
            given["state"] = {places[state["order"][i]]: value for i, value in given["state"].items()}
        for own, other in zip(here, given["param_groups"], strict=True):
            # How a step is computed is not part of the state, which may come from another device.
            other |= {key: own[key] for key in _MECHANICS if key in own}
        self.torch.load_state_dict(given)
        for group in self.torch.param_groups:
            group |= _captured_options(group["lr"], self._device) if self.captured else {"lr": float(group["lr"])}

    def _entry(self, key: str) -> Any:
        """What ``optim`` keeps for a parameter."""
        return self.optim.optim_objs[self._tensors[key]]  # type: ignore[union-attr]  # only of a PyroOptim

    def _adopt(self, key: str) -> None:
        """The torch optimiser of one parameter: that which ``optim`` has, or one made as Pyro makes it."""
        optim, tensor = self.optim, self._tensors[key]
        assert isinstance(optim, PyroOptim)
        if tensor not in optim.optim_objs:
            entry: Any = optim.pt_optim_constructor([tensor], **_options(optim.pt_optim_args, self._names[key]))
            if isinstance(optim, PyroLRScheduler):
                entry = optim.pt_scheduler_constructor(entry, **optim.kwargs)
            clip = _options(optim.pt_clip_args, self._names[key])
            optim.grad_clip[tensor] = functools.partial(_clip_parameter, **clip) if clip else None
            if self._stacked:
                # Pyro would save the state of a stack under the name None.
                entry.state_dict = _refuse_state
                optim.optim_objs[tensor] = entry
            else:
                private.adopt_waiting_state(optim, self._names[key], tensor, _load, entry)
        self._own[key] = _optimiser_of(optim.optim_objs[tensor])
        private.count_as_stepped(self._own[key])

    def _unite(self) -> None:
        """Make the optimiser of all parameters, on the state of their own ones."""
        groups: list[tuple[dict[str, Any], list[str]]] = []
        for key, own in self._own.items():
            _as_kept(own)
            options = self._note(key)
            for known, members in groups:
                if known == options:
                    members.append(key)
                    break
            else:
                groups.append((options, [key]))
        fused = "fused" in self._accepted and all(t.is_floating_point() for t in self._tensors.values())
        parts = []
        for options, members in groups:
            chosen = {name: value for name, value in options.items() if name in self._accepted}
            if fused and options.get("fused") is None and options.get("foreach") is None:
                chosen["fused"] = True
            if self.captured:
                chosen |= _captured_options(chosen["lr"], self._device)
            constructor = self.optim.pt_optim_constructor  # type: ignore[union-attr]  # only of a PyroOptim
            parts.append(constructor([self._tensors[key] for key in members], **chosen))
        self.torch, *others = parts
        for other in others:
            self.torch.add_param_group(other.param_groups[0])
        self._members = [members for _, members in groups]
        for key, tensor in self._tensors.items():
            state = self._own[key].state[tensor]
            step = state.get("step")
            if isinstance(step, Tensor) and (fused or self.captured):
                state["step"] = step.to(self._device, torch.float32)
            self.torch.state[tensor] = state

    def _regroup(self) -> bool:
        """Options were changed: copy them where the groups stay as they are, else make the groups anew.

        :returns: whether a captured graph, into which all numbers but learning rates are baked, is out of date.
        """
        baked = False
        for group, members in zip(self.torch.param_groups, self._members, strict=True):
            options = [self._note(key) for key in members]
            if any(other != options[0] for other in options[1:]):
                self._unite()
                return True
            for name, value in options[0].items():
                if name == "lr" and self.captured:
                    group["lr"].fill_(value)
                elif name not in _MECHANICS and group.get(name) != value:
                    group[name] = value
                    baked = True
        return baked and self.captured

    def _note(self, key: str) -> dict[str, Any]:
        """The present options of a parameter."""
        group = self._own[key].param_groups[0]
        self._seen[key] = dict(group)
        return {name: value for name, value in group.items() if name not in ("params", "initial_lr")}

    def _write_rates(self) -> None:
        """Some optimisers let their learning rate decay by themselves; its owners are to know."""
        for group, members in zip(self.torch.param_groups, self._members, strict=False):
            if group.get("lr") != self._seen[members[0]].get("lr"):
                for key in members:
                    self._own[key].param_groups[0]["lr"] = self._seen[key]["lr"] = group["lr"]

    def _rates_as_tensors(self) -> bool:
        """A learning rate that was set as a number goes into the tensor that a captured graph reads."""
        stale = False
        for group in self.torch.param_groups if self.captured else ():
            if not isinstance(group["lr"], Tensor):
                group |= _captured_options(group["lr"], self._device)
                stale = True
        return stale


def checked_rates(learning_rates: Tensor | Sequence[float] | None, count: int) -> Tensor | None:
    """Learning rates of the members of an ensemble, as a tensor."""
    if learning_rates is None:
        return None
    try:
        rates = torch.as_tensor(learning_rates)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"learning_rates must be {count} numbers, one per member, got {learning_rates!r}.") from None
    if rates.shape != (count,):
        raise ValueError(f"learning_rates must have shape ({count},), one per member, got {tuple(rates.shape)}.")
    for i, rate in enumerate(rates.tolist()):
        if not 0 <= rate < math.inf:
            raise ValueError(f"learning_rates must be finite and not negative, got {rate:g} for member {i}.")
    return rates


def _made_by(optim: Any, tensors: list[Tensor]) -> Optimizer:
    """What a function of the user's makes of the parameters."""
    of_pyro = inspect.isfunction(optim) and optim.__module__.startswith("pyro.optim")
    if of_pyro or (isinstance(optim, type) and issubclass(optim, PyroOptim)):
        raise ValueError(
            f"optim must be called with its options, got {optim.__name__}; pass {optim.__name__}({{...}})."
        )
    if not callable(optim):
        remedy = "; pass lambda parameters: torch.optim.Adam(parameters)" if isinstance(optim, Optimizer) else ""
        raise ValueError(f"optim must be a PyroOptim or a function of the parameters, got {optim!r}{remedy}.")
    made = optim(tensors)
    if not isinstance(made, Optimizer):
        raise ValueError(f"optim must return a torch optimiser, got {type(made).__name__}.")
    return made


def _optimiser_of(entry: Any) -> Any:
    """The torch optimiser of what a ``PyroOptim`` keeps, which may be a schedule of it."""
    return getattr(entry, "optimizer", entry)


def _state_of(entry: Any) -> dict[str, Any]:
    """As Pyro saves it."""
    own = _optimiser_of(entry)
    state = type(own).state_dict(own)
    if own is entry:
        return state
    # A schedule takes all its attributes for its state, also the one by which that of a stack is refused.
    schedule = {name: value for name, value in type(entry).state_dict(entry).items() if value is not _refuse_state}
    return {"scheduler": schedule, "optimizer": state}


def _load(entry: Any, state: dict[str, Any]) -> None:
    own = _optimiser_of(entry)
    if own is not entry:
        entry.load_state_dict(state["scheduler"])
        state = state["optimizer"]
    own.load_state_dict(state)


def _form(state: dict[str, Any]) -> Any:
    """What two states of one optimiser with the same parameters have in common."""
    if "order" in state:
        return [(len(group["params"]), group.keys()) for group in state["optimiser"]["param_groups"]]
    forms = {}
    for key, part in state.items():
        own = part.get("optimizer", part)
        forms[key] = "scheduler" in part, [set(group) - {"initial_lr"} for group in own.get("param_groups", ())]
    return forms


def _refuse_state() -> dict[str, Any]:
    raise ValueError(
        "optim holds the state of an EnsembleSVI, all members in one tensor per parameter; save that of the trainer,"
        " EnsembleSVI.state_dict()."
    )


def _as_kept(own: Any) -> None:
    """Numbers where a state from another device or a captured run has tensors."""
    for group in own.param_groups:
        if isinstance(group.get("lr"), Tensor):
            group["lr"] = float(group["lr"])


def _clip_parameter(parameter: Tensor, clip_norm: float | None = None, clip_value: float | None = None) -> None:
    """As Pyro clips the gradient of one parameter before it steps it."""
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(parameter, clip_norm)
    if clip_value is not None:
        torch.nn.utils.clip_grad_value_(parameter, clip_value)


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


def _can_capture(possible: bool, constructor: Any, capture: bool | None, device: torch.device) -> bool:
    wanted = device.type == "cuda" if capture is None else capture
    if wanted and possible:
        _check_device(device)
    if not wanted or possible:
        return wanted
    problem = f"steps of {constructor.__name__} cannot be captured in a CUDA graph"
    if capture is None:
        warn_user(f"{problem} and run without one; pyro.optim.Adam can be captured (clip_args clips).")
        return False
    raise ValueError(f"{problem}; use pyro.optim.Adam (clip_args clips), or capture=False.")


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(
            f"capture=True needs parameters on a CUDA device, they are on {device}; move the modules there, or leave"
            " capture out."
        )


def _captured_options(rate: float | Tensor, device: torch.device) -> dict[str, Any]:
    # A number would be baked into the graph; a tensor, which fused steps want in float32, can be changed by a schedule.
    return {"capturable": True, "lr": torch.tensor(float(rate), dtype=torch.float32, device=device)}
