"""Small images of all points in one PNG."""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# Longest side of a thumbnail, and of the sheet, beyond which browsers do not decode an image.
LONGEST, MOST = 64, 16384
# Sixteen greys look like 256 in a picture of this size, and take half the room.
GREYS = 16


def sheet(images: Any, count: int) -> dict[str, Any]:
    """The images row by row in one PNG: 1 bit for black and white, 4 for greys, 8 for the commonest colours.

    Args:
        images: ``(N, H, W)``, ``(N, 1, H, W)``, ``(N, 3, H, W)`` or ``(N, H, W, 3)``; bytes, or numbers from 0 to 1.
        count: how many there must be.
    """
    grey = _checked(images, count)
    if len(grey) == 0:
        return {"width": 1, "height": 1, "columns": 1, "data": _png(np.zeros((1, 1), np.uint8))}
    grey = _reduced(grey)
    _, height, width = grey.shape[:3]
    columns = max(1, math.ceil(math.sqrt(count * height / width)))
    rows = math.ceil(count / columns)
    if max(columns * width, rows * height) > MOST:
        raise ValueError(
            f"images must fit into a sheet of {MOST} x {MOST} pixels, got {count} of {height} x {width};"
            " make them smaller or show fewer points."
        )
    whole = np.zeros((rows * columns, *grey.shape[1:]), np.uint8)
    whole[:count] = grey
    whole = whole.reshape(rows, columns, *grey.shape[1:]).swapaxes(1, 2)
    return {
        "width": width,
        "height": height,
        "columns": columns,
        "data": _png(whole.reshape(rows * height, columns * width, *grey.shape[3:])),
    }


def _checked(images: Any, count: int) -> np.ndarray:
    """Bytes ``(N, H, W)`` or ``(N, H, W, 3)``."""
    x = np.asarray(images.detach().cpu() if isinstance(images, Tensor) else images)
    shape = x.shape
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[-1] not in (1, 3):
        x = np.moveaxis(x, 1, -1)
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.shape[:1] != (count,) or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[-1] != 3) or 0 in x.shape[1:]:
        raise ValueError(
            f"images must be (N, H, W), (N, 1, H, W), (N, 3, H, W) or (N, H, W, 3) with N = {count}, got {shape};"
            " reshape flat images first."
        )
    if x.dtype == np.uint8:
        return x
    x = x.astype(np.float64)
    if not ((x >= 0) & (x <= 1)).all():
        raise ValueError("images must be bytes or numbers from 0 to 1; scale them, for example by images / 255.")
    return np.round(x * 255).astype(np.uint8)


def _reduced(x: np.ndarray) -> np.ndarray:
    """No side longer than ``LONGEST``."""
    factor = LONGEST / max(x.shape[1:3])
    if factor >= 1:
        return x
    size = [max(1, round(side * factor)) for side in x.shape[1:3]]
    channels = torch.from_numpy(x).float().reshape(*x.shape[:3], -1).movedim(-1, 1)
    small = torch.nn.functional.interpolate(channels, size=size, mode="area").round().to(torch.uint8)
    return small.movedim(1, -1).reshape(len(x), *size, *x.shape[3:]).numpy()


def _png(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    if pixels.ndim == 3:
        Image.fromarray(pixels).quantize(256, Image.Quantize.FASTOCTREE).save(file, "PNG", optimize=True)
    else:
        levels = 2 if np.isin(pixels, (0, 255)).all() else GREYS
        step = 255 / (levels - 1)
        image = Image.fromarray(np.round(pixels / step).astype(np.uint8), "L").convert("P")
        image.putpalette([round(step * i) for i in range(levels) for _ in range(3)])
        image.save(file, "PNG", bits=1 if levels == 2 else 4, optimize=True)
    return base64.b64encode(file.getvalue()).decode("ascii")
