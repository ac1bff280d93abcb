"""Numbers that are curvatures: their types, how they compare, and how they are written."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.ops.checks import check_precision, inspectable, is_number


def same_curvature(a: float | Tensor, b: float | Tensor) -> bool:
    """Whether two curvatures are the same object, or hold the same numbers wherever they broadcast."""
    if a is b:
        return True
    if not (isinstance(a, Tensor) or isinstance(b, Tensor)):
        return a == b
    if not inspectable(*[t for t in (a, b) if isinstance(t, Tensor)]):
        return False
    a, b = (torch.as_tensor(t, dtype=torch.float64, device="cpu").detach() for t in (a, b))
    try:
        return bool((a == b).all())
    except RuntimeError:  # the shapes do not broadcast
        return False


_NUM_SHOWN = 4


def describe(c: float | Tensor, form: str = "") -> str:
    """A curvature in words: a number in the format ``form``, the first values and the shape of a batch."""
    if not isinstance(c, Tensor):
        return f"{c:{form}}"
    if not inspectable(c):
        return f"<{c.dtype} of shape {tuple(c.shape)}>"
    if c.dim() == 0:
        return f"{c.item():{form}}"
    values = [f"{value:g}" for value in c.detach().flatten()[:_NUM_SHOWN].tolist()]
    return f"[{', '.join(values + ['...'] * (c.numel() > _NUM_SHOWN))}] of shape {tuple(c.shape)}"


def checked_type(c: float | Tensor, name: str, meaning: str) -> float | Tensor:
    """A curvature as a float or a floating tensor, whose values are not looked at."""
    remedy = f"pass a float or a floating tensor {meaning}"
    if isinstance(c, Tensor):
        if not c.is_floating_point():
            remedy += "" if c.is_complex() else f", for example {name}.float()"
            raise ValueError(f"{name} must be a floating tensor, got {c.dtype} of shape {tuple(c.shape)}; {remedy}.")
        check_precision(c, name)
        return c
    if not is_number(c):
        raise ValueError(f"{name} must be a number, got {c!r}; {remedy}.")
    return float(c)
