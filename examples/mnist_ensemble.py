"""Train many hyperbolic auto-encoders of MNIST at once, one per seed.

The models of ``mnist_svi.py`` are the members of one :class:`pyro_hyperbolic.infer.EnsembleSVI`. Every step trains all
of them, each on its own batch, in little more time than one takes on a GPU. Means over seeds come with intervals.

    python examples/mnist_ensemble.py --seeds 0-9
    python examples/mnist_ensemble.py --seeds 0-9 --curvature learn --device cuda

If a run is interrupted, continue it with ``--resume``. It ends bit for bit where an uninterrupted run would have.

What to look for: in ``latent.png`` each panel is the latent space of one member. The classes form the same
neighbourhoods in all panels, but in different places: only the seed decides what lies where. In ``loss.png`` the curves
of all members fall together. How far apart they end is the noise that a comparison of two models has to exceed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import matplotlib.pyplot as plt
import pyro
import torch
from command import add_common, command, make_parser, seeds
from intervals import mean_interval
from mnist_parts import FREE_OPTIONS, add_options, build_loss, evaluate, library_model, negative_iwae
from mnist_svi import VAE
from runs import load_run, record, save_json, save_run
from tqdm.auto import tqdm

from pyro_hyperbolic import datasets, infer, plotting

SHOWN, COLUMNS = 12, 4  # latent spaces in the picture, and in a row


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.compile is None:
        args.compile = torch.device(args.device).type == "cuda"
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(args.device), test.images.to(args.device)
    print(f"{len(args.seeds)} members, {len(images)} training images ({train.source}); results in {args.output_dir}")

    pyro.clear_param_store()
    members = []
    for seed in args.seeds:
        pyro.set_rng_seed(seed)
        members.append(VAE(args).to(args.device))
        members[-1].start_at(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    programs = [(vae.model, vae.guide) for vae in members]
    svi = infer.EnsembleSVI(programs, optimiser, build_loss(args), compile=args.compile)

    entries: list[dict[str, Any]] = [{"seed": seed, "history": []} for seed in args.seeds]
    path, facts = args.output_dir / "checkpoint.pt", {"training_images": len(images)}
    state = load_run(path, args, FREE_OPTIONS, map_location=args.device, **facts)
    if state is not None:
        for vae, entry, model, history in zip(members, entries, state["models"], state["histories"], strict=True):
            vae.load_state_dict(model)
            entry["history"] = history
        svi.load_state_dict(state["trainer"])
    args.output_dir.mkdir(parents=True, exist_ok=True)
    result = record(args) | {"data": train.source, "train_size": len(images), "test_size": len(held_out)}
    result["members"] = entries

    batches = infer.Minibatches(images, args.batch_size, args.seeds[0], len(members))
    for epoch in range(len(entries[0]["history"]) + 1, args.num_epochs + 1):
        start = time.perf_counter()
        total = torch.zeros(len(members), device=args.device, dtype=torch.float64)
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=None):
            total += svi.step(batch)  # the losses of all members
        for loss, vae, entry in zip(total.tolist(), members, entries, strict=True):
            row = {"epoch": epoch, "train_loss": loss / len(images)} | evaluate(vae, held_out)
            entry["history"].append(row | {"seconds": time.perf_counter() - start})
        loss = sum(entry["history"][-1]["test_loss"] for entry in entries) / len(entries)
        print(f"epoch {epoch}/{args.num_epochs}: mean test loss {loss:.2f}", flush=True)
        histories = [entry["history"] for entry in entries]
        state = {"models": [vae.state_dict() for vae in members], "trainer": svi.state_dict(), "histories": histories}
        save_run(state, path, args, **facts)
        save_json(result, args.output_dir / "metrics.json")

    if args.iwae_samples:
        if svi.steps == 0:  # a run that was finished before takes no step, which would have put the members together
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                svi.evaluate_loss(images[:1], shared=True)
        bounds = negative_iwae(svi.log_marginal_likelihood, held_out, args.iwae_samples, compile=args.compile)
        for number, entry in enumerate(entries):
            entry |= {name: values[number] for name, values in bounds.items()}
    for entry, vae in zip(entries, members, strict=True):
        entry["curvatures"] = [c.item() for c in vae.space.curvatures]
    result["summary"] = summarise(entries)
    save_json(result, args.output_dir / "metrics.json")
    draw(members, entries, test, args)
    for name, interval in result["summary"].items():
        half = "" if interval["half_width"] is None else f" ± {interval['half_width']:.2f} (95% interval)"
        print(f"{name.replace('_', ' ')} of {len(entries)} members: {interval['mean']:.2f}{half}")
    return result


def summarise(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over members with the half width of their 95% interval, where there is more than one."""
    values = {"test_loss": [entry["history"][-1]["test_loss"] for entry in entries]}
    if "negative_iwae" in entries[0]:
        values["negative_iwae"] = [entry["negative_iwae"] for entry in entries]
    return {key: dict(zip(("mean", "half_width"), mean_interval(row), strict=True)) for key, row in values.items()}


def draw(members: list[VAE], entries: list[dict[str, Any]], test: datasets.Digits, args: argparse.Namespace) -> None:
    """The first factor of the latent spaces of the first members, and the losses of all."""
    shown = members[:SHOWN]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.5 * columns, 5.6 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax, vae, entry in zip(axes.flat, shown, entries, strict=False):
        plotting.latent_space(library_model(vae, args), test.images[:5000], test.labels[:5000], ax, s=4)
        value = f", negative IWAE {entry['negative_iwae']:.2f}" if "negative_iwae" in entry else ""
        ax.set_title(f"seed {entry['seed']}{value}", fontsize="medium")
    plotting.save(figure, args.output_dir / "latent.png")

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for number, history in enumerate(entry["history"] for entry in entries):
        for key, name, colour in (("train_loss", "training", "C0"), ("test_loss", "test", "C1")):
            values = [row[key] for row in history]
            ax.plot([row["epoch"] for row in history], values, colour, alpha=0.6, label=None if number else name)
    ax.set(xlabel="epoch", ylabel="loss per image")
    ax.legend(frameon=False)
    plotting.save(figure, args.output_dir / "loss.png")
    plt.close("all")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    text = "seeds, one model per seed: 0,1,5 or 0-9 (default: 0-9)"
    p.add_argument("--seeds", type=seeds, default=list(range(10)), help=text)
    text = "compile the steps, which takes its time before the first one (default: on a GPU)"
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, help=text)
    add_options(p)
    add_common(p, "--output-dir", "--resume")
    return p


main = command(parser, run, checkpoint="checkpoint.pt")

if __name__ == "__main__":
    main()
