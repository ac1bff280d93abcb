"""Networks whose edges are explained by the distances of their nodes in a latent space."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.distributions import Distribution, constraints

from pyro_hyperbolic.distributions import ManifoldMixture, WrappedNormal
from pyro_hyperbolic.geometry import ConstantCurvature, Manifold
from pyro_hyperbolic.models.edges import EDGE_LIKELIHOODS
from pyro_hyperbolic.models.hops import scaled_hops
from pyro_hyperbolic.models.latent import bounded
from pyro_hyperbolic.models.named import NamedModel
from pyro_hyperbolic.models.network import Network
from pyro_hyperbolic.models.positions import WIDTH, MeanField, Positions, in_support
from pyro_hyperbolic.models.vgae import checked_features
from pyro_hyperbolic.nn.graph import check_pairs
from pyro_hyperbolic.ops.checks import check_choice, check_dense, checked_integer, inspectable, is_number

if TYPE_CHECKING:
    import networkx

    Edges: TypeAlias = Tensor | Network | networkx.Graph

_MOST_PAIRS = 10**8  # of which all are observed
_MOST_NUMBERS = 2**22  # of a prediction at a time
_STEP = 2.0  # the log-odds that a step is worth at the start
_SAMPLED = 20_000  # pairs that the intercept of a start is computed from

PairCovariates = Tensor | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Prediction:
    """What is to be expected of pairs of nodes, ``(P,)``: probabilities of edges, or means of their values.

    Of signed edges it is the probabilities of -1, 0 and 1, ``(P, 3)``.

    :ivar mean: over the draws.
    :ivar lower: the lower end of the interval.
    :ivar upper: the upper end.
    """

    mean: Tensor
    lower: Tensor
    upper: Tensor


@dataclass(frozen=True)
class _Pairs:
    """Pairs that are observed: their values, which of them are not missing, and how many pairs each one stands for."""

    site: str
    first: Tensor
    second: Tensor
    values: Tensor | None
    known: Tensor | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class _Prior:
    """A normal prior, or a log-normal one of a positive number."""

    loc: float
    scale: float
    support: constraints.Constraint = constraints.positive
    shape: tuple[int, ...] = ()

    def draw(self, site: str, like: Tensor) -> Tensor:
        family = dist.LogNormal if self.support is constraints.positive else dist.Normal
        loc, scale = (torch.full_like(like, number).expand(self.shape) for number in (self.loc, self.scale))
        return pyro.sample(site, family(loc, scale).to_event(len(self.shape)))

    def median(self, like: Tensor) -> Tensor:
        value = math.exp(self.loc) if self.support is constraints.positive else self.loc
        return torch.full(self.shape, value, dtype=like.dtype, device=like.device)


class LatentSpaceNetwork(NamedModel):
    r"""A latent space model of a network: nodes that are near each other are likely to have an edge.

    .. math::

        z_i \sim p(z), \qquad
        A_{ij} \sim \operatorname{Bernoulli}(\sigma(\eta_{ij})), \qquad
        \eta_{ij} = \alpha + x_{ij}^T\beta + s_i + p_j - d(z_i, z_j)/T

    over all pairs of nodes, ordered ones if edges have a direction. Hoff, Raftery and Handcock (2002) on flat space;
    Smith, Asta and Calder (2019) on curved ones. Other likelihoods have the same predictor :math:`\eta`.

    Edges know no unit of length: multiplying :math:`T` and all distances by a number, and dividing the curvature by its
    square, changes no probability. The unit is therefore the scale of the prior :math:`p(z)`, a wrapped normal of
    scale 1 around the origin. :math:`T` is drawn, and a curvature ``c`` is that of positions of this scale: spaces of
    small ``c`` are as good as flat. Only distances are divided by :math:`T`, so that the intercept, effects and
    coefficients are log-odds. Signed edges -1, 0 and 1 are observed as the categories 0, 1 and 2, and drawn as them.

    Sites: ``"c"`` (if drawn; ``"c_0"`` and so on of several factors), ``"z"``, ``"temperature"``, ``"intercept"``, and
    where they are asked for ``"coefficients"``, ``"sociality"`` with ``"sociality_scale"``, ``"popularity"`` with
    ``"popularity_scale"``, ``"group_weights"``, ``"group_loc"`` and ``"group_scale"``, and ``"noise"`` or ``"gap"`` of
    the likelihood. What is observed is ``"edges"``, and ``"nonedges"`` if these are a sample.

    ``model`` and ``guide`` take the network: a matrix ``(N, N)`` with ``nan`` for pairs that are missing, a
    :class:`Network`, or a graph of networkx. The guide is a mean-field one. Precision and device are those of
    the module: ``.double()`` for posteriors by :func:`~pyro_hyperbolic.infer.sample_posterior`. Pyro's own samplers
    need :func:`~pyro_hyperbolic.infer.with_drawn_curvature` around ``model`` if the curvature is drawn.

    With ``num_nonedges`` a step costs no more than the edges: all of them are observed, and so many other pairs that
    are drawn anew each time, scaled so that the bound stays unbiased. Without it all pairs are observed. A step on
    100,000 nodes and a million edges takes 11 ms on an H200 (``python -m benchmarks.networks``).

    Nodes without edges and networks of several components are as good as others: the likelihood pushes them apart, and
    the prior of the positions holds them.

    Edges of a tree, which has no triangles, say little about positions. On those that were tried, flat or hyperbolic,
    the posterior has a high temperature and predicts hardly more than the density of the network. The guide is then
    nearly the prior. For a map of a tree use :class:`DistanceEmbedding` on its distances.

    :param space: a signature such as ``"h2"`` or ``"h2,e1"``, or a manifold.
    :param num_nodes: number ``N`` of nodes.
    :param dim: dimension of the space, if ``space`` does not have it.
    :param curvature: ``"drawn"``, ``"learned"``, ``"fixed"``, a number or a prior.
    :param likelihood: a name in ``EDGE_LIKELIHOODS``: ``"bernoulli"``, ``"poisson"``, ``"normal"`` or ``"signed"``.
    :param directed: whether edges have a direction.
    :param degrees: whether nodes have effects of their own: one, ``"sociality"``, or in a directed network that and
        ``"popularity"``.
    :param groups: number of components of a mixture prior of the positions; none by default.
    :param node_covariates: ``(N, F)``; the coefficients are those of :math:`x_i + x_j`, or of :math:`(x_i, x_j)` in a
        directed network.
    :param pair_covariates: ``(N, N, F)``, or for large networks a function of two vectors of nodes that returns
        ``(P, F)``. Their coefficients come after those of the nodes.
    :param priors: by site, location and scale of other priors than these: normal ones for ``"intercept"`` (0, 3) and
        ``"coefficients"`` (0, 2); log-normal ones for ``"temperature"`` (-0.5, 0.5), the scales of effects (-0.5, 0.5),
        ``"group_scale"`` (-1, 0.5), ``"noise"`` (0, 1) and ``"gap"`` (1, 1).
    :param name: name in Pyro's parameter store.

    >>> import networkx
    >>> from pyro.infer import SVI, Trace_ELBO
    >>> _ = pyro.set_rng_seed(0)
    >>> club = Network.from_networkx(networkx.karate_club_graph())
    >>> net = LatentSpaceNetwork("h2", 34, degrees=True)
    >>> net.begin(net.start(club))
    >>> svi = SVI(net.model, net.guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    >>> losses = [svi.step(club, num_nonedges=100) for _ in range(3)]
    >>> samples = pyro.infer.Predictive(net.guide, num_samples=50)(club)
    >>> found = net.predict(samples, torch.tensor([[0, 1], [15, 16]]))
    >>> bool(found.mean[0] > found.mean[1]), found.lower.shape
    (True, torch.Size([2]))
    """

    node_covariates: Tensor | None
    pair_covariates: PairCovariates | None

    def __init__(
        self,
        space: Manifold | str,
        num_nodes: int,
        *,
        dim: int | None = None,
        curvature: str | float | Distribution = "drawn",
        likelihood: str = "bernoulli",
        directed: bool = False,
        degrees: bool = False,
        groups: int | None = None,
        node_covariates: Tensor | None = None,
        pair_covariates: PairCovariates | None = None,
        priors: Mapping[str, tuple[float, float]] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        check_choice("likelihood", likelihood, EDGE_LIKELIHOODS)
        self.num_nodes = checked_integer("num_nodes", num_nodes, least=2)
        self.positions = Positions(space, num_nodes, dim=dim, curvature=curvature, spread="unit")
        if not isinstance(directed, bool):
            raise ValueError(f"directed must be True or False, got {directed!r}.")
        self.likelihood, self.directed = EDGE_LIKELIHOODS[likelihood], directed
        self.groups = None if groups is None else checked_integer("groups", groups, least=2)
        self.register_buffer("node_covariates", checked_features(node_covariates, self.num_nodes, "node_covariates"))
        if isinstance(pair_covariates, Tensor):
            self.register_buffer("pair_covariates", self._checked_covariates(pair_covariates))
        else:
            self.pair_covariates = pair_covariates
        self.num_coefficients = self._count_features()
        self.effects = ("sociality", "popularity")[: 1 + self.directed] if degrees else ()
        self.priors = self._priors(priors or {})
        sites = {site: (prior.support, prior.shape) for site, prior in self.priors.items()}
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(self.effects, (self.num_nodes,))
        if self.groups is not None:
            sites["group_weights"] = constraints.simplex, (self.groups,)
            sizes["group_loc"] = (self.groups, self.positions.dim)
        self.numbers = MeanField(sites)
        self.loc = nn.ParameterDict({site: WIDTH * torch.randn(size) for site, size in sizes.items()})
        self.log_scale = nn.ParameterDict({s: torch.full(size, math.log(WIDTH)) for s, size in sizes.items()})
        self._check_room()

    def _priors(self, given: Mapping[str, tuple[float, float]]) -> dict[str, _Prior]:
        out = {"intercept": _Prior(0.0, 3.0, constraints.real), "temperature": _Prior(-0.5, 0.5)}
        if self.num_coefficients:
            out["coefficients"] = _Prior(0.0, 2.0, constraints.real, (self.num_coefficients,))
        out |= {f"{effect}_scale": _Prior(-0.5, 0.5) for effect in self.effects}
        if self.groups is not None:
            out["group_scale"] = _Prior(-1.0, 0.5, shape=(self.groups,))
        out |= {site: _Prior(*numbers) for site, numbers in self.likelihood.scalars.items()}
        if not isinstance(given, Mapping):
            raise ValueError(f"priors must be a mapping of sites to (location, scale), got {type(given).__name__}.")
        for site, numbers in given.items():
            check_choice("a site of priors", site, out)
            is_pair = isinstance(numbers, tuple) and len(numbers) == 2
            if not (is_pair and all(is_number(n) and math.isfinite(n) for n in numbers) and numbers[1] > 0):
                raise ValueError(f"priors[{site!r}] must be a location and a positive scale, got {numbers!r}.")
            out[site] = replace(out[site], loc=numbers[0], scale=numbers[1])
        return out

    def _check_room(self) -> None:
        """Refuse more nodes than a hyperbolic space holds at a distance of its radius of curvature from each other.

        The volume of a ball grows with :math:`e^{(d - 1)\\sqrt c R}`, and coordinates of a dtype end at some ``R``.
        """
        dtype, dim = self.positions.loc.dtype, self.positions.dim
        space, room = self.positions.space().detach(), 0.0
        for leaf, size in space.leaves(dim):
            c = float(leaf.opposite(self._unit().reshape(1))) if isinstance(leaf, ConstantCurvature) else 0.0
            room += (size - 1) * math.sqrt(c) * float(leaf.reach(dtype)) if size > 1 and c > 0 else math.inf
        if math.log(self.num_nodes) > room:
            raise ValueError(
                f"num_nodes must be smaller for {dtype} coordinates of {space!r}, which hold some {math.exp(room):.3g}"
                f" nodes, got {self.num_nodes}; call torch.set_default_dtype(torch.float64) first, or take the"
                " hyperboloid, 'h', in the place of the ball."
            )

    def _unit(self) -> Tensor:
        return torch.ones_like(self.positions.loc[0, 0].detach())

    def model(self, edges: Edges | None = None, num_nonedges: int | None = None) -> Tensor:
        """Positions, and the edges given them; without edges it draws them."""
        self._register()
        observed = list(self._observed(edges, num_nonedges))
        unit = self._unit()
        values = {site: prior.draw(site, unit) for site, prior in self.priors.items()}
        space, values["z"] = self.positions.draw(unit) if self.groups is None else self._draw_groups(unit, values)
        with pyro.plate("nodes", self.num_nodes):
            for site in self.effects:
                scale = values[f"{site}_scale"]
                values[site] = pyro.sample(site, dist.Normal(torch.zeros_like(scale), scale))
        for pairs in observed:
            self._observe(pairs, space, values)
        return values["z"]

    def guide(self, edges: Edges | None = None, num_nonedges: int | None = None) -> Tensor:
        """The mean-field guide of all latents."""
        self._register()
        unit = self._unit()
        for site in self.priors:
            self.numbers.draw(site, unit)
        space, z = self.positions.guide(unit)
        if self.groups is not None:
            self.numbers.draw("group_weights", unit)
            loc, scale = space.from_normal_coords(None, self.loc["group_loc"]), self.log_scale["group_loc"].exp()
            with pyro.plate("groups", self.groups):
                pyro.sample("group_loc", WrappedNormal(loc, bounded(scale, space, self.positions.dim), space))
        with pyro.plate("nodes", self.num_nodes):
            for site in self.effects:
                pyro.sample(site, dist.Normal(self.loc[site], self.log_scale[site].exp()))
        return z

    def _draw_groups(self, unit: Tensor, values: dict[str, Tensor]) -> tuple[Manifold, Tensor]:
        assert self.groups is not None
        space = self.positions.draw_space(unit)
        ones = torch.ones_like(unit).expand(self.groups)
        values["group_weights"] = pyro.sample("group_weights", dist.Dirichlet(ones))
        with pyro.plate("groups", self.groups):
            origin = space.origin(self.positions.dim, unit.dtype, unit.device)
            scale = bounded(unit.unsqueeze(-1), space, self.positions.dim)
            values["group_loc"] = pyro.sample("group_loc", WrappedNormal(origin, scale, space))
        with pyro.plate("data", self.num_nodes):
            return space, pyro.sample("z", self._mixture(space, values))

    def _mixture(self, space: Manifold, values: Mapping[str, Tensor]) -> ManifoldMixture:
        """The prior of the positions, batch shape ``()`` or ``(..., 1)``."""
        loc = values["group_loc"]
        if loc.dim() > 2:
            loc, space = loc.unsqueeze(-3), space.unsqueeze()
        scale = bounded(values["group_scale"].unsqueeze(-1), space, self.positions.dim)
        return ManifoldMixture(dist.Categorical(values["group_weights"]), WrappedNormal(loc, scale, space))

    def _observe(self, pairs: _Pairs, space: Manifold, values: Mapping[str, Tensor]) -> None:
        distribution = self.likelihood.distribution(self._predictor(space, values, pairs.first, pairs.second), values)
        if pairs.known is not None:
            distribution = distribution.mask(pairs.known)
        x = None if pairs.values is None else self.likelihood.encode(pairs.values)
        with pyro.plate(f"{pairs.site}_plate", len(pairs.first)), poutine.scale(scale=pairs.scale):
            pyro.sample(pairs.site, distribution, obs=x)

    def _predictor(self, space: Manifold, values: Mapping[str, Tensor], first: Tensor, second: Tensor) -> Tensor:
        """Of pairs, ``(..., P)``; numbers that belong to no node or pair have the shape ``(..., 1)``, or ``()``."""
        z = values["z"]
        distance = space.dist(z[..., first, :], z[..., second, :])
        eta = values["intercept"] - distance / values["temperature"]
        if self.effects:
            eta = eta + values["sociality"][..., first] + values[self.effects[-1]][..., second]
        if self.num_coefficients:
            eta = eta + (self._features(first, second) * values["coefficients"]).sum(-1)
        return eta

    def _features(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariates of pairs, ``(P, K)``, the same in both directions unless edges have one."""
        parts = []
        if not self.directed:
            first, second = torch.minimum(first, second), torch.maximum(first, second)
        x = self.node_covariates
        if x is not None:
            parts += [x[first], x[second]] if self.directed else [x[first] + x[second]]
        if isinstance(self.pair_covariates, Tensor):
            parts.append(self.pair_covariates[first, second])
        elif self.pair_covariates is not None:
            parts.append(self._covariates_of(self.pair_covariates, first, second))
        like = self.positions.loc
        return torch.cat([part.to(like) for part in parts], -1) if parts else like.new_zeros(len(first), 0)

    def _checked_covariates(self, x: Tensor) -> Tensor:
        count = self.num_nodes
        if x.dim() != 3 or x.shape[:2] != (count, count):
            raise ValueError(f"pair_covariates must have shape ({count}, {count}, F), got {tuple(x.shape)}.")
        apart = ~torch.eye(count, dtype=torch.bool, device=x.device)
        if not bool(x[apart].isfinite().all()):
            raise ValueError("pair_covariates must be finite for pairs of two nodes; fill in those that are missing.")
        if not self.directed and not torch.equal(x[apart], x.transpose(0, 1)[apart]):
            raise ValueError(
                "pair_covariates must be symmetric for edges without a direction, got some that are not; use"
                " (x + x.transpose(0, 1)) / 2, or make the model with directed=True."
            )
        return x

    def _covariates_of(self, function: Callable[[Tensor, Tensor], Tensor], first: Tensor, second: Tensor) -> Tensor:
        found = function(first, second)
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(first):
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"pair_covariates must return a tensor (P, F) for P pairs, got {got} for {len(first)}.")
        return found

    def _count_features(self) -> int:
        pair = self.pair_covariates
        if pair is not None and not isinstance(pair, Tensor) and not callable(pair):
            raise ValueError(f"pair_covariates must be a tensor or a function, got {type(pair).__name__}.")
        held = pair if isinstance(pair, Tensor) else self.node_covariates
        nodes = torch.arange(2, device=None if held is None else held.device)
        return self._features(nodes[:1], nodes[1:]).shape[-1]

    def _observed(self, edges: Edges | None, num_nonedges: int | None) -> Iterator[_Pairs]:
        if num_nonedges is None:
            yield self._all_pairs(edges)
            return
        num_nonedges = checked_integer("num_nonedges", num_nonedges, least=1)
        network = self.network(edges)
        values = network.edge_values(self.positions.loc.dtype)
        if network.num_edges:
            yield _Pairs("edges", network.edges[:, 0], network.edges[:, 1], values)
        # Uniform over pairs of different nodes; those that are edges or missing count as 0.
        count, device = self.num_nodes, network.edges.device
        first = torch.randint(count, (num_nonedges,), device=device)
        second = (first + torch.randint(1, count, (num_nonedges,), device=device)) % count
        known = ~network.is_listed(torch.stack([first, second], -1))
        zeros = torch.zeros_like(first, dtype=values.dtype)
        yield _Pairs("nonedges", first, second, zeros, known, self._num_pairs / num_nonedges)

    @property
    def _num_pairs(self) -> int:
        return self.num_nodes * (self.num_nodes - 1) // (1 if self.directed else 2)

    def _all_pairs(self, edges: Edges | None) -> _Pairs:
        if self._num_pairs > _MOST_PAIRS:
            raise ValueError(
                f"num_nonedges must be given for {self.num_nodes} nodes, whose {self._num_pairs} pairs are too many to"
                " observe all; pass for example the number of edges."
            )
        like = self.positions.loc
        if self.directed:
            number, others = torch.arange(self._num_pairs, device=like.device), self.num_nodes - 1
            first, second = number // others, number % others
            second = second + (second >= first)  # nobody is a pair with itself
        else:
            first, second = torch.triu_indices(self.num_nodes, self.num_nodes, 1, device=like.device)
        if edges is None:
            return _Pairs("edges", first, second, None)
        if isinstance(edges, Tensor):
            self._check_matrix(edges)
        else:
            edges = self.network(edges).adjacency(like.dtype)
        values = edges[first, second].to(like.dtype)
        return _Pairs("edges", first, second, values.nan_to_num(), ~values.isnan())

    def network(self, edges: Edges | None) -> Network:
        """The edges in the form of a list, if they are such as the model takes.

        :param edges: a matrix, a :class:`Network` or a graph of networkx.
        """
        if isinstance(edges, Tensor):
            self._check_matrix(edges)
            both = edges if self.directed else edges.triu()
            listed, missing = ((both != 0) & ~both.isnan()).nonzero(), both.isnan().nonzero()
            missing = missing[missing[:, 0] != missing[:, 1]]
            edges = Network(len(edges), listed, edges[listed[:, 0], listed[:, 1]], missing, self.directed)
        elif not isinstance(edges, Network):
            if not hasattr(edges, "is_multigraph"):
                raise ValueError(
                    f"edges must be a matrix ({self.num_nodes}, {self.num_nodes}), a Network or a graph of networkx,"
                    f" got {type(edges).__name__}; use Network(num_nodes, edges)."
                )
            if self.likelihood is not EDGE_LIKELIHOODS["bernoulli"]:
                raise ValueError(
                    "edges must come with their values for this likelihood, which a graph of networkx has in an"
                    " attribute; use Network.from_networkx(edges, weight='weight'), or the name of another."
                )
            edges = Network.from_networkx(edges)
        if edges.num_nodes != self.num_nodes or edges.directed != self.directed:
            raise ValueError(
                f"edges must be those of {_described(self.num_nodes, self.directed)}, as the model was made for, got"
                f" {_described(edges.num_nodes, edges.directed)}; make the model with directed={edges.directed} and"
                f" num_nodes={edges.num_nodes}."
            )
        if edges.values is not None and inspectable(edges.values):
            self.likelihood.check(edges.values)
        return edges

    def _check_matrix(self, edges: Tensor) -> None:
        count = self.num_nodes
        if edges.shape != (count, count):
            raise ValueError(f"edges must be a matrix ({count}, {count}), got shape {tuple(edges.shape)}.")
        check_dense("edges", edges)
        if edges.is_complex():
            raise ValueError("edges must be real numbers, got complex ones; use edges.real or edges.abs().")
        if not inspectable(edges):
            return
        if bool((edges.diagonal().nan_to_num() != 0).any()):
            raise ValueError("edges must be 0 on the diagonal, got self loops; use edges.fill_diagonal_(0).")
        if not self.directed and not torch.equal(edges.nan_to_num(-torch.pi), edges.T.nan_to_num(-torch.pi)):
            raise ValueError(
                "edges must be a symmetric matrix, got one that is not; make the model with directed=True, or use"
                " torch.maximum(edges, edges.T)."
            )
        known = edges[~edges.isnan()]
        if len(known) == int((~edges.diagonal().isnan()).sum()) or not bool(known.isfinite().all()):
            raise ValueError("edges must have some finite values, and nan only where a pair is missing.")
        self.likelihood.check(known)

    @torch.no_grad()
    def start(self, edges: Edges) -> dict[str, Tensor]:
        """Values by site to begin from: positions by scaling of the numbers of steps between nodes.

        Two nodes are a step from each other if the value of their pair is above the average. A node that cannot be
        reached is one step farther away than all others. In networks of more than 500 nodes, steps are counted from 200
        of them. All else begins at the median of its prior, but for the intercept, which gives the mean of the values.

        Pass the result to :meth:`begin`, and as ``start=`` to :func:`~pyro_hyperbolic.infer.sample_posterior`.

        :param edges: as for ``model``.
        """
        network = self.network(edges)
        values, like = network.edge_values(torch.float64), self.positions.loc
        known = self._num_pairs - (0 if network.missing is None else len(network.missing))
        if not known:
            raise ValueError("edges must have some pairs that are not missing, got none.")
        mean = float(values.sum()) / known
        dim = self.positions.dim
        coords = scaled_hops(network.edges[values > mean], self.num_nodes, dim)
        step = 1 / max(1e-3, float(coords.square().mean().sqrt()))
        coords = coords * step
        out = {site: prior.median(like) for site, prior in self.priors.items()}
        out["temperature"] = like.new_tensor(step / _STEP)
        signed = self.positions.drawn
        for site, is_signed in signed.items():
            out[site] = in_support(self.positions.numbers.supports[site], like.new_tensor(0.0 if is_signed else 1.0))
        space = self.positions.manifold({site: out[site].double() for site in signed}).squeeze()
        coords = _within_reach(coords, space)
        out["z"] = space.from_normal_coords(None, coords).to(like)
        out |= {site: torch.zeros_like(like[:, 0]) for site in self.effects}
        if self.groups is not None:
            chosen = torch.linspace(0, self.num_nodes - 1, self.groups, device=like.device).round().long()
            out["group_weights"] = torch.full_like(like[0, :1], 1 / self.groups).expand(self.groups)
            out["group_loc"] = out["z"][chosen]
        generator = torch.Generator().manual_seed(0)
        first = torch.randint(self.num_nodes, (_SAMPLED,), generator=generator, device="cpu")
        other = torch.randint(1, self.num_nodes, (_SAMPLED,), generator=generator, device="cpu")
        second = (first + other) % self.num_nodes
        out["intercept"] = self._intercept(out, (first.to(like.device), second.to(like.device)), mean)
        return out

    def _intercept(self, values: dict[str, Tensor], pairs: tuple[Tensor, Tensor], mean: float) -> Tensor:
        """That which gives pairs of nodes a mean value, by bisection."""
        space = self.positions.manifold({site: values[site] for site in self.positions.drawn}).squeeze()
        rest = self._predictor(space, {**values, "intercept": torch.zeros_like(values["temperature"])}, *pairs)
        low, high = rest.min().new_tensor(-50.0), 50.0 - rest.min()
        for _ in range(60):
            middle = (low + high) / 2
            found = self.likelihood.expected(rest + middle, values)
            if found.dim() > rest.dim():
                found = found @ torch.arange(-1.0, 2.0).to(found)
            low, high = (middle, high) if float(found.mean()) < mean else (low, middle)
        return (low + high) / 2

    @torch.no_grad()
    def begin(self, values: Mapping[str, Tensor]) -> None:
        """Put the guide at values by site, such as those of :meth:`start`."""
        needed = {*self.effects, *(("group_loc",) if self.groups is not None else ())}
        if lost := sorted(needed - values.keys()):
            raise ValueError(f"values must hold one value for each site, but lack {lost}; pass those of start().")
        self.positions.begin(values)
        self.numbers.begin(values)
        for site in self.effects:
            self.loc[site].copy_(values[site])
        if self.groups is not None:
            space = self.positions.manifold(values).squeeze()
            self.loc["group_loc"].copy_(space.to_normal_coords(None, values["group_loc"]))

    @torch.no_grad()
    def predict(self, samples: Mapping[str, Tensor], pairs: Tensor, level: float = 0.9) -> Prediction:
        """What the model expects of pairs, whether they were observed or not.

        :param samples: draws by site, ``(..., N, D)`` of ``"z"`` and so on: the ``samples`` of a
            :class:`~pyro_hyperbolic.infer.Posterior`, or of ``Predictive(net.guide, num_samples=1000)(edges)``.
        :param pairs: ``(P, 2)``.
        :param level: of the intervals, which have equal tails.
        """
        check_pairs("pairs", pairs, self.num_nodes)
        if not (is_number(level) and 0 < level < 1):
            raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
        values, space = self._flat(samples)
        z = values["z"]
        pairs = pairs.to(z.device)
        tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=z.dtype, device=z.device)
        parts = []
        for some in pairs.split(max(1, _MOST_NUMBERS // len(z))):
            found = self.likelihood.expected(self._predictor(space, values, some[:, 0], some[:, 1]), values)
            ends = found.sort(0).values[(tails * (len(found) - 1)).round().long()]
            parts.append((found.mean(0), ends[0], ends[1]))
        return Prediction(*[torch.cat(part) for part in zip(*parts, strict=True)])

    @torch.no_grad()
    def co_membership(self, samples: Mapping[str, Tensor]) -> Tensor:
        """The probability that two nodes are of the same group, ``(N, N)``; groups have no names that draws share.

        :param samples: draws by site.
        """
        if self.groups is None:
            raise ValueError("samples have no groups, as the model has none; make it with groups=2 or more.")
        values, space = self._flat(samples)
        total = values["z"].new_zeros(self.num_nodes, self.num_nodes)
        mixture = self._mixture(space, values)
        log_prob = mixture.component_distribution.log_prob(values["z"].unsqueeze(-2))
        shares = (log_prob + mixture.mixture_distribution.logits).softmax(-1)
        for some in shares.split(max(1, _MOST_NUMBERS // self.num_nodes)):
            total += torch.einsum("sng,smg->nm", some, some)
        return (total / len(shares)).fill_diagonal_(1.0)

    def _flat(self, samples: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Manifold]:
        """Draws with one dimension of draws, in the shapes of vectorised particles, and their space."""
        wanted = {*self.priors, *self.effects, *self.positions.drawn, "z"}
        if self.groups is not None:
            wanted |= {"group_weights", "group_loc"}
        if lost := sorted(wanted - samples.keys()):
            raise ValueError(f"samples must hold draws of all latents, but lack {lost}; pass posterior.samples.")
        z = samples["z"]
        if z.dim() < 3 or z.shape[-2] != self.num_nodes:
            raise ValueError(f"samples['z'] must have shape (..., {self.num_nodes}, D), got {tuple(z.shape)}.")
        count = z.shape[:-2].numel()
        out = {site: samples[site].reshape(count, 1, *prior.shape) for site, prior in self.priors.items()}
        out |= {site: samples[site].reshape(count, self.num_nodes) for site in self.effects}
        out["z"] = z.reshape(count, *z.shape[-2:])
        if self.groups is not None:
            out["group_weights"] = samples["group_weights"].reshape(count, 1, self.groups)
            out["group_loc"] = samples["group_loc"].reshape(count, self.groups, z.shape[-1])
        return out, self.positions.manifold({site: samples[site].reshape(count) for site in self.positions.drawn})


def _within_reach(coords: Tensor, space: Manifold) -> Tensor:
    """Normal coordinates, shrunk in those factors where they go beyond a half of a sphere or what a dtype holds."""
    parts = []
    leaves = space.leaves(coords.shape[-1])
    for (leaf, _), part in zip(leaves, coords.split([dim for _, dim in leaves], -1), strict=True):
        period = leaf.period(part) if leaf.geodesics_close else None
        most = 0.5 * float(leaf.reach(torch.float32)) if period is None else 0.25 * float(torch.as_tensor(period).max())
        farthest = float(part.norm(dim=-1).max())
        parts.append(part * min(1.0, most / farthest))
    return torch.cat(parts, -1)


def _described(num_nodes: int, directed: bool) -> str:
    return f"{'a directed' if directed else 'an undirected'} network of {num_nodes} nodes"
