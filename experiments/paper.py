"""The paper's own results."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


@functools.cache
def paper_tables() -> dict[str, Any]:
    """The tables as printed: a cell is ``[value, half width of the 95% interval]``, or ``None`` where it is starred."""
    return json.loads(Path(__file__).with_name("data").joinpath("paper_tables.json").read_text("utf-8"))
