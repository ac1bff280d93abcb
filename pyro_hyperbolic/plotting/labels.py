"""Labels of points as classes or as numbers, and what either looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

Labels = Tensor | np.ndarray | Sequence[Any]

# Ten colours whose smallest difference, to readers with and without a colour vision deficiency, is as large as a search
# could make it (0.119 in OKLab; tests/plotting/test_labels.py measures it), on white and on black.
COLOURS = (
    "#1574fe",
    "#cb1100",
    "#cadd05",
    "#4ce8f8",
    "#ab9dff",
    "#9029b1",
    "#a99406",
    "#32715e",
    "#f148ad",
    "#ffa89c",
)
# More classes than colours change the marker as well: 20 classes have two.
MARKERS = "o^sDvP"
# So many distinct integers are still classes; more are numbers, unless the caller says otherwise.
MOST_INTEGERS = 20


@dataclass(frozen=True)
class Classes:
    """Names of the classes in their order, and the class of each point."""

    names: list[str]
    index: np.ndarray

    def look(self, i: int) -> tuple[str, int]:
        """Colour and number of the marker of a class."""
        shift, colour = divmod(i, len(COLOURS))
        return COLOURS[colour], shift % len(MARKERS)


@dataclass(frozen=True)
class Numbers:
    """The value of each point."""

    values: np.ndarray


def classify(labels: Labels, count: int, classes: bool | None = None) -> Classes | Numbers:
    """Labels of ``count`` points as what they are.

    Args:
        labels: one per point. Strings, booleans and integers of at most 20 values are classes; other numbers are
            numbers.
        count: how many points there are.
        classes: whether they are classes; by default the rule decides.
    """
    values = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (count,):
        raise ValueError(f"labels must have one entry per point, {(count,)}, got {values.shape}.")
    is_number = values.dtype.kind in "fiu"
    if classes is None:
        classes = not is_number or (values.dtype.kind != "f" and len(np.unique(values)) <= MOST_INTEGERS)
    if not classes:
        if values.dtype.kind not in "fiub":
            raise ValueError(f"labels must be numbers with classes=False, got {values.dtype}; leave classes out.")
        if not np.isfinite(values).all():
            raise ValueError("labels must be finite; drop the points whose labels are not.")
        return Numbers(values.astype(np.float64))
    if values.dtype.kind == "O":
        values = values.astype(str)
    names, index = np.unique(values, return_inverse=True)
    return Classes([str(name) for name in names], index.reshape(-1))
