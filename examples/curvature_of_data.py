"""What is the curvature of my data? Infer a posterior of the curvature from noisy distances between leaves of a tree.

    python examples/curvature_of_data.py
    python examples/curvature_of_data.py --dims 2 --warmup 500 --num-samples 500 --max-tree-depth 8
    python examples/curvature_of_data.py --leaves 16 --chains 2

The data are distances between the leaves of a random binary tree, measured along its edges and observed with noise. The
model places each leaf at a point of hyperbolic space and draws the curvature, the spread of the points and the noise.
Inference starts from hyperbolic multidimensional scaling at several curvatures and continues with SVI. NUTS then
samples from the best of these fits, with several chains side by side. The results are a table with diagnostics,
``curvature_of_data.json`` and two pictures. What to look for in them:

* ``curvature_of_data.png``: the left panel shows the 90% interval of the curvature, one line per chain, below that of
  the prior (grey). Lines of one colour should agree and be much shorter than the prior's. The right panel shows the
  chains themselves. They should look like noise, without a drift, and overlap.
* ``curvature_predicted.png``: the distances that the model predicts, as median and 90% interval, against the observed
  ones. About nine in ten of the intervals should meet the diagonal.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from command import add_common, at_least, command, make_parser, positive
from curvature_parts import PRIOR, draw_curvature, draw_predicted, leaf_distances, pairs, predicted
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from runs import record, save_json
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.analysis import hyperbolic_mds
from pyro_hyperbolic.infer import with_drawn_curvature

Values = dict[str, Tensor]
STARTS = (0.02, 0.05, 0.1, 0.2)  # curvatures to start from


@with_drawn_curvature
def model(chains: int, leaves: int, dim: int, observed: Tensor | None = None) -> None:
    """Copies of one posterior, side by side: each has its own curvature, spread, noise and points."""
    i, j = pairs(leaves)
    with pyro.plate("chains", chains, dim=-2):
        c, spread, noise = (pyro.sample(name, dist.LogNormal(*PRIOR[name])) for name in PRIOR)
        ball = PoincareBall(c)
        with pyro.plate("leaves", leaves, dim=-1):
            z = pyro.sample("z", hdist.WrappedNormal(torch.zeros(dim), spread.unsqueeze(-1), ball))
        with pyro.plate("pairs", len(i), dim=-1):
            pyro.sample("d", dist.Normal(ball.dist(z[..., i, :], z[..., j, :]), noise), obs=observed)


def start(distances: Tensor, dim: int) -> Values:
    """Points by scaling in several curvatures, and what goes with them, side by side."""
    spaces = [PoincareBall(c) for c in STARTS]
    points = [hyperbolic_mds(distances, dim, space) for space in spaces]
    spread = [space.dist0(z).square().mean().div(dim).sqrt() for space, z in zip(spaces, points, strict=True)]
    return {
        "c": torch.tensor(STARTS).unsqueeze(-1),
        "z": torch.stack(points),
        "spread": torch.stack(spread).unsqueeze(-1),
        "noise": torch.ones(len(STARTS), 1),
    }


def fit(distances: Tensor, dim: int, args: argparse.Namespace) -> Values:
    """Draws of a mean-field guide, one for each chain, from the best of the starts."""
    i, j = pairs(len(distances))
    values = start(distances, dim)
    arguments = (len(STARTS), len(distances), dim, distances[i, j])
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values), init_scale=0.02)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.02 ** (1 / args.num_steps)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(args.num_steps):
        svi.step(*arguments)
    with torch.no_grad():
        middle = guide.median(*arguments)
        draws = [guide(*arguments) for _ in range(args.chains)]
    misfit = (predicted(middle)[0] - distances[i, j]).square().mean(-1).sqrt()
    best = int(misfit.argmin())
    for c, begin, error in zip(middle["c"].squeeze(-1), STARTS, misfit, strict=True):
        print(f"  SVI from c = {begin:g}: c = {c:.2f}, distances off by {error:.2f}", flush=True)
    return {name: torch.stack([draw[name][best] for draw in draws]) for name in middle}


def sample(begin: Values, arguments: tuple[Any, ...], args: argparse.Namespace) -> tuple[Values, int]:
    """Samples as ``(chains, samples, ...)`` and the number of divergences."""
    kernel = NUTS(model, max_tree_depth=args.max_tree_depth, init_strategy=init_to_value(values=begin))
    mcmc = MCMC(kernel, num_samples=args.num_samples, warmup_steps=args.warmup, disable_progbar=True)
    mcmc.run(*arguments)
    samples = {name: value.transpose(0, 1) for name, value in mcmc.get_samples().items()}
    return samples, sum(map(len, mcmc.diagnostics()["divergences"].values()))


def health(samples: Values, distances: Tensor) -> dict[str, Any]:
    """R-hat and effective samples of what is reported, and of the distances of all pairs."""
    rows = {name: samples[name].squeeze(-1).log() for name in PRIOR}
    result: dict[str, Any] = {}
    for name, values in rows.items():
        low, middle, high = values.flatten().exp().quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
        result[name] = {
            "quantiles": [low, middle, high],
            "r_hat": split_gelman_rubin(values).item(),
            "n_eff": effective_sample_size(values).item(),
        }
    d, replicated = predicted(samples)
    i, j = pairs(len(distances))
    observed = distances[i, j]
    low, high = replicated.flatten(0, 1).quantile(torch.tensor([0.05, 0.95]), 0)
    result["distances"] = {
        "r_hat": split_gelman_rubin(d).max().item(),
        "n_eff": effective_sample_size(d).min().item(),
        "in_90%": ((low <= observed) & (observed <= high)).double().mean().item(),
    }
    return result


def run(args: argparse.Namespace) -> dict[str, Any]:
    if max(args.dims) >= args.leaves:
        raise ValueError(f"--dims must be less than the number of --leaves, got {max(args.dims)} and {args.leaves}.")
    torch.set_default_dtype(torch.float64)
    exact = leaf_distances(args.leaves, args.seed)
    pyro.set_rng_seed(args.seed)
    noise = args.noise * torch.randn(exact.shape).triu(1)
    distances = (exact + noise + noise.mT).clamp(min=0)
    i, j = pairs(args.leaves)
    result, posteriors = record(args), {}
    for dim in args.dims:
        began = time.perf_counter()
        print(f"d = {dim}", flush=True)
        arguments = (args.chains, args.leaves, dim, distances[i, j])
        pyro.clear_param_store()
        samples, divergences = sample(fit(distances, dim, args), arguments, args)
        row = health(samples, distances)
        row |= {"divergences": divergences, "seconds": time.perf_counter() - began}
        row["samples of c"] = samples["c"].squeeze(-1).tolist()
        posteriors[dim] = samples
        result[f"d={dim}"] = row
        for name in PRIOR:
            low, middle, high = row[name]["quantiles"]
            marks = f"R-hat {row[name]['r_hat']:.2f}, n_eff {row[name]['n_eff']:.0f}"
            print(f"  {name:7} {middle:.3f} ({low:.3f} to {high:.3f}), {marks}")
        marks = f"R-hat up to {row['distances']['r_hat']:.2f}, n_eff from {row['distances']['n_eff']:.0f}"
        print(f"  distances: {100 * row['distances']['in_90%']:.0f}% in their 90% intervals, {marks}")
        print(f"  {divergences} divergences, {row['seconds']:.0f} s", flush=True)
    save_json(result, args.output_dir / "curvature_of_data.json")
    draw_curvature({dim: samples["c"].squeeze(-1) for dim, samples in posteriors.items()}, args.output_dir)
    draw_predicted(posteriors, distances, args.output_dir)
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--leaves", type=at_least(4), default=60, help="leaves of the tree")
    p.add_argument("--noise", type=positive(float), default=0.3, help="noise of the distances, in edges")
    p.add_argument("--dims", type=positive(int), nargs="+", default=[2, 5], help="dimensions of the space")
    p.add_argument("--num-steps", type=positive(int), default=800, help="steps of SVI")
    p.add_argument("--chains", type=positive(int), default=4, help="number of chains, run side by side")
    p.add_argument("--warmup", type=positive(int), default=100, help="warm-up steps of NUTS")
    p.add_argument("--num-samples", type=at_least(4), default=100, help="samples per chain")
    p.add_argument("--max-tree-depth", type=positive(int), default=5, help="maximum tree depth of NUTS")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
