"""Train a variational auto-encoder with a hyperbolic latent space on MNIST (the paper's Section 5.2).

The model and the guide are ordinary Pyro programs (:class:`pyro_hyperbolic.models.HyperbolicVAE`), trained by
``pyro.infer.SVI``. The output folder receives a checkpoint after every epoch, the metrics, and pictures of the latent
space, of reconstructions and of samples. A run that was interrupted goes on with ``--resume`` and ends bit for
bit where an uninterrupted one would have.

    python examples/mnist_svi.py
    python examples/mnist_svi.py --curvature 0.7 --prior riemannian --posterior riemannian --num-epochs 80
    python examples/mnist_svi.py --loss iwae --particles 8 --curvature learn

Several models at once, one from each seed; one model on several devices, each with a share of every batch; and several
models on several devices, each with a share of the seeds, whose results ``metrics.json`` brings together:

    python examples/mnist_svi.py --ensemble 0-9
    torchrun --nproc-per-node 2 examples/mnist_svi.py --distributed
    torchrun --nproc-per-node 2 examples/mnist_svi.py --distributed --ensemble 0-9
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import pyro
import torch
import torch.distributed as dist
from mnist_parts.arguments import curvature, natural, positive, seeds
from mnist_parts.files import Folder
from pyro.infer import ELBO, SVI, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic import Lorentz, PoincareBall, datasets, infer
from pyro_hyperbolic.infer import DistributedSVI, EnsembleSVI, FastSVI
from pyro_hyperbolic.infer.processes.group import lost_processes
from pyro_hyperbolic.models import DISTRIBUTIONS, EuclideanVAE, HyperbolicVAE
from pyro_hyperbolic.nn import DECODERS, ManifoldModule

VAE: TypeAlias = EuclideanVAE | HyperbolicVAE
Trainer: TypeAlias = SVI | FastSVI | EnsembleSVI | DistributedSVI

LOSSES: dict[str, Any] = {
    "trace": lambda particles: Trace_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=1),
    "meanfield": lambda particles: TraceMeanField_ELBO(
        num_particles=particles, vectorize_particles=True, max_plate_nesting=1
    ),
    "iwae": lambda particles: RenyiELBO(
        alpha=0, num_particles=particles, vectorize_particles=True, max_plate_nesting=1
    ),
}
CHARTS = {"poincare": PoincareBall, "lorentz": Lorentz}
PRECISIONS = {"32": torch.float32, "64": torch.float64}
REPORT_EVERY = 20  # batches between two looks at the loss, each of which waits for the device
STOPPED = "asked to stop, as torchrun does when another process has ended"
CHUNK = {"cpu": 1 << 14, "cuda": 1 << 18}  # what the estimate of the marginal likelihood holds at a time


def build_model(args: argparse.Namespace) -> VAE:
    """The auto-encoder that the options describe; ``.model`` and ``.guide`` are its Pyro programs."""
    options = {"hidden_dim": args.hidden_dim, "prior_scale": args.prior_scale, "posterior_scale": args.posterior_scale}
    if args.curvature == 0.0:
        return EuclideanVAE(args.latent_dim, (28, 28), **options)
    learn = args.curvature == "learn"
    return HyperbolicVAE(
        ManifoldModule(CHARTS[args.manifold](1.0 if learn else args.curvature), learnable=learn),
        args.latent_dim,
        (28, 28),
        prior=args.prior,
        posterior=args.posterior,
        decoder=args.decoder,
        latent_dtype=PRECISIONS[args.latent_precision],
        **options,
    )


def build_trainer(members: list[VAE], args: argparse.Namespace) -> Trainer:
    """Pyro's SVI, or what takes its place for speed, for many members or for many processes."""
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    loss: ELBO = LOSSES[args.loss](args.particles)
    if args.ensemble is not None:
        return EnsembleSVI([(vae.model, vae.guide) for vae in members], optimiser, loss, compile=args.compile)
    (vae,) = members
    if args.fast:
        return FastSVI(vae.model, vae.guide, optimiser, loss, compile=args.compile)
    return (DistributedSVI if args.distributed else SVI)(vae.model, vae.guide, optimiser, loss)


