"""Variational graph auto-encoders that explain edges by distances."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.geometry import Euclidean, Manifold
from pyro_hyperbolic.models.latent import Latent, ManifoldLatent, check_posterior, hyperbolic
from pyro_hyperbolic.models.metrics import average_precision, roc_auc
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.nn import GCNConv, GraphAdjacency, ManifoldModule
from pyro_hyperbolic.nn.graph import check_pairs
from pyro_hyperbolic.ops.checks import checked_integer


def edge_log_odds(distance: Tensor) -> Tensor:
    r"""Log-odds of :math:`p = 1 - \tanh(d)`, which are :math:`\log 2 - \log(e^{2d} - 1)`.

    They and their derivatives are finite for every :math:`d > 0`, however large.
    """
    return math.log(2) - 2 * distance - torch.log(-torch.expm1(-2 * distance))


class GraphEncoder(nn.Module):
    """The two-layer graph convolution of Kipf and Welling (2016).

    :param in_features: size of a node's features; the number of nodes for a graph without features.
    :param hidden_dim: width of the first convolution.
    :param latent_dim: size of the location.
    :param scale_dim: size of the scale: 1 (isotropic) or ``latent_dim`` (diagonal).
    """

    def __init__(self, in_features: int, hidden_dim: int, latent_dim: int, scale_dim: int) -> None:
        super().__init__()
        hidden_dim = checked_integer("hidden_dim", hidden_dim, least=1)
        self.hidden = GCNConv(in_features, hidden_dim)
        self.loc = GCNConv(hidden_dim, latent_dim)
        self.scale = GCNConv(hidden_dim, scale_dim)

    def forward(self, features: Tensor | None, adjacency: GraphAdjacency) -> tuple[Tensor, Tensor]:
        """Location ``(N, latent_dim)`` and positive scale ``(N, scale_dim)`` of every node."""
        hidden = F.relu(self.hidden(features, adjacency))
        return self.loc(hidden, adjacency), F.softplus(self.scale(hidden, adjacency))


class VGAE(NamedModel):
    r"""Base class of the graph auto-encoders, with their Pyro programs. A subclass chooses the latent space.

    .. math:: z_i \sim p(z), \qquad A_{ij} \sim \operatorname{Bernoulli}(1 - \tanh d(z_i, z_j)), \quad i \ne j

    over all ordered pairs, as in the paper's appendix ("Graph embeddings"). The latent site is ``"z"``, its plate is
    ``"data"``, and the observed site is ``"x"``. Both programs take ``num_negatives``. Without it, the whole adjacency
    matrix is observed, in O(N^2) memory. With it, all edges are observed, and that many pairs drawn afresh each time
    (site ``"x_negatives"``) represent the other pairs. They are scaled so that the ELBO stays unbiased, in
    O(E + num_negatives) memory.

    :param encoder: a module from the features of the nodes, ``None`` if there are none, and the
        :class:`~pyro_hyperbolic.nn.GraphAdjacency` to the location ``(N, latent_dim)`` and the positive scale
        ``(N, latent.scale_dim)`` of a posterior.
    :param latent: the latent space.
    :param num_nodes: number ``N`` of nodes.
    :param edges: undirected training edges, each once, ``(E, 2)``.
    :param features: features of the nodes, ``(N, F)``.
    :param name: name of the model in Pyro's parameter store; by default that of its class
        (:class:`~pyro_hyperbolic.models.named.NamedModel`).
    """

    edges: Tensor
    edge_codes: Tensor
    features: Tensor | None

    def __init__(
        self,
        encoder: nn.Module,
        latent: Latent,
        num_nodes: int,
        edges: Tensor,
        *,
        features: Tensor | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.adjacency = GraphAdjacency(num_nodes, edges)
        if len(edges) == 0:
            raise ValueError("edges must not be empty: a graph without edges has nothing to explain.")
        self.num_nodes = self.adjacency.num_nodes
        self.encoder = encoder
        self.latent = latent
        self.register_buffer("features", checked_features(features, self.num_nodes))
        both = torch.cat([edges, edges.flip(-1)])
        self.register_buffer("edges", both)
        self.register_buffer("edge_codes", (both[:, 0] * self.num_nodes + both[:, 1]).sort().values)

    def prior(self) -> Any:
        """The distribution p(z) of one node."""
        if self.latent.log_scale.requires_grad:
            self._check_finite("prior must have a positive and finite scale", self.latent.log_scale.exp().log())
        return self.latent.prior()

    def encode(self) -> Any:
        """The posterior q(z | A), batch shape ``(N,)``."""
        parameters = self.encoder(self.features, self.adjacency)
        check_posterior(parameters, self.latent, (self.num_nodes,))
        loc, scale = parameters
        self._check_finite("encoder must give a finite location and a positive scale", loc, scale.log())
        return self.latent.posterior(loc, scale)

    def model(self, num_negatives: int | None = None) -> Tensor:
        self._register()
        with pyro.plate("data", self.num_nodes):
            z = pyro.sample("z", self.prior())
        # Sites outside of the plate keep its dimension, with size 1.
        if num_negatives is None:
            self._observe_matrix(z)
        else:
            self._observe_sample(z, num_negatives)
        return z

    def guide(self, num_negatives: int | None = None) -> Tensor:
        self._register()
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


class ManifoldVGAE(VGAE):
    r"""Graph auto-encoder with latents on any of our spaces.

    The paper's (Section 5.3) are :class:`HyperbolicVGAE` and :class:`EuclideanVGAE`.

    :param manifold: the latent space, or its signature.
    :param num_nodes: number of nodes.
    :param edges: undirected training edges, each once, ``(E, 2)``.
    :param latent_dim: dimension of the latent space.
    :param hidden_dim: width of the first convolution.
    :param prior: ``"wrapped"``, ``"riemannian"`` or ``"flow"``.
    :param posterior: ``"wrapped"``, ``"riemannian"`` or ``"flow"``.
    :param flow: options of the flows; see :class:`ManifoldLatent`.
    :param prior_scale: scale of the prior.
    :param posterior_scale: ``"diagonal"`` or ``"isotropic"``.
    :param latent_dtype: dtype of the latent arithmetic; that of the network by default.
    :param learn_prior_scale: learn the prior's scale, starting from ``prior_scale``.
    :param features: features of the nodes, ``(N, F)``; without them the encoder knows the edges only.
    :param encoder: your own module, see :class:`VGAE`; two graph convolutions by default.
    :param name: name in Pyro's parameter store; see :class:`VGAE`.

    >>> edges = torch.tensor([[0, 1], [1, 2], [2, 3]])
    >>> vgae = ManifoldVGAE("h2,s2", 4, edges, 4, features=torch.rand(4, 3))
    >>> loss = pyro.infer.Trace_ELBO().differentiable_loss(vgae.model, vgae.guide)
    >>> vgae.edge_scores(torch.tensor([[0, 3]])).shape
    torch.Size([1])
    """

    latent: ManifoldLatent

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        num_nodes: int,
        edges: Tensor,
        latent_dim: int = 5,
        *,
        hidden_dim: int = 32,
        prior: str = "wrapped",
        posterior: str = "wrapped",
        flow: Mapping[str, Any] | None = None,
        prior_scale: float = 1.0,
        posterior_scale: str = "diagonal",
        latent_dtype: torch.dtype | None = None,
        learn_prior_scale: bool = False,
        features: Tensor | None = None,
        encoder: nn.Module | None = None,
        name: str | None = None,
    ) -> None:
        latent = ManifoldLatent(
            manifold,
            latent_dim,
            prior=prior,
            posterior=posterior,
            flow=flow,
            prior_scale=prior_scale,
            posterior_scale=posterior_scale,
            learn_prior_scale=learn_prior_scale,
            dtype=latent_dtype,
        )
        num_nodes = checked_integer("num_nodes", num_nodes, least=1)
        features = checked_features(features, num_nodes)
        if encoder is None:
            in_features = num_nodes if features is None else features.shape[-1]
            encoder = GraphEncoder(in_features, hidden_dim, latent.dim, latent.scale_dim)
        super().__init__(encoder, latent, num_nodes, edges, features=features, name=name)

    @property
    def manifold(self) -> Manifold:
        """The latent space with its current curvature."""
        return self.latent.manifold()


class HyperbolicVGAE(ManifoldVGAE):
    """The paper's graph auto-encoder with hyperbolic latents: :class:`ManifoldVGAE` in either chart of the space.

    :param manifold: ``PoincareBall(c)``, ``Lorentz(c)``, their signature, such as ``"p5"``, or a
        :class:`~pyro_hyperbolic.nn.ManifoldModule` of one of them.
    :param num_nodes: number of nodes.
    :param edges: undirected training edges, each once, ``(E, 2)``.
    :param latent_dim: dimension of the latent space.
    :param options: further options of :class:`ManifoldVGAE`.
    """

    def __init__(
        self,
        manifold: Manifold | ManifoldModule | str,
        num_nodes: int,
        edges: Tensor,
        latent_dim: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(hyperbolic(manifold, "VGAE"), num_nodes, edges, latent_dim, **options)


class EuclideanVGAE(ManifoldVGAE):
    """The twin with Gaussian latents and Euclidean distances: :class:`ManifoldVGAE` on Euclidean space.

    :param num_nodes: number of nodes.
    :param edges: undirected training edges, each once, ``(E, 2)``.
    :param latent_dim: dimension of the latent space.
    :param options: further options of :class:`ManifoldVGAE`.
    """

    def __init__(self, num_nodes: int, edges: Tensor, latent_dim: int = 5, **options: Any) -> None:
        super().__init__(Euclidean(), num_nodes, edges, latent_dim, **options)


def checked_features(features: Any, num_nodes: int, name: str = "features") -> Tensor | None:
    """Features of nodes as floating numbers; refuse what are none."""
    if features is None:
        return None
    if not isinstance(features, Tensor) or features.dim() != 2 or len(features) != num_nodes or not features.shape[-1]:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(f"{name} must be a tensor ({num_nodes}, F), a row for each node, got {got}.")
    if not features.is_floating_point():
        features = features.to(torch.get_default_dtype())
    if not bool(features.isfinite().all()):
        raise ValueError(f"{name} must hold finite numbers; fill in those that are missing.")
    return features
