"""Posteriors that ``benchmarks.posteriors`` samples: programs, their data, and moments that are known otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import networkx
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, Sphere, datasets
from pyro_hyperbolic.geometry import Manifold, Stereographic


@dataclass
class Case:
    """A program with its data.

    :ivar exact: mean and standard deviation of every element of some sites.
    :ivar truth: what the data were made from: values of a deterministic site, to be held by 90% intervals.
    :ivar options: of ``sample_posterior``.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    exact: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    truth: dict[str, Tensor] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def eight_schools() -> Case:
    """Treatment effects of eight schools, centred; moments by integration over the mean and its spread."""
    y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model(y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.LogNormal(1.0, 1.0))
        with pyro.plate("schools", 8):
            theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(mu + tau * theta, sigma), obs=y)

    mu = torch.linspace(-25, 25, 1001).reshape(-1, 1)
    log_tau = torch.linspace(-6, 7, 1001)
    tau = log_tau.exp()
    prior = dist.Normal(0.0, 5.0).log_prob(mu) + dist.Normal(1.0, 1.0).log_prob(log_tau)
    spread = (tau.square().unsqueeze(-1) + sigma.square()).sqrt()
    weights = prior + dist.Normal(mu.unsqueeze(-1), spread).log_prob(y).sum(-1)
    return Case(model, (y,), {"mu": _grid(weights, mu), "tau": _grid(weights, tau)})


