"""The door of the trainers to private names of torch and Pyro, each beside a public way.

As in :mod:`pyro_hyperbolic.private`, whose ``switched_off`` holds here too: without private names all works as before,
but for what a function says here, and slower. ``accelerate/fast_nuts.py``, which is a subclass of Pyro's ``NUTS``, is
the only other file that uses what Pyro keeps to itself, and ``accelerate/compiler`` uses what torch's compiler does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from pyro.infer import ELBO
from pyro.infer.enum import get_importance_trace
from torch import Tensor
from torch.optim import Optimizer

from pyro_hyperbolic.private import has_values, is_on

# Programs.

# Operations that draw noise which depends on their parameters. torch.distributions calls them by these names.
DRAWN_BY_PARAMETERS = frozenset({"_standard_gamma", "_sample_dirichlet"})


def traces(loss: ELBO, model: Any, guide: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """The traces of model and guide that one of Pyro's losses is made of, one pair for each particle or for all.

    Pyro keeps the function for itself. Without it the loss must be one that does not enumerate.
    """
    if is_on() and hasattr(loss, "_get_traces"):
        return list(loss._get_traces(model, guide, args, kwargs))
    count, nesting = loss.num_particles, loss.max_plate_nesting
    if loss.vectorize_particles and count > 1:
        if nesting == float("inf"):
            raise ValueError("give the loss max_plate_nesting, 1 if the plate of the data is the only one.")
        programs = [pyro.plate("num_particles_vectorized", count, dim=-nesting)(f) for f in (model, guide)]
        return [get_importance_trace("flat", nesting, *programs, args, kwargs)]
    return [get_importance_trace("flat", nesting, model, guide, args, kwargs) for _ in range(count)]


def can_enumerate() -> bool:
    """Whether :func:`model_factors` is there."""
    if not is_on():
        return False
    try:
        from pyro.infer.traceenum_elbo import _compute_model_factors  # noqa: F401
    except ImportError:
        return False
    return True


def model_factors(model_trace: Any, guide_trace: Any) -> Any:
    """Which factor belongs to which enumerated site is known to this function alone, which has no public name."""
    from pyro.infer.traceenum_elbo import _compute_model_factors

    return _compute_model_factors(model_trace, guide_trace)


def names_of_dims(packed: Any) -> str:
    """The names of the dimensions of a packed tensor of Pyro; only where :func:`can_enumerate`."""
    return packed._pyro_dims


def with_names_of_dims(tensor: Tensor, names: str) -> Any:
    """A tensor as a packed one."""
    packed: Any = tensor
    packed._pyro_dims = names
    return packed


def validated_inside(distribution: Any) -> list[Any]:
    """Of a distribution and those inside of it the ones that validate; by public names none can be asked."""
    found = []
    while distribution is not None:
        if is_on() and getattr(distribution, "__dict__", {}).get("_validate_args"):
            found.append(distribution)
        distribution = getattr(distribution, "base_dist", None)
    return found


def is_real(x: Tensor) -> bool:
    """Whether a tensor has values of its own: it is none of ``vmap``, and none that a trace goes through."""
    if not is_on():
        return has_values(x)
    wrapped, fake = torch._C._functorch.is_functorch_wrapped_tensor, torch._subclasses.FakeTensor
    return not (wrapped(x) or isinstance(x, fake))


def computed(function: Callable[[], Any]) -> Any:
    """What a function of tensors that have values gives, while others are traced."""
    if not is_on():
        return function()
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return function()


def set_validation(distributions: Iterable[Any], value: bool) -> None:
    """Let distributions that have been made validate, or not."""
    for distribution in distributions:
        distribution._validate_args = value


def unrolled(name: str) -> Callable[..., Any] | None:
    """A recurrent network as a loop, which ``vmap`` can read; ``None`` where torch does not tell it."""
    if not is_on():
        return None
    try:
        from torch._decomp import decompositions  # slow to import
    except ImportError:
        return None
    return getattr(decompositions, name, None)


# Parameters and optimisers.


def as_parameter(value: Tensor) -> None:
    """Let a tensor count as an ``nn.Parameter``: a PyroModule calls ``pyro.param`` for nothing else.

    Without it a program does not say that it uses the parameter; its gradient does.
    """
    if is_on():
        value._is_param = True


def add_to_all(tensors: list[Tensor], number: float) -> None:
    """Add to tensors in place, in one launch."""
    if is_on() and hasattr(torch, "_foreach_add_"):
        torch._foreach_add_(tensors, number)
        return
    for tensor in tensors:
        tensor.add_(number)


def has_no_hooks(optimiser: Optimizer) -> bool:
    """Whether nothing is called before and after the steps of an optimiser; ``False`` where it cannot be asked."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return is_on() and all(getattr(optimiser, name, True) == {} for name in names)


def adopt_waiting_state(optim: Any, name: str, tensor: Tensor, load: Callable[[Any, Any], None], entry: Any) -> None:
    """Give the new optimiser of a parameter the state that a ``PyroOptim`` was loaded with before there was any.

    It waits under a private name. The public way to it is a step of Pyro, which does nothing without a gradient.
    """
    if is_on() and hasattr(optim, "_state_waiting_to_be_consumed"):
        state = optim._state_waiting_to_be_consumed.pop(name, None)
        if state is not None:
            load(entry, state)
        optim.optim_objs[tensor] = entry
        return
    gradient, tensor.grad = tensor.grad, None
    optim([tensor])
    tensor.grad = gradient


def count_as_stepped(optimiser: Any) -> None:
    """Say that an optimiser has been called, which is not called itself: torch's schedules warn where it was not."""
    if is_on():
        optimiser._opt_called = True
