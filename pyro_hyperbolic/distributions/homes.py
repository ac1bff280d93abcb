"""Which space a point was made on, so that an algorithm that keeps an old one is found out.

HMC and the autoguides of Pyro take ``biject_to(site.support)`` from the first run of a program and make points of
that space ever after. If its curvature moves, because it is drawn or learned, the points and their densities are
those of another space than the program's. Nothing else reports that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.geometry.manifold import same_curvature
from pyro_hyperbolic.ops.checks import inspectable


class Origin(Enum):
    """How a point came to its home, and what to say if it is found elsewhere."""

    KEPT = (
        "was made on {home!r}, but its space is now {here!r}: the curvature depends on another latent or a parameter,"
        " and the algorithm keeps that of its first run. For a curvature that is drawn write"
        " model = pyro_hyperbolic.infer.with_drawn_curvature(model); where it is learned use"
        " infer.AutoWrappedNormal(model), or infer.ManifoldReparam() for this site"
    )
    DRAWN = (
        "was drawn on {home!r}, but is scored on {here!r}: use one manifold in model and guide, and take a curvature"
        " that is drawn from the same site in both, or write"
        " model = pyro_hyperbolic.infer.with_drawn_curvature(model) and a guide for that"
    )
    OBSERVED = (
        "was scored on {home!r} before and is now on {here!r}: the likelihood of observed coordinates under a curvature"
        " that moves needs a measure that does not. For a curvature that is drawn write"
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


def is_home(point: Tensor, manifold: Manifold, validate: bool) -> bool:
    """Whether ``point`` was made on ``manifold``, as far as that can and should be told.

    :param validate: whether to compare the spaces of a draw. Those of other points are compared in any case, since
        chains run without validation; where both are the same object that needs no look at values.
    """
    if not inspectable(point):
        return True
    home = home_of(point)
    if home is None:
        if manifold.moves:
            # An observation: the space where it is first seen is the one that its coordinates belong to.
            settle(point, manifold, Origin.OBSERVED)
        return True
    if home.origin is Origin.DRAWN and not validate:
        return True
    if len(home.manifold.curvatures) != len(manifold.curvatures):
        return False
    pairs = zip(home.manifold.curvatures, manifold.curvatures, strict=True)
    return all(_same(a, b) and not (home.origin is Origin.KEPT and _became_a_variable(a, b)) for a, b in pairs)


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


def moved(point: Tensor, manifold: Manifold) -> str:
    """What to say of a point that is not at home."""
    home = home_of(point)
    assert home is not None  # for the type checker: asked of points whose home is another
    return f"the point {home.origin.value.format(home=home.manifold, here=manifold)}."
