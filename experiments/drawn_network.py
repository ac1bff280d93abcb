"""A network that is drawn from a latent space model, so that its space is known."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_hyperbolic.models import Network
from pyro_hyperbolic.nn import ManifoldModule

NUM_NODES = 5000
DEGREE = 10.0  # the mean, about
_CURVATURE = 4.0  # of a space that is not flat, for positions of scale 1
_TEMPERATURE = 0.05
_ROWS = 500  # of the matrix of probabilities at a time


def drawn_network(space: str, num_nodes: int = NUM_NODES, seed: int = 0) -> Network:
    """Nodes with normal coordinates of scale 1, and edges as ``LatentSpaceNetwork(space, num_nodes)`` has them.

    The curvature is 4 and the temperature 0.05. The intercept is the one with ten edges to a node.

    :param space: a signature, ``"e2"`` or ``"h2"``.
    """
    generator = torch.Generator().manual_seed(seed)
    manifold = ManifoldModule(space)()
    manifold = manifold.with_curvatures([_CURVATURE] * len(manifold.curvatures))
    coords = torch.randn(num_nodes, 2, generator=generator, dtype=torch.float64)
    z = manifold.from_normal_coords(None, coords)

    def scaled(rows: Tensor) -> Tensor:
        return manifold.pairwise_dist(z[rows], z) / _TEMPERATURE

    numbers = torch.arange(num_nodes)
    intercept = _intercept(scaled(numbers[:_ROWS]), DEGREE / num_nodes)
    edges = []
    for rows in numbers.split(_ROWS):
        p = (intercept - scaled(rows)).sigmoid()
        found = torch.rand(p.shape, generator=generator, dtype=p.dtype) < p
        edges.append((found & (numbers > rows.unsqueeze(-1))).nonzero() + torch.stack([rows[0], rows.new_zeros(())]))
    return Network(num_nodes, torch.cat(edges))


def _intercept(distances: Tensor, mean: float) -> float:
    """That which gives pairs at scaled distances a mean probability, by bisection."""
    low, high = -50.0, 50.0 + distances.max().item()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (middle - distances).sigmoid().mean().item() < mean else (low, middle)
    return (low + high) / 2
