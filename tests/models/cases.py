"""The case table: one row per model. A new model, distribution, decoder or likelihood is new rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyro.distributions as dist
import torch
from pyro.infer import RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

from pyro_hyperbolic import Lorentz, PoincareBall, Sphere, Stereographic
from pyro_hyperbolic.geometry import Manifold, from_signature
from pyro_hyperbolic.models import VAE, VGAE, CountVAE, EuclideanVAE, EuclideanVGAE, ManifoldVAE, ManifoldVGAE
from pyro_hyperbolic.nn import (
    Continuous,
    Covariates,
    Embedding,
    Encoder,
    GyroplaneLinear,
    ManifoldModule,
    OneHot,
)

SIZE = 12
NUM_NODES = 9
# A tree, which hyperbolic distances can explain.
EDGES = torch.tensor([[0, 1], [0, 2], [1, 3], [1, 4], [2, 5], [2, 6], [6, 7], [6, 8]])


def mixed(c: Any) -> Manifold:
    """A product of four dimensions."""
    return from_signature("h2,s1,e1", c)


def coordinates(case: VAECase | VGAECase) -> int:
    """Number of coordinates of a latent point."""
    return case.latent_dim if case.c is None else case.chart(case.c).ambient_dim(case.latent_dim)


@dataclass(frozen=True)
class VAECase:
    """An auto-encoder of data; ``c`` is its curvature, ``None`` for the Euclidean one."""

    c: float | None = 1.0
    latent_dim: int = 2
    data_shape: tuple[int, ...] = (6,)
    chart: Callable[[Any], Manifold] = PoincareBall
    learnable: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(describe(self, "VAE"))

    @property
    def likelihood(self) -> str:
        return self.options.get("likelihood", "bernoulli")

    def build(self, seed: int = 0) -> VAE:
        torch.manual_seed(seed)
        common = {"latent_dim": self.latent_dim, "data_shape": self.data_shape, "hidden_dim": 8, **self.options}
        if self.c is None:
            return EuclideanVAE(**common)
        return ManifoldVAE(ManifoldModule(self.chart(self.c), self.learnable), **common)

    def data(self, size: int = SIZE) -> Tensor:
        """Two clusters, of what the likelihood explains."""
        noise = torch.Generator().manual_seed(30)
        centre = torch.where(torch.arange(size) % 2 == 0, 1.5, -1.5)
        x = centre.reshape(-1, *[1] * len(self.data_shape)) + torch.randn(size, *self.data_shape, generator=noise)
        return DATA[self.likelihood](x)

    @property
    def args(self) -> tuple[Any, ...]:
        return (self.data(),)

    @property
    def kwargs(self) -> dict[str, Any]:
        return {}

    num_latents = SIZE
    num_coordinates = property(coordinates)


@dataclass(frozen=True)
class CovariateCase(VAECase):
    """An auto-encoder of counts whose networks know covariates."""

    def __str__(self) -> str:
        return f"Covariate{super().__str__()}"

    def build(self, seed: int = 0) -> VAE:
        torch.manual_seed(seed)
        covariates = Covariates(batch=OneHot(["a", "b"]), donor=Embedding(3, 2), age=Continuous())
        space = ManifoldModule(self.chart(self.c), self.learnable)
        options = {"hidden_dim": 8, "covariates": covariates, **self.options}
        return ManifoldVAE(space, self.latent_dim, self.data_shape, **options)

    @property
    def kwargs(self) -> dict[str, Any]:
        number = torch.arange(SIZE)
        covariates = {"batch": number % 2, "donor": number % 3, "age": number / SIZE}
        return {"covariates": covariates, "size_factors": 0.5 + number / SIZE}


@dataclass(frozen=True)
class CountCase(VAECase):
    """An auto-encoder of counts in batches, whose size factors are the totals."""

    def __str__(self) -> str:
        return f"Count{super().__str__()}"

    def build(self, seed: int = 0) -> VAE:
        torch.manual_seed(seed)
        space = ManifoldModule(self.chart(self.c), self.learnable)
        return CountVAE(
            space, self.latent_dim, *self.data_shape, hidden_dim=8, batches=2, target_sum=20, **self.options
        )

    @property
    def likelihood(self) -> str:
        return "negative_binomial"

    def data(self, size: int = SIZE) -> Tensor:
        return super().data(size) + 1  # no datum is without counts

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"covariates": {"batch": torch.arange(SIZE) % 2}}


@dataclass(frozen=True)
class OwnPartsCase(VAECase):
    """An auto-encoder of images with an encoder, a decoder and a likelihood of the user's."""

    data_shape: tuple[int, ...] = (1, 4, 4)

    def __str__(self) -> str:
        return f"OwnParts{super().__str__()}"

    def build(self, seed: int = 0) -> VAE:
        torch.manual_seed(seed)
        space = ManifoldModule(self.chart(self.c), self.learnable)
        trunk = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten())
        decoder = nn.Sequential(
            GyroplaneLinear(self.latent_dim, 8, space),
            nn.Unflatten(-1, (2, 2, 2)),
            nn.ConvTranspose2d(2, 1, 2, stride=2),
        )
        encoder = Encoder(self.data_shape, 32, self.latent_dim, 1, trunk=trunk)
        options = {"encoder": encoder, "decoder": decoder, "likelihood": student}
        return ManifoldVAE(space, self.latent_dim, self.data_shape, **options)

    @property
    def likelihood(self) -> str:
        return "normal"


