"""Where in a tree is a node of which we know little? A Bayesian embedding with calibrated uncertainty.

The data are noisy distances between the nodes of a tree: all those between reference nodes, but only a few of each
held-out node. Positions in the hyperbolic plane, the scale of its distances and the noise are latent. What is inferred
about a held-out node is a region, not a point:

    z_i ~ WrappedNormal(0, prior_scale)    on the ball of curvature -1,
    y_ij ~ Normal(length * d(z_i, z_j), noise).

Distances times ``length`` on this ball are those on the ball of curvature ``-1 / length^2``: to infer the length is to
infer the curvature.

**The gauge.** Distances determine positions up to an isometry of the plane. The root is put at the origin and one
node on the positive half of the first axis (its radius has the Rayleigh law that the prior implies), and samples are
reflected so that a third node lies above that axis.

**Inference.** NUTS or SVI embeds the reference nodes. Given draws of these, a held-out node is placed by importance
sampling, which finds all the places where it may be (``tree_parts/placing.py``). All folds and chains are one Pyro
program with a plate over them: their posterior is a product, and one step of NUTS moves them all. It walks in normal
coordinates around the starting point of each node: in those around the origin the law of a node at distance r
would be about sinh(r)/r times narrower across its radius than along it.

**Calibration.** Each leaf is held out in one of several folds. For every distance of it that was not observed the
program notes the level of the smallest central interval of its predictive law that contains the truth: if 80% of
the truths are in the 80% intervals, and so on, the uncertainty is right. A tree fits into the plane up to some
distortion only, so that this tests the model too. ``--data prior`` draws positions and distances from the model
itself: the true positions are then known, credible regions of the position are tested as well, and only the
inference can fail.

    python examples/bayesian_tree.py
    python examples/bayesian_tree.py --inference nuts --warmup 1000 --num-samples 1000
    python examples/bayesian_tree.py --data balanced --branching 2 --height 4
    python examples/bayesian_tree.py --data prior --replicas 30 --num-nodes 12
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuide, init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor
from torch.distributions import biject_to, constraints
from tqdm.auto import tqdm, trange
from tree_parts.calibration import LEVELS, coverage, distance_levels, position_level
from tree_parts.data import BALL, DOUBLE, Data, balanced, reflected, split, taxonomy
from tree_parts.pictures import draw_calibration, draw_embedding, explore
from tree_parts.placing import place

import pyro_hyperbolic
import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic.commands import natural, positive
from pyro_hyperbolic.infer import AutoWrappedNormal, save_json

Values = dict[str, Tensor]
LENGTH = dist.LogNormal(torch.tensor(math.log(0.6), **DOUBLE), 0.4)
NOISE = dist.LogNormal(torch.tensor(math.log(0.3), **DOUBLE), 0.5)
NOTE_EVERY = 50  # steps of NUTS


def model(fits: int, number: int, prior_scale: float, y: Tensor | None = None) -> Tensor:
    """Positions ``(fits, number, 2)`` and their noisy distances, for independent fits side by side."""
    with pyro.plate("fits", fits):
        length, noise = pyro.sample("length", LENGTH), pyro.sample("noise", NOISE)
        # The distance to the origin of a wrapped normal in two dimensions: Rayleigh's law.
        radius = pyro.sample("radius", dist.Weibull(torch.tensor(math.sqrt(2) * prior_scale, **DOUBLE), 2.0))
        others = hdist.WrappedNormal(torch.zeros(number - 2, 2, **DOUBLE), prior_scale, BALL)
        points = positions(radius, pyro.sample("z", others.to_event(1)))
        mean = length[..., None, None] * BALL.pairwise_dist(points, points)
        once = torch.ones(number, number).triu(1).bool()
        pyro.sample("y", dist.Normal(mean, noise[..., None, None]).mask(once).to_event(2), obs=y)
    return points


def positions(radius: Tensor, z: Tensor) -> Tensor:
    """All points ``(..., N, 2)``: the root, the node on the axis, and the others."""
    axis = torch.stack([radius, torch.zeros_like(radius)], -1)
    fixed = BALL.from_normal_coords(None, torch.stack([torch.zeros_like(axis), axis], -2))
    return torch.cat([fixed, z], -2)


def prior(args: argparse.Namespace) -> Data:
    """Positions and distances drawn from the model; a chain starts at the true reference points."""
    nodes = pyro.poutine.trace(model).get_trace(args.replicas, args.num_nodes, args.prior_scale).nodes
    truth, y = reflected(nodes["_RETURN"]["value"]), nodes["y"]["value"].triu(1)
    held_out = torch.arange(args.num_nodes - args.held_out, args.num_nodes).expand(args.replicas, -1)
    names = [str(node) for node in range(args.num_nodes)]
    return split(y + y.mT, held_out, truth, names, torch.empty(0, 2, dtype=torch.long), args.observed, truth)


DATA: dict[str, Callable[[argparse.Namespace], Data]] = {"balanced": balanced, "prior": prior, "taxonomy": taxonomy}


def starting_point(data: Data, arguments: tuple[Any, ...], args: argparse.Namespace) -> Values:
    """Latents near a mode, and for every chain of each fold a little beside it."""
    distances = BALL.pairwise_dist(data.start, data.start)
    # Least squares.
    length = (data.among_reference() * distances).sum((1, 2)) / distances.square().sum((1, 2))
    start = {"length": length, "noise": NOISE.mean.expand(len(length))}
    start |= {"radius": BALL.dist0(data.start[:, 1]), "z": data.start[:, 2:]}
    start = {name: value.repeat_interleave(args.chains, 0) for name, value in start.items()}
    start["z"] = hdist.WrappedNormal(start["z"], 0.2, BALL).sample()
    guide = AutoDelta(model, init_loc_fn=init_to_value(values=start))
    fit(guide, arguments, args.start_steps, "start")
    with torch.no_grad():
        return guide(*arguments)


def fit(guide: AutoGuide, arguments: tuple[Any, ...], steps: int, title: str) -> None:
    """Train a guide with a learning rate that falls to a hundredth."""
    pyro.clear_param_store()
    guide(*arguments)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.01 ** (1 / max(steps, 1))})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in trange(steps, desc=title, leave=False, disable=None):
        svi.step(*arguments)


def nuts(arguments: tuple[Any, ...], start: Values, args: argparse.Namespace) -> tuple[Values, dict[str, Any]]:
    """Samples ``(S, folds * chains, ...)`` and how NUTS fared."""
    transforms: dict[str, Any] = dict.fromkeys(("length", "noise", "radius"), biject_to(constraints.positive).inv)
    transforms["z"] = hdist.ExpMapTransform(BALL, start["z"]).inv
    kernel = NUTS(
        model, init_strategy=init_to_value(values=start), transforms=transforms, max_tree_depth=args.max_tree_depth
    )
    # A progress bar for a terminal, lines for a file.
    quiet = not sys.stderr.isatty()

    def note(_kernel: NUTS, _values: Values, stage: str, step: int) -> None:
        if quiet and (step + 1) % NOTE_EVERY == 0:
            print(f"{stage.lower()} {step + 1}: step size {kernel.step_size:.3f}", flush=True)

    chain = MCMC(kernel, args.num_samples, warmup_steps=args.warmup, disable_progbar=quiet, hook_fn=note)
    with pyro.validation_enabled(False):  # which would check every step
        chain.run(*arguments)
    divergences = len(chain.diagnostics()["divergences"]["chain 0"])
    return chain.get_samples(), {"divergences": divergences, "step_size": float(kernel.step_size)}


def svi(arguments: tuple[Any, ...], start: Values, args: argparse.Namespace) -> tuple[Values, dict[str, Any]]:
    """Samples of a guide of independent wrapped normals; a chain is a fit of it."""
    guide = AutoWrappedNormal(model, init_loc_fn=init_to_value(values=start), init_scale=0.1)
    fit(guide, arguments, args.num_steps, "svi")
    with torch.no_grad():
        draws = [guide(*arguments) for _ in range(args.num_samples)]
        loss = Trace_ELBO(num_particles=20).loss(model, guide, *arguments)
    return {name: torch.stack([draw[name] for draw in draws]) for name in start}, {"loss": loss}


INFERENCE: dict[str, Callable[..., tuple[Values, dict[str, Any]]]] = {"nuts": nuts, "svi": svi}


def summarise(points: Tensor, samples: Values) -> dict[str, Any]:
    """Posterior means and deviations, and how the chains agree on what does not depend on the gauge."""
    length, noise = samples["length"], samples["noise"]
    result: dict[str, Any] = {
        name: [values.mean().item(), values.std().item()]
        for name, values in (("length", length), ("noise", noise), ("curvature", -1 / length.square()))
    }
    first, second = torch.triu_indices(points.shape[-2], points.shape[-2], 1)
    distances = length[..., None] * BALL.pairwise_dist(points, points)[..., first, second]
    curves = torch.cat([length, noise, distances.flatten(2)], -1)
    if len(curves) > 1:
        r_hat = split_gelman_rubin(curves, chain_dim=0, sample_dim=1)
        size = effective_sample_size(curves, chain_dim=0, sample_dim=1)
        result["r_hat"] = {"worst": r_hat.max().item(), "99%": r_hat.quantile(0.99).item(), "count": len(r_hat)}
        result["effective_samples"] = {"least": size.min().item(), "1%": size.quantile(0.01).item()}
    return result


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.output_dir is None:
        args.output_dir = Path("outputs") / f"bayesian_tree-{datetime.now():%Y%m%d-%H%M%S}"
    pyro.set_rng_seed(args.seed)
    data = DATA[args.data](args)
    folds, held_out = data.held_out.shape
    size = f"{data.reference.shape[1]} reference and {held_out} held-out nodes in each of {folds} folds"
    print(f"{args.data}: {size}; results in {args.output_dir}", flush=True)
    began = time.perf_counter()
    y = data.among_reference().repeat_interleave(args.chains, 0)
    arguments = (len(y), y.shape[-1], args.prior_scale, y)
    flat, fared = INFERENCE[args.inference](arguments, starting_point(data, arguments, args), args)
    # Chains first, then samples, then folds.
    samples = {name: value.unflatten(1, (folds, -1)).movedim(2, 0) for name, value in flat.items()}
    points = reflected(positions(samples["radius"], samples["z"]))

    placed = {}
    for fold, node in tqdm([*itertools.product(range(folds), range(held_out))], "placing", leave=False, disable=None):
        placed[fold, node] = place(data, fold, node, samples, points, args.prior_scale)
    levels = {"distances": torch.stack([distance_levels(data, *key, value) for key, value in placed.items()])}
    if data.truth is not None:
        truth = data.truth[torch.arange(folds)[:, None], data.held_out]
        levels["positions"] = torch.stack([position_level(value, truth[key]) for key, value in placed.items()])

    versions = {module.__name__: str(module.__version__) for module in (pyro_hyperbolic, torch, pyro)}
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    result: dict[str, Any] = {"options": options, "versions": versions, "python": sys.version.split()[0]}
    result |= {"posterior": summarise(points, samples), args.inference: fared}
    result["effective_placings"] = min(value.effective for value in placed.values())
    result["coverage"] = {name: coverage(value) for name, value in levels.items()}
    result["seconds"] = time.perf_counter() - began
    save_json(result, args.output_dir / "metrics.json")
    fold = points[:, :, 0].flatten(0, 1), [placed[0, i].z for i in range(held_out)]
    draw_embedding(data, *fold, args.output_dir)
    page = explore(data, *fold, args.output_dir / "latent.html")
    draw_calibration(levels, args.output_dir)
    report(result)
    print(f"open {page.path} in a browser to move through the first fold")
    return result


def report(result: dict[str, Any]) -> None:
    posterior = result["posterior"]
    means = ", ".join(f"{name} {posterior[name][0]:.2f} ± {posterior[name][1]:.2f}" for name in ("length", "noise"))
    print(f"{means} (all folds together); {result['seconds']:.0f} s")
    if "r_hat" in posterior:
        worst, least = posterior["r_hat"]["worst"], posterior["effective_samples"]["least"]
        count = posterior["r_hat"]["count"]
        print(f"R-hat of {count} values up to {worst:.3f}, effective samples at least {least:.0f}")
    for name, row in result["coverage"].items():
        shares = ", ".join(f"{level}: {100 * row[level][0]:.0f} ± {100 * row[level][1]:.0f}%" for level in LEVELS)
        print(f"{row['count']} {name} of {row['nodes']} held-out nodes in their credible regions, {shares}")


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--data", choices=sorted(DATA), default="taxonomy", help="a tree, or what the model itself draws")
    p.add_argument("--inference", choices=sorted(INFERENCE), default="svi", help="for the reference nodes")
    p.add_argument("--held-out", type=positive(int), default=3, help="nodes per fold")
    p.add_argument("--observed", type=positive(int), default=3, help="observed distances of a held-out node")
    p.add_argument("--noise", type=positive(float), default=0.3, help="of the distances in a tree, in edges")
    p.add_argument("--prior-scale", type=positive(float), default=3.0, help="of the positions, in radii of curvature")
    p.add_argument("--branching", type=positive(int), default=2, help="of the balanced tree")
    p.add_argument("--height", type=positive(int), default=4, help="of the balanced tree")
    p.add_argument("--num-nodes", type=positive(int), default=12, help="of a draw of the model")
    p.add_argument("--replicas", type=positive(int), default=30, help="draws of the model")
    p.add_argument("--chains", type=positive(int), default=4, help="per fold, side by side")
    p.add_argument("--warmup", type=positive(int), default=200, help="steps of NUTS before the samples")
    p.add_argument("--num-samples", type=positive(int), default=200, help="per chain")
    p.add_argument("--max-tree-depth", type=positive(int), default=6, help="of NUTS")
    p.add_argument("--start-steps", type=natural, default=800, help="towards a mode, before the chains")
    p.add_argument("--num-steps", type=positive(int), default=2000, help="of SVI")
    p.add_argument("--seed", type=natural, default=0, help="of the data and of everything else random")
    p.add_argument("--output-dir", type=Path, default=None, help="of the results; by default new, in outputs/")
    p.add_argument("--threads", type=positive(int), default=None, help="CPU threads; torch's choice by default")
    return p


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(arguments)
    if args.data == "prior" and args.held_out > args.num_nodes - 3:
        p.error("--held-out must leave three of the --num-nodes as reference nodes, which fix the gauge")
    if args.data == "balanced" and (args.branching < 2 or args.height < 2):
        p.error("--branching and --height must be at least 2: inner nodes beside the root fix the gauge")
    if args.num_samples < 4:
        p.error("--num-samples must be at least 4, without which there is no R-hat")
    return args


if __name__ == "__main__":
    try:
        main(parse())
    except ValueError as error:
        sys.exit(f"bayesian_tree.py: error: {error}")
