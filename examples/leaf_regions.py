"""Where in a tree is a node that we know little about? Regions by importance sampling, and how often they are right.

``bayesian_tree.py`` has embedded the inner nodes of a taxonomy. Each of its 27 leaves, an animal, has only a few
observed distances to inner nodes. Given draws of these, importance sampling from the prior places each leaf and finds
all the positions that it may have. Its other distances, which it was not given, tell whether the uncertainty is right.

    python examples/bayesian_tree.py --output-dir tree
    python examples/leaf_regions.py --posterior tree/posterior.pt
    python examples/leaf_regions.py --posterior tree/posterior.pt --observed 6

What to look for: in ``regions.png`` the lines around a leaf are its regions of 50, 80 and 90%, given the inner nodes
near the places where they are drawn. Rings of the same colour mark the nodes with an observed distance to the leaf.
Distances from the middle of a panel are those in the plane, and thin circles are 2 apart. ``calibration.png`` has the
share of unseen distances inside their credible intervals, against the level of the interval. On the dashed line the
uncertainty is right; below it the intervals are too narrow. On the page ``latent.html``, with draws of all nodes, click
on an animal to bring it to the centre.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from calibration import coverage, draw_calibration
from command import add_common, command, input_file, make_parser, positive
from matplotlib.patches import Circle
from pyro import poutine
from runs import record, save_json
from taxonomy import Tree, taxonomy
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.infer import load_checkpoint
from pyro_hyperbolic.plotting.canvas import PALETTE

Values = dict[str, Tensor]
BALL = PoincareBall(1.0)
SHOWN = ["wolf", "salmon", "crab"]  # leaves in the picture
LEVELS, RESOLUTION = (0.5, 0.8, 0.9), 120  # of the regions, and nodes on a side of their grid
DRAWS, CANDIDATES, KEPT = 400, 4000, 2000  # of inner nodes, places of a leaf tried for each, and places that are kept
NEAR = 50  # one in so many draws is shown
PRIOR = hdist.WrappedNormal(torch.zeros(2, dtype=torch.float64), 3.0, BALL)


def model(inner: Values, seen: Tensor, places: int, y: Tensor) -> Tensor:
    """Places ``(S, places, 2)`` of a leaf for draws of the inner nodes, and its distances to those that were seen."""
    with pyro.plate("draws", len(inner["points"]), dim=-2), pyro.plate("places", places, dim=-1):
        z = pyro.sample("z", PRIOR)
        mean = inner["length"][:, None, None] * BALL.pairwise_dist(z, inner["points"][:, seen])
        pyro.sample("y", dist.Normal(mean, inner["noise"][:, None, None]).to_event(1), obs=y[seen])
    return z


class Leaf:
    """The posterior of a leaf.

    :param inner: draws of the inner nodes, ``points`` ``(S, R, 2)``, ``length`` and ``noise`` ``(S,)``.
    :param y: its distances to the inner nodes ``(R,)``, of which those to ``seen`` are known.
    """

    def __init__(self, inner: Values, y: Tensor, seen: Tensor) -> None:
        self.inner, self.y, self.seen = inner, y, seen
        z, log_weights = self.weigh(CANDIDATES)
        weights = log_weights.flatten().softmax(0)
        chosen = weights.multinomial(KEPT, replacement=True)
        self.z, self.draw = z.flatten(0, 1)[chosen], chosen // CANDIDATES
        self.n_eff = 1 / weights.square().sum().item()

    def weigh(self, places: int, z: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Places from the prior, or given ones, and the log-likelihood of the known distances ``(S, places)``."""
        program = model if z is None else poutine.condition(model, data={"z": z})
        trace = poutine.trace(program).get_trace(self.inner, self.seen, places, self.y)
        trace.compute_log_prob()
        return trace.nodes["_RETURN"]["value"], trace.nodes["y"]["log_prob"]

    def log_density(self, z: Tensor) -> Tensor:
        """Posterior log-density of places ``(n, 2)``, up to a constant: the mean over draws of the inner nodes."""
        draws = len(self.inner["points"])
        parts = [self.weigh(len(part), part.expand(draws, -1, -1))[1].logsumexp(0) for part in z.split(500)]
        return torch.cat(parts) + PRIOR.log_prob(z)

    def levels(self) -> Tensor:
        """For every distance ``(R,)``: the level of the smallest central predictive interval with it; nan if known."""
        length, noise, points = (self.inner[name][self.draw] for name in ("length", "noise", "points"))
        mean = length[:, None] * BALL.dist(self.z[:, None], points)
        below = dist.Normal(mean, noise[:, None]).cdf(self.y).mean(0)
        return (2 * below - 1).abs().index_fill(0, self.seen, math.nan)


def some(samples: Values, order: Tensor) -> Values:
    """A few draws of the inner nodes, of those with these numbers."""
    pick = order[torch.linspace(0, len(order) - 1, min(DRAWS, len(order))).long()]
    return {name: samples[name][pick] for name in ("points", "length", "noise")}


