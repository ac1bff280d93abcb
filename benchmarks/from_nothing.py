"""The training of one auto-encoder in a process of its own, from its start to the last step.

    python -m benchmarks.from_nothing ours --device cuda
    python -m benchmarks.from_nothing numpyro --device cuda

The rows "from nothing" of :mod:`benchmarks.numpyro` are the times of these processes, imports and compilers included:
twice on each side, first with nothing compiled, and then with what the first process has left on disk. Neither side
imports the other's libraries. A short training comes before both, in a folder of its own, so that the libraries have
been read once and Python has kept their bytecode, as it is where they are installed by pip.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH = 128
OPTIONS = ("device", "epochs", "train", "dim", "hidden")
SHORT = {"epochs": 1, "train": 10 * BATCH}


def both_seconds(side: str, args: argparse.Namespace) -> tuple[float, float]:
    """What a process takes with nothing compiled before, and what one takes that finds what the first has compiled."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as folder:
        _seconds(side, argparse.Namespace(**vars(args) | SHORT), Path(first))
        return _seconds(side, args, Path(folder)), _seconds(side, args, Path(folder))


def _seconds(side: str, args: argparse.Namespace, folder: Path) -> float:
    """What a process takes that finds compiled code in a folder, and leaves it there."""
    caches = {
        "PYTHONDONTWRITEBYTECODE": "",
        "TMPDIR": folder,  # where torch keeps the headers that a C++ compiler has read
        "TORCHINDUCTOR_CACHE_DIR": folder / "torch",
        "TRITON_CACHE_DIR": folder / "triton",
        "CUDA_CACHE_PATH": folder / "cuda",
        "JAX_COMPILATION_CACHE_DIR": folder / "jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": 0,  # by default what compiles within a second is not kept
    }
    options = [f"--{name}={getattr(args, name)}" for name in OPTIONS]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.from_nothing", side, *options],
        env=os.environ | {name: str(value) for name, value in caches.items()},
        check=True,
    )
    return time.perf_counter() - start


def ours(args: argparse.Namespace) -> None:
    import pyro
    import torch
    from pyro.infer import Trace_ELBO

    from pyro_hyperbolic import PoincareBall
    from pyro_hyperbolic.infer import FastSVI, Minibatches
    from pyro_hyperbolic.models import HyperbolicVAE

    torch.set_float32_matmul_precision("high")
    pyro.set_rng_seed(0)
    batches = Minibatches(torch.rand(args.train, 28, 28).to(args.device), BATCH, drop_last=True)
    vae = HyperbolicVAE(PoincareBall(0.2), args.dim, (28, 28), hidden_dim=args.hidden).to(args.device)
    svi = FastSVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 5e-4}), Trace_ELBO(), compile=True)
    for epoch in range(args.epochs):
        losses = svi.run(batches.epoch(epoch))
    losses[-1].item()


def numpyro(args: argparse.Namespace) -> None:
    os.environ["JAX_PLATFORMS"] = "cuda,cpu" if args.device == "cuda" else "cpu"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from jax import random

    from benchmarks.numpyro_vae import Rival

    rival = Rival(random.uniform(random.PRNGKey(0), (args.train, 784)), BATCH, args.dim, args.hidden)
    state, scan = rival.start(None), rival.scan(None)
    for epoch in range(args.epochs):
        state, losses = scan(state, random.split(random.PRNGKey(epoch), args.train // BATCH))
    losses.block_until_ready()


SIDES = {"ours": ours, "numpyro": numpyro}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("side", choices=SIDES)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--epochs", type=int, default=80)
    p.add_argument("--train", type=int, default=60_000, help="training images")
    p.add_argument("--dim", type=int, default=10, help="dimension of the latent space")
    p.add_argument("--hidden", type=int, default=600, help="width of the hidden layers")
    return p


def main(arguments: Any = None) -> None:
    args = parser().parse_args(arguments)
    SIDES[args.side](args)


if __name__ == "__main__":
    main()
