"""Networks by SVI on a sample of the pairs: how a step grows with nodes and edges, and what a training finds.

    python -m benchmarks.networks --nodes 10000 --edges 100000 --steps 300
    python -m benchmarks.networks --nodes 100000 --edges 1000000 --device cuda --json networks.json

The network is drawn from points of a hyperbolic disc. Steps are measured for a sixteenth, a fourth and all of the nodes
with all edges, and the same of the edges with all nodes. Then the whole network, but for 1% of its edges, is fitted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.infer import Predictive, Trace_ELBO
from torch import Tensor

from benchmarks.results import output_file
from examples.command import add_common, command, make_parser, positive
from pyro_hyperbolic.infer import FastSVI
from pyro_hyperbolic.models import LatentSpaceNetwork, Network, roc_auc

SHARES = (16, 4, 1)
HELD_OUT = 100  # one edge of so many
TENTHS, NEAR = 10, 0.002  # parts of a training after which it is scored, and when an AUC counts as reached


def simulated(num_nodes: int, num_edges: int, seed: int = 0) -> Tensor:
    """Edges ``(E, 2)`` between points of a disc of radius ``2 log N``, likelier between those that are near.

    Candidates are neighbours in the order of angles, at offsets of any size, so that no pair of all is looked at.
    """
    generator = torch.Generator().manual_seed(seed)
    angle = (2 * math.pi * torch.rand(num_nodes, generator=generator, dtype=torch.float64)).sort().values
    # The density of the radius is that of the area, for a smaller curvature: degrees then have heavy tails.
    most = 2 * math.log(num_nodes)
    radius = most + torch.rand(num_nodes, generator=generator, dtype=torch.float64).log() / 0.75
    radius = radius.clamp(min=0.1)
    found = torch.empty(0, dtype=torch.int64)  # numbers of pairs
    while len(found) < num_edges:
        first = torch.randint(num_nodes, (2 * num_edges,), generator=generator)
        log_offset = math.log(num_nodes / 2) * torch.rand(len(first), generator=generator)
        second = (first + log_offset.exp().long()) % num_nodes
        bend = (angle[first] - angle[second]).abs()
        # The distance of far points: r + s + 2 log sin(half of the angle).
        distance = radius[first] + radius[second] + 2 * (bend / 2).sin().abs().clamp(min=1e-9).log()
        kept = torch.rand(len(first), generator=generator) < ((most - distance) / 0.5).sigmoid()
        pairs = torch.stack([first, second], -1)[kept & (first != second)].sort(-1).values
        found = torch.unique(torch.cat([found, pairs[:, 0] * num_nodes + pairs[:, 1]]))
        most += 0.5  # for networks with more edges than such a disc has
    found = found[torch.randperm(len(found), generator=generator)[:num_edges]]
    return torch.stack([found // num_nodes, found % num_nodes], -1)


def trainer(network: Network, device: torch.device, rate: float) -> tuple[LatentSpaceNetwork, FastSVI]:
    """A model on the hyperbolic plane, at its start, and its trainer."""
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    net = LatentSpaceNetwork("h2", network.num_nodes, degrees=True).to(device)
    net.begin(net.start(network))
    count = network.num_edges
    # Not ClippedAdam: no CUDA graph can capture it, and it would cut off what pushes apart the few near pairs.
    optim = pyro.optim.Adam({"lr": rate})
    model, guide = (lambda: net.model(network, count)), (lambda: net.guide(network, count))
    return net, FastSVI(model, guide, optim, Trace_ELBO())


def seconds_of_a_step(svi: FastSVI, repeats: int) -> float:
    """The median, after three steps to warm up."""
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        svi.step().item()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


def measure(nodes: int, edges: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row: sizes, and the times of a start and of a step."""
    network = Network(nodes, simulated(nodes, edges)).to(args.device)
    start = time.perf_counter()
    _, svi = trainer(network, torch.device(args.device), args.learning_rate)
    begun = time.perf_counter() - start
    step = seconds_of_a_step(svi, args.repeats)
    return {"nodes": nodes, "edges": edges, "start_seconds": begun, "step_seconds": step}


