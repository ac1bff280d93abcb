"""Train many hyperbolic auto-encoders of MNIST at once, one per seed.

The models of ``mnist_svi.py`` are the members of one :class:`pyro_hyperbolic.infer.EnsembleSVI`. Every step trains all
of them, each on its own batch, in little more time than one takes on a GPU. Means over seeds come with intervals.

    python examples/mnist_ensemble.py --seeds 0-9
    torchrun --nproc-per-node 2 examples/mnist_ensemble.py --seeds 0-9 --output-dir sweep

Under ``torchrun``, each process has a share of the seeds, works independently of the others, and writes files with its
number in their names. The last to finish collects all results in ``metrics.json``. If a run is interrupted, continue it
with ``--resume``. It ends bit for bit where an uninterrupted run would have.

What to look for: in ``latent.png`` each panel is the latent space of one member. The classes form the same
neighbourhoods in all panels, but in different places: only the seed decides what lies where. In ``loss.png`` the curves
of all members fall together. How far apart they end is the noise that a comparison of two models has to exceed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import torch
from command import Parser, command, load_run, record, save_json, save_run, seeds
from mnist_svi import CHUNK, VAE, add_options, build_loss, build_model, evaluate
from tqdm.auto import tqdm

from experiments.statistics import mean_interval
from pyro_hyperbolic import datasets, infer, plotting

FREE_OPTIONS = ("num_epochs", "iwae_samples")  # may change when a run goes on
SHOWN, COLUMNS = 12, 4  # latent spaces in the picture, and in a row


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes of ``torchrun`` this one is."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def own_file(name: str) -> str:
    """The name of a file of this process."""
    rank, world = rank_and_world()
    path = Path(name)
    return name if world == 1 else f"{path.stem}.rank{rank}{path.suffix}"


def run(args: argparse.Namespace) -> dict[str, Any]:
    rank, world = rank_and_world()
    own = args.seeds[rank::world]
    if not own:
        raise ValueError(f"--seeds: {len(args.seeds)} seeds are too few for {world} processes; start fewer.")
    device = infer.torchrun_place(args.device).device if world > 1 else torch.device(args.device)
    train, test = (datasets.mnist(args.data_dir, train=part) for part in (True, False))
    images, held_out = train.images.to(device), test.images.to(device)
    print(
        f"{len(own)} members, {len(images)} training images ({train.source}); results in {args.output_dir}", flush=True
    )

    pyro.clear_param_store()
    members = []
    for seed in own:
        pyro.set_rng_seed(seed)
        members.append(build_model(args).to(device))
        members[-1].init_output_bias(images)
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    svi = infer.EnsembleSVI(
        [(vae.model, vae.guide) for vae in members], optimiser, build_loss(args), compile=args.compile
    )

    entries: list[dict[str, Any]] = [{"seed": seed, "history": []} for seed in own]
    path = args.output_dir / own_file("checkpoint.pt")
    state = load_run(path, args, FREE_OPTIONS, map_location=device, training_images=len(images), own_seeds=own)
    done = 0
    if state is not None:
        for vae, entry, model, history in zip(members, entries, state["models"], state["histories"], strict=True):
            vae.load_state_dict(model)
            entry["history"] = history
        svi.load_state_dict(state["trainer"])
        done = len(state["histories"][0])
    args.output_dir.mkdir(parents=True, exist_ok=True)
    facts = record(args) | {"data": train.source, "train_size": len(images), "test_size": len(held_out)}

    batches = infer.Minibatches(images, args.batch_size, own[0], len(members))
    for epoch in range(done + 1, args.num_epochs + 1):
        start = time.perf_counter()
        total = torch.zeros(len(members), device=device, dtype=torch.float64)
        for batch in tqdm(batches.epoch(epoch), f"epoch {epoch}", len(batches), leave=False, disable=None):
            total += svi.step(batch)
        rows = [{"epoch": epoch, "train_loss": loss / len(images)} for loss in total.tolist()]
        for row, vae, entry in zip(rows, members, entries, strict=True):
            row |= evaluate(vae, held_out)
            entry["history"].append(row | {"seconds": time.perf_counter() - start})
        mean = {key: sum(row[key] for row in rows) / len(rows) for key in ("train_loss", "test_loss")}
        print(
            f"epoch {epoch}/{args.num_epochs}: mean train loss {mean['train_loss']:.2f}, test {mean['test_loss']:.2f}"
        )
        histories = [entry["history"] for entry in entries]
        state = {"models": [vae.state_dict() for vae in members], "trainer": svi.state_dict(), "histories": histories}
        save_run(state, path, args, training_images=len(images), own_seeds=own)
        save_metrics(facts, entries, args, finished=False)

    if args.iwae_samples:
        if svi.steps == 0:  # a run that was finished before takes no step, which would have put the members together
            with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
                svi.evaluate_loss(images[:1], shared=True)
        options: Any = {"num_samples": args.iwae_samples, "chunk": CHUNK[device.type], "compile": args.compile}
        estimates, errors = svi.log_marginal_likelihood(held_out, standard_error=True, **options)
        for entry, own_estimates, own_errors in zip(entries, estimates, errors, strict=True):
            entry["negative_iwae"] = -own_estimates.mean().item()
            entry["negative_iwae_error"] = own_errors.square().sum().sqrt().item() / len(own_errors)
    for entry, vae in zip(entries, members, strict=True):
        entry["curvatures"] = [torch.as_tensor(c).item() for c in vae.manifold.curvatures]
    result = save_metrics(facts, entries, args, finished=True)
    draw(members, entries, test, args.output_dir)
    merged = merge(args, world)
    report(result if merged is None else merged)
    return result if merged is None else merged


def save_metrics(
    facts: dict[str, Any], entries: list[dict[str, Any]], args: argparse.Namespace, finished: bool
) -> dict[str, Any]:
    """Write and return what is known of the members of this process."""
    result = facts | {"members": entries, "summary": summarise(entries), "finished": finished}
    save_json(result, args.output_dir / own_file("metrics.json"))
    return result


def summarise(members: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over members with the half width of their 95% interval, where there is more than one."""
    values = {"test_loss": [member["history"][-1]["test_loss"] for member in members]}
    if all("negative_iwae" in member for member in members):
        values["negative_iwae"] = [member["negative_iwae"] for member in members]
    return {key: dict(zip(("mean", "half_width"), mean_interval(row), strict=True)) for key, row in values.items()}


