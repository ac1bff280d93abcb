"""Beside NumPyro, on the same machine and in one run.

    python -m benchmarks.numpyro --device cuda --json rival.json
    python -m benchmarks.numpyro --json rival.json --rst

The auto-encoder of :mod:`benchmarks.gpu` and the same in NumPyro (:mod:`benchmarks.numpyro_vae`), data on the device,
batches of 128, Adam. First the whole training of one model in a new process (:mod:`benchmarks.from_nothing`), with
nothing compiled before, and once more. In the other rows ours is ``FastSVI.run`` or ``EnsembleSVI.run`` over epochs of
``Minibatches``, compiled (one model with tuned products); theirs a jitted scan. Then NUTS on two posteriors
(:mod:`benchmarks.numpyro_nuts`), on the CPU, and ``sample_posterior`` beside it. Each row but the first two alternates
the two, and keeps the median of the repeats; a ratio below 1 says that ours is faster. It needs the extra ``numpyro``.
Results are written after every row, and ``--resume`` goes on after the last one; ``--rst`` prints the table of the
documentation from what ``--json`` holds.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO

from benchmarks.from_nothing import both_seconds
from benchmarks.numpyro_nuts import POSTERIORS, Walk, many, walks
from benchmarks.results import GO_ON, add_results, earlier, require
from examples.command import at_least, command, device, make_parser, natural, positive
from examples.runs import save_json
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, Minibatches, log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

BATCH, REPEATS = 128, 7
CACHES = ("nothing compiled before", "compiled by an earlier process")


def run(args: argparse.Namespace) -> None:
    begun = earlier(args, _read)
    if args.rst and begun is not None:
        print(rst(begun))
        return
    if importlib.util.find_spec("numpyro") is None:
        raise ImportError("there is no NumPyro: pip install 'pyro_hyperbolic[numpyro]'")
    os.environ["JAX_PLATFORMS"] = "cuda,cpu" if args.device == "cuda" else "cpu"
    torch.set_float32_matmul_precision("high")
    result: dict[str, Any] = {"device": _device(args.device), "versions": _versions(), "rows": {}}
    if begun is not None:
        for key in ("device", "versions"):
            then, now = begun[key], result[key]
            if then != now:
                raise ValueError(f"--resume: {args.json} has the {key} {then}, here are {now}; name another file")
        result = begun
    for name, measure in rows(args).items():
        if name not in result["rows"]:
            result["rows"][name] = measure()
            if args.json is not None:
                save_json(result, args.json)
        print(_line(name, result["rows"][name]), flush=True)


def rows(args: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    table: dict[str, Callable[[], dict[str, Any]]] = {}
    if args.nothing:
        with_caches = functools.cache(lambda: from_nothing(args))
        for cache in CACHES:
            name = f"one model, {args.epochs} epochs in a new process, {cache}"
            table[name] = functools.partial(lambda cache: with_caches()[cache], cache)
    table |= {
        "one model, one call per step": lambda: single_steps(args),
        "one model, many steps per call": lambda: many_steps(args, None),
    }
    for members in args.members:
        table[f"ensemble of {members}, per member and step"] = functools.partial(many_steps, args, members)
    if args.evaluation:
        table[f"IWAE-{args.samples} of {args.test} images"] = lambda: evaluation(args)
    for posterior in POSTERIORS if args.nuts else ():
        for share in ("leapfrog", "effective sample"):
            table[f"NUTS, {posterior}, per {share}"] = functools.partial(nuts, args, posterior, share)
    for posterior in POSTERIORS if args.posteriors else ():
        table[f"sample_posterior, {posterior}, per effective sample"] = functools.partial(posteriors, args, posterior)
    return table


def from_nothing(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Microseconds of processes that train one model, first with empty caches and then with those of the first."""
    times: dict[str, dict[str, Any]] = {cache: {} for cache in CACHES}
    for name, side in (("wrapped", "ours"), ("numpyro", "numpyro")):
        for cache, seconds in zip(CACHES, both_seconds(side, args), strict=True):
            times[cache][name] = 1e6 * seconds
    return times


def nuts(args: argparse.Namespace, posterior: str, share: str) -> dict[str, Any]:
    """Chains of both sides on the CPU; microseconds after the warm-up."""
    found = walks(posterior, args.warmup, args.draws, args.chains)
    times = {"leapfrog": Walk.per_leapfrog, "effective sample": Walk.per_effective_sample}[share]
    return {name: statistics.median(map(times, chains)) for name, chains in found.items()}


