"""Points in double precision."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold

_Space = TypeVar("_Space", bound=Manifold)


def plain(manifold: _Space) -> _Space:
    """The same space, of one curvature, with that as a plain number."""
    return manifold.with_curvatures(
        [float(torch.as_tensor(c, dtype=torch.float64).detach()) for c in manifold.curvatures]
    )


def widened(points: Tensor, space: Manifold) -> Tensor:
    """Points on the host as float64; where the rounding of their own dtype has left the space they are put back."""
    x = points.detach().cpu().double()
    return torch.where(space.contains(x).unsqueeze(-1), x, space.projx(x))
