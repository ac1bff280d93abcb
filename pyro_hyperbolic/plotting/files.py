"""Figures on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def save(figure: Figure, path: str | os.PathLike[str], **options: Any) -> Path:
    """Write a figure; the file appears under its name when it is complete.

    Args:
        figure: what to write.
        path: file name with the suffix of a format that matplotlib writes; missing folders are made.
        **options: passed on to :meth:`matplotlib.figure.Figure.savefig`; ``dpi=200`` by default.

    Returns:
        The path.
    """
    if not isinstance(figure, Figure):
        raise ValueError(f"figure must be a matplotlib Figure, got {type(figure).__name__}; of axes pass ax.figure.")
    path = Path(path)
    formats = sorted(figure.canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in formats:
        raise ValueError(f"path must end in one of {', '.join(formats)}, got {str(path)!r}; for example figure.pdf.")
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, so that the renaming is one step of the file system.
    partial = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        figure.savefig(partial, **{"dpi": 200} | options)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
