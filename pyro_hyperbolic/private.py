"""Private names of Pyro, each with its reason and with what happens without it."""

from __future__ import annotations

from typing import Any

from pyro.poutine.trace_messenger import TraceMessenger

try:
    # The handlers that are open. Pyro says whether there are any, but not which.
    from pyro.poutine.runtime import _PYRO_STACK
except ImportError:
    _PYRO_STACK = []


def running_traces() -> list[Any]:
    """The traces that are recorded now; none if Pyro does not tell."""
    return [handler.trace for handler in _PYRO_STACK if isinstance(handler, TraceMessenger)]
