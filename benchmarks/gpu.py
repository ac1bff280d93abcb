"""Training and evaluation on one CUDA device: ``python -m benchmarks.gpu [--json FILE] [--quick]``.

Model: encoder 784-600-(d, 1), gyroplane decoder d-600-784, Bernoulli likelihood, batch 128, Adam, one particle,
TF32 matrix products. Every row is measured in this one run: the median of repeats after warm-up, device synchronised
around each repeat.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, log_marginal_likelihood, save_json
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVAE, HyperbolicVGAE

DEVICE = "cuda"


def build(law: str, dim: int) -> Any:
    if law == "euclidean":
        return EuclideanVAE(dim, (28, 28)).to(DEVICE)
    return HyperbolicVAE(PoincareBall(0.2), dim, (28, 28), prior=law, posterior=law).to(DEVICE)


def adam() -> Any:
    return pyro.optim.Adam({"lr": 5e-4})


def seconds(step: Callable[[], Any], steps: int, repeats: int = 5) -> float:
    """Median time of one step."""
    for _ in range(5):
        step()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps)
    return statistics.median(times)


def single(law: str, dim: int, kind: str, batch: int = 128) -> float:
    """Milliseconds of one step of one model."""
    pyro.clear_param_store()
    vae = build(law, dim)
    x = torch.rand(batch, 28, 28, device=DEVICE)
    if kind == "stock":
        svi: Any = SVI(vae.model, vae.guide, adam(), Trace_ELBO())
        return 1e3 * seconds(lambda: svi.step(x), 10, 3)
    svi = FastSVI(vae.model, vae.guide, adam(), Trace_ELBO(), compile=kind == "compiled")
    return 1e3 * seconds(lambda: svi.step(x), 200)


def ensemble(law: str, dim: int, members: int, batch: int = 128) -> float:
    """Microseconds of one step per member."""
    pyro.clear_param_store()
    vaes = [build(law, dim) for _ in range(members)]
    svi = EnsembleSVI([(v.model, v.guide) for v in vaes], adam(), Trace_ELBO(), compile=True)
    x = torch.rand(members, batch, 28, 28, device=DEVICE)
    return 1e6 * seconds(lambda: svi.step(x), 20) / members


def evaluation(law: str, dim: int) -> float:
    """Seconds of IWAE-5000 on 10,000 images."""
    pyro.clear_param_store()
    vae = build(law, dim)
    x = torch.rand(10_000, 28, 28, device=DEVICE)
    options: dict[str, Any] = {"num_samples": 5000, "chunk": 1 << 19, "compile": True}
    log_marginal_likelihood(vae.model, vae.guide, x[:208], **options)
    torch.cuda.synchronize()
    start = time.perf_counter()
    log_marginal_likelihood(vae.model, vae.guide, x, **options)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def graph(nodes: int) -> float:
    """Milliseconds of one whole-graph step of the VGAE."""
    pyro.clear_param_store()
    edges = torch.stack([torch.arange(1, nodes), torch.arange(1, nodes) // 2], -1)
    vgae = HyperbolicVGAE(PoincareBall(1.0), nodes, edges).to(DEVICE)
    svi = FastSVI(vgae.model, vgae.guide, adam(), Trace_ELBO())
    return 1e3 * seconds(svi.step, 20)


def rows(quick: bool) -> list[tuple[str, Callable[[], float], str, float | None]]:
    """What is measured: name, measurement, unit, and the bound where there is one."""
    table: list[tuple[str, Callable[[], float], str, float | None]] = []
    for law in ("wrapped", "riemannian", "euclidean"):
        bound = None if law == "euclidean" else 30.0
        table.append((f"ensemble of 90, {law}, d=10", partial(ensemble, law, 10, 90), "us/member-step", bound))
    for kind, bound in (("stock", None), ("captured", None), ("compiled", 0.35)):
        for law in ("wrapped", "riemannian"):
            name = f"single step, {kind}, {law}, d=10"
            table.append((name, partial(single, law, 10, kind), "ms", bound))
    table.append(("IWAE-5000 of 10,000 images, wrapped, d=10", partial(evaluation, "wrapped", 10), "s", 2.0))
    if quick:
        return table
    for dim in (2, 5, 20, 64):
        table.append(
            (f"ensemble of 90, wrapped, d={dim}", partial(ensemble, "wrapped", dim, 90), "us/member-step", None)
        )
    for members in (1, 4, 16, 360):
        name = f"ensemble of {members}, wrapped, d=10"
        table.append((name, partial(ensemble, "wrapped", 10, members), "us/member-step", None))
    for batch in (512, 2048, 8192):
        name = f"single step, compiled, wrapped, d=10, batch {batch}"
        table.append((name, partial(single, "wrapped", 10, "compiled", batch), "ms", None))
    for nodes in (256, 1024, 4096, 8192):
        table.append((f"VGAE, captured, N={nodes}", partial(graph, nodes), "ms", None))
    return table


def main(args: argparse.Namespace) -> int:
    torch.set_float32_matmul_precision("high")
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": [],
    }
    failed = False
    for name, measure, unit, bound in rows(args.quick):
        try:
            value: float | None = measure()
            text = f"{value:10.3f} {unit}"
        except Exception as error:  # one row that fails must not lose the others
            value, text = None, f"failed: {type(error).__name__}: {error}"[:300]
        over = bound is not None and (value is None or value > bound)
        failed |= over
        print(
            f"{name:55s} {text}" + ("" if bound is None else f"  (at most {bound:g}: {'over' if over else 'ok'})"),
            flush=True,
        )
        result["rows"].append({"name": name, "value": value, "unit": unit, "bound": bound})
        if args.json:
            save_json(result, args.json)
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, default=None, help="write the results to this file")
    parser.add_argument("--quick", action="store_true", help="only the rows with a bound and their comparisons")
    raise SystemExit(main(parser.parse_args()))
