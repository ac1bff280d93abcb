"""Train one hyperbolic auto-encoder of MNIST in several processes, each with a share of every batch.

The model is that of ``mnist_svi.py``, and :class:`pyro_hyperbolic.infer.DistributedSVI` replaces ``SVI``. Losses and
gradients are summed over the processes, so up to rounding, training is the same as in one process.

    torchrun --standalone --nproc-per-node 2 examples/mnist_distributed.py --output-dir run
    torchrun --standalone --nproc-per-node 2 examples/mnist_distributed.py --output-dir run --resume --num-epochs 80

Start it with ``torchrun``: a plain ``python examples/mnist_distributed.py`` ends with an error that says so. The first
process writes the metrics, a checkpoint after every epoch, and the pictures of ``mnist_svi.py``, which explains them.
If a process is lost, the others stop at once with an error. ``--resume`` continues from the last checkpoint, with any
number of processes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import Any

import pyro
import torch
from command import add_common, command, folder, make_parser, positive
from mnist_parts import FREE_OPTIONS, add_options, build_loss, draw, evaluate, negative_iwae
from mnist_svi import VAE
from runs import load_run, record, save_json, save_run
from tqdm.auto import tqdm

from pyro_hyperbolic import accelerate, datasets, infer

STOPPED = "asked to stop, as torchrun does when another process has ended"


def train(args: argparse.Namespace, place: accelerate.TorchrunProcess) -> tuple[VAE, dict[str, Any], datasets.Digits]:
    """Train and evaluate; the model, what is known of it, and the test set."""
    is_first = place.rank == 0
    training, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = training.images.to(place.device), test.images.to(place.device)
    if is_first:
        print(f"{place.world} processes, {len(images)} images ({training.source}); results in {args.output_dir}")

    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    vae = VAE(args).to(place.device)
    vae.start_at(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    svi = infer.DistributedSVI(vae.model, vae.guide, optimiser, build_loss(args))

    path = args.output_dir / "checkpoint.pt"
    state = load_run(path, args, FREE_OPTIONS, map_location=place.device, training_images=len(images))
    history: list[dict[str, float]] = []
    if is_first:
        args.output_dir.mkdir(parents=True, exist_ok=True)
    if state is not None:
        vae.load_state_dict(state["model"])
        svi.load_state_dict(state["trainer"])
        history = state["history"]

    result = record(args) | {"data": training.source, "train_size": len(images), "test_size": len(held_out)}
    result["processes"] = place.world
    batches = infer.Minibatches(images, args.batch_size, args.seed)
    quiet = None if is_first else True  # a progress bar on a terminal, of the first process alone
    for epoch in range(len(history) + 1, args.num_epochs + 1):
        start, total = time.perf_counter(), torch.zeros((), device=place.device)
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=quiet):
            total += svi.step(batch)
        row = {"train_loss": total.item() / len(images)} | evaluate(vae, held_out)
        history.append({"epoch": epoch} | row | {"seconds": time.perf_counter() - start})
        trainer = svi.state_dict()  # of all processes together
        if is_first:
            losses = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in row.items())
            print(f"epoch {epoch}/{args.num_epochs}: {losses}", flush=True)
            state = {"model": vae.state_dict(), "trainer": trainer, "history": history}
            save_run(state, path, args, training_images=len(images))
            save_json(result | {"history": history}, args.output_dir / "metrics.json")

    result |= {"history": history, "curvatures": [c.item() for c in vae.space.curvatures]}
    if args.iwae_samples:
        result |= negative_iwae(svi.log_marginal_likelihood, held_out, args.iwae_samples)
    return vae, result, test


def run(args: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as watch:
        with infer.process_group(args.device, args.timeout) as place:

            def mourn() -> None:
                print(f"rank {place.rank}: {STOPPED}; {what_is_left(args)}", file=sys.stderr, flush=True)

            watch.enter_context(accelerate.call_on_sigterm(mourn))
            try:
                vae, result, test = train(args, place)
            except ConnectionError as error:
                raise ConnectionError(f"rank {place.rank}: {error}; {what_is_left(args)}") from error
        # The group is closed: no process has to wait for the pictures of another.
        if place.rank == 0:
            save_json(result, args.output_dir / "metrics.json")
            if args.iwae_samples:
                print(f"negative IWAE-{args.iwae_samples} on the test set: {result['negative_iwae']:.2f}")
            draw(vae, test, result["history"], args)
        return result


def what_is_left(args: argparse.Namespace) -> str:
    """Of the work of a run that ends before its time."""
    path = args.output_dir / "checkpoint.pt"
    if path.exists():
        return f"the last checkpoint, {path}, is whole: go on with --resume"
    return f"there is no checkpoint in {args.output_dir} yet: start again"


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    add_options(p)
    p.add_argument("--timeout", type=positive(float), default=60.0, help="seconds to wait for a silent process")
    add_common(p, "--seed")
    p.add_argument("--output-dir", type=folder, required=True, help="folder for the results, made if necessary")
    add_common(p, "--resume")
    return p


main = command(parser, run, checkpoint="checkpoint.pt")

if __name__ == "__main__":
    main()
