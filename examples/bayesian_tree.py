"""Embed a tree from noisy distances, with the uncertainty of its positions and of the curvature.

The data are noisy distances between all pairs of the 14 inner nodes of a taxonomy of animals. Positions in the
hyperbolic plane, the scale of the distances and the noise are latent,

    z_i ~ WrappedNormal(0, 3)    on the ball of curvature -1,
    y_ij ~ Normal(length * d(z_i, z_j), noise),

and inferring the length means inferring the curvature, ``-1 / length^2``. Distances determine positions only up to an
isometry. So the model fixes the root at the origin and another node on the positive half of the first axis, and samples
are reflected so that a third node lies above that axis.

    python examples/bayesian_tree.py
    python examples/bayesian_tree.py --inference nuts --warmup 500 --num-samples 500

Several chains run side by side in a plate. NUTS works in normal coordinates around the starting point of each node: in
those around the origin, the posterior of a node at distance r is about sinh(r)/r times narrower across its radius than
along it. What to look for: R-hat says whether the chains agree. In ``embedding.png`` the dots are draws of the nodes,
and lines join their means as in the tree. ``posterior.pt`` holds the draws; ``leaf_regions.py`` goes on from there.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from command import add_common, at_least, command, make_parser, positive
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuide, init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from runs import record, save_json, save_run
from taxonomy import Tree, taxonomy
from torch import Tensor
from torch.distributions import biject_to, constraints

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.analysis import sarkar_embedding
from pyro_hyperbolic.infer import AutoWrappedNormal

Values = dict[str, Tensor]
BALL = PoincareBall(1.0)
PRIOR_SCALE, START_STEPS, TREE_DEPTH = 3.0, 300, 6


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


def fit(guide: AutoGuide, arguments: tuple[Any, ...], steps: int) -> None:
    """Train a guide with a learning rate that falls to a hundredth."""
    pyro.clear_param_store()
    guide(*arguments)  # sets it up
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


def draw(tree: Tree, points: Tensor, path: Path) -> None:
    """Draws of all nodes ``(S, N, 2)``, and their means as a tree."""
    figure, ax = plt.subplots(figsize=(5.4, 5.4), layout="constrained")
    some = points[:: max(1, len(points) // 200)]
    plotting.embedding(some.flatten(0, 1), BALL, ax=ax, view="equidistant", s=1, alpha=0.4)
    mean = BALL.frechet_mean(points.transpose(0, 1))
    plotting.embedding(mean, BALL, edges=tree.edges[: tree.inner - 1], ax=ax, view="equidistant", s=14, color="0.2")
    plotting.save(figure, path)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(args.seed)
    began = time.perf_counter()
    tree = taxonomy(args.noise)
    arguments = (args.chains, tree.inner, tree.y[: tree.inner, : tree.inner].expand(args.chains, -1, -1))
    samples = INFERENCE[args.inference](arguments, starting_point(tree, arguments), args)
    points = in_place(positions(samples["radius"], samples["z"]))

    # What does not depend on the choice of coordinates, (S, chains, ...).
    i, j = torch.combinations(torch.arange(tree.inner)).T
    distances = samples["length"].unsqueeze(-1) * BALL.pairwise_dist(points, points)[..., i, j]
    known = torch.cat([samples["length"].unsqueeze(-1), samples["noise"].unsqueeze(-1), distances], -1)
    result: dict[str, Any] = record(args)
    for name, values in {"length": known[..., 0], "noise": known[..., 1], "c": 1 / known[..., 0].square()}.items():
        result[name] = [values.mean().item(), values.std().item()]
        print(f"{name} {values.mean():.2f} ± {values.std():.2f} (posterior standard deviation)")
    r_hat, n_eff = (f(known, chain_dim=1, sample_dim=0) for f in (split_gelman_rubin, effective_sample_size))
    result |= {"r_hat": r_hat.max().item(), "n_eff": n_eff.min().item(), "seconds": time.perf_counter() - began}
    print(f"R-hat of {len(r_hat)} values up to {r_hat.max():.2f}, n_eff at least {n_eff.min():.0f}")
    save_json(result, args.output_dir / "metrics.json")
    flat = {name: value.transpose(0, 1).flatten(0, 1) for name, value in (samples | {"points": points}).items()}
    save_run(flat | {"y": tree.y}, args.output_dir / "posterior.pt", args)
    draw(tree, flat["points"], args.output_dir / "embedding.png")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--inference", choices=sorted(INFERENCE), default="svi", help="method of inference")
    p.add_argument("--noise", type=positive(float), default=0.3, help="noise of the distances, in edges")
    p.add_argument("--chains", type=positive(int), default=4, help="number of chains, run side by side")
    p.add_argument("--warmup", type=positive(int), default=200, help="warm-up steps of NUTS")
    p.add_argument("--num-samples", type=at_least(4), default=200, help="samples per chain")
    p.add_argument("--num-steps", type=positive(int), default=1500, help="steps of SVI")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