def train_epoch(svi: Trainer, batches: Iterable[Tensor], bar: tqdm) -> Tensor:
    """One pass over the batches; the sum of their losses, of every member."""
    total: Any = 0.0
    images = 0
    for number, batch in enumerate(batches, 1):
        total = total + svi.step(batch)
        images += batch.shape[-3]
        bar.update()
        if number % REPORT_EVERY == 0:
            bar.set_postfix(elbo=f"{-torch.as_tensor(total).mean().item() / images:.2f}")
    return torch.as_tensor(total, dtype=torch.float64).reshape(-1)


@torch.no_grad()
def evaluate(vae: VAE, images: Tensor, batch_size: int = 1000) -> dict[str, float]:
    """Negative ELBO per image and its two terms, one sample of the posterior each."""
    reconstruction = kl = 0.0
    for x in images.split(batch_size):
        posterior = vae.encode(x)
        z = posterior.rsample()
        reconstruction -= vae.decode(z).log_prob(x).sum().item()
        kl += (posterior.log_prob(z) - vae.prior().log_prob(z)).sum().item()
    count = len(images)
    return {
        "test_loss": (reconstruction + kl) / count,
        "test_reconstruction": reconstruction / count,
        "test_kl": kl / count,
    }


def estimate(svi: Trainer, members: list[VAE], images: Tensor, args: argparse.Namespace) -> list[dict[str, float]]:
    """Negative IWAE estimates, averaged over the images, with their Monte Carlo errors."""
    options = {"num_samples": args.iwae_samples, "standard_error": True, "chunk": CHUNK[images.device.type]}
    options |= {"compile": args.compile, "progress": not args.distributed}
    if isinstance(svi, EnsembleSVI) and svi.steps == 0:
        # A run that was finished before takes no step, which would have put the members together.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            svi.evaluate_loss(images[:1], shared=True)
    if isinstance(svi, EnsembleSVI | DistributedSVI):
        pair = svi.log_marginal_likelihood(images, **options)
    else:
        pair = infer.log_marginal_likelihood(members[0].model, members[0].guide, images, **options)
    estimates, errors = (t.reshape(len(members), -1) for t in pair)
    means, noise = -estimates.mean(-1), errors.square().sum(-1).sqrt() / len(images)
    rows = zip(means.tolist(), noise.tolist(), strict=True)
    return [
        {"negative_iwae": mean, "negative_iwae_error": error, "iwae_samples": args.iwae_samples} for mean, error in rows
    ]


