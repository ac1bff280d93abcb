"""Where a point of a program comes from, and why it may not be scored on the space that it is scored on.

Densities on a manifold refer to its volume. If the curvature moves, because it is drawn or learned, so does the volume,
and a point that does not move with it is scored on another space in each run. Pyro's HMC and autoguides make such
points: they take ``biject_to(site.support)`` from the first run of a program and keep it. An observed point is another.
Nothing else reports that.

What is refused follows from the distribution and the point alone, so it is refused at once and every time:

* a point that carries the mark of another space, set where the point was made (:func:`mark`);
* a point without derivatives, or whose derivatives do not reach the curvature, where the curvature has some;
* an observation, where the curvature itself is a latent of a trace that records the program (:class:`Run`).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.geometry.manifold import same_curvature
from pyro_hyperbolic.ops.checks import inspectable
from pyro_hyperbolic.private import running_traces

_WRAP = (
    "For a curvature that is drawn write model = pyro_hyperbolic.infer.with_drawn_curvature(model), in which the"
    " curvature stays a tensor (no item())"
)


class Origin(Enum):
    """How a point was made, and the error message if it is found on another space."""

    KEPT = (
        "was made on {home}, {here}: the curvature depends on another latent or a parameter, and the algorithm keeps"
        f" that of its first run. {_WRAP}; where it is learned use infer.AutoWrappedNormal(model), or"
        " infer.ManifoldReparam() for this site"
    )
    DRAWN = (
        "was drawn on {home}, {here}: use one manifold in model and guide, and take a curvature that is drawn from the"
        " same site in both, or write model = pyro_hyperbolic.infer.with_drawn_curvature(model) and a guide for that"
    )


_OBSERVED = (
    "is given, but the curvature of {here} moves: the likelihood of observed coordinates under a curvature that moves"
    f" needs a measure that does not. {_WRAP}; where it is learned use infer.ManifoldReparam() for this site, or"
    " lebesgue_log_prob; to evaluate it at the present curvature, without derivatives, use torch.no_grad()"
)
_STILL = (
    "does not move with the curvature of {here}, which is differentiated: an algorithm or a guide keeps an old"
    f" curvature, or draws without derivatives. {_WRAP}; where it is learned use infer.AutoWrappedNormal(model),"
    " infer.ManifoldReparam() for this site, or a guide that draws the point on this manifold, without detach()"
)


@dataclass(frozen=True)
class Mark:
    """The space of a point."""

    manifold: Manifold
    origin: Origin


_MARK = "_pyro_hyperbolic_mark"


def mark(point: Tensor, manifold: Manifold, origin: Origin) -> Tensor:
    """``point``, with the space that it was made on.

    The mark is an attribute of the memory that holds the point, so views have it too (``Delta`` expands its value), and
    copies and files do not.
    """
    if manifold.curvatures and (storage := _storage(point)) is not None:
        setattr(storage, _MARK, Mark(manifold, origin))
    return point


def mark_of(point: Tensor) -> Mark | None:
    """The mark of a point, or of the tensor that it is a view of."""
    return getattr(_storage(point), _MARK, None)


def _storage(tensor: Tensor) -> Any:
    """The memory of a tensor, if it has some of its own: it has none inside of function transforms."""
    if torch.compiler.is_compiling():
        return None
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return None


def without_graph(manifold: Manifold) -> Manifold:
    """The space as an algorithm may keep it: curvatures that were computed have no derivatives, parameters do."""
    return manifold.with_curvatures(
        [c.detach() if isinstance(c, Tensor) and not c.is_leaf else c for c in manifold.curvatures]
    )


def complaint_of_mark(point: Tensor, manifold: Manifold, validate: bool) -> str | None:
    """What to say of a point that was made on another space than ``manifold``.

    :param validate: whether to compare the spaces of a draw. Those of other points are compared in any case, since
        chains run without validation; where both are the same object that needs no look at values.
    """
    found = mark_of(point)
    if found is None or (found.origin is Origin.DRAWN and not validate):
        return None
    before, now = found.manifold.curvatures, manifold.curvatures
    same = len(before) == len(now) and all(_same(a, b) for a, b in zip(before, now, strict=True))
    if same and not (found.origin is Origin.KEPT and any(map(_became_a_variable, before, now))):
        return None
    here = "and its curvature, a constant then, is a variable now" if same else f"but its space is now {manifold!r}"
    return _say(found.origin.value, home=repr(found.manifold), here=here)


def complaint(point: Tensor, manifold: Manifold, run: Run, own: Callable[[Any], bool], validate: bool) -> str | None:
    """What to say of a point that a distribution in a program did not draw itself, if it may not be scored.

    :param manifold: the space of the distribution.
    :param run: that in which it was made.
    :param own: whether the distribution of a site is this one.
    """
    if (text := complaint_of_mark(point, manifold, validate)) is not None:
        return text
    if torch.compiler.is_compiling():
        return None
    marked = mark_of(point) is not None
    # As they enter operations: a mode that fixes parameters (DReG_ELBO has one) takes their derivatives away.
    used = [c.view_as(c) for c in manifold.curvatures if isinstance(c, Tensor) and c.requires_grad]
    moving = [c for c in used if c.requires_grad]
    if moving and torch.is_grad_enabled():
        if not point.requires_grad:
            return _say(_STILL, here=repr(manifold)) if marked else complaint_of_observed(manifold)
        if not all(_moves_with(point, c) for c in moving):
            return _say(_STILL, here=repr(manifold))
    elif not marked and run.observes(own):
        return complaint_of_observed(manifold)
    return None


def complaint_of_observed(manifold: Manifold) -> str:
    """What to say of a given point whose curvature is known to move."""
    return _say(_OBSERVED, here=repr(manifold))


def _say(text: str, **names: str) -> str:
    return f"the point {text.format(**names)}."


def _same(a: float | Tensor, b: float | Tensor) -> bool:
    tensors = [c for c in (a, b) if isinstance(c, Tensor)]
    if a is b or not inspectable(*tensors):
        return True
    if len(tensors) == 2:
        if tensors[0].is_set_to(tensors[1]):
            return True
        # Of two dtypes one is the other rounded.
        dtype = min([c.dtype for c in tensors], key=lambda dtype: torch.finfo(dtype).bits)
        a, b = (c.detach().to(dtype) for c in tensors)
        if a.numel() > 1 and a.shape != b.shape:
            # A view of points, whose curvatures are some of those of all.
            return bool(torch.isin(b, a).all())
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


def _moves_with(point: Tensor, c: Tensor) -> bool:
    """Whether what ``c`` was computed from, or ``c`` itself, is among what ``point`` was computed from."""
    sources = set(_graph(c))
    return any(node in sources for node in _graph(point))


def _graph(tensor: Tensor) -> Iterator[Node]:
    """The operations that a tensor was computed by, from the last one to the leaves."""
    first = tensor.grad_fn if tensor.grad_fn is not None else tensor.view_as(tensor).grad_fn
    if first is None:
        return
    # Nodes are recognised as objects, so they are kept as long as the search lasts.
    seen, queue = {first}, deque([first])
    while queue:
        node = queue.popleft()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)


class Run:
    """The run of a program in which a distribution was made, as far as traces record it.

    :param trace: that which records it; of several the innermost one.
    :param drawn: those in which a curvature of the distribution is a latent. Without derivatives they are the
        only place to learn whether its site is observed, and they are not kept any longer than that takes.
    """

    def __init__(self, trace: Any = None, drawn: Collection[Any] = ()) -> None:
        self._trace = None if trace is None else weakref.ref(trace)
        self._drawn = drawn
        self._observes = False

    @classmethod
    def on(cls, manifold: Manifold) -> Run:
        """The present one, for a distribution on ``manifold``."""
        tensors = [c for c in manifold.curvatures if isinstance(c, Tensor)]
        traces = running_traces()
        if not tensors or not traces:
            return cls()
        memory = {id(_storage(c)) for c in tensors if not c.requires_grad} - {id(None)}
        return cls(traces[-1], [trace for trace in traces if memory & _memory_of_latents(trace)] if memory else ())

    @property
    def is_over(self) -> bool:
        """Whether its trace is complete; ``False`` if there is none."""
        return self._trace is not None and not any(trace is self._trace() for trace in running_traces())

    def observes(self, own: Callable[[Any], bool]) -> bool:
        """Whether the curvature is drawn and the site of the distribution observed.

        :param own: whether the distribution of a site is the one that was made.
        """
        for trace in self._drawn:
            for site in trace.nodes.values():
                if site["type"] == "sample" and own(site["fn"]):
                    self._observes, self._drawn = self._observes or site["is_observed"], ()
        return self._observes

    def __reduce__(self) -> Any:
        # A copy is of no run.
        return Run, ()


def _memory_of_latents(trace: Any) -> set[int]:
    latents = [s["value"] for s in trace.nodes.values() if s["type"] == "sample" and not s["is_observed"]]
    return {id(_storage(value)) for value in latents if isinstance(value, Tensor)}