def merge(args: argparse.Namespace, world: int) -> dict[str, Any] | None:
    """Bring the files of several processes together in ``metrics.json``, if all have finished; its content."""
    if world == 1:
        return None
    parts = []
    for rank in range(world):
        path = args.output_dir / f"metrics.rank{rank}.json"
        part: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"finished": False}
        # A file of an earlier, shorter run is finished too.
        if not part["finished"] or any(part["options"][name] != getattr(args, name) for name in FREE_OPTIONS):
            return None
        parts.append(part)
    members = sorted((member for part in parts for member in part["members"]), key=lambda member: member["seed"])
    result: dict[str, Any] = parts[0] | {"members": members, "summary": summarise(members), "processes": world}
    # Under a name of its own first: two processes may finish at the same time.
    partial = args.output_dir / own_file(".metrics.json")
    save_json(result, partial)
    os.replace(partial, args.output_dir / "metrics.json")
    return result


def report(result: dict[str, Any]) -> None:
    for name, interval in result["summary"].items():
        half = "" if interval["half_width"] is None else f" ± {interval['half_width']:.2f} (95% interval)"
        print(f"{name.replace('_', ' ')} of {len(result['members'])} members: {interval['mean']:.2f}{half}")


def draw(members: list[VAE], entries: list[dict[str, Any]], test: datasets.Digits, folder: Path) -> None:
    """The first factor of the latent spaces of the first members, and the losses of all."""
    shown = members[:SHOWN]
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.5 * columns, 5.6 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(shown) :]:
        ax.set_axis_off()
    for ax, vae, entry in zip(axes.flat, shown, entries, strict=False):
        plotting.latent_space(vae, test.images[:5000], test.labels[:5000], ax, s=4)
        value = f", negative IWAE {entry['negative_iwae']:.2f}" if "negative_iwae" in entry else ""
        ax.set_title(f"seed {entry['seed']}{value}", fontsize="medium")
    plotting.save(figure, folder / own_file("latent.png"))

    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for number, history in enumerate(entry["history"] for entry in entries):
        for key, name, colour in (("train_loss", "training", "C0"), ("test_loss", "test", "C1")):
            values = [row[key] for row in history]
            ax.plot([row["epoch"] for row in history], values, colour, alpha=0.6, label=None if number else name)
    ax.set(xlabel="epoch", ylabel="loss per image")
    ax.legend(frameon=False)
    plotting.save(figure, folder / own_file("loss.png"))
    plt.close("all")


def parser() -> Parser:
    p = Parser(__doc__, __file__)
    p.add_argument(
        "--seeds", type=seeds, default=list(range(10)), help="seeds, one model per seed: 0,1,5 or 0-9 (default: 0-9)"
    )
    p.add_argument("--compile", action="store_true", help="compile the steps, which takes a minute or two")
    add_options(p)
    p.add_output_dir(checkpoint=own_file("checkpoint.pt"), required=rank_and_world()[1] > 1)
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
