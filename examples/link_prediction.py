"""Predict missing links of a graph: a variational graph auto-encoder with hyperbolic latents (the paper's Section 5.3).

Every node is a point of hyperbolic space, and two nodes are linked with a probability that falls with their distance,

    z_i ~ WrappedNormal(0, 1),    A_ij ~ Bernoulli(1 - tanh d(z_i, z_j)).

The guide is a graph convolution of the edges that are known (T. Kipf and M. Welling, 2016). Some edges are held out.
The model then has to tell them from as many pairs without an edge.

    python examples/link_prediction.py
    python examples/link_prediction.py --graph my.edges --space h5 --curvature 0.5

What to look for: the area under the ROC curve is 1 if every held-out edge is shorter than every other pair, and one
half for a guess. In ``embedding.png``, drawn for two dimensions, dashed lines are held-out edges. Where they are short,
the model has put their ends side by side without having seen them. ``latent.html`` shows the same as a page that you
can move through. :class:`pyro_hyperbolic.models.ManifoldVGAE` is this model with more options, and ``python -m
experiments.link_prediction`` compares it with its Euclidean twin over many splits.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from command import add_common, command, fraction, make_parser, positive
from pyro.infer import SVI, Trace_ELBO
from runs import record, save_json
from torch import Tensor, nn
from torch.nn.functional import relu, softplus
from tqdm.auto import tqdm

from pyro_hyperbolic import Lorentz, PoincareBall, datasets, geometry, plotting
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.models import average_precision, edge_log_odds, roc_auc
from pyro_hyperbolic.models.latent import within_reach
from pyro_hyperbolic.nn import GCNConv, GraphAdjacency, exp0


class GraphAutoEncoder(nn.Module):
    """The network of the guide, and both programs.

    :param edges: those that are known, each once, ``(E, 2)``.
    """

    def __init__(self, space: geometry.Manifold, dim: int, num_nodes: int, edges: Tensor, hidden_dim: int) -> None:
        super().__init__()
        self.space, self.dim, self.num_nodes = space, dim, num_nodes
        self.adjacency = GraphAdjacency(num_nodes, edges)
        self.hidden = GCNConv(num_nodes, hidden_dim)
        self.loc, self.scale = GCNConv(hidden_dim, dim), GCNConv(hidden_dim, dim)
        self.first, self.second = torch.triu_indices(num_nodes, num_nodes, 1)
        linked = torch.zeros(num_nodes, num_nodes)
        linked[edges[:, 0], edges[:, 1]] = linked[edges[:, 1], edges[:, 0]] = 1.0
        self.observed = linked[self.first, self.second]

    def model(self) -> None:
        with pyro.plate("nodes", self.num_nodes):
            z = pyro.sample("z", WrappedNormal(self.space.origin(self.dim), 1.0, self.space))
        distance = self.space.dist(z[self.first], z[self.second])
        with pyro.plate("pairs", len(self.first)):
            pyro.sample("link", dist.Bernoulli(logits=edge_log_odds(distance)), obs=self.observed)

    def guide(self) -> None:
        pyro.module("encoder", self)
        with pyro.plate("nodes", self.num_nodes):
            pyro.sample("z", self.encode())

    def encode(self) -> WrappedNormal:
        """The posterior of every node; the exponential map takes the location into the space."""
        hidden = relu(self.hidden(None, self.adjacency))
        loc, scale = self.loc(hidden, self.adjacency), softplus(self.scale(hidden, self.adjacency))
        loc, scale = within_reach(loc, scale, self.space, WrappedNormal)
        return WrappedNormal(exp0(self.space, loc), scale, self.space)

    @torch.no_grad()
    def scores(self, pairs: Tensor) -> Tensor:
        """The nearer the posterior means of two nodes, the greater."""
        z = self.encode().mean
        return -self.space.dist(z[pairs[:, 0]], z[pairs[:, 1]])


@torch.no_grad()
def draw(vgae: GraphAutoEncoder, split: datasets.EdgeSplit, args: argparse.Namespace) -> None:
    """The embedding as a page, and in two dimensions as a picture."""
    posterior = vgae.encode()
    degrees = torch.bincount(split.train.flatten(), minlength=vgae.num_nodes)
    names = [f"node {i} of degree {degree}" for i, degree in enumerate(degrees.tolist())]
    scales = posterior if vgae.dim == 2 else None
    page: Any = {"names": names, "edges": split.train, "scales": scales, "title": f"Latent space of {args.graph}"}
    plotting.explore(posterior.mean, vgae.space, args.output_dir / "latent.html", degrees.add(1).log2(), **page)
    if vgae.dim == 2:
        ball, z = PoincareBall(args.curvature), posterior.mean
        z = vgae.space.to_poincare(z) if isinstance(vgae.space, Lorentz) else z
        figure, ax = plt.subplots(figsize=(4.7, 4.7), layout="constrained")
        plotting.embedding(z, ball, edges=split.train, ax=ax, s=10)
        style: Any = {"color": "#bd1f01", "linestyle": (0, (3, 2)), "label": "held-out edges"}
        plotting.geodesic(z[split.test[:, 0]], z[split.test[:, 1]], ball, ax, **style)
        figure.legend(loc="outside lower center", frameon=False)
        plotting.save(figure, args.output_dir / "embedding.png")
        plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    if "," in args.space or args.space[0] not in "ph":
        raise ValueError(f"--space must be a ball or a hyperboloid such as p2 or h5, got {args.space}.")
    try:
        graph = datasets.graph(args.graph, args.data_dir)
    except (OSError, ValueError) as error:
        raise ValueError(f"--graph {args.graph}: {error}") from error
    split = datasets.split_edges(graph, test=args.test, validation=0.0, seed=args.seed)
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    space, dim = geometry.from_signature(args.space, c=args.curvature), geometry.signature_dim(args.space)
    vgae = GraphAutoEncoder(space, dim, graph.num_nodes, split.train, args.hidden_dim)
    svi = SVI(vgae.model, vgae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    losses = [svi.step() for _ in tqdm(range(args.num_epochs), leave=False, unit="epoch", disable=None)]
    scores = vgae.scores(split.test), vgae.scores(split.test_negatives)
    result = record(args) | {"losses": losses, "auc": roc_auc(*scores), "ap": average_precision(*scores)}
    print(f"{args.graph}, {len(split.test)} of {graph.num_edges} edges held out: area under the ROC curve", end=" ")
    print(f"{100 * result['auc']:.1f}%, average precision {100 * result['ap']:.1f}%; results in {args.output_dir}")
    save_json(result, args.output_dir / "metrics.json")
    draw(vgae, split, args)
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    text = "phylogenetic, csphd, diseases (the paper's), karate, balanced_tree:BRANCHING:HEIGHT, or a list of edges"
    p.add_argument("--graph", default="karate", help=text)
    add_common(p, "--space")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c; the curvature is -c")
    p.add_argument("--hidden-dim", type=positive(int), default=32, help="width of the graph convolution (paper: 32)")
    p.add_argument("--num-epochs", type=positive(int), default=800, help="full-batch steps (paper: 800)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-2, help="learning rate of Adam (paper: 1e-2)")
    p.add_argument("--test", type=fraction, default=0.1, help="fraction of the edges to predict (paper: 0.1)")
    add_common(p, "--seed", "--data-dir", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
