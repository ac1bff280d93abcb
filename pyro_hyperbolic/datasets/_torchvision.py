"""Import torchvision, also where its compiled operators do not fit the installed torch.

Beside a torch of another build (typically a CPU one), the compiled half of torchvision cannot be
loaded, and the import stops with ``operator torchvision::nms does not exist``, although the
pure-Python half, which the data sets are part of, needs none of these operators. Declaring their
schemas is enough.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType

import torch

_MISSING = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_torchvision() -> ModuleType:
    """The module ``torchvision``; the plain import is tried first.

    Raises:
        ImportError: if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    _declare_operators()
    return importlib.import_module("torchvision")


@functools.cache  # keeps the Library: its declarations go when it does
def _declare_operators() -> torch.library.Library:
    library = torch.library.Library("torchvision", "DEF")
    for name in _MISSING:
        library.define(name + _SCHEMA)
    return library
