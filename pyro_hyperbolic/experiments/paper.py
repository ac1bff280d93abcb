"""The paper's own results."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any


@functools.cache
def paper_tables() -> dict[str, Any]:
    """The tables as printed: a cell is ``[value, half width of the 95% interval]``, or ``None`` where it is starred."""
    path = files("pyro_hyperbolic.experiments") / "data" / "paper_tables.json"
    return json.loads(path.read_text("utf-8"))
