"""Checks of arguments, and when the values of a tensor can be read."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.private import has_values, validates_by_default


def inspectable(*tensors: Tensor) -> bool:
    """Whether the values can be read on the host now.

    They cannot under ``vmap`` and other function transforms, while compiling or tracing, and while a
    CUDA graph is captured: checks of values are left out there.
    """
    if torch.compiler.is_compiling() or any(t.is_meta for t in tensors):
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    return has_values(*tensors)


def static_size(x: Tensor) -> int:
    """The size of the last dimension as a number, while a compiler or a tracer would give a symbol."""
    size = x.shape[-1]
    if type(size) is int and not torch.compiler.is_compiling():
        return size
    # How many tensors there are is no symbol to anyone.
    return len(x.unbind(-1))


def check_precision(x: Tensor, name: str = "points and vectors") -> None:
    """Refuse half precision, which has no digits left at a distance of 4 from the origin."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} must be float32 or float64, got {x.dtype}; convert with .float() or .double().")


def check_dense(name: str, x: Tensor) -> None:
    """Refuse a sparse matrix, of which most operations do not exist."""
    if x.layout != torch.strided:
        raise ValueError(f"{name} must be a dense tensor, got layout {x.layout}; use {name}.to_dense().")


def check_sizes(x: Tensor, *others: Tensor | None) -> None:
    """Refuse points and vectors ``(..., D)`` that differ in their number ``D`` of coordinates; ``None`` is left out."""
    try:
        size = x.shape[-1]
        if type(size) is not int:  # a tracer's
            return
        for other in others:
            if other is not None and other.shape[-1] != size:
                raise ValueError(
                    f"points and vectors of one space must have the same number of coordinates, got {size} and"
                    f" {other.shape[-1]}."
                )
    except (AttributeError, IndexError) as error:
        got = [str(tuple(t.shape)) if isinstance(t, Tensor) else type(t).__name__ for t in (x, *others)]
        raise ValueError(
            f"points and vectors must be tensors of shape (..., d), got {' and '.join(got)}; use"
            " torch.tensor(...), and unsqueeze(-1) for d = 1."
        ) from error


def at_least_float32(x: Tensor) -> Tensor:
    """``x``, in float32 where it has half precision, as what the layers of a network return under autocast."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def validating() -> bool:
    """Whether torch validates distributions by default, which ``pyro.enable_validation`` sets."""
    return validates_by_default()


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise an error for a name that is not among the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {sorted(choices)}, got {value!r}.")


def is_number(value: Any) -> bool:
    """Whether a value is a real number, also one of numpy, but no truth value and no tensor."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def checked_integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An integer, also one of numpy but not a tensor, as a plain number.

    :param least: the smallest that is allowed; any by default.
    :param most: the greatest that is allowed.

    >>> checked_integer("batch_size", 32, least=1)
    32
    """
    try:
        number = None if isinstance(value, (bool, Tensor)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        wanted = {None: "an integer", 1: "a positive integer"}.get(least, f"an integer of at least {least}")
        if most is not None:
            wanted = f"an integer from {least} to {most}"
        raise ValueError(f"{name} must be {wanted}, got {value!r}.")
    return number
