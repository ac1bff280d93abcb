"""Embed single cells by their gene counts: a negative binomial auto-encoder with a hyperbolic latent space.

Blood cells develop along a tree, and hyperbolic space has room for one. The model of the counts of a cell is

    z ~ WrappedNormal(0, 1),    x_g ~ NegativeBinomial(mean = size * softmax(f(z))_g, dispersion r_g),

where the size is the total count of the cell. The cells are 2,660 myeloid progenitors of the mouse (Paul et al., 2015),
which come with the package.

    python examples/single_cell.py
    python examples/single_cell.py --space h5 --num-epochs 200

What to look for in ``disc.png``, drawn for two dimensions: each dot is the posterior mean of a cell. Cells of one type
form an arm of the disc, with early types where the arms meet. On the right, colours are the distance from a root cell
in the middle of the multipotent progenitors, the pseudotime. They run outwards along the arms.

For your own cells, with batches, size factors and ``AnnData``, use :class:`pyro_hyperbolic.models.CountVAE`, which is
this model with more options. ``python -m experiments.single_cell`` scores it against Euclidean and nearly flat latents.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyro
import torch
from command import add_common, command, make_parser, positive
from pyro.infer import SVI, Trace_ELBO
from runs import record, save_json
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from pyro_hyperbolic import Lorentz, PoincareBall, datasets, geometry, plotting
from pyro_hyperbolic.analysis import pseudotime
from pyro_hyperbolic.distributions import NegativeBinomial, WrappedNormal
from pyro_hyperbolic.infer import Minibatches, log_marginal_likelihood
from pyro_hyperbolic.models.latent import within_reach
from pyro_hyperbolic.nn import GyroplaneLinear, exp0

ROOT = "Multipotent progenitors"


class CellModel(nn.Module):
    """The networks, and both programs.

    :param shares: of the genes in all counts ``(genes,)``, where the decoder starts.
    """

    def __init__(self, space: geometry.Manifold, dim: int, shares: Tensor, hidden_dim: int) -> None:
        super().__init__()
        self.space, self.dim, genes = space, dim, len(shares)
        self.hidden = nn.Linear(genes, hidden_dim)
        self.loc, self.scale = nn.Linear(hidden_dim, dim), nn.Linear(hidden_dim, 1)
        self.embed = GyroplaneLinear(dim, hidden_dim, space)  # distances of a point to hyperplanes
        self.output = nn.Linear(hidden_dim, genes)
        self.output.bias = nn.Parameter(shares.log())
        self.log_r = nn.Parameter(torch.zeros(genes))

    def encode(self, x: Tensor) -> WrappedNormal:
        shares = x / x.sum(-1, keepdim=True)
        hidden = relu(self.hidden(torch.log1p(1e3 * shares)))
        loc, scale = within_reach(self.loc(hidden), softplus(self.scale(hidden)), self.space, WrappedNormal)
        return WrappedNormal(exp0(self.space, loc), scale, self.space)

    def model(self, x: Tensor) -> None:
        pyro.module("cells", self)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", WrappedNormal(self.space.origin(self.dim), 1.0, self.space))
            log_share = self.output(relu(self.embed(z))).log_softmax(-1)
            log_mean = x.sum(-1, keepdim=True).log() + log_share
            pyro.sample("x", NegativeBinomial(log_mean, self.log_r).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("cells", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.encode(x))


def draw(z: Tensor, space: Any, panels: dict[str, Any], args: argparse.Namespace) -> None:
    """A disc for each of the panels: labels or numbers of the cells."""
    ball = PoincareBall(args.curvature)
    z = space.to_poincare(z) if isinstance(space, Lorentz) else z
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.8), layout="constrained")
    order = torch.randperm(len(z))  # no type lies on top of all others
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        plotting.embedding(z[order], ball, labels=values[order], ax=ax, s=4, alpha=0.8)
        ax.set_title(title, fontsize="medium")
    plotting.save(figure, args.output_dir / "disc.png")
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    if "," in args.space or args.space[0] not in "ph":
        raise ValueError(f"--space must be a ball or a hyperboloid such as p2 or h5, got {args.space}.")
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    cells, start = datasets.paul15(), time.perf_counter()
    order = torch.randperm(len(cells.counts))
    train, test = cells.counts[order[500:]].float(), cells.counts[order[:500]].float()
    space, dim = geometry.from_signature(args.space, c=args.curvature), geometry.signature_dim(args.space)
    vae = CellModel(space, dim, train.sum(0) / train.sum(), args.hidden_dim)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    batches = Minibatches(train, args.batch_size, seed=args.seed)
    history = []
    for epoch in range(1, args.num_epochs + 1):
        history.append(sum(svi.step(batch) for batch in batches.epoch(epoch)) / len(train))
        if epoch % max(1, args.num_epochs // 5) == 0:
            print(f"epoch {epoch}/{args.num_epochs}: loss {history[-1]:.2f} nats per cell", flush=True)
    bound = log_marginal_likelihood(vae.model, vae.guide, test, num_samples=args.iwae_samples).mean().item()
    result = record(args) | {"loss": history, "iwae": bound, "seconds": time.perf_counter() - start}
    print(f"IWAE-{args.iwae_samples} of {len(test)} test cells: {bound:.2f} nats each; results in {args.output_dir}")
    save_json(result, args.output_dir / "metrics.json")
    with torch.no_grad():
        z = vae.encode(cells.counts.float()).mean
    roots = (cells.types == cells.type_names.index(ROOT)).nonzero().flatten()
    types, times = np.array(cells.type_names)[cells.types.numpy()], pseudotime(z, roots, space)
    np.savez_compressed(args.output_dir / "embedding.npz", z=z.numpy(), types=types, pseudotime=times.numpy())
    if dim == 2:
        draw(z, space, {"type": types, "pseudotime": times.numpy()}, args)
    plotting.explore(z, space, args.output_dir / "latent.html", labels=types, title="Single cells")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    add_common(p, "--space")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c; the curvature is -c")
    p.add_argument("--hidden-dim", type=positive(int), default=128, help="width of the hidden layers")
    p.add_argument("--num-epochs", type=positive(int), default=80, help="passes over the training cells")
    p.add_argument("--batch-size", type=positive(int), default=128, help="cells per step")
    p.add_argument("--learning-rate", type=positive(float), default=2e-3, help="learning rate of Adam")
    p.add_argument("--iwae-samples", type=positive(int), default=100, help="samples of the log-likelihood estimate")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