def student(output: Tensor) -> Any:
    """A likelihood that is a function."""
    return dist.StudentT(4.0, output, 1.0)


def as_counts(x: Tensor) -> Tensor:
    return (2 * x).exp().clamp(max=40).round()


DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "bernoulli": torch.sigmoid,
    "categorical": lambda x: (x == x.amax(-1, keepdim=True)).float(),
    "continuous_bernoulli": torch.sigmoid,
    "laplace": lambda x: x,
    "laplace_feature": lambda x: x,
    "laplace_shared": lambda x: x,
    "negative_binomial": as_counts,
    "normal": lambda x: x,
    "normal_feature": lambda x: x,
    "normal_shared": lambda x: x,
    "poisson": as_counts,
    "zero_inflated_negative_binomial": as_counts,
}
"""What each likelihood explains, made of centred values."""


@dataclass(frozen=True)
class VGAECase:
    """An auto-encoder of one graph."""

    c: float | None = 1.0
    latent_dim: int = 2
    chart: Callable[[Any], Manifold] = PoincareBall
    learnable: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([*describe(self, "VGAE"), *(f"{k}={v}" for k, v in self.kwargs.items())])

    def build(self, seed: int = 0) -> VGAE:
        torch.manual_seed(seed)
        common = {
            "num_nodes": NUM_NODES,
            "edges": EDGES,
            "latent_dim": self.latent_dim,
            "hidden_dim": 8,
            **self.options,
        }
        if self.c is None:
            return EuclideanVGAE(**common)
        return ManifoldVGAE(ManifoldModule(self.chart(self.c), self.learnable), **common)

    args = ()
    num_latents = NUM_NODES
    num_coordinates = property(coordinates)


def describe(case: VAECase | VGAECase, model: str) -> list[str]:
    words = [f"Euclidean{model}"] if case.c is None else [f"Hyperbolic{model}", f"{case.chart.__name__}{case.c:g}"]
    words += [f"d{case.latent_dim}"]
    words += ["learnable"] if case.learnable else []
    return words + [f"{k}={str(v).removeprefix('torch.')}" for k, v in case.options.items()]


RIEMANNIAN = {"prior": "riemannian", "posterior": "riemannian"}

