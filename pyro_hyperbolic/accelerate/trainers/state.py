"""The state of a trainer: what it must hold, and whom it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_hyperbolic.ops.checks import checked_integer


def check_state(state: Any) -> None:
    """Refuse what ``state_dict`` of a trainer would not return."""
    wanted = "state must be what state_dict() of the trainer returned"
    if not isinstance(state, Mapping):
        raise ValueError(f"{wanted}, got {type(state).__name__}.")
    missing = [name for name in ("parameters", "buffers", "optimiser", "steps") if name not in state]
    if missing:
        raise ValueError(f"{wanted}; it lacks {', '.join(map(repr, missing))}.")
    for name in ("parameters", "buffers", "optimiser"):
        if not isinstance(state[name], Mapping):
            raise ValueError(f"{wanted}; under {name!r} there is no dictionary but {type(state[name]).__name__}.")
    for name in ("parameters", "buffers"):
        others = [key for key, value in state[name].items() if not isinstance(value, Tensor)]
        if others:
            raise ValueError(f"{wanted}; under {name!r} {_some(others)} must be tensors.")
    checked_integer("steps of the state", state["steps"], least=0)


def check_fits(
    state: dict[str, Any], parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], owner: str
) -> None:
    """Refuse a state with tensors of other names or shapes, before anything of it is taken over.

    :param owner: whose such a state is.
    """
    for what, here in (("parameters", parameters), ("buffers", buffers)):
        saved, own = ({name: t.shape for name, t in tensors.items()} for tensors in (state[what], here))
        differing = sorted(name for name in saved | own if saved.get(name) != own.get(name))
        if differing:
            raise ValueError(
                f"the state belongs to {owner}: the {what} {_some(differing)} are not the same in both; load it into"
                " a trainer that is built like the one that was saved."
            )


def _some(names: list[str]) -> str:
    """The first few names of many."""
    shown = ", ".join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
