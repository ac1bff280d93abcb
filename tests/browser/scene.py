"""Points for a page, and where they are on it."""

from __future__ import annotations

import math

import torch

from pyro_hyperbolic.geometry import Manifold
from tests.browser.driver import Page

DOUBLE = torch.float64


def spread(manifold: Manifold, count: int = 30, size: float = 1.0) -> torch.Tensor:
    torch.manual_seed(0)
    c = float(torch.as_tensor(manifold.c))
    v = size * torch.randn(count, 2, dtype=DOUBLE) / (math.sqrt(abs(c)) or 1)
    return manifold.from_normal_coords(None, v)


def middle(page: Page) -> tuple[float, float]:
    left, top, width, height = page.box("#overlay")
    return left + width / 2, top + height / 2


def seen_at(page: Page, i: int) -> tuple[float, float]:
    """Where a point is on the screen."""
    left, top, _, _ = page.box("#overlay")
    x, y = page.run(f"explorer.scene.toScreen(explorer.scene.placeOf({i}))")
    return left + x, top + y
