"""Embed a branching diffusion in the Poincaré disc (the paper's Section 5.1).

The data are noisy observations of the nodes of a tree along which a 50-dimensional point diffuses. An auto-encoder
whose latents are points of the disc does not see the tree. Where does it put the nodes?

    z ~ WrappedNormal(0, 1.7),    x ~ Normal(decoder(z), 1)

    python examples/branching_diffusion.py
    python examples/branching_diffusion.py --curvature 0.3 --num-epochs 1000

What to look for: in ``embedding.png``, lines join the nodes as in the tree, and the black dot is the root. The fewer
lines cross, the better the model has found the tree. ``python -m experiments.branching_diffusion`` compares it with a
Euclidean auto-encoder, principal components and a Gaussian process latent variable model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from command import add_common, command, make_parser, natural, positive
from pyro.infer import SVI, Trace_ELBO
from runs import record, save_json
from torch import Tensor, nn
from torch.nn.functional import relu, softplus
from tqdm.auto import tqdm

from pyro_hyperbolic import PoincareBall, datasets, plotting
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import log_marginal_likelihood
from pyro_hyperbolic.models.latent import within_reach
from pyro_hyperbolic.nn import GyroplaneLinear, exp0


class VAE(nn.Module):
    """The networks, and both programs."""

    def __init__(self, ball: PoincareBall, data_dim: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.ball, self.prior_scale = ball, args.prior_scale
        self.hidden = nn.Linear(data_dim, args.hidden_dim)
        self.loc, self.scale = nn.Linear(args.hidden_dim, 2), nn.Linear(args.hidden_dim, 1)
        self.embed = GyroplaneLinear(2, args.hidden_dim, ball)  # distances of a point to geodesics
        self.output = nn.Linear(args.hidden_dim, data_dim)

    def encode(self, x: Tensor) -> WrappedNormal:
        hidden = relu(self.hidden(x))
        loc, scale = within_reach(self.loc(hidden), softplus(self.scale(hidden)), self.ball, WrappedNormal)
        return WrappedNormal(exp0(self.ball, loc), scale, self.ball)

    def model(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", WrappedNormal(self.ball.origin(2), self.prior_scale, self.ball))
            pyro.sample("x", dist.Normal(self.output(relu(self.embed(z))), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.encode(x))


@torch.no_grad()
def draw(vae: VAE, data: datasets.BranchingDiffusion, path: Path) -> None:
    """The posterior means of observations (dots) and of the nodes, with the edges of the tree."""
    figure, ax = plt.subplots(figsize=(4.6, 4.6), layout="constrained")
    nodes, children = vae.encode(data.nodes).mean, torch.arange(1, len(data.nodes))
    plotting.embedding(vae.encode(data.train).mean, vae.ball, ax=ax, s=4, alpha=0.4, color="0.6")
    plotting.geodesic(nodes[data.parents[1:]], nodes[children], vae.ball, ax, color="#3f90da", linewidth=0.9)
    plotting.embedding(nodes, vae.ball, ax=ax, marker="x", color="0.1", s=8)
    plotting.embedding(nodes[:1], vae.ball, ax=ax, color="0.1", s=24)
    plotting.save(figure, path)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    data = datasets.branching_diffusion(depth=args.depth, seed=args.seed)
    print(f"{len(data.nodes)} nodes, {len(data.train)} observations for training and {len(data.test)} for the test")
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = VAE(PoincareBall(args.curvature), data.train.shape[1], args)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    history = []
    for epoch in tqdm(range(1, args.num_epochs + 1), leave=False, unit="epoch", disable=None):
        order = torch.randperm(len(data.train))
        history.append(sum(svi.step(data.train[rows]) for rows in order.split(args.batch_size)) / len(order))
        if epoch % max(1, args.num_epochs // 10) == 0:
            tqdm.write(f"epoch {epoch}/{args.num_epochs}: loss {history[-1]:.2f} nats per observation")
    result: dict[str, Any] = record(args) | {"train_loss": history}
    if args.iwae_samples:
        estimates = log_marginal_likelihood(vae.model, vae.guide, data.test, num_samples=args.iwae_samples)
        result["negative_iwae"] = -estimates.mean().item()
        print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
    save_json(result, args.output_dir / "metrics.json")
    draw(vae, data, args.output_dir / "embedding.png")
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--curvature", type=positive(float), default=1.2, help="c; the curvature is -c (paper: 0.1 to 1.2)")
    p.add_argument("--prior-scale", type=positive(float), default=1.7, help="scale of the prior (paper: 1 and 1.7)")
    p.add_argument("--hidden-dim", type=positive(int), default=200, help="width of the hidden layers (paper: 200)")
    p.add_argument("--depth", type=positive(int), default=6, help="generations of the tree below its root (paper: 6)")
    p.add_argument("--num-epochs", type=positive(int), default=500, help="passes over the data (paper: 1000)")
    p.add_argument("--batch-size", type=positive(int), default=64, help="observations per step (paper: 64)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="learning rate of Adam (paper: 1e-3)")
    p.add_argument("--iwae-samples", type=natural, default=500, help="samples per estimate; 0 for none (paper: 5000)")
    add_common(p, "--seed", "--threads", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
