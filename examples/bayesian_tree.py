"""Where in a tree is a node that we know little about? A Bayesian embedding with calibrated uncertainty.

The data are noisy distances in a taxonomy of 27 animals. All distances between its 14 inner nodes are observed. Each
leaf, an animal, has only a few observed distances to inner nodes. The positions in the hyperbolic plane, the scale of
the distances and the noise are latent,

    z_i ~ WrappedNormal(0, 3)    on the ball of curvature -1,
    y_ij ~ Normal(length * d(z_i, z_j), noise),

and inferring the length means inferring the curvature, ``-1 / length^2``. Distances determine positions only up to an
isometry. So the model fixes the root at the origin and another node on the positive half of the first axis, and samples
are reflected so that a third node lies above that axis.

SVI or NUTS embeds the inner nodes, with several chains side by side in a plate. NUTS works in normal coordinates around
the starting point of each node. In coordinates around the origin, the posterior of a node at distance r would be about
sinh(r)/r times narrower across its radius than along it. Given draws of the inner nodes, importance sampling places
each leaf and finds all the positions that it may have. What to look for in the results:

* ``embedding.png``: the tree around the root and around a leaf. Distances from the middle of a panel are those in the
  plane, and thin circles are 2 apart. Lines around a leaf are its regions of 50, 80 and 90%. Rings of the same colour
  mark the nodes with an observed distance to the leaf. Circles around distant points may meet in distant places, so a
  region may have several pieces.
* ``calibration.png``: the share of unseen distances inside their credible intervals, against the level of the interval.
  On the dashed line the uncertainty is right. Below it the intervals are too narrow.
* ``latent.html``: a web page with draws of all nodes. Click on an animal to bring it to the centre.

    python examples/bayesian_tree.py
    python examples/bayesian_tree.py --inference nuts --warmup 500 --num-samples 500
    python examples/bayesian_tree.py --observed 6 --noise 0.1
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import networkx
import pyro
import pyro.distributions as dist
import torch
from command import Parser, at_least, command, positive, record, save_json
from matplotlib.patches import Circle
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuide, init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor
from torch.distributions import biject_to, constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.analysis import sarkar_embedding
from pyro_hyperbolic.infer import AutoWrappedNormal
from pyro_hyperbolic.plotting.canvas import PALETTE

Values = dict[str, Tensor]
TAXONOMY = """
animal: vertebrate arthropod mollusc
vertebrate: mammal bird reptile fish
mammal: carnivore rodent cetacean
arthropod: insect arachnid crustacean
mollusc: snail mussel squid
bird: owl goose penguin
reptile: snake turtle lizard
fish: shark salmon eel
insect: beetle ant butterfly
arachnid: spider scorpion
crustacean: crab lobster
carnivore: wolf cat bear
rodent: mouse squirrel beaver
cetacean: dolphin orca
"""
FIXED = ["animal", "carnivore", "insect"]  # at the origin, on the axis, above it: far from each other
SHOWN = ["wolf", "salmon", "crab"]  # leaves in the picture
BALL = PoincareBall(1.0)
PRIOR_SCALE, START_STEPS, TREE_DEPTH = 3.0, 300, 6
LEVELS, RESOLUTION = (0.5, 0.8, 0.9), 120  # of the regions, and nodes on a side of their grid
DRAWS, CANDIDATES, KEPT = 400, 4000, 2000  # of inner nodes, places of a leaf tried for each, and places that are kept


def model(chains: int, number: int, y: Tensor | None = None) -> Tensor:
    """Copies of one posterior side by side: positions ``(chains, number, 2)`` and their noisy distances."""
    with pyro.plate("chains", chains):
        length = pyro.sample("length", dist.LogNormal(math.log(0.6), 0.4))
        noise = pyro.sample("noise", dist.LogNormal(math.log(0.3), 0.5))
        # The distance to the origin of a wrapped normal in two dimensions has Rayleigh's distribution.
        radius = pyro.sample("radius", dist.Weibull(math.sqrt(2) * PRIOR_SCALE, 2.0))
        others = hdist.WrappedNormal(torch.zeros(number - 2, 2), PRIOR_SCALE, BALL)
        points = positions(radius, pyro.sample("z", others.to_event(1)))
        mean = length[..., None, None] * BALL.pairwise_dist(points, points)
        once = torch.ones(number, number).triu(1).bool()
        pyro.sample("y", dist.Normal(mean, noise[..., None, None]).mask(once).to_event(2), obs=y)
    return points


def positions(radius: Tensor, z: Tensor) -> Tensor:
    """All points ``(..., N, 2)``: the root, the node on the axis, and the others."""
    axis = torch.stack([radius, torch.zeros_like(radius)], -1)
    return torch.cat([BALL.from_normal_coords(None, torch.stack([torch.zeros_like(axis), axis], -2)), z], -2)


def in_place(points: Tensor) -> Tensor:
    """Points ``(..., N, 2)``, turned and reflected so that the second lies on the axis and the third one above it."""
    (x, y), length = points[..., 1, :].unbind(-1), points[..., 1, :].norm(dim=-1)
    turned = points @ torch.stack([torch.stack([x, -y], -1), torch.stack([y, x], -1)], -2) / length[..., None, None]
    return turned * torch.stack([torch.ones_like(length), turned[..., 2, 1].sign()], -1).unsqueeze(-2)


class Tree(NamedTuple):
    """Names and parents ``(N,)`` of all nodes, inner ones first, and their noisy distances ``(N, N)``."""

    names: list[str]
    parents: Tensor
    inner: int
    y: Tensor


def taxonomy(noise: float) -> Tree:
    """The animals above."""
    rows = [line.split(": ") for line in TAXONOMY.strip().splitlines()]
    parent = {child: above for above, children in rows for child in children.split()}
    inner = FIXED + [name for name, _ in rows if name not in FIXED]
    names = inner + [name for name in parent if name not in inner]
    parents = torch.tensor([names.index(parent[name]) if name in parent else -1 for name in names])
    edges = torch.from_numpy(networkx.floyd_warshall_numpy(networkx.Graph(parent.items()), nodelist=names))
    error = noise * torch.randn(edges.shape).triu(1)
    return Tree(names, parents, len(inner), edges + error + error.mT)


def fit(guide: AutoGuide, arguments: tuple[Any, ...], steps: int) -> None:
    """Train a guide with a learning rate that falls to a hundredth."""
    pyro.clear_param_store()
    guide(*arguments)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.01 ** (1 / steps)}), Trace_ELBO())
    for _ in range(steps):
        svi.step(*arguments)


def starting_point(tree: Tree, arguments: tuple[Any, ...]) -> Values:
    """Latents near a mode, for every chain a little beside it; distances have many local optima."""
    chains, number, y = arguments
    points = in_place(sarkar_embedding(tree.parents[:number], BALL, length=2.0)).expand(chains, -1, -1)
    d = BALL.pairwise_dist(points, points)
    start = {"length": (y * d).sum((1, 2)) / d.square().sum((1, 2)), "noise": torch.full((chains,), 0.3)}
    start |= {"radius": BALL.dist0(points[:, 1]), "z": hdist.WrappedNormal(points[:, 2:], 0.2, BALL).sample()}
    guide = AutoDelta(model, init_loc_fn=init_to_value(values=start))
    fit(guide, arguments, START_STEPS)
    with torch.no_grad():
        return guide(*arguments)


def nuts(arguments: tuple[Any, ...], start: Values, args: argparse.Namespace) -> Values:
    """Samples ``(S, chains, ...)``."""
    transforms: dict[str, Any] = dict.fromkeys(("length", "noise", "radius"), biject_to(constraints.positive).inv)
    transforms["z"] = hdist.ExpMapTransform(BALL, start["z"]).inv
    kernel = NUTS(model, init_strategy=init_to_value(values=start), transforms=transforms, max_tree_depth=TREE_DEPTH)
    mcmc = MCMC(kernel, args.num_samples, args.warmup, disable_progbar=not sys.stderr.isatty())
    mcmc.run(*arguments)
    print(f"NUTS: {len(mcmc.diagnostics()['divergences']['chain 0'])} divergences, step size {kernel.step_size:.3f}")
    return mcmc.get_samples()


def svi(arguments: tuple[Any, ...], start: Values, args: argparse.Namespace) -> Values:
    """Samples ``(S, chains, ...)`` of a guide of independent wrapped normals; a chain is a fit of it."""
    guide = AutoWrappedNormal(model, init_loc_fn=init_to_value(values=start), init_scale=0.1)
    fit(guide, arguments, args.num_steps)
    with torch.no_grad():
        draws = [guide(*arguments) for _ in range(args.num_samples)]
    return {name: torch.stack([draw[name] for draw in draws]) for name in start}


INFERENCE = {"nuts": nuts, "svi": svi}


class Leaf:
    """The posterior of a leaf, given draws of the inner nodes ``(S, R, 2)``, of the length and of the noise ``(S,)``.

    :param y: its distances to the inner nodes ``(R,)``, of which those to ``seen`` are known.
    """

    def __init__(self, y: Tensor, seen: Tensor, points: Tensor, length: Tensor, noise: Tensor) -> None:
        self.y, self.seen, self.points, self.length, self.noise = y, seen, points, length, noise
        self.prior = hdist.WrappedNormal(torch.zeros(2), PRIOR_SCALE, BALL)
        z = self.prior.sample((len(points), CANDIDATES))
        weights = self.log_likelihood(z).flatten().softmax(0)
        chosen = weights.multinomial(KEPT, replacement=True)
        self.z, self.draw = z.flatten(0, 1)[chosen], chosen // CANDIDATES
        self.n_eff = 1 / weights.square().sum().item()

    def log_likelihood(self, z: Tensor) -> Tensor:
        """Of the known distances, at places ``(S, n, 2)`` or ``(n, 2)``, by draws of the inner nodes, ``(S, n)``."""
        mean = self.length[:, None, None] * BALL.pairwise_dist(z, self.points[:, self.seen])
        return dist.Normal(mean, self.noise[:, None, None]).log_prob(self.y[self.seen]).sum(-1)

    def log_density(self, z: Tensor) -> Tensor:
        """Posterior log-density of places ``(n, 2)``, up to a constant: the mean over draws of the inner nodes."""
        return torch.cat([self.log_likelihood(part).logsumexp(0) for part in z.split(500)]) + self.prior.log_prob(z)

    def levels(self) -> Tensor:
        """For every distance ``(R,)``: the level of the smallest central predictive interval with it; nan if known."""
        mean = self.length[self.draw, None] * BALL.dist(self.z[:, None], self.points[self.draw])
        below = dist.Normal(mean, self.noise[self.draw, None]).cdf(self.y).mean(0)
        return (2 * below - 1).abs().index_fill(0, self.seen, math.nan)


def coverage(levels: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """How many of the truths lie in regions of the levels ``at``, with standard errors; levels are ``(leaves, R)``."""
    hits = (levels[..., None] <= at).to(levels).masked_fill(levels[..., None].isnan(), math.nan)
    # Distances of one leaf are not independent: the error is that of a mean over leaves.
    return hits.flatten(0, 1).nanmean(0), hits.nanmean(1).std(0) / math.sqrt(len(hits))


def draw_embedding(tree: Tree, mean: Tensor, leaves: dict[str, Leaf], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.8), layout="constrained")
    first = next(iter(leaves))
    views = {"the root": (mean[0], leaves), first: (BALL.frechet_mean(leaves[first].z), {first: leaves[first]})}
    edges = torch.stack([tree.parents[1 : tree.inner], torch.arange(1, tree.inner)], 1)
    for ax, (title, (centre, shown)) in zip(axes, views.items(), strict=True):
        ax.set_title(f"around {title}", fontsize="medium")
        plotting.embedding(mean, BALL, edges=edges, ax=ax, s=12, view="equidistant", center=centre)
        reach = [BALL.dist(centre, leaf.z).quantile(0.95) for leaf in shown.values()]
        limit = 1.05 * max(*reach, BALL.dist(centre, mean).quantile(0.9)).item()
        for (name, leaf), colour in zip(shown.items(), PALETTE[::2], strict=False):
            plotting.embedding(leaf.z[:600], BALL, ax=ax, s=2, color=colour, alpha=0.3, label=name)
            rings: Any = {"s": 70, "facecolors": "none", "edgecolors": colour, "linewidth": 1.3}
            plotting.embedding(mean[leaf.seen], BALL, ax=ax, **rings)
            style: Any = {"extent": (-limit, limit, -limit, limit), "colors": colour, "linewidths": [0.6, 1.0, 1.5]}
            plotting.credible_regions(leaf.log_density, BALL, LEVELS, ax, resolution=RESOLUTION, **style)
        at = BALL.to_normal_coords(None, BALL.mobius_add(-centre.expand_as(mean), mean))
        named: list[list[float]] = []
        for name, (x, y) in zip(tree.names, at.tolist(), strict=False):
            # Names that would cover another one are left out.
            if all(abs(x - a) > 0.2 * limit or abs(y - b) > 0.04 * limit for a, b in named):
                named.append([x, y])
                ax.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize=7, clip_on=True)
        for radius in range(2, int(limit) + 1, 2):
            ax.add_patch(Circle((0, 0), radius, facecolor="none", edgecolor="0.9", linewidth=0.6, zorder=0))
        ax.set_aspect("equal", adjustable="box")
        ax.set(xlim=(-limit, limit), ylim=(-limit, limit))
    axes[0].legend(loc="lower left", markerscale=5, frameon=False)
    plotting.save(figure, path)
    plt.close(figure)


def draw_calibration(levels: Tensor, path: Path) -> None:
    figure, ax = plt.subplots(figsize=(4.4, 4.2), layout="constrained")
    at = torch.linspace(0, 1, 101)
    share, error = coverage(levels, at)
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
    ax.plot(at, share, color=PALETTE[0])
    ax.fill_between(at, share - 1.96 * error, share + 1.96 * error, color=PALETTE[0], alpha=0.2, linewidth=0)
    ax.set(xlabel="level of the interval", ylabel="share of unseen distances inside", aspect="equal")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    plotting.save(figure, path)
    plt.close(figure)


def draw_page(tree: Tree, points: Tensor, leaves: list[Leaf], path: Path) -> None:
    some = torch.linspace(0, len(points) - 1, 100).long()  # draws of each node, from all chains
    draws = torch.cat([points[some], torch.stack([leaf.z[: len(some)] for leaf in leaves], 1)], 1)
    plotting.explore(
        BALL.frechet_mean(draws.transpose(0, 1)),
        BALL,
        path,
        labels=["inner node" if i < tree.inner else "leaf" for i in range(len(tree.names))],
        names=tree.names,
        edges=torch.stack([tree.parents[1:], torch.arange(1, len(tree.names))], 1),
        draws=draws,
        title="A tree with uncertainty",
        description=f"Posterior means of {len(tree.names)} nodes, and {len(some)} draws of each.",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(args.seed)
    began = time.perf_counter()
    tree = taxonomy(args.noise)
    if args.observed >= tree.inner:
        raise ValueError(f"--observed must be less than the {tree.inner} inner nodes, got {args.observed}.")
    arguments = (args.chains, tree.inner, tree.y[: tree.inner, : tree.inner].expand(args.chains, -1, -1))
    samples = INFERENCE[args.inference](arguments, starting_point(tree, arguments), args)
    samples["points"] = in_place(positions(samples["radius"], samples["z"]))

    # What does not depend on the choice of coordinates, (S, chains, ...).
    i, j = torch.combinations(torch.arange(tree.inner)).T
    distances = samples["length"].unsqueeze(-1) * BALL.pairwise_dist(samples["points"], samples["points"])[..., i, j]
    known = torch.cat([samples["length"].unsqueeze(-1), samples["noise"].unsqueeze(-1), distances], -1)
    result: dict[str, Any] = record(args) | {"posterior": {}}
    for name, values in {"length": known[..., 0], "noise": known[..., 1], "c": 1 / known[..., 0].square()}.items():
        result["posterior"][name] = [values.mean().item(), values.std().item()]
        print(f"{name} {values.mean():.2f} ± {values.std():.2f} (posterior standard deviation)")
    r_hat, n_eff = (f(known, chain_dim=1, sample_dim=0) for f in (split_gelman_rubin, effective_sample_size))
    result["posterior"] |= {"r_hat": r_hat.max().item(), "n_eff": n_eff.min().item()}
    print(f"R-hat of {len(r_hat)} values up to {r_hat.max():.2f}, n_eff at least {n_eff.min():.0f}")

    points, length, noise = (samples[name].transpose(0, 1).flatten(0, 1) for name in ("points", "length", "noise"))
    pick = torch.linspace(0, len(points) - 1, min(DRAWS, len(points))).long()
    inner = torch.arange(tree.inner)
    leaves = [
        Leaf(y, torch.randperm(tree.inner)[: args.observed], points[pick], length[pick], noise[pick])
        for y in tree.y[tree.inner :, inner]
    ]
    levels = torch.stack([leaf.levels() for leaf in leaves])
    share, error = coverage(levels, torch.tensor(LEVELS))
    rows = zip(LEVELS, share.tolist(), error.tolist(), strict=True)
    result["coverage"] = {f"{100 * level:.0f}%": [s, e] for level, s, e in rows}
    shown = ", ".join(f"{name}: {100 * s:.0f} ± {100 * e:.0f}%" for name, (s, e) in result["coverage"].items())
    print(f"{int(levels.isfinite().sum())} unseen distances of {len(leaves)} leaves in their intervals, {shown}")
    result |= {"n_eff of placing": min(leaf.n_eff for leaf in leaves), "seconds": time.perf_counter() - began}
    save_json(result, args.output_dir / "metrics.json")
    drawn = {name: leaves[tree.names.index(name) - tree.inner] for name in SHOWN}
    draw_embedding(tree, BALL.frechet_mean(points.transpose(0, 1)), drawn, args.output_dir / "embedding.png")
    draw_calibration(levels, args.output_dir / "calibration.png")
    draw_page(tree, points, leaves, args.output_dir / "latent.html")
    print(f"{result['seconds']:.0f} s; results in {args.output_dir}")
    return result


def parser() -> Parser:
    p = Parser(__doc__, __file__)
    p.add_argument("--inference", choices=sorted(INFERENCE), default="svi", help="inference for the inner nodes")
    p.add_argument("--observed", type=positive(int), default=3, help="observed distances per leaf")
    p.add_argument("--noise", type=positive(float), default=0.3, help="noise of the distances, in edges")
    p.add_argument("--chains", type=positive(int), default=4, help="number of chains, run side by side")
    p.add_argument("--warmup", type=positive(int), default=200, help="warm-up steps of NUTS")
    p.add_argument("--num-samples", type=at_least(4), default=200, help="samples per chain")
    p.add_argument("--num-steps", type=positive(int), default=1500, help="steps of SVI")
    p.add_seed()
    p.add_output_dir()
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
