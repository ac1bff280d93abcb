"""The tensors among the arguments of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyro_hyperbolic.ops.nested import flatten, unflatten


def split_tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], Callable[..., Any]]:
    """The tensors among the arguments, in tuples, lists and dictionaries too, and the way back."""
    flat, spec = flatten((args, kwargs))
    inputs = [x for x in flat if isinstance(x, Tensor)]

    def rebuild(tensors: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest = iter(tensors)
        return unflatten([next(rest) if isinstance(x, Tensor) else x for x in flat], spec)

    return inputs, rebuild


def signature(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a captured or compiled step depends on: shapes of tensors, values of all else.

    Wherever the tensors are, a captured step copies them to its device.
    """
    flat, spec = flatten((args, kwargs))
    for x in flat:
        if type(x).__hash__ is None:
            raise ValueError(
                "an argument of a captured or compiled step must be a tensor or a plain value, got"
                f" {type(x).__name__}; turn what changes from step to step into tensors, bind what does not to the"
                " programs by functools.partial, or use capture=False and compile=False."
            )
    return spec, tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in flat)


def length(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """That of the data: of every tensor among the arguments but those without dimensions."""
    sizes = {len(t) for t in split_tensors(args, kwargs)[0] if t.dim()}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            "the tensors among the arguments must have the same non-zero length, that of the data,"
            f" got {sorted(sizes)}."
        )
    return sizes.pop()


def narrowed(args: tuple[Any, ...], kwargs: dict[str, Any], start: int, stop: int) -> tuple[Any, dict[str, Any]]:
    """The arguments for some of the data."""
    inputs, rebuild = split_tensors(args, kwargs)
    return rebuild([t[start:stop] if t.dim() else t for t in inputs])


def check_members(inputs: list[Tensor], count: int, data: bool = False) -> None:
    """Refuse tensors that have not one part for each of the members of an ensemble.

    :param data: each part must have rows too.
    """
    for t in inputs:
        if t.dim() == 0:
            raise ValueError("a tensor without dimensions has no part per member; pass a number, or use shared=True.")
        if len(t) != count:
            raise ValueError(
                f"the first dimension of every tensor must be that of the {count} members, got shape {tuple(t.shape)};"
                f" use shared=True to give all members the same data, or Minibatches with members={count}."
            )
        if data and t.dim() == 1:
            raise ValueError(f"every tensor must have the shape (members, data, ...), got {tuple(t.shape)}.")


def of_member(args: tuple[Any, ...], kwargs: dict[str, Any], i: int, count: int) -> tuple[Any, dict[str, Any]]:
    """The arguments of one of ``count`` members, each of which has its own part of every tensor."""
    inputs, rebuild = split_tensors(args, kwargs)
    check_members(inputs, count)
    return rebuild([t[i] for t in inputs])


def as_arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a loader yields as arguments: one, a tuple or list of several, or a dictionary of keywords."""
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)), {}


def step_on(step: Callable[..., Tensor], batch: Any, **options: Any) -> Tensor:
    """``step`` with what a loader yields."""
    args, kwargs = as_arguments(batch)
    return step(*args, **kwargs, **options)