def run(args: argparse.Namespace, folder: Folder) -> tuple[list[VAE], list[dict[str, Any]], datasets.Digits]:
    """Train and evaluate; the models, what is known of each, and the test set."""
    device = folder.place.device
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(device), test.images.to(device)
    pyro.clear_param_store()
    members = []
    for seed in folder.seeds:
        pyro.set_rng_seed(seed)
        members.append(build_model(args).to(device))
        members[-1].init_output_bias(images)
    svi = build_trainer(members, args)
    entries: list[dict[str, Any]] = [{"seed": seed, "history": []} for seed in folder.seeds]
    done = 0
    state = folder.load(len(images))
    if state is not None:
        for vae, entry, model, history in zip(members, entries, state["models"], state["histories"], strict=True):
            vae.load_state_dict(model)
            entry["history"] = history
        (svi.optim.set_state if isinstance(svi, SVI) else svi.load_state_dict)(state["trainer"])
        done = state["epoch"]
    folder.record |= {"data": train.source, "train_size": len(images), "test_size": len(held_out)}
    sizes = f"{len(images)} training and {len(held_out)} test digits ({train.source})"
    folder.say(f"{sizes}; results in {args.output_dir}")

    batches = infer.Minibatches(images, args.batch_size, folder.seeds[0], len(members) if args.ensemble else None)
    for epoch in range(done + 1, args.num_epochs + 1):
        start = time.perf_counter()
        title = f"epoch {epoch}/{args.num_epochs}"
        with tqdm(total=len(batches), desc=title, leave=False, unit="batch", disable=folder.silent) as bar:
            losses = (train_epoch(svi, batches.epoch(epoch), bar) / len(images)).tolist()
        rows = [{"epoch": epoch, "train_loss": loss} for loss in losses]
        rows = [row | evaluate(vae, held_out) for row, vae in zip(rows, members, strict=True)]
        for row, entry in zip(rows, entries, strict=True):
            entry["history"].append(row | {"seconds": time.perf_counter() - start})
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}
        folder.say(
            f"{title}: train elbo {-mean['train_loss']:.2f}, test elbo {-mean['test_loss']:.2f} "
            f"(reconstruction {-mean['test_reconstruction']:.2f}, kl {mean['test_kl']:.2f})"
        )
        trainer = svi.optim.get_state() if isinstance(svi, SVI) else svi.state_dict()
        models = [vae.state_dict() for vae in members]
        folder.save({"models": models, "trainer": trainer, "epoch": epoch}, entries)

    if args.iwae_samples:
        for entry, values in zip(entries, estimate(svi, members, held_out, args), strict=True):
            entry |= values
    for entry, vae in zip(entries, members, strict=True):
        if not isinstance(vae, EuclideanVAE):
            entry["curvature"] = torch.as_tensor(vae.manifold.c).item()
    return members, entries, test


@contextlib.contextmanager
def placed(args: argparse.Namespace) -> Iterator[infer.Place]:
    """The place of this process: alone, in a group that trains one model, or with models of its own."""
    if not args.distributed:
        yield infer.Place(0, 1, torch.device(args.device))
    elif args.ensemble is not None:
        yield infer.torchrun_place(args.device)
    else:
        with infer.process_group(args.device, args.timeout) as place:
            yield place


def new_folder(args: argparse.Namespace) -> Path:
    """A folder in ``outputs/``; of several processes the first one chooses it and tells the others."""
    chosen = [Path("outputs") / f"mnist_svi-{datetime.now():%Y%m%d-%H%M%S}"]
    if args.distributed:
        with contextlib.ExitStack() as stack:
            if not dist.is_initialized():  # the processes of a sweep have no group, and need one for this alone
                stack.enter_context(infer.process_group("cpu", args.timeout))
            stack.enter_context(lost_processes())
            dist.broadcast_object_list(chosen)
    return chosen[0]


