"""Posteriors by ``infer.sample_posterior``: time, diagnostics, and moments beside exact ones.

    python -m benchmarks.posteriors
    python -m benchmarks.posteriors "12 leaves" karate "tree of 40" --json posteriors.json
    python -m benchmarks.posteriors "60 leaves, d = 5" --device cuda --num-chains 6 --num-samples 4000 --hottest 4
    python -m benchmarks.posteriors --calibration 200 --processes 8

Every row counts the time from nothing, the compiler included. ``--calibration`` draws a curvature, four points and
distances from their model, so many times, and ranks the truth among the draws (simulation-based calibration), in
each space.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.ops.stats import effective_sample_size

from benchmarks.posterior_cases import CASES, SPACES, Case, calibration_model
from benchmarks.results import add_results, earlier, one_of, require
from examples.command import add_common, command, make_parser, positive
from pyro_hyperbolic.infer import Posterior, sample_posterior

Rows = list[dict[str, Any]]
RANKS = 19  # draws that a truth is ranked among: 20 bins
_APART = 10**6  # of the seeds of chains from those of truths, whose random numbers would otherwise be theirs


def measure(name: str, seed: int, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """One row of the table."""
    case = CASES[name]()
    args = [arg.to(device) for arg in case.args]
    start = time.perf_counter()
    with torch.device(device):
        posterior = sample_posterior(case.model, *args, seed=seed, progress=False, **(case.options | options))
    seconds = time.perf_counter() - start
    found = posterior.diagnostics()
    row: dict[str, Any] = {
        "case": name,
        "seed": seed,
        "dtype": _dtype(),
        "seconds": seconds,
        "compile": posterior.seconds["compile"],
        "r_hat": max(d.r_hat for d in found.values()),
        "ess": min(min(d.ess_bulk, d.ess_tail) for d in found.values()),
        "diverged": posterior.divergences.double().mean().item(),
        # Of each group of quantities, such as the distances of points.
        "groups": {name: [round(d.r_hat, 4), round(min(d.ess_bulk, d.ess_tail))] for name, d in found.items()},
        "verdict": posterior.summary().splitlines()[-1],
    }
    if "c" in posterior.samples:
        c = posterior.samples["c"]
        row |= {"c": c.mean().item(), "c_sd": c.std().item(), "c_ess": found["c"].ess_bulk}
    if case.exact:
        row["worst_z"] = _worst_z(posterior, case)
    if case.truth:
        row["coverage"] = _coverage(posterior, case)
    return row


def _worst_z(posterior: Posterior, case: Case) -> float:
    """The largest error of a mean, and of a standard deviation, in standard errors."""
    worst = 0.0
    for name, (mean, sd) in case.exact.items():
        draws = posterior.samples[name].double()
        squares = (draws - mean).square()
        # Trajectories that end on the other side make means more exact than squares: each has its own size.
        for x, exact in ((draws, mean), (squares, sd.square())):
            error = x.std((0, 1)) / effective_sample_size(x, chain_dim=0, sample_dim=1).sqrt()
            worst = max(worst, ((x.mean((0, 1)) - exact).abs() / error).max().item())
    return worst


def _coverage(posterior: Posterior, case: Case) -> float:
    """The share of true distances in their 90% intervals."""
    shares = []
    for name, truth in case.truth.items():
        points, space = posterior.sets_of(name)
        pairs = torch.triu_indices(points.shape[-2], points.shape[-2], 1).T.split(50)
        parts = [space.dist(points[:, :, pair[:, 0]], points[:, :, pair[:, 1]]) for pair in pairs]
        draws = torch.cat(parts, -1).flatten(0, 1)
        low, high = draws.quantile(0.05, 0), draws.quantile(0.95, 0)
        shares.append(((low <= truth.to(low)) & (truth.to(low) <= high)).double().mean())
    return torch.stack(shares).mean().item()


def rank(job: tuple[str, int, torch.dtype]) -> dict[str, Any]:
    """The rank of a true curvature among draws of its posterior, of one replicate in a space."""
    space, replicate, dtype = job
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    pyro.set_rng_seed(replicate)
    truth, observed = calibration_model(space)
    options: dict[str, Any] = {"num_chains": RANKS, "num_samples": 50, "warmup": 150, "seed": _APART + replicate}
    posterior = sample_posterior(calibration_model, space, observed, progress=False, **options)
    # The last draw of each chain: nearly independent of each other.
    place = {"space": space, "replicate": replicate, "dtype": _dtype()}
    return place | {"rank": int((posterior.samples["c"][:, -1] < truth).sum())}


def uniformity(ranks: Sequence[int]) -> float:
    """How likely uniform ranks are so uneven, by the chi-squared test."""
    counts = torch.bincount(torch.tensor(ranks), minlength=RANKS + 1)
    expected = len(ranks) / (RANKS + 1)
    statistic = ((counts - expected).square() / expected).sum()
    return torch.special.gammaincc(torch.tensor(RANKS / 2), statistic / 2).item()


def calibrate(replicates: int, processes: int, done: Rows) -> Iterator[dict[str, Any]]:
    """Ranks of replicates that are not done yet, as they come."""
    known = {(row.get("space"), row.get("replicate"), row.get("dtype")) for row in done}
    places = [(space, k) for space in SPACES for k in range(replicates) if (space, k, _dtype()) not in known]
    jobs = [(space, k, torch.get_default_dtype()) for space, k in places]
    with torch.multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(rank, jobs)


def rows_of(args: argparse.Namespace, done: Rows) -> Iterator[dict[str, Any]]:
    """The posteriors that are not measured yet."""
    options = {name: getattr(args, name) for name in ("num_chains", "num_samples", "warmup", "hottest")}
    options = {name: value for name, value in options.items() if value is not None}
    known = {(row.get("case"), row.get("seed"), row.get("dtype")) for row in done}
    for name in args.cases or [name for name in CASES if not name.startswith("60")]:
        for seed in range(args.seeds):
            if (name, seed, _dtype()) not in known:
                yield measure(name, seed, args.device, options)


def run(args: argparse.Namespace) -> Rows:
    torch.set_default_dtype(torch.float32 if args.float32 else torch.float64)
    known = earlier(args, _read)
    rows: Rows = [] if known is None else known["rows"]
    found = calibrate(args.calibration, args.processes, rows) if args.calibration else rows_of(args, rows)
    for row in found:
        rows.append(row)
        print("  ".join(f"{key} {_shown(value)}" for key, value in row.items()), flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps({"rows": rows}), "utf-8")
    if args.calibration:
        for space in SPACES:
            ranks = [row["rank"] for row in rows if (row.get("space"), row.get("dtype")) == (space, _dtype())]
            print(f"{space}: {len(ranks)} replicates, p = {uniformity(ranks):.3f}")
    return rows


def _dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def _read(loaded: Any) -> dict[str, Any]:
    require(isinstance(loaded["rows"], list) and all(isinstance(row, dict) for row in loaded["rows"]))
    return loaded


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "benchmarks.posteriors")
    p.add_argument(
        "cases", nargs="*", type=one_of(CASES), help="which posteriors (default: all but those of 60 leaves)"
    )
    for option in ("--num-chains", "--num-samples", "--warmup"):
        p.add_argument(option, type=positive(int), help="as of sample_posterior (default: that of the case)")
    p.add_argument("--hottest", type=positive(float), help="temperature, as of sample_posterior")
    p.add_argument("--seeds", type=positive(int), default=1, help="runs of each, with seeds from 0")
    p.add_argument("--float32", action="store_true", help="in float32; otherwise in float64")
    p.add_argument("--calibration", type=positive(int), metavar="N", help="calibrate with so many replicates instead")
    p.add_argument("--processes", type=positive(int), default=2, help="for the calibration")
    add_common(p, "--device")
    add_results(p)
    return p


main = command(parser, run)


if __name__ == "__main__":
    main()
