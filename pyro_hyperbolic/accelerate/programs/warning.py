"""Warnings that point at the line of the user."""

from __future__ import annotations

import inspect
import warnings

_BETWEEN = (__name__.partition(".")[0], "pyro", "torch")  # packages that call each other, below the user's line


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither of this package nor of Pyro or torch."""
    level = 2
    for info in inspect.stack(0)[1:-1]:
        if info.frame.f_globals.get("__name__", "").partition(".")[0] not in _BETWEEN:
            break
        level += 1
    warnings.warn(message, category, stacklevel=level)