def main(args: argparse.Namespace) -> dict[str, Any]:
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.resume and args.output_dir is None:
        raise SystemExit("--resume needs --output-dir: the folder of the run to continue.")
    with contextlib.ExitStack() as watch:
        with contextlib.ExitStack() as group:
            try:
                place = group.enter_context(placed(args))
                if args.output_dir is None:
                    args.output_dir = new_folder(args)
            except (ValueError, ConnectionError) as error:
                raise SystemExit(f"--distributed: {error}") from error
            folder = Folder(args, place)
            if args.distributed:
                watch.enter_context(infer.on_termination(lambda: folder.mourn(STOPPED)))
            try:
                members, entries, test = run(args, folder)
            except ConnectionError as error:
                folder.mourn(error)
                raise SystemExit(1) from error
        # The group is closed: no process has to wait for the pictures of another.
        return folder.finish(members, entries, test)


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--latent-dim", type=positive(int), default=2, help="of the latent space (paper: 2, 5, 10, 20)")
    p.add_argument(
        "--curvature",
        type=curvature,
        default=1.4,
        help="c of curvature -c, or 'learn'; 0 is the Euclidean N-VAE (paper: 0, 0.1, 0.2, 0.7, 1.4)",
    )
    p.add_argument(
        "--manifold",
        choices=sorted(CHARTS),
        default="poincare",
        help="coordinates of the latent space: the ball, or the hyperboloid, which reaches farther (paper: ball)",
    )
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="law of the prior (paper: both)")
    p.add_argument(
        "--posterior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="its law (paper: as the prior)"
    )
    p.add_argument(
        "--posterior-scale",
        choices=["isotropic", "diagonal"],
        default="isotropic",
        help="one scale per image or one per dimension (paper: isotropic)",
    )
    p.add_argument(
        "--decoder",
        choices=sorted(DECODERS),
        default="gyroplane",
        help="first layer of the decoder (paper: gyroplane; logmap and mlp in its ablation)",
    )
    p.add_argument("--prior-scale", type=positive(float), default=1.0, help="scale of the prior (paper: 1)")
    p.add_argument("--hidden-dim", type=positive(int), default=600, help="width of the hidden layers (paper: 600)")
    p.add_argument(
        "--loss",
        choices=sorted(LOSSES),
        default="trace",
        help="Trace_ELBO, TraceMeanField_ELBO or the IWAE bound, RenyiELBO(alpha=0) (paper: trace)",
    )
    p.add_argument("--particles", type=positive(int), default=1, help="samples of the posterior per image (paper: 1)")
    p.add_argument("--num-epochs", type=positive(int), default=40, help="passes over the training data (paper: 80)")
    p.add_argument("--batch-size", type=positive(int), default=128, help="images per step (paper: 128)")
    p.add_argument("--learning-rate", type=positive(float), default=1e-3, help="of Adam (paper: 5e-4)")
    p.add_argument("--iwae-samples", type=natural, default=500, help="of the final estimate; 0: none (paper: 5000)")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--seed", type=natural, default=0, help="of everything random")
    which.add_argument("--ensemble", type=seeds, metavar="SEEDS", help="train a model from each: 0,1,5 or 0-9")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where to compute")
    p.add_argument("--latent-precision", choices=sorted(PRECISIONS), default="32", help="bits of the latent arithmetic")
    p.add_argument(
        "--data-dir",
        type=Path,
        default=None,
        help="folder of the MNIST files; by default PYRO_HYPERBOLIC_DATA, then a per-user cache",
    )
    p.add_argument("--output-dir", type=Path, default=None, help="of the results; by default new, in outputs/")
    p.add_argument("--resume", action="store_true", help="continue the run in --output-dir")
    p.add_argument("--fast", action="store_true", help="train by FastSVI: the same losses without Pyro's overhead")
    p.add_argument(
        "--compile", action="store_true", help="compile the steps of --fast or --ensemble, in a minute or two"
    )
    p.add_argument(
        "--distributed",
        action="store_true",
        help="started by torchrun: share every batch, or with --ensemble the seeds, among the processes",
    )
    p.add_argument("--timeout", type=positive(float), default=60.0, help="seconds to wait for a silent process")
    p.add_argument("--gyroplanes", action="store_true", help="draw the decoder's gyroplanes in the latent space")
    p.add_argument("--threads", type=positive(int), default=None, help="CPU threads; torch's choice by default")
    return p


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    p = parser()
    args = p.parse_args(arguments)
    if args.loss == "iwae" and args.particles == 1:
        p.error("--loss iwae needs --particles of at least 2; with one it is the ELBO")
    if args.posterior_scale == "diagonal" and args.posterior != "wrapped" and args.curvature != 0.0:
        p.error("--posterior-scale diagonal needs --posterior wrapped")
    if args.fast and args.ensemble is not None:
        p.error("--fast is for one model; --ensemble is fast by itself")
    if args.fast and args.distributed:
        p.error("--fast is for one process; --distributed has a trainer of its own")
    if args.compile and not args.fast and args.ensemble is None:
        p.error("--compile needs --fast or --ensemble")
    return args


if __name__ == "__main__":
    main(parse())
