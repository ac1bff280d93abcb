"""Train a variational auto-encoder with a hyperbolic latent space on MNIST (the paper's Section 5.2).

This is Pyro's ``vae.py`` with one change: the latents are points of a space of your choice, by default the Poincaré
disc. So the normals are those of the space, and the first layer of the decoder measures distances in it.

    python examples/mnist_svi.py
    python examples/mnist_svi.py --space p5 --curvature 0.7 --prior riemannian --posterior riemannian
    python examples/mnist_svi.py --loss iwae --particles 8 --curvature learn
    python examples/mnist_svi.py --space h2,s2,e2 --fast

The output folder gets the metrics, a checkpoint after every epoch, and pictures. If a run is interrupted, continue it
with ``--resume``. It ends bit for bit where an uninterrupted run would have.

What to look for: in ``latent.png`` each dot is a test digit, coloured by its class. The classes separate without
labels. On the page ``latent.html``, drag a cluster to the middle to spread it out. In ``digits.png`` each digit is next
to what two numbers keep of it. Below are draws of the model. In ``loss.png`` the losses fall until the model overfits.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from command import add_common, command, make_parser, natural
from mnist_parts import FREE_OPTIONS, add_options, build_loss, draw, evaluate, negative_iwae
from pyro.infer import SVI
from runs import load_run, record, save_json, save_run
from torch import Tensor, nn
from torch.nn.functional import relu, softplus
from tqdm.auto import tqdm

from pyro_hyperbolic import datasets, geometry, infer
from pyro_hyperbolic.models.latent import DISTRIBUTIONS, bounded, within_reach
from pyro_hyperbolic.nn import GyroplaneLinear, Log0, ManifoldModule, MobiusLinear, exp0


class Encoder(nn.Module):
    """From images to the parameters of q(z | x): a location in flat coordinates, and a positive scale."""

    def __init__(self, latent_dim: int, scale_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(28 * 28, hidden_dim)
        self.loc = nn.Linear(hidden_dim, latent_dim)
        self.scale = nn.Linear(hidden_dim, scale_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = relu(self.hidden(x.flatten(-2)))
        return self.loc(hidden), softplus(self.scale(hidden))


class Decoder(nn.Module):
    """From points of the space to the logits of images: a first layer that knows the space, then an ordinary one."""

    def __init__(self, kind: str, space: ManifoldModule, latent_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.output = nn.Linear(hidden_dim, 28 * 28)
        if kind == "gyroplane":  # the paper's: distances of a point to hyperplanes
            self.embed: nn.Module = GyroplaneLinear(latent_dim, hidden_dim, space)
        elif kind == "mobius":
            self.embed = nn.Sequential(MobiusLinear(latent_dim, hidden_dim, space), Log0(space))
        elif kind == "logmap":
            self.embed = nn.Sequential(Log0(space), nn.Linear(latent_dim, hidden_dim))
        else:  # coordinates, as if the space were flat
            self.embed = nn.Linear(space().ambient_dim(latent_dim), hidden_dim)

    def forward(self, z: Tensor) -> Tensor:
        return self.output(relu(self.embed(z))).unflatten(-1, (28, 28))


class VAE(nn.Module):
    """The networks, and the two programs that Pyro trains."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        learn = args.curvature == "learn"
        c = 1.0 if learn else args.curvature
        self.space = ManifoldModule(geometry.from_signature(args.space, c=c, k=-c), learnable=learn)
        self.dim = geometry.signature_dim(args.space)
        self.prior_family, self.posterior_family = DISTRIBUTIONS[args.prior], DISTRIBUTIONS[args.posterior]
        self.register_buffer("prior_scale", torch.tensor(args.prior_scale))
        self.encoder = Encoder(self.dim, 1 if args.posterior_scale == "isotropic" else self.dim, args.hidden_dim)
        kind = args.decoder or ("gyroplane" if self.space.curvatures else "mlp")
        self.decoder = Decoder(kind, self.space, self.dim, args.hidden_dim)

    def prior(self) -> Any:
        """A normal at the origin of the latent space."""
        space = self.space()
        return self.prior_family(space.origin(self.dim, device=self.prior_scale.device), self.prior_scale, space)

    def encode(self, x: Tensor) -> Any:
        """A normal at the point where the encoder puts an image: the exponential map takes it into the space."""
        (loc, scale), space = self.encoder(x), self.space()
        loc, scale = within_reach(loc, bounded(scale, space, self.dim), space, self.posterior_family)
        return self.posterior_family(exp0(space, loc), scale, space)

    def decode(self, z: Tensor) -> Any:
        return dist.Bernoulli(logits=self.decoder(z), validate_args=False).to_event(2)  # pixels are grey levels

    def model(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", self.prior())
            pyro.sample("x", self.decode(z), obs=x)

    def guide(self, x: Tensor) -> None:
        pyro.module("vae", self)
        with pyro.plate("data", len(x)):
            pyro.sample("z", self.encode(x))

    @torch.no_grad()
    def start_at(self, images: Tensor) -> None:
        """Let the decoder begin with the mean image, which saves the first steps (the paper's appendix)."""
        half = 0.5 / len(images)  # of an image: a pixel that is always 0 has no finite logit
        mean = (images.mean(0) * (1 - 2 * half) + half).clamp(half, 1 - half)
        self.decoder.output.bias.copy_(torch.logit(mean).flatten())


def run(args: argparse.Namespace) -> dict[str, Any]:
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(args.device), test.images.to(args.device)
    print(f"{len(images)} training and {len(held_out)} test digits ({train.source}); results in {args.output_dir}")
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = VAE(args).to(args.device)
    vae.start_at(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    trainer = infer.FastSVI if args.fast else SVI  # FastSVI is SVI without Pyro's overhead
    svi: Any = trainer(vae.model, vae.guide, optimiser, build_loss(args))
    args.output_dir.mkdir(parents=True, exist_ok=True)
    path = args.output_dir / "checkpoint.pt"
    state = load_run(path, args, FREE_OPTIONS, map_location=args.device, training_images=len(images))
    history: list[dict[str, float]] = []
    if state is not None:
        vae.load_state_dict(state["model"])
        (svi.load_state_dict if args.fast else optimiser.set_state)(state["trainer"])
        history = state["history"]

    result = record(args) | {"data": train.source, "train_size": len(images), "test_size": len(held_out)}
    batches = infer.Minibatches(images, args.batch_size, args.seed)
    for epoch in range(len(history) + 1, args.num_epochs + 1):
        start, total = time.perf_counter(), 0.0
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=None):
            total += svi.step(batch)
        row = {"train_loss": float(total) / len(images)} | evaluate(vae, held_out)
        losses = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in row.items())
        print(f"epoch {epoch}/{args.num_epochs}: {losses}", flush=True)
        history.append({"epoch": epoch} | row | {"seconds": time.perf_counter() - start})
        moments = svi.state_dict() if args.fast else optimiser.get_state()
        state = {"model": vae.state_dict(), "trainer": moments, "history": history}
        save_run(state, path, args, training_images=len(images))
        save_json(result | {"history": history}, args.output_dir / "metrics.json")

    result |= {"history": history, "curvatures": [c.item() for c in vae.space.curvatures]}
    if args.iwae_samples:
        bound = partial(infer.log_marginal_likelihood, vae.model, vae.guide)
        result |= negative_iwae(bound, held_out, args.iwae_samples)
        print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
    save_json(result, args.output_dir / "metrics.json")
    draw(vae, test, history, args)
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    add_options(p)
    p.add_argument("--fast", action="store_true", help="train with FastSVI: the same losses without Pyro's overhead")
    p.add_argument("--gyroplanes", type=natural, default=0, help="how many gyroplanes of the decoder to draw (in 2-d)")
    add_common(p, "--seed", "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint="checkpoint.pt")

if __name__ == "__main__":
    main()
