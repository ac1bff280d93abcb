"""Where data sets lie on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENVIRONMENT_VARIABLE = "PYRO_HYPERBOLIC_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that data sets are read from and downloaded to.

    The first of these that is given: the argument, the environment variable
    ``PYRO_HYPERBOLIC_DATA``, the per-user cache folder of the platform. The folder need not exist.

    Args:
        root: a folder, or ``None`` for the default.

    Raises:
        ValueError: if the argument is no path, or if the path exists and is not a folder.

    Example:
        >>> data_root("some/folder").as_posix()
        'some/folder'
    """
    if root is not None:
        path, origin = checked_path("root", root, "some/folder").expanduser(), "root"
    elif os.environ.get(ENVIRONMENT_VARIABLE):
        path, origin = Path(os.environ[ENVIRONMENT_VARIABLE]).expanduser(), ENVIRONMENT_VARIABLE
    else:
        path, origin = _user_cache() / "pyro_hyperbolic", "the per-user cache"
    if path.exists() and not path.is_dir():
        raise ValueError(f"{origin} must be a folder, but {path} is a file; give the folder that holds the data")
    return path


def checked_path(name: str, value: str | os.PathLike[str], example: str) -> Path:
    """A path that is given as text or as a path."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{name} must be a string or a path, got {value!r:.60}; write for example {example!r}.")
    return Path(value)


def _user_cache() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    xdg = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that a relative path is invalid and must be ignored.
    return Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
