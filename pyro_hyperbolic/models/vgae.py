"""Variational graph auto-encoders that explain edges by distances."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import Euclidean, Manifold
from pyro_hyperbolic.models.latent import HyperbolicLatent, Latent
from pyro_hyperbolic.models.metrics import average_precision, roc_auc
from pyro_hyperbolic.models.params import register
from pyro_hyperbolic.nn import GCNConv, GraphAdjacency, ManifoldModule
from pyro_hyperbolic.nn.graph import check_pairs
from pyro_hyperbolic.ops.checks import checked_integer


def edge_log_odds(distance: Tensor) -> Tensor:
    r"""Log-odds of :math:`p = 1 - \tanh(d)`, which are :math:`\log 2 - \log(e^{2d} - 1)`.

    They and their derivatives are finite for every :math:`d > 0`, however large.
    """
    return math.log(2) - 2 * distance - torch.log(-torch.expm1(-2 * distance))


class GraphEncoder(nn.Module):
    """The featureless two-layer graph convolution of Kipf and Welling (2016).

    :returns: location ``(N, latent_dim)`` and positive scale ``(N, scale_dim)`` of every node.
    """

    def __init__(self, adjacency: GraphAdjacency, hidden_dim: int, latent_dim: int, scale_dim: int) -> None:
        super().__init__()
        hidden_dim = checked_integer("hidden_dim", hidden_dim, least=1)
        self.adjacency = adjacency
        self.hidden = GCNConv(adjacency.num_nodes, hidden_dim)
        self.loc = GCNConv(hidden_dim, latent_dim)
        self.scale = GCNConv(hidden_dim, scale_dim)

    def forward(self) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.hidden(None, self.adjacency))
        return self.loc(hidden, self.adjacency), F.softplus(self.scale(hidden, self.adjacency))


class VGAE(PyroModule):
    r"""Base class of the graph auto-encoders, with their Pyro programs. A subclass chooses the latent space.

    .. math:: z_i \sim p(z), \qquad A_{ij} \sim \operatorname{Bernoulli}(1 - \tanh d(z_i, z_j)), \quad i \ne j

    over all ordered pairs, as in the paper's appendix ("Graph embeddings"). The latent site is ``"z"``, its plate is
    ``"data"``, and the observed site is ``"x"``. Both programs take ``num_negatives``. Without it, the whole adjacency
    matrix is observed, in O(N^2) memory. With it, all edges are observed, and that many pairs drawn afresh each time
    (site ``"x_negatives"``) represent the other pairs. They are scaled so that the ELBO stays unbiased, in
    O(E + num_negatives) memory.
    """

    edges: Tensor
    edge_codes: Tensor

    def __init__(self, latent: Latent, num_nodes: int, edges: Tensor, hidden_dim: int) -> None:
        super().__init__()
        adjacency = GraphAdjacency(num_nodes, edges)
        if len(edges) == 0:
            raise ValueError("edges must not be empty: a graph without edges has nothing to explain.")
        self.encoder = GraphEncoder(adjacency, hidden_dim, latent.dim, latent.scale_dim)
        self.latent = latent
        self.num_nodes = adjacency.num_nodes
        both = torch.cat([edges, edges.flip(-1)])
        self.register_buffer("edges", both)
        self.register_buffer("edge_codes", (both[:, 0] * self.num_nodes + both[:, 1]).sort().values)

    def prior(self) -> Any:
        """The distribution p(z) of one node."""
        return self.latent.prior()

    def encode(self) -> Any:
        """The posterior q(z | A), batch shape ``(N,)``."""
        return self.latent.posterior(*self.encoder())

    def model(self, num_negatives: int | None = None) -> Tensor:
        register(latent=self.latent)
        with pyro.plate("data", self.num_nodes):
            z = pyro.sample("z", self.prior())
        # Sites outside of the plate keep its dimension, with size 1.
        if num_negatives is None:
            self._observe_matrix(z)
        else:
            self._observe_sample(z, num_negatives)
        return z

    def guide(self, num_negatives: int | None = None) -> Tensor:
        register(latent=self.latent, encoder=self.encoder)
        with pyro.plate("data", self.num_nodes):
            return pyro.sample("z", self.encode())

    def _observe_matrix(self, z: Tensor) -> None:
        loops = torch.eye(self.num_nodes, dtype=torch.bool, device=z.device)
        # A node's distance to itself is no observation; 1 keeps its log-odds and their derivative finite.
        distance = self.latent.pairwise_dist(z).masked_fill(loops, 1.0).unsqueeze(-3)
        # Out of place, so that the members of an ensemble may have edges of their own.
        blank = torch.zeros(self.num_nodes**2, dtype=distance.dtype, device=z.device)
        observed = blank.scatter(0, self.edge_codes, 1.0).reshape(self.num_nodes, self.num_nodes)
        distribution = dist.Bernoulli(logits=edge_log_odds(distance)).mask(~loops).to_event(2)
        pyro.sample("x", distribution, obs=observed.expand(distribution.shape()))

    def _observe_sample(self, z: Tensor, num_negatives: int) -> None:
        num_negatives = checked_integer("num_negatives", num_negatives, least=1)
        edges = self._pair_distribution(z, self.edges)
        pyro.sample("x", edges.to_event(1), obs=torch.ones_like(edges.logits))
        # Uniform over ordered pairs of different nodes; those that are edges count as 0.
        first = torch.randint(self.num_nodes, (num_negatives,), device=z.device)
        second = (first + torch.randint(1, self.num_nodes, (num_negatives,), device=z.device)) % self.num_nodes
        codes = first * self.num_nodes + second
        position = torch.searchsorted(self.edge_codes, codes).clamp(max=len(self.edge_codes) - 1)
        other = self.edge_codes[position] != codes
        pairs = self._pair_distribution(z, torch.stack([first, second], -1))
        with poutine.scale(scale=self.num_nodes * (self.num_nodes - 1) / num_negatives):
            pyro.sample("x_negatives", pairs.mask(other).to_event(1), obs=torch.zeros_like(pairs.logits))

    def _pair_distribution(self, z: Tensor, pairs: Tensor) -> Any:
        distance = self.latent.dist(z[..., pairs[:, 0], :], z[..., pairs[:, 1], :]).unsqueeze(-2)
        return dist.Bernoulli(logits=edge_log_odds(distance))

    @torch.no_grad()
    def edge_scores(self, pairs: Tensor) -> Tensor:
        """Log-odds of an edge between the locations of the posteriors of each pair ``(P, 2)``."""
        if is_validation_enabled():
            check_pairs("pairs", pairs, self.num_nodes)
        z = base_distribution(self.encode()).loc
        return edge_log_odds(self.latent.dist(z[pairs[:, 0]], z[pairs[:, 1]]))

    def link_scores(self, edges: Tensor, others: Tensor) -> dict[str, float]:
        """How well :meth:`edge_scores` tell edges ``(P, 2)`` from other pairs ``(Q, 2)``: ``"auc"`` and ``"ap"``."""
        positive, negative = (self.edge_scores(pairs.to(self.edges.device)) for pairs in (edges, others))
        return {"auc": roc_auc(positive, negative), "ap": average_precision(positive, negative)}


class HyperbolicVGAE(VGAE):
    r"""Graph auto-encoder with hyperbolic latents (the paper's Section 5.3).

    :param manifold: the latent space, or its signature.
    :param num_nodes: number of nodes.
    :param edges: undirected training edges, each once, ``(E, 2)``.
    :param latent_dim: dimension of the latent space.
    :param hidden_dim: width of the first convolution.
    :param prior: ``"wrapped"`` or ``"riemannian"``.
    :param posterior: ``"wrapped"`` or ``"riemannian"``.
    :param prior_scale: scale of the prior.
    :param posterior_scale: ``"diagonal"`` or ``"isotropic"``.
    :param latent_dtype: dtype of the latent arithmetic; that of the network by default.
    :param learn_prior_scale: learn the prior's scale, starting from ``prior_scale``.

    >>> from pyro_hyperbolic import PoincareBall
    >>> edges = torch.tensor([[0, 1], [1, 2], [2, 3]])
    >>> vgae = HyperbolicVGAE(PoincareBall(1.0), 4, edges)
    >>> loss = pyro.infer.Trace_ELBO().differentiable_loss(vgae.model, vgae.guide)
    >>> vgae.edge_scores(torch.tensor([[0, 3]])).shape
    torch.Size([1])
    """

    latent: HyperbolicLatent

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        num_nodes: int,
        edges: Tensor,
        latent_dim: int = 5,
        hidden_dim: int = 32,
        prior: str = "wrapped",
        posterior: str = "wrapped",
        prior_scale: float = 1.0,
        posterior_scale: str = "diagonal",
        latent_dtype: torch.dtype | None = None,
        learn_prior_scale: bool = False,
    ) -> None:
        latent = HyperbolicLatent(
            manifold, latent_dim, prior, posterior, prior_scale, posterior_scale, learn_prior_scale, latent_dtype
        )
        super().__init__(latent, num_nodes, edges, hidden_dim)

    @property
    def manifold(self) -> Manifold:
        """The latent space with its current curvature."""
        return self.latent.manifold()


class EuclideanVGAE(HyperbolicVGAE):
    """The twin with Gaussian latents and Euclidean distances: :class:`HyperbolicVGAE` on Euclidean space."""

    def __init__(
        self,
        num_nodes: int,
        edges: Tensor,
        latent_dim: int = 5,
        hidden_dim: int = 32,
        prior_scale: float = 1.0,
        posterior_scale: str = "diagonal",
        learn_prior_scale: bool = False,
    ) -> None:
        super().__init__(
            Euclidean(),
            num_nodes,
            edges,
            latent_dim,
            hidden_dim,
            prior_scale=prior_scale,
            posterior_scale=posterior_scale,
            learn_prior_scale=learn_prior_scale,
        )
