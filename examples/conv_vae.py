"""A hyperbolic auto-encoder with convolutions.

The images are ``(1, 28, 28)``. The trunk of the encoder is convolutional, and so is the decoder, which begins with a
gyroplane layer: the only part of it that knows the latent space. :class:`pyro_hyperbolic.models.ManifoldVAE` takes
these networks too, here to draw what they have learned.

What to look for: in ``latent.png`` each dot is a test digit, coloured by its class. The classes separate without
labels. In ``reconstructions.png`` the lower row shows what two numbers keep of the digits above: their class and slant,
hardly more.

    python examples/conv_vae.py
    python examples/conv_vae.py --space h2,e2 --curvature 0.7 --num-epochs 40 --device cuda
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from command import add_common, command, make_parser, natural, positive
from pyro import poutine
from pyro.infer import Trace_ELBO
from runs import record, save_json
from torch import Tensor, nn
from tqdm.auto import tqdm

from pyro_hyperbolic import datasets, geometry, infer
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.models import ManifoldVAE
from pyro_hyperbolic.models.latent import bounded, within_reach
from pyro_hyperbolic.nn import Encoder, GyroplaneLinear, ManifoldModule, exp0

SHAPE = (1, 28, 28)
SHOWN = 10  # images with their reconstructions


class ConvVAE(nn.Module):
    """Convolutional networks, and the two programs that Pyro trains.

    :param space: the latent space, one module that the decoder and the programs share.
    :param width: channels of the first convolution; the second has twice as many.
    """

    beta: Tensor  # the weight of the divergence

    def __init__(self, space: ManifoldModule, dim: int, width: int) -> None:
        super().__init__()
        self.space, self.dim = space, dim
        trunk = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),  # to 14 x 14
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),  # to 7 x 7
            nn.ReLU(),
            nn.Flatten(),
        )
        self.encoder = Encoder(SHAPE, 2 * width * 7 * 7, dim, scale_dim=1, trunk=trunk)
        self.decoder = nn.Sequential(
            GyroplaneLinear(dim, 128, space),
            nn.ReLU(),
            nn.Linear(128, 2 * width * 7 * 7),
            nn.ReLU(),
            nn.Unflatten(-1, (2 * width, 7, 7)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),  # to 14 x 14
            nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),  # to 28 x 28
        )
        self.register_buffer("beta", torch.tensor(1.0))

    def model(self, x: Tensor) -> None:
        pyro.module("vae", self)
        space = self.space()
        with pyro.plate("data", len(x)):
            with poutine.scale(scale=self.beta):
                z = pyro.sample("z", WrappedNormal(space.origin(self.dim, device=x.device), 1.0, space))
            # Convolutions take one dimension of images; samples and particles may add others.
            logits = self.decoder(z.flatten(0, -2)).unflatten(0, z.shape[:-1])
            # Pixels are grey levels, which validation would refuse.
            pyro.sample("x", dist.Bernoulli(logits=logits, validate_args=False).to_event(3), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("vae", self)
        (loc, scale), space = self.encoder(x), self.space()
        loc, scale = within_reach(loc, bounded(scale, space, self.dim), space, WrappedNormal)
        with pyro.plate("data", len(x)), poutine.scale(scale=self.beta):
            pyro.sample("z", WrappedNormal(exp0(space, loc), scale, space))


def train(vae: ConvVAE, images: Tensor, args: argparse.Namespace) -> list[float]:
    """Mean losses of the epochs."""
    svi = infer.FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": args.learning_rate}), Trace_ELBO())
    batches = infer.Minibatches(images, args.batch_size, args.seed, drop_last=True)
    history = []
    for epoch in range(1, args.num_epochs + 1):
        losses = []
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=None):
            vae.beta.fill_(min(1.0, (svi.steps + 1) / (args.warm_up + 1)))
            losses.append(svi.step(batch) / len(batch))
        history.append(torch.stack(losses).mean().item())
        print(f"epoch {epoch}/{args.num_epochs}: loss {history[-1]:.2f}", flush=True)
    vae.beta.fill_(1.0)
    return history


def draw(networks: ConvVAE, test: datasets.Digits, images: Tensor, folder: Path) -> None:
    """The latent space, and images above their reconstructions, by the library's model with the same networks."""
    import matplotlib.pyplot as plt

    from pyro_hyperbolic import plotting

    parts: Any = {"encoder": networks.encoder, "decoder": networks.decoder}
    vae = ManifoldVAE(networks.space, networks.dim, SHAPE, **parts).to(images.device)
    factors = len(vae.manifold.leaves(vae.latent.dim))
    figure, axes = plt.subplots(1, factors, figsize=(6.5 * factors, 5.6), layout="constrained", squeeze=False)
    for number, ax in enumerate(axes.flat):
        plotting.latent_space(vae, images, labels=test.labels, ax=ax, factor=number)
    plotting.save(figure, folder / "latent.png")
    figure, ax = plt.subplots(figsize=(SHOWN, 2), layout="constrained")
    plotting.images(torch.cat([images[:SHOWN], vae.reconstruct(images[:SHOWN])]), columns=SHOWN, ax=ax)
    plotting.save(figure, folder / "reconstructions.png")
    plt.close("all")


def run(args: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    train_set, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = (part.images.unsqueeze(1).to(args.device) for part in (train_set, test))
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    space = ManifoldModule(geometry.from_signature(args.space, c=args.curvature, k=-args.curvature))
    vae = ConvVAE(space, geometry.signature_dim(args.space), args.channels).to(args.device)
    args.output_dir.mkdir(parents=True, exist_ok=True)  # before the training, so that no work is lost
    result: dict[str, Any] = {"train_loss": train(vae, images, args)}
    estimates, errors = infer.log_marginal_likelihood(
        vae.model, vae.guide, held_out, num_samples=args.iwae_samples, standard_error=True, progress=True
    )
    result["negative_iwae"] = -estimates.mean().item()
    result["negative_iwae_error"] = errors.square().mean().sqrt().item() / len(errors) ** 0.5
    result["seconds"] = time.perf_counter() - start
    print(f"test: {result['negative_iwae']:.2f} nats ({args.iwae_samples} samples), {result['seconds']:.0f} s")
    save_json(record(args) | {"data": train_set.source} | result, args.output_dir / "metrics.json")
    draw(vae, test, held_out, args.output_dir)
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    add_common(p, "--space")
    p.add_argument("--curvature", type=positive(float), default=1.4, help="c; the curvature is -c")
    p.add_argument("--channels", type=positive(int), default=8, help="of the first convolution; the second has twice")
    p.add_argument("--num-epochs", type=positive(int), default=10, help="passes over the training data")
    p.add_argument("--warm-up", type=natural, default=200, help="steps until the KL divergence has its full weight")
    p.add_argument("--batch-size", type=positive(int), default=128, help="images per step")
    p.add_argument("--learning-rate", type=positive(float), default=2e-3, help="learning rate of Adam")
    p.add_argument("--iwae-samples", type=positive(int), default=50, help="samples of the final IWAE estimate")
    add_common(p, "--seed", "--device", "--threads", "--data-dir", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
