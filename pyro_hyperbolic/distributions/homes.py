"""Remember on which space a point was made, to detect algorithms that keep an old space.

Pyro's HMC and autoguides take ``biject_to(site.support)`` from the first run of a program and make points of that space
ever after. If the curvature moves, because it is drawn or learned, the points and their densities belong to another
space than the program's. Nothing else reports that.

A point that is made or drawn here is recognised as an object. An observed point is recognised by its coordinates,
because a program may use another part of its data in each run, or make a new tensor.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

import torch
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_hyperbolic.geometry import Manifold, Product
from pyro_hyperbolic.geometry.chart import StereographicChart
from pyro_hyperbolic.geometry.curvature import describe, same_curvature
from pyro_hyperbolic.geometry.poincare_math import watch_gaps
from pyro_hyperbolic.ops.checks import inspectable, validating


class Origin(Enum):
    """How a point came to its home, and the error message if it is found elsewhere."""

    KEPT = (
        "was made on {home}, {here}: the curvature depends on another latent or a parameter, and the algorithm keeps"
        " that of its first run. For a curvature that is drawn write"
        " model = pyro_hyperbolic.infer.with_drawn_curvature(model); where it is learned use"
        " infer.AutoWrappedNormal(model), or infer.ManifoldReparam() for this site"
    )
    DRAWN = (
        "was drawn on {home}, {here}: use one manifold in model and guide, and take a curvature that is drawn from the"
        " same site in both, or write model = pyro_hyperbolic.infer.with_drawn_curvature(model) and a guide for that"
    )
    OBSERVED = (
        "was scored on {home} before, {here}: the likelihood of observed coordinates under a curvature that moves needs"
        " a measure that does not. For a curvature that is drawn write"
        " model = pyro_hyperbolic.infer.with_drawn_curvature(model); where it is learned use infer.ManifoldReparam()"
        " for this site"
    )


@dataclass(frozen=True)
class Home:
    """The manifold of a point."""

    manifold: Manifold
    origin: Origin


# Beside the tensors: an attribute would be copied and saved with them.
_homes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

# Observed points by their coordinates, the latest ones; of a tensor the first ones.
_observed: OrderedDict[tuple[float, ...], Manifold] = OrderedDict()
_NUM_OBSERVED, _NUM_LOOKED_AT = 10_000, 8


def settle(point: Tensor, manifold: Manifold, origin: Origin) -> None:
    """Remember that ``point`` came to be on ``manifold``, as long as it lives."""
    if inspectable(point):
        _homes[point] = Home(manifold, origin)


def home_of(point: Tensor) -> Home | None:
    """Where ``point``, or the tensor that it is an expansion of, was made."""
    if point in _homes:
        return _homes[point]
    base = point._base
    # ``Delta`` expands what it is given. A part of a batch is another matter: its curvature is a part too.
    return _homes[base] if base is not None and base in _homes and _expands(base.shape, point.shape) else None


def _expands(small: torch.Size, large: torch.Size) -> bool:
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def complaint(point: Tensor, manifold: Manifold, validate: bool) -> str | None:
    """What to say of a point that is scored on ``manifold`` but belongs elsewhere, as far as that can be told.

    :param validate: whether to compare the spaces of a draw. Those of other points are compared in any case, since
        chains run without validation; where both are the same object that needs no look at values.
    """
    if not inspectable(point):
        return None
    home = home_of(point)
    if home is None:
        home = _seen_before(point, manifold)
    if home is None or (home.origin is Origin.DRAWN and not validate):
        return None
    before, now = home.manifold.curvatures, manifold.curvatures
    same = len(before) == len(now) and all(_same(a, b) for a, b in zip(before, now, strict=True))
    if same and not (home.origin is Origin.KEPT and any(map(_became_a_variable, before, now))):
        return None
    here = "and its curvature, a constant then, is a variable now" if same else f"but its space is now {manifold!r}"
    return _say(home, here)


def _say(home: Home, here: str) -> str:
    return f"the point {home.origin.value.format(home=repr(home.manifold), here=here)}."


def _same(a: float | Tensor, b: float | Tensor) -> bool:
    if a is b or not inspectable(*[c for c in (a, b) if isinstance(c, Tensor)]):
        return True
    # Of two dtypes one is the other rounded.
    dtypes = [c.dtype for c in (a, b) if isinstance(c, Tensor)]
    if len(set(dtypes)) == 2:
        a, b = (torch.as_tensor(c).detach().to(min(dtypes, key=lambda dtype: torch.finfo(dtype).bits)) for c in (a, b))
    return same_curvature(a, b)


def _became_a_variable(kept: float | Tensor, present: float | Tensor) -> bool:
    """Whether a curvature moves with what is differentiated now, but did not in the first run: it is a latent.

    At the start of an algorithm its value is still that of the first run; a compiled chain looks at no other.
    """
    return (
        kept is not present
        and isinstance(present, Tensor)
        and present.requires_grad
        and not (isinstance(kept, Tensor) and kept.requires_grad)
    )


def _seen_before(point: Tensor, manifold: Manifold) -> Home | None:
    """Where the coordinates of a point that nobody here has made were scored last, if the curvature moves.

    A latent never has the same coordinates twice. Where an observation is first seen is where it belongs.
    """
    if not manifold.moves or point.requires_grad or point.numel() == 0 or torch.jit.is_tracing():
        return None
    here = manifold.snapshot()
    keys = [tuple(row) for row in point.reshape(-1, point.shape[-1])[:_NUM_LOOKED_AT].tolist()]
    known = [
        _observed[key] for key in keys if key in _observed and len(_observed[key].curvatures) == len(here.curvatures)
    ]
    for key in keys:
        _observed[key] = here
        _observed.move_to_end(key)
    while len(_observed) > _NUM_OBSERVED:
        _observed.popitem(last=False)
    return Home(known[0], Origin.OBSERVED) if known else None


def _look_outside(point: Tensor, c: float | Tensor, gaps: Tensor) -> None:
    """Say it before ``nan`` reaches a distribution of the user's, which would not know the remedy."""
    if not validating() or not _homes or torch.jit.is_tracing():
        return
    made = point if point in _homes or point._base is None else point._base
    home = _homes.get(made)
    if home is None or not inspectable(point, gaps):
        return
    if home.origin is Origin.DRAWN and isinstance(home.manifold, (StereographicChart, Product)):
        return  # another curvature is for log_prob to tell; here it is another chart that draws points of no ball
    # A point that was made here lies inside the ball where it was.
    if bool((gaps.isnan() & point.isfinite().all(-1, keepdim=True)).any()):
        number = c.squeeze(-1) if isinstance(c, Tensor) and c.dim() > 0 else c
        here = f"but lies outside of the ball of c = {describe(number)}, where it is used now"
        raise ValueError(f"{_site_of(made)}{_say(home, here)}")


def _site_of(value: Tensor) -> str:
    """The name of the site of a program that has this value, for the beginning of a sentence."""
    traces = [frame.trace for frame in _PYRO_STACK if isinstance(frame, TraceMessenger)]
    nodes = [(name, node.get("value")) for trace in traces for name, node in trace.nodes.items()]
    names = [name for name, held in nodes if held is value or (isinstance(held, Tensor) and held._base is value)]
    return f"site {names[0]!r}: " if names else ""


watch_gaps(_look_outside)