def posteriors(args: argparse.Namespace, posterior: str) -> dict[str, Any]:
    """Microseconds per effective sample after the warm-up, of many chains at once."""
    found = many(posterior, args.warmup, args.draws, args.device)
    return {name: walk.per_effective_sample() for name, walk in found.items()}


def _images(args: argparse.Namespace, count: int) -> torch.Tensor:
    return torch.rand(count, 28, 28, generator=torch.Generator().manual_seed(0)).to(args.device)


def _rival(args: argparse.Namespace, images: torch.Tensor) -> Any:
    import jax.numpy as jnp

    from benchmarks.numpyro_vae import Rival

    return Rival(jnp.asarray(images.flatten(1).cpu().numpy()), BATCH, args.dim, args.hidden)


def _vae(args: argparse.Namespace, kind: str, seed: int = 0) -> Any:
    pyro.set_rng_seed(seed)
    if kind == "euclidean":
        return EuclideanVAE(args.dim, (28, 28), hidden_dim=args.hidden).to(args.device)
    return HyperbolicVAE(PoincareBall(0.2), args.dim, (28, 28), hidden_dim=args.hidden).to(args.device)


def _adam() -> Any:
    return pyro.optim.Adam({"lr": 5e-4})


def _ours(args: argparse.Namespace, kind: str, members: int | None, count: int) -> tuple[Any, Minibatches]:
    pyro.clear_param_store()
    images = _images(args, count)
    if members is None:
        vae = _vae(args, kind)
        svi: Any = FastSVI(vae.model, vae.guide, _adam(), Trace_ELBO(), compile="tuned")
    else:
        vaes = [_vae(args, kind, seed) for seed in range(members)]
        svi = EnsembleSVI([(v.model, v.guide) for v in vaes], _adam(), Trace_ELBO(), compile=True)
    return svi, Minibatches(images, BATCH, members=members, drop_last=True)


