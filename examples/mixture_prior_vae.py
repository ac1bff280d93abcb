"""An auto-encoder of MNIST whose prior is a mixture, with the components summed out by enumeration.

In ``mnist_svi.py`` the prior of the latents is a single normal. Here it is a mixture of several in the Poincaré ball,
with learned centres, scales and weights,

    k ~ Categorical(weights),    z ~ WrappedNormal(centre[k], scale[k]),    x ~ Bernoulli(decoder(z)),

and the guide is the encoder q(z | x). The site ``component`` is discrete and appears only in the model.
``TraceEnum_ELBO`` sums over its values in parallel, and so does the estimate of the marginal likelihood.

    python examples/mixture_prior_vae.py
    python examples/mixture_prior_vae.py --components 20 --latent-dim 5 --num-epochs 40

Components that start in one place would all learn the same. So they start at draws of the usual prior, with equal
weights. What to look for: ``latent.png``, drawn for two dimensions, shows test digits with a circle around half of each
component. The thicker the line, the greater the weight. ``components.png`` has a row of draws for each component,
sorted by weight. The clearer the digits of a row, the more the component belongs to one class. ``python -m
experiments.mixture_prior`` compares this prior with a single normal.
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
from command import add_common, command, make_parser, natural, positive
from pyro.infer import TraceEnum_ELBO
from runs import record, save_json
from torch import Tensor, nn
from torch.nn.functional import relu, softplus
from tqdm.auto import tqdm

from pyro_hyperbolic import PoincareBall, datasets, infer, plotting
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.models.latent import within_reach
from pyro_hyperbolic.nn import GyroplaneLinear, exp0

SCALE = 0.5  # of a component at the start
SHOWN, PER_COMPONENT = 4000, 12  # test images in the picture of the latent space; draws of a component


class MixtureVAE(nn.Module):
    """The networks, the prior and both programs."""

    def __init__(self, ball: PoincareBall, dim: int, components: int, hidden_dim: int) -> None:
        super().__init__()
        self.ball = ball
        # exp0 of half a standard normal is a draw of the wrapped normal at the origin with scale 1.
        self.centres = nn.Parameter(torch.randn(components, dim) / 2)
        self.log_scales = nn.Parameter(torch.full((components, 1), math.log(SCALE)))
        self.logits = nn.Parameter(torch.zeros(components))
        self.hidden = nn.Linear(28 * 28, hidden_dim)
        self.loc, self.scale = nn.Linear(hidden_dim, dim), nn.Linear(hidden_dim, 1)
        self.embed, self.output = GyroplaneLinear(dim, hidden_dim, ball), nn.Linear(hidden_dim, 28 * 28)

    def component(self, k: Tensor | slice = slice(None)) -> WrappedNormal:
        """The distribution of a latent given its component; of each component by default."""
        return WrappedNormal(exp0(self.ball, self.centres)[k], self.log_scales.exp()[k], self.ball)

    def encode(self, x: Tensor) -> WrappedNormal:
        hidden = relu(self.hidden(x.flatten(-2)))
        loc, scale = within_reach(self.loc(hidden), softplus(self.scale(hidden)), self.ball, WrappedNormal)
        return WrappedNormal(exp0(self.ball, loc), scale, self.ball)

    def decode(self, z: Tensor) -> Any:
        logits = self.output(relu(self.embed(z))).unflatten(-1, (28, 28))
        return dist.Bernoulli(logits=logits, validate_args=False).to_event(2)  # pixels are grey levels

    def model(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            k = pyro.sample("component", dist.Categorical(logits=self.logits), infer={"enumerate": "parallel"})
            z = pyro.sample("z", self.component(k))
            pyro.sample("x", self.decode(z), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.encode(x))

    def responsibilities(self, z: Tensor) -> Tensor:
        """Probabilities of the components given latents ``(N, D)``, as ``(N, K)``."""
        return (self.component().log_prob(z.unsqueeze(-2)) + self.logits.log_softmax(-1)).softmax(-1)


@torch.no_grad()
def draw(vae: MixtureVAE, test: datasets.Digits, folder: Path) -> None:
    """The latent space with the components, and digits that each component generates."""
    components, weights = vae.component(), vae.logits.softmax(-1)
    if vae.centres.shape[-1] == 2:
        figure, ax = plt.subplots(figsize=(6, 5.4), layout="constrained")
        z = vae.encode(test.images[:SHOWN]).mean
        plotting.embedding(z, vae.ball, labels=test.labels[:SHOWN], ax=ax, s=3, alpha=0.7)
        # A disc that holds half of a component: the median of Rayleigh's distribution is sqrt(2 log 2).
        angles = torch.linspace(0, 2 * math.pi, 200)
        circle = torch.stack([angles.cos(), angles.sin()], -1).unsqueeze(1)
        rings = vae.ball.from_normal_coords(components.loc, math.sqrt(2 * math.log(2)) * components.scale * circle)
        for k, weight in enumerate(weights.tolist()):
            ax.plot(*rings[:, k].T.numpy(), color="0.1", linewidth=0.5 + 6 * weight, alpha=0.8, zorder=4)
        plotting.save(figure, folder / "latent.png")
    order = weights.argsort(descending=True)
    z = vae.component(order).sample((PER_COMPONENT,)).transpose(0, 1).flatten(0, 1)
    figure, ax = plt.subplots(figsize=(6, 0.5 * len(order) + 0.4), layout="constrained")
    plotting.images(vae.decode(z).mean, columns=PER_COMPONENT, ax=ax)
    plotting.save(figure, folder / "components.png")
    plt.close("all")


def run(args: argparse.Namespace) -> dict[str, Any]:
    images, test = datasets.mnist(args.data_dir).images, datasets.mnist(args.data_dir, train=False)
    print(f"{len(images)} training and {len(test.images)} test digits; results in {args.output_dir}", flush=True)
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = MixtureVAE(PoincareBall(args.curvature), args.latent_dim, args.components, args.hidden_dim)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    svi = infer.FastSVI(vae.model, vae.guide, optimiser, TraceEnum_ELBO(max_plate_nesting=1))
    batches = infer.Minibatches(images, args.batch_size, args.seed)
    history = []
    for epoch in range(1, args.num_epochs + 1):
        losses = [svi.step(x) for x in tqdm(batches.epoch(epoch), leave=False, total=len(batches), disable=None)]
        history.append(torch.stack(losses).sum().item() / len(images))
        print(f"epoch {epoch}/{args.num_epochs}: loss {history[-1]:.2f}", flush=True)
    result: dict[str, Any] = record(args) | {"train_loss": history, "weights": vae.logits.softmax(-1).tolist()}
    with torch.no_grad():
        used = vae.responsibilities(vae.encode(test.images).mean).argmax(-1).bincount(minlength=args.components)
    result["components_in_use"] = int((used >= 0.01 * len(test.images)).sum())
    print(f"{result['components_in_use']} of {args.components} components have at least 1% of the test digits")
    if args.iwae_samples:
        estimates = infer.log_marginal_likelihood(
            vae.model, vae.guide, test.images, num_samples=args.iwae_samples, progress=True
        )
        result["negative_iwae"] = -estimates.mean().item()
        print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
    save_json(result, args.output_dir / "metrics.json")
    draw(vae, test, args.output_dir)
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--components", type=positive(int), default=10, help="components of the mixture")
    p.add_argument("--latent-dim", type=positive(int), default=2, help="dimension of the ball")
    p.add_argument("--curvature", type=positive(float), default=1.4, help="c; the curvature is -c")
    p.add_argument("--hidden-dim", type=positive(int), default=200, help="width of the hidden layers")
    p.add_argument("--num-epochs", type=positive(int), default=20, help="passes over the training data")
    p.add_argument("--batch-size", type=positive(int), default=256, help="images per step")
    p.add_argument("--learning-rate", type=positive(float), default=2e-3, help="learning rate of Adam")
    p.add_argument("--iwae-samples", type=natural, default=50, help="samples of the final estimate; 0 for none")
    add_common(p, "--seed", "--threads", "--data-dir", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
