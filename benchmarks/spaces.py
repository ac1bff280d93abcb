"""Products against their factors one by one, and Euclidean space against a model with plain normals.

A product does the work of its factors and puts their coordinates together. What is compared is what a training step
does with a posterior, and with a layer of planes: one product against the sum of its factors, each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from benchmarks.distributions import step_of
from benchmarks.timing import Ratio, Settings, compare
from benchmarks.training import svi_step
from pyro_hyperbolic.geometry import Manifold, Product, from_signature
from pyro_hyperbolic.models import EuclideanVAE

SIGNATURES = ["h2,s2,e2", "p2,p2,p2"]
PRODUCT_BOUND = 1.2
EUCLIDEAN_BOUND = 1.05

Step = Callable[[], object]


def spaces(settings: Settings) -> Iterator[Ratio]:
    batch, planes = (8, 5) if settings.tiny else (12_800, 60)
    for signature in SIGNATURES[: 1 if settings.tiny else None]:
        product = from_signature(signature)
        assert isinstance(product, Product)
        kinds: list[tuple[str, Callable[[Manifold, int], Step]]] = [
            ("WrappedNormal", partial(_distribution, distribution=hdist.WrappedNormal, batch=batch)),
            ("RiemannianNormal", partial(_distribution, distribution=hdist.RiemannianNormal, batch=batch)),
            ("dist2plane", partial(_planes, batch=batch // 8, planes=planes)),
        ]
        for kind, step in kinds:
            whole = step(product, product.dim)
            parts = [step(factor, dim) for factor, dim in product.factors]
            yield compare(f"{kind}, {signature} / its factors", whole, partial(_each, parts), PRODUCT_BOUND, settings)
    yield _euclidean(settings)


def _each(steps: list[Step]) -> None:
    for step in steps:
        step()


def _distribution(manifold: Manifold, dim: int, distribution: Callable[..., hdist.WrappedNormal], batch: int) -> Step:
    generator = torch.Generator().manual_seed(0)
    loc = manifold.from_normal_coords(None, 0.5 * torch.randn(batch, dim, generator=generator))
    scale = 0.3 + 0.4 * torch.rand(batch, 1, generator=generator)
    return step_of(partial(distribution, manifold=manifold), loc, scale)


def _planes(manifold: Manifold, dim: int, batch: int, planes: int) -> Step:
    generator = torch.Generator().manual_seed(0)
    x, p = (manifold.from_normal_coords(None, 0.5 * torch.randn(n, dim, generator=generator)) for n in (batch, planes))
    v = torch.randn(planes, dim, generator=generator).requires_grad_()
    return lambda: manifold.dist2plane0(x.unsqueeze(1), p, v).sum().backward()


def _euclidean(settings: Settings) -> Ratio:
    """The auto-encoder on Euclidean space against the same networks in a program of plain normals."""
    batch, data_dim, hidden, dim = (4, 8, 6, 2) if settings.tiny else (128, 784, 600, 10)
    x = torch.rand(batch, data_dim, generator=torch.Generator().manual_seed(0))
    ours, nets = (EuclideanVAE(dim, data_dim, hidden) for _ in range(2))

    def model(x: Tensor) -> None:
        pyro.module("decoder", nets.decoder)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(dim), torch.ones(dim)).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=nets.decoder(z), validate_args=False).to_event(1), obs=x)

    def guide(x: Tensor) -> None:
        pyro.module("encoder", nets.encoder)
        loc, scale = nets.encoder(x)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc, scale.expand_as(loc)).to_event(1))

    steps = svi_step(ours.model, ours.guide, x), svi_step(model, guide, x)
    return compare(f"SVI, EuclideanVAE / plain normals, d={dim}", *steps, EUCLIDEAN_BOUND, settings)
