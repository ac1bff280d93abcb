"""What each of our changes of torch's compiler and optimiser is worth, on one CUDA device.

    python -m benchmarks.changes
    python -m benchmarks.changes --members 1 16 --only "kernel timing" "one launch"

Compiled and captured steps of the auto-encoder of ``benchmarks.numpyro`` (d = 10, batch 128): one model, whose products
are tuned, and ensembles. Each is measured with all of ``accelerate.compiler.changes.CHANGES``, with each of them left
out, and with none. The trainers are all made first and take turns, so that they are timed under the same conditions.
Figures are medians of repeats, in microseconds per step and member; those with a change left out come with the ratio to
all. A change whose ratio is not above 1 beyond its spread, here and with another model, should be deleted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.accelerate import EnsembleSVI, FastSVI, Minibatches
from pyro_hyperbolic.accelerate.compiler.changes import CHANGES, left_out
from pyro_hyperbolic.models import HyperbolicVAE

BATCH = 128


def main(args: argparse.Namespace) -> None:
    torch.set_float32_matmul_precision("high")
    sets: dict[str, tuple[str, ...]] = {"all": ()}
    sets |= {f"without {name}": (name,) for name in args.only}
    if len(args.only) > 1:
        sets["none"] = tuple(args.only)
    for members in args.members:
        steps = max(1, min(args.images // BATCH, args.member_steps // members))
        runs = {name: prepare(args, members, steps, names) for name, names in sets.items()}
        for name, times in alternate(runs, args.repeats, 1e6 / (steps * members)).items():
            middle = statistics.median(times)
            if name == "all":
                whole = middle
            print(
                f"{members:4d} members  {name:24s} {middle:9.2f} us ({min(times):.2f} to {max(times):.2f}),"
                f" {middle / whole:.3f} of all",
                flush=True,
            )


def prepare(args: argparse.Namespace, members: int, steps: int, names: tuple[str, ...]) -> Callable[[int], Any]:
    """An epoch of so many steps with some changes left out, compiled and captured already."""
    pyro.clear_param_store()
    images = torch.rand(steps * BATCH, 28, 28, generator=torch.Generator().manual_seed(0)).to(args.device)
    vaes = []
    for seed in range(members):
        pyro.set_rng_seed(seed)
        vaes.append(HyperbolicVAE(PoincareBall(0.2), 10, (28, 28), hidden_dim=args.hidden).to(args.device))
    optim, pairs = pyro.optim.Adam({"lr": 5e-4}), [(vae.model, vae.guide) for vae in vaes]
    svi: Any
    if members == 1:
        svi = FastSVI(*pairs[0], optim, Trace_ELBO(), compile="tuned")
    else:
        svi = EnsembleSVI(pairs, optim, Trace_ELBO(), compile=True)
    batches = Minibatches(images, BATCH, members=None if members == 1 else members, drop_last=True)

    def run(number: int) -> None:
        with left_out(*names):
            svi.run(batches.epoch(number))[-1].max().item()

    # The kernels that were chosen are kept on disk, where other ways to time them are not told apart.
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag=" ".join(names)):
        run(0)
        run(1)
    return run


def alternate(runs: dict[str, Callable[[int], Any]], repeats: int, factor: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(2, 2 + repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run(number)
            times[name].append(factor * (time.perf_counter() - start))
    return times


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 16, 90], help="sizes of the ensembles")
    names = sorted(CHANGES)
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="changes to leave out")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--images", type=int, default=60_000, help="images of an epoch")
    parser.add_argument("--member-steps", type=int, default=20_000, help="most steps of all members in a repeat")
    parser.add_argument("--hidden", type=int, default=600)
    parser.add_argument("--device", default="cuda")
    return parser


if __name__ == "__main__":
    main(build_parser().parse_args())
