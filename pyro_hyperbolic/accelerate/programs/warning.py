"""Warnings that point at the line of the user."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = (__name__.partition(".")[0], "pyro", "torch")  # packages that call each other, below the user's line


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither of this package nor of Pyro or torch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
