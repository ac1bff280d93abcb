"""The S1 model of networks as a Pyro program, to be compared with samplers that are made for it, such as pybigue.

    python -m benchmarks.s1_referee data/network/30v.txt --chains 8 --warmup 130 --samples 200

Nodes without an edge cannot pass each other, since their energy has no bound where they meet. So steps are small and
trajectories have hundreds of them: the call above takes three minutes of one CPU core for 30 nodes.

Angles are uniform and expected degrees have heavy tails (Serrano, Krioukov and Boguñá, 2008). Priors are those that
``sample_bigue`` of pybigue 1.0 has (https://pypi.org/project/pybigue): a half-Cauchy of scale 2.5 for the expected
degrees, and a normal of mean 3 and standard deviation 2, above 1, for the inverse temperature beta.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from examples.command import add_common, command, input_file, make_parser, positive
from pyro_hyperbolic import Euclidean, Sphere, datasets
from pyro_hyperbolic.distributions import TruncatedNormal, WrappedNormal
from pyro_hyperbolic.infer import sample_posterior

CIRCLE = Sphere(1.0)
BETA = 3.0, 2.0  # mean and standard deviation of a normal prior, above 1
KAPPA = 2.5  # scale of a half-Cauchy prior


def log_odds(adjacency: Tensor, z: Tensor, kappa: Tensor, beta: Tensor) -> Tensor:
    r"""Of the pairs ``(..., P)``: :math:`-\beta\log\chi_{ij}`.

    :math:`\chi_{ij} = R\,\theta_{ij} / (\mu\kappa_i\kappa_j)` with
    :math:`R/\mu = N \langle k\rangle / (\beta\sin(\pi/\beta))` for ``N`` nodes of a mean degree.
    """
    first, second = _pairs(adjacency)
    apart = CIRCLE.dist(z[..., first, :], z[..., second, :])
    scale = adjacency.sum() / (beta * (math.pi / beta).sin())
    return -beta * ((scale * apart).log() - kappa[..., first].log() - kappa[..., second].log())


def model(adjacency: Tensor) -> None:
    """Angles, expected degrees and the inverse temperature, and the edges given them.

    The direction of a normal point of the plane is uniform, and no place of the circle is far away in its coordinates.
    """
    loc, scale, one, tail = adjacency.new_tensor([BETA[0] - 1, BETA[1], 1.0, KAPPA])
    beta = pyro.deterministic("beta", 1 + pyro.sample("beta_above_1", TruncatedNormal(loc, scale)))
    with pyro.plate("nodes", len(adjacency)):
        kappa = pyro.sample("kappa", dist.HalfCauchy(tail))
        u = pyro.sample("u", WrappedNormal(adjacency.new_zeros(2), one.expand(2), Euclidean()))
    z = pyro.deterministic("z", u / u.norm(dim=-1, keepdim=True), event_dim=2)
    with pyro.plate("pairs", len(adjacency) * (len(adjacency) - 1) // 2):
        pyro.sample("edges", dist.Bernoulli(logits=log_odds(adjacency, z, kappa, beta)), obs=upper(adjacency))


def upper(adjacency: Tensor) -> Tensor:
    """The values of all pairs."""
    first, second = _pairs(adjacency)
    return adjacency[first, second]


def _pairs(adjacency: Tensor) -> Tensor:
    return torch.triu_indices(len(adjacency), len(adjacency), 1, device=adjacency.device)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Sample, and print means and standard deviations over all draws."""
    adjacency = datasets.network(args.edges).adjacency(torch.float64).to(args.device)
    options = {"num_chains": args.chains, "num_samples": args.samples, "warmup": args.warmup, "seed": args.seed}
    posterior = sample_posterior(model, adjacency, progress=False, **options)
    beta, kappa, z = (posterior.samples[name] for name in ("beta", "kappa", "z"))
    odds = log_odds(adjacency, z, kappa, beta.unsqueeze(-1))
    fit = dist.Bernoulli(logits=odds).log_prob(upper(adjacency)).sum(-1)
    found: dict[str, Any] = {}
    for name, value in (("beta", beta), ("log-likelihood", fit)):
        found[name] = value.mean().item(), value.std().item()
        print(
            f"{name}: {found[name][0]:.2f} (sd {found[name][1]:.2f}); by chain {value.mean(1).cpu().numpy().round(2)}"
        )
    print(posterior)
    return found | {"converged": posterior.converged, "seconds": sum(posterior.seconds.values())}


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = make_parser(__doc__, "python -m benchmarks.s1_referee")
    p.add_argument("edges", type=input_file, help="a list of edges")
    p.add_argument("--chains", type=positive(int), default=16, help="how many chains")
    p.add_argument("--samples", type=positive(int), default=2000, help="draws of each chain")
    p.add_argument("--warmup", type=positive(int), default=1000, help="trajectories of each chain before that")
    p.add_argument("--seed", type=int, default=0, help="of all random numbers")
    add_common(p, "--device")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
