"""What is the curvature of my data? Infer a posterior of the curvature from noisy distances between leaves of a tree.

    python examples/curvature_of_data.py --leaves 12 --dims 2
    python examples/curvature_of_data.py --device cuda --chains 64
    python examples/curvature_of_data.py --dims 3 4 5 --warmup 300 --num-samples 500

The data are distances between the leaves of a random binary tree, measured along its edges and observed with noise. The
model places each leaf at a point of hyperbolic space and draws the curvature, the spread of the points and the noise.
``infer.sample_posterior`` finds where to begin, runs all chains at once, and says in its last line whether to believe
them. The results are its summaries, ``curvature_of_data.json`` and two pictures. What to look for in them:

* ``curvature_of_data.png``: the left panel shows the 90% interval of the curvature, one line per chain, below that of
  the prior (grey). Lines of one colour should agree and be much shorter than the prior's. The other panels show the
  chains themselves. They should look like noise, without a drift, and overlap.
* ``curvature_predicted.png``: the distances that the model predicts, as median and 90% interval, against the observed
  ones. About nine in ten of the intervals should meet the diagonal.

In five dimensions sixty leaves have one arrangement. In two they have many, which no chain leaves: the summary says so.
"""

from __future__ import annotations

import argparse
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from command import add_common, at_least, command, make_parser, positive
from curvature_parts import PRIOR, draw_curvature, draw_predicted, leaf_distances, pairs, predicted
from runs import record, save_json
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import Posterior, sample_posterior


def model(leaves: int, dim: int, observed: Tensor) -> None:
    """Curvature, spread, noise and points ``(leaves, dim)``, and the distances of all pairs."""
    i, j = pairs(leaves).to(observed.device)
    c, spread, noise = (pyro.sample(name, dist.LogNormal(*observed.new_tensor(PRIOR[name]))) for name in PRIOR)
    ball = PoincareBall(c)
    with pyro.plate("leaves", leaves):
        z = pyro.sample("z", hdist.WrappedNormal(observed.new_zeros(dim), spread.unsqueeze(-1), ball))
    with pyro.plate("pairs", len(i)):
        pyro.sample("d", dist.Normal(ball.dist(z[..., i, :], z[..., j, :]), noise), obs=observed)


def result_of(posterior: Posterior, observed: Tensor) -> dict[str, Any]:
    """What is kept of a posterior: quantiles, diagnostics, and how many distances are in their intervals."""
    low, high = predicted(posterior).quantile(torch.tensor([0.05, 0.95]), 0)
    row: dict[str, Any] = {"converged": posterior.converged, "seconds": dict(posterior.seconds)}
    row["in_90%"] = ((low <= observed) & (observed <= high)).double().mean().item()
    row["modes"] = posterior.modes
    for name, found in posterior.diagnostics().items():
        row[name] = {"r_hat": found.r_hat, "ess_bulk": found.ess_bulk, "ess_tail": found.ess_tail}
        if name in PRIOR:
            draws = posterior.samples[name].flatten().cpu()
            row[name] |= {"mean": draws.mean().item(), "std": draws.std().item()}
            row[name]["quantiles"] = draws.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
    return row


def run(args: argparse.Namespace) -> dict[str, Any]:
    if max(args.dims) >= args.leaves:
        raise ValueError(f"--dims must be less than the number of --leaves, got {max(args.dims)} and {args.leaves}.")
    torch.set_default_dtype(torch.float64)
    exact = leaf_distances(args.leaves, args.seed)
    pyro.set_rng_seed(args.seed)
    noise = args.noise * torch.randn(exact.shape).triu(1)
    i, j = pairs(args.leaves)
    observed = (exact + noise + noise.mT).clamp(min=0)[i, j]
    result, posteriors = record(args), {}
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    for dim in args.dims:
        print(f"d = {dim}", flush=True)
        posterior = sample_posterior(model, args.leaves, dim, observed.to(args.device), **settings)
        posteriors[dim] = posterior
        result[f"d={dim}"] = row = result_of(posterior, observed)
        print(posterior.summary())
        print(f"{row['in_90%']:.0%} of the observed distances are in their 90% intervals\n", flush=True)
    save_json(result, args.output_dir / "curvature_of_data.json")
    draw_curvature({dim: posterior.samples["c"].cpu() for dim, posterior in posteriors.items()}, args.output_dir)
    draw_predicted({dim: predicted(posterior) for dim, posterior in posteriors.items()}, observed, args.output_dir)
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--leaves", type=at_least(4), default=60, help="leaves of the tree")
    p.add_argument("--noise", type=positive(float), default=0.3, help="noise of the distances, in edges")
    p.add_argument("--dims", type=positive(int), nargs="+", default=[2, 5], help="dimensions of the space")
    p.add_argument("--chains", type=at_least(2), default=16, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=500, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(4), default=1000, help="samples per chain")
    add_common(p, "--seed", "--device", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
