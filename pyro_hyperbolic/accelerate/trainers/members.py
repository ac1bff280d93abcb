"""The members of an ensemble: what they must be, and have in common."""

from __future__ import annotations

from typing import Any

from pyro_hyperbolic.accelerate.programs.functional import Parameters, Program, check_program, no_parameters
from pyro_hyperbolic.accelerate.programs.warning import warn_user


def checked_members(members: Any) -> list[tuple[Program, Program]]:
    """Pairs of programs, if they are that."""
    try:
        pairs = list(members)
    except TypeError:
        raise ValueError(f"members must be a list of pairs (model, guide), got {type(members).__name__}.") from None
    if not pairs:
        raise ValueError("members must hold at least one pair of model and guide.")
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            got = f"{len(pair)} of them" if isinstance(pair, (tuple, list)) else type(pair).__name__
            raise ValueError(f"member {i} must be a pair (model, guide), got {got}; of one pair pass [(model, guide)].")
        for name, program in zip(("model", "guide"), pair, strict=True):
            check_program(f"{name} of member {i}", program)
    return pairs


def check_structure(found: list[Parameters]) -> None:
    """Refuse members that cannot be stacked."""
    if not found[0].tensors:
        raise no_parameters(found[0])
    seen: set[int] = set()
    for i, member in enumerate(found):
        if member.shapes() != found[0].shapes():
            differ = sorted(name for name, _ in member.shapes().items() ^ found[0].shapes().items())
            raise ValueError(
                f"member {i} has other parameters or buffers than member 0, {differ[0]!r} for one; all must be alike,"
                " and modules with a name= have the same one."
            )
        if member.without_module():
            raise ValueError(
                f"member {i} has the parameters {member.without_module()} in Pyro's store, which all members would"
                " share; make them parameters of a module."
            )
        own = {id(t) for t in member.tensors.values()}
        if own & seen:
            raise ValueError(f"member {i} shares parameters with another member; give each a module of its own.")
        seen |= own


def warn_of_attributes(found: list[Parameters]) -> None:
    """The programs of the first member run for all of them, with the numbers that it has as attributes."""
    for i, member in enumerate(found):
        for own, first in zip(member.modules, found[0].modules, strict=False):
            theirs = vars(first)
            for name, value in vars(own).items():
                if isinstance(value, (bool, int, float)) and theirs.get(name, value) != value:
                    warn_user(
                        f"{type(own).__name__}.{name} is {value} in member {i} and {theirs[name]} in member 0, with"
                        " which all are trained; make it a buffer if the programs read it."
                    )
