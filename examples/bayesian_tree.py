"""Embed a tree from noisy distances, with the uncertainty of its positions and of the curvature.

The data are noisy distances between all pairs of the 14 inner nodes of a taxonomy of animals. Positions in the
hyperbolic plane, the scale of the distances and the noise are latent,

    z_i ~ WrappedNormal(0, 3)    on the ball of curvature -1,
    y_ij ~ Normal(length * d(z_i, z_j), noise),

and inferring the length means inferring the curvature, ``-1 / length^2``. The root is at the origin. Distances do not
tell how the others are rotated around it, or mirrored: ``infer.sample_posterior`` finds that out, judges the chains by
what the distances do tell, and lays the draws on each other for the picture.

    python examples/bayesian_tree.py
    python examples/bayesian_tree.py --noise 0.6 --chains 32

What to look for: the last line of the summary says whether to believe the draws. In ``embedding.png`` the small dots
are draws of the nodes, and lines join the nodes of one draw as in the tree. Branches change places around their parent,
so a cloud is wide and its mean is no place of a node. ``posterior.pt`` holds the draws; ``leaf_regions.py`` goes on
from there.
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
from command import add_common, at_least, command, make_parser, positive
from runs import record, save_json, save_run
from taxonomy import Tree, taxonomy
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.infer import Posterior, sample_posterior

BALL = PoincareBall(1.0)
PRIOR_SCALE = 3.0


def model(number: int, y: Tensor | None = None) -> Tensor:
    """Positions ``(number, 2)``, and the noisy distances of all pairs."""
    length = pyro.sample("length", dist.LogNormal(math.log(0.6), 0.4))
    noise = pyro.sample("noise", dist.LogNormal(math.log(0.3), 0.5))
    pyro.deterministic("c", length**-2)
    with pyro.plate("nodes", number - 1):
        z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(2), PRIOR_SCALE, BALL))
    points = with_root(z)
    i, j = torch.triu_indices(number, number, 1)
    with pyro.plate("pairs", len(i)):
        pyro.sample("y", dist.Normal(length * BALL.dist(points[i], points[j]), noise), obs=y)
    return points


def with_root(z: Tensor) -> Tensor:
    """All points ``(..., N, 2)``: the root at the origin, and the others."""
    return torch.cat([torch.zeros_like(z[..., :1, :]), z], -2)


def draw(tree: Tree, points: Tensor, path: Path) -> None:
    """Draws of all nodes ``(S, N, 2)``, and the last of them as a tree."""
    figure, ax = plt.subplots(figsize=(5.4, 5.4), layout="constrained")
    some = points[:: max(1, len(points) // 200)]
    plotting.embedding(some.flatten(0, 1), BALL, ax=ax, view="equidistant", s=1, alpha=0.4)
    edges = tree.edges[: tree.inner - 1]
    plotting.embedding(points[-1], BALL, edges=edges, ax=ax, view="equidistant", s=14, color="0.2")
    plotting.save(figure, path)
    plt.close(figure)


def result_of(posterior: Posterior) -> dict[str, Any]:
    """Means, standard deviations and diagnostics."""
    found = posterior.diagnostics().values()
    row: dict[str, Any] = {"converged": posterior.converged, "seconds": sum(posterior.seconds.values())}
    row |= {"r_hat": max(each.r_hat for each in found), "ess": min(min(each.ess_bulk, each.ess_tail) for each in found)}
    for name in ("length", "noise", "c"):
        row[name] = [posterior.samples[name].mean().item(), posterior.samples[name].std().item()]
    return row


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(args.seed)
    tree = taxonomy(args.noise)
    i, j = torch.triu_indices(tree.inner, tree.inner, 1)
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    posterior = sample_posterior(model, tree.inner, tree.y[i, j], **settings)
    print(posterior.summary())
    result = record(args) | result_of(posterior)
    save_json(result, args.output_dir / "metrics.json")
    draws = {name: posterior.samples[name].flatten(0, 1) for name in ("length", "noise")}
    draws["points"] = with_root(posterior.aligned("z").points).flatten(0, 1)
    save_run(draws | {"y": tree.y}, args.output_dir / "posterior.pt", args)
    draw(tree, draws["points"], args.output_dir / "embedding.png")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--noise", type=positive(float), default=0.3, help="noise of the distances, in edges")
    p.add_argument("--chains", type=at_least(2), default=16, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=500, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(4), default=5000, help="samples per chain")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
