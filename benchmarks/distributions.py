"""The distributions and the gyroplane distance.

The Riemannian normal is sampled by inversion and should cost little more than the wrapped one; that one does the work
of a Gaussian and one exponential map; and a gyroplane layer is one matrix product and an asinh per output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from benchmarks.timing import Ratio, Settings, compare, compare_memory
from pyro_hyperbolic import PoincareBall

# Latent dimension and curvature of the paper's MNIST table.
SPACES = [(2, 1.4), (10, 0.2), (20, 0.1)]
RIEMANNIAN_BOUND = 3.0
WRAPPED_BOUND = 10.0
PLANES_BOUND = 3.0
PLANES_MEMORY_BOUND = 3.0

Distribution = Callable[[Tensor, Tensor], Any]


def distributions(settings: Settings) -> Iterator[Ratio]:
    batch = 64 if settings.tiny else 12_800  # a hundred batches of the paper's size: compute, not overhead
    for dim, c in SPACES[: 1 if settings.tiny else None]:
        ball = PoincareBall(c)
        generator = torch.Generator().manual_seed(0)
        loc = ball.expmap0(0.5 * torch.randn(batch, dim, generator=generator))
        scale = 0.3 + 0.7 * torch.rand(batch, 1, generator=generator)
        wrapped = step_of(partial(hdist.WrappedNormal, manifold=ball), loc, scale)
        riemannian = step_of(partial(hdist.RiemannianNormal, manifold=ball), loc, scale)
        normal = step_of(lambda loc, scale: dist.Normal(loc, scale).to_event(1), loc, scale)
        space = f"d={dim} c={c}"
        yield compare(f"RiemannianNormal / WrappedNormal, {space}", riemannian, wrapped, RIEMANNIAN_BOUND, settings)
        yield compare(f"WrappedNormal / Normal, {space}", wrapped, normal, WRAPPED_BOUND, settings)
    yield from _planes(settings)


def step_of(distribution: Distribution, loc: Tensor, scale: Tensor) -> Callable[[], None]:
    """What one training step does with a posterior: construct, sample, evaluate, differentiate."""
    loc, scale = loc.clone().requires_grad_(), scale.clone().requires_grad_()

    def step() -> None:
        loc.grad = scale.grad = None
        q = distribution(loc, scale)
        z = q.rsample()
        # The sample itself is in the loss as in an ELBO; otherwise the distributions that remember their last sample
        # would skip the derivative of the exponential map.
        (q.log_prob(z).sum() + z.sum()).backward()

    return step


def _planes(settings: Settings) -> Iterator[Ratio]:
    num_points, num_planes, dim = (50, 12, 20) if settings.tiny else (10_000, 600, 20)
    ball = PoincareBall(1.0)
    generator = torch.Generator().manual_seed(0)
    x, p = (ball.expmap0(0.2 * torch.randn(n, dim, generator=generator)) for n in (num_points, num_planes))
    a = torch.randn(num_planes, dim, generator=generator)
    p.requires_grad_()  # as the parameters of a linear layer do
    a.requires_grad_()
    linear = torch.nn.Linear(dim, num_planes)

    def distances() -> Tensor:
        return ball.dist2plane(x=x.unsqueeze(1), p=p, a=a)

    def euclidean() -> Tensor:
        return torch.asinh(linear(x))

    def distances_only() -> Tensor:
        with torch.no_grad():
            return distances()

    size = f"{num_points} x {num_planes}"
    yield compare(f"dist2plane / Linear + asinh, {size}", distances, euclidean, PLANES_BOUND, settings)
    yield compare_memory(f"dist2plane memory / output, {size}", distances_only, PLANES_MEMORY_BOUND)
    yield compare_memory(f"dist2plane memory with graph / output, {size}", distances, PLANES_MEMORY_BOUND)
