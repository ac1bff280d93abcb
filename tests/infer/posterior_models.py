"""Two small programs with an unknown point of the hyperbolic plane, and their posteriors from a grid.

The grid is polar around the origin, with the Riemannian volume ``sinh(sqrt(c) r) / sqrt(c) dr da`` as its weight. Its
densities are written out here as functions of distances, so that the integral shares no distribution, map or transform
with the package. The statistics of a posterior use the package's geometry.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall
from pyro_hyperbolic.geometry import Manifold

C = 2.0
BALL = PoincareBall(C)
DISTRIBUTIONS = {"wrapped": hdist.WrappedNormal, "riemannian": hdist.RiemannianNormal}
RADIAL_NODES, ANGLES, OUTERMOST = 240, 160, 12.0


def points(*normal_coordinates: tuple[float, float]) -> Tensor:
    """Points of the disc at a distance and direction from the origin: tanh(sqrt(c) r / 2) / sqrt(c)."""
    v = torch.tensor(normal_coordinates, dtype=torch.float64)
    r = v.norm(dim=-1, keepdim=True)
    return torch.tanh(math.sqrt(C) * r / 2) / math.sqrt(C) * v / r


PRIOR_LOC = points((0.3, -0.2))[0]
PRIOR_SCALE = 1.5
ANCHORS = points((3.0, 0.5), (2.5, -2.0), (0.5, 2.0), (-1.0, -1.0))
DISTANCES = torch.tensor([1.4, 2.2, 2.6, 3.2], dtype=torch.float64)
NOISE = 0.8

SHARES = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
KNOWN_MEANS = points((-1.2, 0.9), (-0.6, -1.4))
COMPONENT_SCALE = 1.0
DATA = points((-1.5, 0.6), (-0.9, 1.5), (-1.0, -1.2), (-0.1, -1.9), (2.2, 0.6), (1.5, -0.4))


class Triangulation:
    """A position ``z``, seen through its noisy distances to four anchors.

    :param copies: positions in the data plate, all with the same distances: as many draws of one posterior at a time.
    :param beta: ``beta`` of the Kullback-Leibler divergence in a bound, by the scale of the prior's site.
    """

    def __init__(
        self,
        distribution: str = "wrapped",
        manifold: Manifold = BALL,
        copies: int = 1,
        beta: float = 1.0,
    ) -> None:
        self.distribution, self.manifold, self.beta = distribution, manifold, beta
        self.prior_loc, self.anchors = in_chart(PRIOR_LOC, manifold), in_chart(ANCHORS, manifold)
        self.distances = DISTANCES.expand(copies, -1)

    def prior(self) -> Any:
        return DISTRIBUTIONS[self.distribution](self.prior_loc, PRIOR_SCALE, self.manifold)

    def likelihood(self, z: Tensor) -> Any:
        return dist.Normal(self.manifold.dist(z.unsqueeze(-2), self.anchors), NOISE).to_event(1)

    def model(self, distances: Tensor | None = None) -> Tensor:
        distances = self.distances if distances is None else distances
        with pyro.plate("data", len(distances)):
            with poutine.scale(scale=self.beta):
                z = pyro.sample("z", self.prior())
            pyro.sample("x", self.likelihood(z), obs=distances)
        return z

    def guide(self, distances: Tensor | None = None) -> Tensor:
        """One distribution for all of the plate."""
        copies = len(self.distances if distances is None else distances)
        with pyro.plate("data", copies), poutine.scale(scale=self.beta):
            return pyro.sample("z", free_wrapped_normal(self.prior_loc, self.manifold))

    def exact(self, volume: bool = True) -> Posterior:
        return triangulation_posterior(self.distribution, self.beta, volume)


class Mixture:
    """Three components of known shares and scale, two of known mean; the third mean ``z`` is unknown.

    The component ``k`` of each datum is a discrete latent that the algorithms sum over.

    :param copies: as above, in a plate around the data.
    """

    def __init__(self, manifold: Manifold = BALL, copies: int = 1) -> None:
        self.manifold, self.copies = manifold, copies
        self.prior_loc = in_chart(PRIOR_LOC, manifold)
        self.known_means, self.data = in_chart(KNOWN_MEANS, manifold), in_chart(DATA, manifold)

    def model(self) -> Tensor:
        with pyro.plate("copies", self.copies, dim=-2):
            z = pyro.sample("z", hdist.WrappedNormal(self.prior_loc, PRIOR_SCALE, self.manifold))
            with pyro.plate("data", len(self.data), dim=-1):
                k = pyro.sample("k", dist.Categorical(SHARES), infer={"enumerate": "parallel"})
                mean = torch.where((k == 2).unsqueeze(-1), z, self.known_means[k.clamp(max=1)])
                pyro.sample("x", hdist.WrappedNormal(mean, COMPONENT_SCALE, self.manifold), obs=self.data)
        return z

    def guide(self) -> None:
        with pyro.plate("copies", self.copies, dim=-2):
            pyro.sample("z", free_wrapped_normal(self.prior_loc, self.manifold))

    def guide_with_components(self) -> None:
        """The same, with each component drawn from its posterior given ``z``."""
        with pyro.plate("copies", self.copies, dim=-2):
            z = pyro.sample("z", free_wrapped_normal(self.prior_loc, self.manifold))
            with pyro.plate("data", len(self.data), dim=-1):
                pyro.sample("k", dist.Categorical(logits=log_components(on_disc(z.squeeze(-2), self.manifold))))

    def exact(self, volume: bool = True) -> Posterior:
        return mixture_posterior(volume)


def free_wrapped_normal(start: Tensor, manifold: Manifold) -> hdist.WrappedNormal:
    """A wrapped normal whose mean and covariance are parameters."""
    loc = pyro.param("loc", start.clone(), constraint=hdist.constraints.on(manifold))
    half = 0.5 * torch.eye(2, dtype=torch.float64)
    scale_tril = pyro.param("scale_tril", half, constraint=dist.constraints.lower_cholesky)
    return hdist.WrappedNormal(loc, manifold=manifold, scale_tril=scale_tril)


@dataclass(frozen=True)
class Posterior:
    """A posterior by its values at the nodes of the grid.

    :param log_joint: log-density of a point and the data, with respect to the Riemannian volume.
    :param volume: whether to integrate with that volume, or with that of the normal coordinates, as an algorithm
        would that forgets its Jacobian.
    """

    log_joint: Callable[[Tensor], Tensor]
    volume: bool = True

    @functools.cached_property
    def nodes(self) -> Tensor:
        return grid()[0]

    @functools.cached_property
    def log_weights(self) -> Tensor:
        nodes, log_volume = grid()
        return self.log_joint(nodes) + (log_volume if self.volume else log_volume - log_jacobian(nodes))

    @functools.cached_property
    def log_evidence(self) -> float:
        return self.log_weights.logsumexp(0).item()

    @functools.cached_property
    def weights(self) -> Tensor:
        return self.log_weights.softmax(0)

    @functools.cached_property
    def mean(self) -> Tensor:
        """The Fréchet mean."""
        return BALL.frechet_mean(self.nodes, self.weights)

    def statistics(self, z: Tensor) -> Tensor:
        """What methods are compared by, ``(..., 6)``.

        The normal coordinates of ``z`` at the Fréchet mean, their products, and the distance to the origin.
        """
        v = BALL.to_normal_coords(self.mean, z)
        x, y = v.unbind(-1)
        return torch.stack([x, y, x * x, x * y, y * y, BALL.dist0(z)], -1)

    @functools.cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each statistic."""
        mean = self.expectation(self.statistics)
        return mean, self.expectation(lambda z: (self.statistics(z) - mean).square()).sqrt()

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.tensordot(self.weights, function(self.nodes), dims=1)

    def moments_at(self, centre: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and covariance of the normal coordinates at ``centre`` (``None``: the origin)."""
        mean = self.expectation(lambda z: BALL.to_normal_coords(centre, z))
        second = self.expectation(lambda z: _outer(BALL.to_normal_coords(centre, z) - mean))
        return mean, second

    def renyi_bound(self, log_density: Callable[[Tensor], Tensor], alpha: float) -> float:
        r""":math:`\frac{1}{1-\alpha}\log\int q^\alpha p^{1-\alpha}` of a guide; the ELBO at 1."""
        nodes, log_volume = grid()
        log_p, log_q = self.log_joint(nodes), log_density(nodes)
        if alpha == 1:
            return ((log_q + log_volume).exp() * (log_p - log_q)).sum().item()
        return (alpha * log_q + (1 - alpha) * log_p + log_volume).logsumexp(0).item() / (1 - alpha)

    def divergence(self, log_density: Callable[[Tensor], Tensor]) -> float:
        """Kullback-Leibler divergence of a guide from the posterior."""
        return self.log_evidence - self.renyi_bound(log_density, 1.0)


def in_chart(z: Tensor, manifold: Manifold) -> Tensor:
    return manifold.from_poincare(z) if isinstance(manifold, Lorentz) else z


def on_disc(z: Tensor, manifold: Manifold) -> Tensor:
    return manifold.to_poincare(z) if isinstance(manifold, Lorentz) else z


@functools.cache
def grid() -> tuple[Tensor, Tensor]:
    """Nodes ``(N, 2)`` of the disc and the logarithm of the volume that each stands for."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(RADIAL_NODES))
    r, width = OUTERMOST * (1 + nodes) / 2, OUTERMOST * weights / 2
    angle = 2 * math.pi * torch.arange(ANGLES, dtype=torch.float64) / ANGLES
    norm = torch.tanh(math.sqrt(C) * r / 2) / math.sqrt(C)
    z = norm[:, None, None] * torch.stack([angle.cos(), angle.sin()], -1)
    volume = width * torch.sinh(math.sqrt(C) * r) / math.sqrt(C) * 2 * math.pi / ANGLES
    return z.reshape(-1, 2), volume.log().repeat_interleave(ANGLES)


def distance(x: Tensor, y: Tensor) -> Tensor:
    """arccosh(1 + 2c|x - y|^2 / ((1 - c|x|^2)(1 - c|y|^2))) / sqrt(c)."""
    gap = 2 * C * (x - y).square().sum(-1) / ((1 - C * x.square().sum(-1)) * (1 - C * y.square().sum(-1)))
    return torch.acosh(1 + gap) / math.sqrt(C)


def wrapped(d: Tensor, scale: float) -> Tensor:
    """Log-density of the isotropic wrapped normal at distance ``d`` from its mean."""
    s = (math.sqrt(C) * d).clamp(min=1e-6)
    return -0.5 * (d / scale).square() - math.log(2 * math.pi * scale**2) + torch.log(s / torch.sinh(s))


def riemannian(d: Tensor, scale: float) -> Tensor:
    """Log-density of the Riemannian normal: the mass of exp(-r^2 / (2 scale^2)) around any point is the same."""
    origin = torch.zeros(2, dtype=torch.float64)
    nodes, log_volume = grid()
    log_normalizer = (-0.5 * (distance(nodes, origin) / scale).square() + log_volume).logsumexp(0)
    return -0.5 * (d / scale).square() - log_normalizer


DENSITIES = {"wrapped": wrapped, "riemannian": riemannian}


@functools.cache
def triangulation_posterior(distribution: str, beta: float = 1.0, volume: bool = True) -> Posterior:
    """With ``beta`` the optimum of the bound, whose likelihood has the power ``1 / beta``."""

    def log_joint(z: Tensor) -> Tensor:
        log_likelihood = dist.Normal(distance(z.unsqueeze(-2), ANCHORS), NOISE).log_prob(DISTANCES).sum(-1)
        return DENSITIES[distribution](distance(z, PRIOR_LOC), PRIOR_SCALE) + log_likelihood / beta

    return Posterior(log_joint, volume)


@functools.cache
def mixture_posterior(volume: bool = True) -> Posterior:
    def log_joint(z: Tensor) -> Tensor:
        return wrapped(distance(z, PRIOR_LOC), PRIOR_SCALE) + log_components(z).logsumexp(-1).sum(-1)

    return Posterior(log_joint, volume)


def log_components(z: Tensor) -> Tensor:
    """Log-density ``(..., data, 3)`` of each datum and its component, given the third mean."""
    known = wrapped(distance(DATA.unsqueeze(-2), KNOWN_MEANS), COMPONENT_SCALE)
    third = wrapped(distance(DATA, z.unsqueeze(-2)), COMPONENT_SCALE).unsqueeze(-1)
    return torch.cat([known.expand(third.shape[:-1] + (2,)), third], -1) + SHARES.log()


def log_jacobian(z: Tensor) -> Tensor:
    """Riemannian volume per volume of the normal coordinates at the origin."""
    s = math.sqrt(C) * distance(z, torch.zeros(2, dtype=torch.float64))
    return torch.log(torch.sinh(s) / s)


def in_coordinates(distribution: Any) -> Callable[[Tensor], Tensor]:
    """Log-density of a point whose normal coordinates at the origin have that distribution."""
    return lambda z: distribution.log_prob(BALL.to_normal_coords(None, z)) - log_jacobian(z)


def _outer(v: Tensor) -> Tensor:
    return v.unsqueeze(-1) * v.unsqueeze(-2)
