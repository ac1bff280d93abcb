"""Points, regions and labels as the page reads them."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from torch import Tensor

from pyro_hyperbolic.plotting.labels import Classes, Numbers

# The shares of a posterior that the drawn regions hold.
LEVELS = (0.5, 0.9)


def packed(values: Any, kind: str) -> dict[str, str]:
    """An array as base64 of little-endian numbers."""
    array = np.ascontiguousarray(np.asarray(values), dtype=f"<{kind}")
    return {"kind": kind, "data": base64.b64encode(array.tobytes()).decode("ascii")}


def half_points(coords: Tensor, sign: int) -> np.ndarray:
    r"""The numbers :math:`u\sinh(r/2)` of points with normal coordinates ``r u`` at the origin, in radii of curvature.

    They say more than coordinates of the ball, which end at a distance of 36, and their rounding weighs less
    than that of the hyperboloid (``web/isometry.js``). On the sphere it is the sine, in the plane ``r u/2``.
    """
    r = coords.norm(dim=-1, keepdim=True)
    half = torch.sinh(r / 2) if sign < 0 else torch.sin(r / 2) if sign > 0 else r / 2
    return (torch.where(r == 0, 0.5, half / torch.where(r == 0, 1.0, r)) * coords).numpy()


def moved_home(coords: Tensor, sign: int) -> list[float]:
    """The isometry that takes the point with these normal coordinates, in radii of curvature, to the origin."""
    q = half_points(coords, sign)
    p = math.sqrt(1 - sign * float(q @ q))
    return [p, 0.0, -float(q[0]), -float(q[1])]


def packed_labels(labels: Classes | Numbers | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    if isinstance(labels, Classes):
        looks = [labels.look(i) for i in range(len(labels.names))]
        classes = [
            {"name": name, "colour": colour, "shape": shape}
            for name, (colour, shape) in zip(labels.names, looks, strict=True)
        ]
        return {"kind": "classes", "classes": classes, "index": packed(labels.index, "u2")}
    scale = np.round(colormaps["viridis"](np.arange(256))[:, :3] * 255)
    return {
        "kind": "numbers",
        "values": packed(labels.values, "f4"),
        "low": float(labels.values.min(initial=math.inf)) if len(labels.values) else 0.0,
        "high": float(labels.values.max(initial=-math.inf)) if len(labels.values) else 1.0,
        "scale": base64.b64encode(scale.astype(np.uint8).tobytes()).decode("ascii"),
    }