def draw_regions(tree: Tree, nodes: Tensor, leaves: dict[str, Leaf], path: Path) -> None:
    """A draw of the inner nodes ``(R, 2)``, and leaves given draws that are next to it."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.8), layout="constrained")
    first, edges = next(iter(leaves)), tree.edges[: tree.inner - 1]
    views = {"the root": (nodes[0], leaves), first: (BALL.frechet_mean(leaves[first].z), {first: leaves[first]})}
    for ax, (title, (centre, shown)) in zip(axes, views.items(), strict=True):
        ax.set_title(f"around {title}", fontsize="medium")
        plotting.embedding(nodes, BALL, edges=edges, ax=ax, s=12, view="equidistant", center=centre)
        reach = [BALL.dist(centre, leaf.z).quantile(0.95) for leaf in shown.values()]
        limit = 1.05 * max(*reach, BALL.dist(centre, nodes).quantile(0.9)).item()
        for (name, leaf), colour in zip(shown.items(), PALETTE[::2], strict=False):
            plotting.embedding(leaf.z[:600], BALL, ax=ax, s=2, color=colour, alpha=0.3, label=name)
            rings: Any = {"s": 70, "facecolors": "none", "edgecolors": colour, "linewidth": 1.3}
            plotting.embedding(nodes[leaf.seen], BALL, ax=ax, **rings)
            style: Any = {"extent": (-limit, limit, -limit, limit), "colors": colour, "linewidths": [0.6, 1.0, 1.5]}
            plotting.credible_regions(leaf.log_density, BALL, LEVELS, ax, resolution=RESOLUTION, **style)
        for radius in range(2, int(limit) + 1, 2):
            ax.add_patch(Circle((0, 0), radius, facecolor="none", edgecolor="0.9", linewidth=0.6, zorder=0))
        ax.set_aspect("equal", adjustable="box")
        ax.set(xlim=(-limit, limit), ylim=(-limit, limit))
    axes[0].legend(loc="lower left", markerscale=5, frameon=False)
    plotting.save(figure, path)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    tree = taxonomy(noise=0.0)
    samples = load_checkpoint(args.posterior).get("state", {})  # the random generators go on from there too
    if "y" not in samples:
        raise ValueError(f"--posterior {args.posterior} is not one of bayesian_tree.py; run that example first.")
    if args.observed >= tree.inner:
        raise ValueError(f"--observed must be less than the {tree.inner} inner nodes, got {args.observed}.")
    rows, order = samples["y"][tree.inner :, : tree.inner], torch.arange(len(samples["points"]))
    leaves = [Leaf(some(samples, order), row, torch.randperm(tree.inner)[: args.observed]) for row in rows]
    levels = torch.stack([leaf.levels() for leaf in leaves])
    share, error = coverage(levels, torch.tensor(LEVELS))
    result: dict[str, Any] = record(args) | {"n_eff": min(leaf.n_eff for leaf in leaves)}
    shares = zip(LEVELS, share.tolist(), error.tolist(), strict=True)
    result["coverage"] = {f"{100 * level:.0f}%": [s, e] for level, s, e in shares}
    shown = ", ".join(f"{name}: {100 * s:.0f} ± {100 * e:.0f}%" for name, (s, e) in result["coverage"].items())
    print(f"{int(levels.isfinite().sum())} unseen distances of {len(leaves)} leaves in their intervals, {shown}")
    save_json(result, args.output_dir / "metrics.json")
    draw_calibration(levels, args.output_dir / "calibration.png")
    # Branches change places around their parents. Pictures show the draws next to one of them, in which they do not.
    order = BALL.dist(samples["points"], samples["points"][-1]).square().sum(-1).argsort()[: -(-len(order) // NEAR)]
    leaves = [Leaf(some(samples, order), leaf.y, leaf.seen) for leaf in leaves]
    points = leaves[0].inner["points"]
    drawn = {name: leaves[tree.names.index(name) - tree.inner] for name in SHOWN}
    draw_regions(tree, points[0], drawn, args.output_dir / "regions.png")
    few = torch.linspace(0, len(points) - 1, 100).long()  # draws of each node
    draws = torch.cat([points[few], torch.stack([leaf.z[: len(few)] for leaf in leaves], 1)], 1)
    means, about = BALL.frechet_mean(draws.transpose(0, 1)), f"Posterior means of {len(tree.names)} nodes, and draws."
    labels = ["inner node" if i < tree.inner else "leaf" for i in range(len(tree.names))]
    page: Any = {"names": tree.names, "edges": tree.edges, "title": "A tree with uncertainty", "description": about}
    plotting.explore(means, BALL, args.output_dir / "latent.html", labels, draws=draws, **page)
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--posterior", type=input_file, required=True, help="draws of the inner nodes, by bayesian_tree.py")
    p.add_argument("--observed", type=positive(int), default=3, help="observed distances per leaf")
    add_common(p, "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