def many_steps(args: argparse.Namespace, members: int | None) -> dict[str, Any]:
    """Epochs of ours, and a scan of as many steps of theirs; microseconds per step and member."""
    from jax import random

    steps = max(1, min(args.train // BATCH, args.member_steps // (members or 1)))
    share = steps * (members or 1)
    runs: dict[str, Callable[[int], Any]] = {}
    for kind in ("wrapped", "euclidean"):
        svi, batches = _ours(args, kind, members, steps * BATCH)

        def ours(number: int, svi: Any = svi, batches: Minibatches = batches) -> None:
            svi.run(batches.epoch(number))[-1].max().item()

        runs[kind] = ours
    rival = _rival(args, _images(args, steps * BATCH))
    state, scan = rival.start(members), rival.scan(members)

    def theirs(number: int) -> None:
        keys = random.split(random.PRNGKey(number), steps)
        scan(state, keys)[1].block_until_ready()

    return _alternate(runs | {"numpyro": theirs}, share)


def single_steps(args: argparse.Namespace, steps: int = 200) -> dict[str, Any]:
    """One call per step, of ours (``step``) and theirs (a jitted update)."""
    import jax
    from jax import random

    svi, batches = _ours(args, "wrapped", None, args.train)
    batch = next(batches.epoch(0))
    rival = _rival(args, _images(args, args.train))
    begin, update = rival.start(None), jax.jit(rival.step)
    steps = min(steps, 5 * args.train // BATCH)

    def ours(number: int) -> None:
        for _ in range(steps):
            loss = svi.step(batch)
        loss.item()

    def theirs(number: int) -> None:
        state = begin
        for key in random.split(random.PRNGKey(number), steps):
            state, loss = update(state, key)
        loss.block_until_ready()

    return _alternate({"wrapped": ours, "numpyro": theirs}, steps)


def evaluation(args: argparse.Namespace) -> dict[str, Any]:
    """IWAE estimates of all test images; seconds."""
    from jax import random

    vae, images = _vae(args, "wrapped"), _images(args, args.test)
    rival = _rival(args, images)
    params = rival.svi.get_params(rival.start(None))
    width = max(w for w in range(1, 101) if args.test % w == 0)
    theirs = rival.iwae(params, args.samples, width)

    def ours(number: int) -> None:
        log_marginal_likelihood(
            vae.model, vae.guide, images, num_samples=args.samples, compile=args.device == "cuda"
        ).sum().item()

    def other(number: int) -> None:
        theirs(rival.images, random.PRNGKey(number)).block_until_ready()

    return _alternate({"wrapped": ours, "numpyro": other}, 1, repeats=3)


def _alternate(runs: dict[str, Callable[[int], Any]], share: int, repeats: int = REPEATS) -> dict[str, Any]:
    """Medians of the repeats, in microseconds; the first two runs of each compile, and are left out."""
    for run in runs.values():
        run(0)
        run(1)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(2, 2 + repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run(number)
            times[name].append((time.perf_counter() - start) / share * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def _line(name: str, row: dict[str, float]) -> str:
    ours, theirs = row["wrapped"], row["numpyro"]
    line = f"{name:<45} {ours:>14,.2f} us, NumPyro {theirs:>14,.2f} us, ratio {ours / theirs:6.3f}"
    return f"{line}, Euclidean {row['euclidean']:,.2f} us" if "euclidean" in row else line


def rst(result: dict[str, Any]) -> str:
    """The rows as a table of the documentation."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [f".. list-table:: Microseconds, medians; {result['device']}; {versions}", "   :header-rows: 1", ""]
    for row in [
        ("measured", "this package", "NumPyro", "ratio", "this package, Euclidean"),
        *(_cells(name, row) for name, row in result["rows"].items()),
    ]:
        lines += [f"   {'*' if i == 0 else ' '} - {cell}".rstrip() for i, cell in enumerate(row)]
    return "\n".join(lines)


def _cells(name: str, row: dict[str, float]) -> tuple[str, ...]:
    ours, theirs = row["wrapped"], row["numpyro"]
    flat = _number(row["euclidean"]) if "euclidean" in row else ""
    return name, _number(ours), _number(theirs), f"{ours / theirs:.3g}", flat


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "pyro-ppl", "jax", "numpyro")}


def _read(found: Any) -> dict[str, Any]:
    """What this program has written."""
    require({"device", "versions"} <= found.keys())
    dict(found["versions"])
    for row in found["rows"].values():
        require(row["wrapped"] > 0 and row["numpyro"] > 0 and row.get("euclidean", 1.0) > 0)
    return found


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.numpyro")
    add_results(p)
    p.add_argument("--device", type=device, choices=["cpu", "cuda"], default="cpu", help="where to compute")
    p.add_argument("--members", type=positive(int), nargs="*", default=[1, 16, 90, 360], help="sizes of ensembles")
    p.add_argument("--member-steps", type=positive(int), default=200_000, help="most steps of one call, times members")
    p.add_argument("--train", type=at_least(BATCH), default=60_000, help="training images; an epoch is one call")
    p.add_argument(
        "--nothing", action=argparse.BooleanOptionalAction, default=True, help="measure the training from nothing"
    )
    p.add_argument("--epochs", type=positive(int), default=80, help="of the training from nothing")
    p.add_argument("--test", type=at_least(BATCH), default=10_000, help="images of the evaluation")
    p.add_argument("--samples", type=positive(int), default=5000, help="of the evaluation, per image")
    p.add_argument("--evaluation", action=argparse.BooleanOptionalAction, default=True, help="measure the evaluation")
    p.add_argument("--nuts", action=argparse.BooleanOptionalAction, default=True, help="measure NUTS")
    p.add_argument(
        "--posteriors", action=argparse.BooleanOptionalAction, default=True, help="measure sample_posterior beside NUTS"
    )
    p.add_argument("--warmup", type=natural, default=300, help="steps of a chain that are not counted")
    p.add_argument("--draws", type=positive(int), default=500, help="of a chain")
    p.add_argument("--chains", type=positive(int), default=3, help="repeats of a chain")
    p.add_argument("--dim", type=positive(int), default=10, help="dimension of the latent space")
    p.add_argument("--hidden", type=positive(int), default=600, help="width of the hidden layers")
    p.add_argument("--rst", action="store_true", help="measure nothing; print what --json holds for the documentation")
    return p


main = command(parser, run, go_on=GO_ON)


if __name__ == "__main__":
    main()
