"""The door of the core to private names of torch and Pyro: every use of one is here, beside a public way.

Private names may be gone in the next version. Each function says why it wants one, and does without it where it is gone
or where :func:`switched_off` says so, with the same results; slower, or with more imported. The trainers have a door of
their own, :mod:`pyro_hyperbolic.accelerate.private`, and torch's compiler :mod:`pyro_hyperbolic.accelerate.compiler`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])

_switched_off = False


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Do without every private name while this is open, in the door of the trainers too: for tests."""
    global _switched_off
    before, _switched_off = _switched_off, True
    try:
        yield
    finally:
        _switched_off = before


def is_on() -> bool:
    """Whether private names may be used."""
    return not _switched_off


def has_values(*tensors: Tensor) -> bool:
    """Whether the values of tensors can be read now, which they cannot under a function transform or a tracer.

    torch tells a tensor of ``vmap``, and that ``make_fx`` traces, by private names only. Without them it is tried.
    """
    if is_on():
        try:
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
                return False
            wrapped, fake = torch._C._functorch.is_functorch_wrapped_tensor, torch._subclasses.FakeTensor
            return not any(wrapped(t) or isinstance(t, fake) for t in tensors)
        except AttributeError:
            pass
    try:
        values = [value for t in tensors for value in t.detach().reshape(-1)[:1].tolist()]
    except RuntimeError:
        return False
    return all(isinstance(value, (bool, int, float, complex)) for value in values)  # and no symbol of a tracer


def validates_by_default() -> bool:
    """What ``torch.distributions.Distribution.set_default_validate_args`` was last given, which it does not tell."""
    if is_on():
        return bool(getattr(torch.distributions.Distribution, "_validate_args", __debug__))
    try:
        torch.distributions.Normal(0.0, -1.0)
    except ValueError:
        return True
    return False


def viewed(t: Tensor) -> Tensor:
    """The tensor that ``t`` is a view of, or itself; without a private name always itself."""
    base = getattr(t, "_base", None) if is_on() else None
    return t if base is None else base


def mask_of(distribution: Any) -> Any:
    """The mask of a ``MaskedDistribution`` of Pyro, which has no public name; else where densities are not 0."""
    if is_on() and hasattr(distribution, "_mask"):
        return distribution._mask
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())), torch.no_grad():
        return distribution.log_prob(distribution.base_dist.sample()) != 0


def constant_when_compiled(function: Function) -> Function:
    """``torch.compiler.assume_constant_result``, without its import of all of ``torch._dynamo`` (two seconds)."""
    if is_on() and "torch._dynamo" not in sys.modules:
        function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what the public one does
        return function
    return torch.compiler.assume_constant_result(function)


def running_traces() -> list[Any]:
    """The traces that are recorded now; none where Pyro does not tell.

    Pyro says whether handlers are open, but not which.
    """
    from pyro.poutine import runtime  # late: geometry, which comes here too, does without Pyro
    from pyro.poutine.trace_messenger import TraceMessenger

    stack = getattr(runtime, "_PYRO_STACK", []) if is_on() else []
    return [handler.trace for handler in stack if isinstance(handler, TraceMessenger)]