VAES = [
    VAECase(),
    VAECase(options=RIEMANNIAN),
    VAECase(c=0.7, options={"prior": "riemannian", "decoder": "logmap", "likelihood": "normal"}),
    VAECase(c=1.4, options={"posterior": "riemannian", "decoder": "mlp", "likelihood": "normal"}),
    VAECase(c=0.1, latent_dim=5, data_shape=(2, 3), options={"decoder": "mobius", "posterior_scale": "diagonal"}),
    VAECase(latent_dim=1, options={"prior_scale": 1.7}),
    VAECase(c=0.0, latent_dim=3, options={"posterior_scale": "diagonal"}),
    VAECase(c=0.0, options={**RIEMANNIAN, "decoder": "mobius"}),
    VAECase(data_shape=(2, 3), options={"latent_dtype": torch.float64, "posterior_scale": "diagonal"}),
    VAECase(latent_dim=3, options={**RIEMANNIAN, "latent_dtype": torch.float64, "decoder": "logmap"}),
    VAECase(learnable=True, options={"learn_prior_scale": True}),
    VAECase(learnable=True, options={**RIEMANNIAN, "decoder": "mlp", "likelihood": "normal"}),
    VAECase(learnable=True, options={"latent_dtype": torch.float64, "decoder": "mobius", "prior": "riemannian"}),
    VAECase(chart=Lorentz, options=RIEMANNIAN),
    VAECase(chart=Lorentz, c=1.4, latent_dim=3, learnable=True, options={"decoder": "mobius"}),
    VAECase(chart=Lorentz, c=0.3, options={"decoder": "logmap", "posterior_scale": "diagonal", "likelihood": "normal"}),
    VAECase(chart=Lorentz, data_shape=(2, 3), options={"decoder": "mlp", "latent_dtype": torch.float64}),
    VAECase(chart=Sphere, learnable=True, options=RIEMANNIAN),
    VAECase(chart=Sphere, c=0.5, latent_dim=1, options={"decoder": "mlp", "likelihood": "normal"}),
    VAECase(chart=Stereographic, c=0.0, learnable=True, options={"posterior_scale": "diagonal"}),
    VAECase(chart=mixed, latent_dim=4, learnable=True, options={"posterior_scale": "diagonal"}),
    VAECase(chart=mixed, latent_dim=4, options={**RIEMANNIAN, "decoder": "mlp", "latent_dtype": torch.float64}),
    VAECase(c=None, data_shape=(2, 3)),
    VAECase(c=None, options={"posterior_scale": "diagonal", "likelihood": "normal", "learn_prior_scale": True}),
]
VGAES = [
    VGAECase(),
    VGAECase(c=0.7, latent_dim=3, options={**RIEMANNIAN, "posterior_scale": "isotropic", "prior_scale": 0.8}),
    VGAECase(learnable=True, options={"learn_prior_scale": True}, kwargs={"num_negatives": 15}),
    VGAECase(options={"latent_dtype": torch.float64, "prior": "riemannian"}),
    VGAECase(chart=Lorentz, learnable=True, options={"prior": "riemannian"}),
    VGAECase(chart=mixed, latent_dim=4, learnable=True),
    VGAECase(c=None, latent_dim=3),
    VGAECase(c=None, options={"learn_prior_scale": True}, kwargs={"num_negatives": 15}),
]
COMPOSED = [
    CovariateCase(options={"likelihood": "zero_inflated_negative_binomial", "beta": 0.5, "num_hidden_layers": 2}),
    OwnPartsCase(),
    CountCase(chart=mixed, latent_dim=4),
]
"""Auto-encoders put together from other parts than the default ones."""
MODELS = [*VAES, *COMPOSED, *VGAES]
HYPERBOLIC_VAES = [case for case in VAES if case.c is not None]

LOSSES: dict[str, Callable[[], Any]] = {
    "Trace_ELBO": lambda: Trace_ELBO(),
    "Trace_ELBO-looped": lambda: Trace_ELBO(num_particles=2),
    "Trace_ELBO-vectorised": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True),
    "TraceMeanField_ELBO": lambda: TraceMeanField_ELBO(),
    "TraceMeanField_ELBO-looped": lambda: TraceMeanField_ELBO(num_particles=2),
    "TraceMeanField_ELBO-vectorised": lambda: TraceMeanField_ELBO(num_particles=3, vectorize_particles=True),
    "TraceGraph_ELBO": lambda: TraceGraph_ELBO(),
    "TraceGraph_ELBO-looped": lambda: TraceGraph_ELBO(num_particles=2),
    "TraceGraph_ELBO-vectorised": lambda: TraceGraph_ELBO(num_particles=3, vectorize_particles=True),
    "RenyiELBO-looped": lambda: RenyiELBO(alpha=0, num_particles=2),
    "RenyiELBO-vectorised": lambda: RenyiELBO(alpha=0, num_particles=3, vectorize_particles=True),
}
