"""The integral over the plane that the methods are compared with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyro
import torch
from pyro import poutine
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from inference_parts.found import Found

if TYPE_CHECKING:
    from inference_swaps import Program


def grid(program: Program, size: int) -> Found:
    """The nodes of a square of normal coordinates, weighted by density and volume."""
    axis = torch.linspace(-7, 7, size)
    v = torch.cartesian_prod(axis, axis)
    z = program.manifold.from_normal_coords(None, v)
    log_volume = hdist.ExpMapTransform(program.manifold).log_abs_det_jacobian(v, z) + 2 * math.log(14 / (size - 1))
    log_weights = log_joint(program, z) + log_volume
    value = log_weights.logsumexp(0).item()
    return Found(z, log_weights, evidence=(value, 0.0))


def log_joint(program: Program, z: Tensor) -> Tensor:
    """Log-density of points ``(n, D)`` and the data: the program, run at given values of its latent."""
    with pyro.plate("nodes", len(z), dim=-2):
        trace = poutine.trace(poutine.condition(program.model, data={"z": z.unsqueeze(-2)})).get_trace()
    trace.compute_log_prob()
    return sum(trace.nodes[name]["log_prob"].sum(-1) for name in ("z", "distance"))