def fit(args: argparse.Namespace, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Train on all edges but some, and tell these from other pairs, after each tenth of the steps.

    :param note: is told of what is known so far.
    """
    edges = simulated(args.nodes, args.edges)
    held, kept = edges[: len(edges) // HELD_OUT], edges[len(edges) // HELD_OUT :]
    network = Network(args.nodes, kept, missing=held).to(args.device)
    others = torch.randint(args.nodes, (len(held), 2), generator=torch.Generator().manual_seed(1))
    others = others[others[:, 0] != others[:, 1]]
    others = others[~network.is_listed(others.to(args.device)).cpu()]
    start = time.perf_counter()
    net, svi = trainer(network, torch.device(args.device), args.learning_rate)
    result: dict[str, Any] = {"start_seconds": time.perf_counter() - start, "steps": args.steps, "curve": []}
    seconds, done = result["start_seconds"], 0
    for tenth in range(1, TENTHS + 1):
        count = args.steps * tenth // TENTHS - done
        start = time.perf_counter()
        losses = [svi.step() for _ in range(count)]
        loss = torch.stack(losses).mean().item() if losses else math.nan
        seconds, done = seconds + time.perf_counter() - start, done + count  # without the scores
        samples = Predictive(net.guide, num_samples=20)(network)
        scores = [net.predict(samples, pairs).mean.cpu() for pairs in (held, others)]
        row = {"steps": done, "seconds": seconds, "loss": loss, "auc": roc_auc(*scores)}
        result["curve"].append(row)
        print(
            f"{done:>9,} steps {seconds:8.1f} s: loss {loss:14.1f}, AUC of held-out edges {row['auc']:.4f}", flush=True
        )
        note(result)
    return result | reached(result["curve"])


def reached(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps and seconds after which the AUC stays within 0.002 of the last one."""
    last = curve[-1]["auc"]
    away = [i for i, row in enumerate(curve) if abs(row["auc"] - last) > NEAR]
    first = curve[away[-1] + 1 if away else 0]
    end = {"seconds": curve[-1]["seconds"], "auc": last}
    return end | {"reached_steps": first["steps"], "reached_seconds": first["seconds"]}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print, and write what was measured, row by row."""
    sizes = [(args.nodes // share, args.edges) for share in SHARES]
    sizes += [(args.nodes, args.edges // share) for share in SHARES[:-1]]
    result: dict[str, Any] = {"device": device_name(args.device), "rows": []}

    def note(**parts: Any) -> None:
        result.update(parts)
        if args.json is not None:
            args.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")

    for nodes, edges in sizes:
        if edges > nodes * (nodes - 1) // 8:
            continue  # next to a complete network, of which a sample of other pairs makes no sense
        row = measure(nodes, edges, args)
        note(rows=[*result["rows"], row])
        print(
            f"{nodes:>9,} nodes {edges:>10,} edges: start {row['start_seconds']:7.2f} s,"
            f" step {1e3 * row['step_seconds']:8.2f} ms",
            flush=True,
        )
    found = fit(args, lambda known: note(fit=known))
    note(fit=found)
    print(
        f"{args.steps} steps and the start took {found['seconds']:.1f} s; the AUC was reached after"
        f" {found['reached_steps']} steps and {found['reached_seconds']:.1f} s"
    )
    return result


def device_name(device: str) -> str:
    """The name of the GPU, or of the kind of device."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device)


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = make_parser(__doc__, "python -m benchmarks.networks")
    p.add_argument("--nodes", type=positive(int), default=10_000, help="nodes of the network")
    p.add_argument("--edges", type=positive(int), default=100_000, help="edges of the network")
    p.add_argument("--steps", type=positive(int), default=1000, help="steps of the training")
    p.add_argument("--repeats", type=positive(int), default=20, help="steps that are measured")
    p.add_argument("--learning-rate", type=positive(float), default=0.02, help="of Adam")
    p.add_argument("--json", type=output_file, help="where to write the results (default: nowhere)")
    add_common(p, "--device")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
