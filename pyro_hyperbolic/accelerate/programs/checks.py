"""Checks that a validated evaluation of a model and its guide makes beside Pyro's own.

This is the place where others add what they know of their distributions; the trainers know none of them.
:mod:`pyro_hyperbolic.infer` registers that model and guide have each point on one manifold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from pyro.infer.util import is_validation_enabled

Around = Callable[[], AbstractContextManager[Any]]
OfTraces = Callable[[Any, Any], None]

_AROUND: list[Around] = []
_OF_TRACES: list[OfTraces] = []


def register_check(around: Around, of_traces: OfTraces) -> None:
    """Let every validated evaluation make a check, which raises a ``ValueError`` where something is wrong.

    Evaluations are validated in the first step of a trainer, in every one that ``validate_every`` asks for, and
    wherever else a loss is evaluated while ``pyro.enable_validation`` is on.

    :param around: makes a context that is open while the guide runs, and the model on its draws.
    :param of_traces: called with the trace of the model and that of the guide.
    """
    _AROUND.append(around)
    _OF_TRACES.append(of_traces)


@contextlib.contextmanager
def checked_run() -> Iterator[None]:
    """To be open while a guide runs, and the model on its draws; does nothing where Pyro does not validate."""
    with contextlib.ExitStack() as stack:
        for around in _AROUND if is_validation_enabled() else ():
            stack.enter_context(around())
        yield


def check_traces(model_trace: Any, guide_trace: Any) -> None:
    """What there is to check in the traces; nothing where Pyro does not validate."""
    for check in _OF_TRACES if is_validation_enabled() else ():
        check(model_trace, guide_trace)