def _grid(log_weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    p = (log_weights - log_weights.max()).exp()
    p, values = p / p.sum(), values.expand_as(p)
    mean = (p * values).sum()
    return mean, (p * (values - mean).square()).sum().sqrt()


def funnel(width: float) -> Case:
    """Neal's funnel with nine dimensions: their common log-scale has the standard deviation ``width``."""

    def model() -> None:
        v = pyro.sample("v", dist.Normal(0.0, width))
        with pyro.plate("x_plate", 9):
            pyro.sample("x", dist.Normal(0.0, (v / 2).exp()))

    return Case(model, (), {"v": (torch.tensor(0.0), torch.tensor(width))}, options={"num_samples": 4000})


def correlated_normal() -> Case:
    """A normal distribution in 100 dimensions, with standard deviations from 0.1 to 10 along random axes."""
    axes = torch.linalg.qr(_normal(torch.Size((100, 100)), 0)).Q
    root = axes * torch.logspace(-1, 1, 100, dtype=torch.float64)
    covariance = root @ root.mT
    tril = _rounded(torch.linalg.cholesky(covariance))

    def model() -> None:
        pyro.sample("x", dist.MultivariateNormal(torch.zeros(100), scale_tril=tril))

    return Case(model, (), {"x": (torch.zeros(100), _rounded(covariance.diagonal().sqrt()))})


def simplex() -> Case:
    """Shares of five kinds from their counts."""
    counts = torch.tensor([3.0, 0.0, 12.0, 1.0, 24.0])

    def model(counts: Tensor) -> None:
        p = pyro.sample("p", dist.Dirichlet(torch.full((5,), 0.8)))
        pyro.sample("counts", dist.Multinomial(40, p), obs=counts)

    exact = torch.distributions.Dirichlet(0.8 + counts)
    return Case(model, (counts,), {"p": (exact.mean, exact.variance.sqrt())})


def mixture() -> Case:
    """Two kinds of data, with the kind summed out; moments by integration."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(n, generator=generator, dtype=torch.float64) for n in (20, 30))
    data = _rounded(torch.cat([first, 2.5 + second]))

    def model(data: Tensor) -> None:
        share = pyro.sample("share", dist.Beta(2.0, 2.0))
        loc = pyro.sample("loc", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(data)):
            kind = pyro.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            pyro.sample("x", dist.Normal(loc * kind, 1.0), obs=data)

    share, loc = torch.linspace(0.001, 0.999, 999).reshape(-1, 1), torch.linspace(-3, 6, 1001)
    own = dist.Normal(loc.unsqueeze(-1), 1.0).log_prob(data) + share.log().unsqueeze(-1)
    other = dist.Normal(0.0, 1.0).log_prob(data) + (1 - share).log().unsqueeze(-1)
    weights = torch.logaddexp(own, other).sum(-1) + dist.Beta(2.0, 2.0).log_prob(share)
    weights = weights + dist.Normal(0.0, 5.0).log_prob(loc)
    return Case(model, (data,), {"share": _grid(weights, share), "loc": _grid(weights, loc)})


def _distances(observed: Tensor, points: int, dim: int) -> None:
    """Points around the origin, and noisy distances of all pairs."""
    c = pyro.sample("c", dist.LogNormal(0.0, 1.0))
    spread = pyro.sample("spread", dist.LogNormal(1.0, 0.5))
    sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
    ball = PoincareBall(c)
    with pyro.plate("points", points):
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(dim), spread.unsqueeze(-1), ball))
    i, j = torch.triu_indices(points, points, 1, device=observed.device)
    d = ball.dist(z[..., i, :], z[..., j, :])
    with pyro.plate("pairs", len(i)):
        pyro.sample("x", dist.Normal(d, sigma), obs=observed)


def leaves12() -> Case:
    """The tutorial "Put a prior on curvature": the 12 leaves of a binary tree."""
    tree = networkx.full_rary_tree(2, 23)
    leaves = [node for node in tree if tree.degree(node) == 1]
    exact = datasets.graph_distances(tree)[leaves][:, leaves]
    noise = 0.2 * _normal(exact.shape, 0).triu(1)
    distances = (exact + noise + noise.T).clamp(min=0)
    i, j = torch.triu_indices(12, 12, 1)
    return Case(lambda x: _distances(x, 12, 2), (_rounded(distances[i, j]),))


def leaves60(dim: int) -> Case:
    """The 60 leaves of a random binary tree, with edges of mean length 1 and noise of 0.3."""
    generator = torch.Generator().manual_seed(0)
    tree, ends = networkx.Graph(), [0]
    while len(ends) < 60:
        node = ends.pop(int(torch.randint(len(ends), (), generator=generator)))
        for _ in range(2):
            child = tree.number_of_nodes() or 1
            tree.add_edge(node, child, weight=float(0.5 + torch.rand((), generator=generator, dtype=torch.float64)))
            ends.append(child)
    lengths = dict(networkx.all_pairs_dijkstra_path_length(tree))
    distances = torch.tensor([[lengths[a][b] for b in ends] for a in ends], dtype=torch.float64)
    i, j = torch.triu_indices(60, 60, 1)
    return Case(lambda x: _distances(x, 60, dim), (_rounded(distances[i, j] + 0.3 * _normal(i.shape, 1)),))


def karate() -> Case:
    """The karate club: edges are likelier between members that are near each other on the disc."""
    adjacency = torch.tensor(networkx.to_numpy_array(networkx.karate_club_graph(), weight=None))

    def model(edges: Tensor) -> None:
        c = pyro.sample("c", dist.LogNormal(0.0, 0.5))
        alpha = pyro.sample("alpha", dist.Normal(0.0, 3.0))
        beta = pyro.sample("beta", dist.LogNormal(0.0, 0.5))
        ball = PoincareBall(c)
        with pyro.plate("members", 34):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), 1.0, ball))
        i, j = torch.triu_indices(34, 34, 1, device=edges.device)
        with pyro.plate("pairs", len(i)):
            pyro.sample("edge", dist.Bernoulli(logits=alpha - beta * ball.dist(z[..., i, :], z[..., j, :])), obs=edges)

    i, j = torch.triu_indices(34, 34, 1)
    return Case(model, (adjacency[i, j].to(torch.get_default_dtype()),))


def tree40() -> Case:
    """A ternary tree of 40 nodes: distances along the tree, with noise of 0.2. Do intervals hold those without?"""
    i, j = torch.triu_indices(40, 40, 1)
    exact = datasets.graph_distances(networkx.full_rary_tree(3, 40))[i, j]
    noisy = exact + 0.2 * _normal(i.shape, 0)
    return Case(lambda x: _distances(x, 40, 2), (_rounded(noisy),), truth={"z": _rounded(exact)})


def _normal(shape: torch.Size, seed: int) -> Tensor:
    """The same numbers whatever the default dtype is."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _rounded(data: Tensor) -> Tensor:
    return data.to(torch.get_default_dtype())


CASES: dict[str, Callable[[], Case]] = {
    "eight schools": eight_schools,
    "funnel 1": lambda: funnel(1.0),
    "funnel 2": lambda: funnel(2.0),
    "funnel 3": lambda: funnel(3.0),
    "correlated normal": correlated_normal,
    "simplex": simplex,
    "mixture": mixture,
    "12 leaves": leaves12,
    "karate": karate,
    "tree of 40": tree40,
    "60 leaves, d = 5": lambda: leaves60(5),
    "60 leaves, d = 2": lambda: leaves60(2),
}

SPACES: dict[str, tuple[dist.TorchDistribution, Callable[[Tensor], Manifold]]] = {
    "ball": (dist.LogNormal(0.0, 0.7), PoincareBall),
    "hyperboloid": (dist.LogNormal(0.0, 0.7), Lorentz),
    "sphere": (dist.LogNormal(-1.5, 0.5), Sphere),
    "either sign": (dist.Normal(0.0, 0.2), Stereographic),
}


def calibration_model(space: str, observed: Tensor | None = None) -> Any:
    """A curvature, four points around the origin and noisy distances of all pairs."""
    prior, kind = SPACES[space]
    c = pyro.sample("c", prior)
    manifold = kind(c)
    with pyro.plate("points", 4):
        z = pyro.sample("z", hdist.WrappedNormal(manifold.origin(2), 0.5, manifold))
    i, j = torch.triu_indices(4, 4, 1)
    with pyro.plate("pairs", 6):
        d = pyro.sample("x", dist.Normal(manifold.dist(z[..., i, :], z[..., j, :]), 0.2), obs=observed)
    return c, d
