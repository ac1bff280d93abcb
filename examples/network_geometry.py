"""What is the geometry of my network? Compare spaces by their evidence, and predict links with intervals.

    python examples/network_geometry.py
    python examples/network_geometry.py --network karate --spaces e2 h2 s2 h3 --device cuda --chains 64
    python examples/network_geometry.py --network my.edges --degrees --spaces e2 h2

The model places the nodes on a space, where near ones are likely to have an edge. It draws the curvature too. A network
is one of those in ``datasets.network``, an edge list or a GraphML file. The sphere needs more draws than the planes,
but each takes less time. What to look for:

* The table of evidence: its last line says which space the network prefers, and whether to believe it. A flat space
  that wins is an answer as well.
* The posterior of the curvature, in units of the spread of the nodes: below about 0.1 a space is as good as flat.
* The pairs without an edge that are likeliest to have one, with 90% intervals of the probability.
* ``network_geometry.png``: the nodes on the best space of two dimensions, at their distance and direction from the
  middle, with a cloud of draws for each. Clouds that overlap are nodes whose places are not known apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from command import add_common, at_least, command, make_parser, positive, signature
from runs import label_places, record, save_json

from pyro_hyperbolic import datasets, infer, plotting
from pyro_hyperbolic.geometry import signature_dim
from pyro_hyperbolic.infer import Posterior
from pyro_hyperbolic.models import LatentSpaceNetwork, Network

SHOWN = 200  # draws of each node in the picture
WITHIN = 1.8  # how far the picture reaches, in distances of the farthest mean from the middle


def likely_links(net: LatentSpaceNetwork, posterior: Posterior, network: Network, count: int) -> list[dict[str, Any]]:
    """The pairs without an edge that are likeliest to have one."""
    pairs = torch.combinations(torch.arange(network.num_nodes))
    pairs = pairs[~network.is_listed(pairs)]
    found = net.predict(posterior.samples, pairs)
    best = found.mean.argsort(descending=True)[:count].tolist()
    return [
        {
            "pair": [network.names[node] for node in pairs[k].tolist()],
            "probability": found.mean[k].item(),
            "interval": [found.lower[k].item(), found.upper[k].item()],
        }
        for k in best
    ]


def draw_positions(posterior: Posterior, network: Network, title: str, path: Path) -> None:
    """Nodes at their normal coordinates around the origin: the mean, and draws as a cloud."""
    coords = posterior.manifolds["z"].to_normal_coords(None, posterior.aligned("z").points).flatten(0, 1).cpu()
    mean = coords.mean(0)
    figure, ax = plt.subplots(figsize=(7, 7), layout="constrained")
    for i, j in network.edges.tolist():
        ax.plot(*mean[[i, j]].T, color="0.4", linewidth=0.8, zorder=2)
    for node, cloud in enumerate(coords[:: max(1, len(coords) // SHOWN)].unbind(1)):
        ax.scatter(cloud[:, 0], cloud[:, 1], s=6, alpha=0.3, linewidths=0, color=f"C{node % 10}")
        ax.scatter(mean[node, 0], mean[node, 1], s=30, color=f"C{node % 10}", edgecolors="white", zorder=4)
    # The farthest draws would leave little room for the nodes.
    side = max(WITHIN * mean.norm(dim=-1).max().item(), coords.abs().flatten().quantile(0.5).item())
    ax.set(title=title, aspect="equal", xticks=[], yticks=[], xlim=(-side, side), ylim=(-side, side))
    for node, (x, y) in enumerate(label_places(mean, side)):
        ax.text(x, y, network.names[node], fontsize=8, va="center", zorder=3)
    plotting.save(figure, path)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    network = datasets.network(args.network)
    torch.set_default_dtype(torch.float64)
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    with torch.device(args.device):
        nets = {s: LatentSpaceNetwork(s, network.num_nodes, degrees=args.degrees) for s in args.spaces}
        models = {space: net.model for space, net in nets.items()}
        found = infer.compare(models, network.to(args.device), **settings)
    print(found)
    result = record(args) | {"verdict": found.verdict}
    for space, evidence in found.evidences.items():
        result[space] = {"log_evidence": evidence.value, "standard_error": evidence.standard_error}
        for name in nets[space].positions.drawn:
            draws = evidence.posterior.samples[name].flatten().cpu()
            low, middle, high = result[space][name] = draws.quantile(torch.tensor([0.05, 0.5, 0.95])).tolist()
            print(f"{space}: {name} is {middle:.2g}, between {low:.2g} and {high:.2g} with 90% probability")
    best = found.rows[0].name
    result["links"] = likely_links(nets[best], found.evidences[best].posterior, network, args.links)
    for link in result["links"]:
        low, high = link["interval"]
        print(f"{' and '.join(link['pair'])}: {link['probability']:.2f} ({low:.2f} to {high:.2f})")
    flat = [row.name for row in found.rows if signature_dim(row.name) == 2]
    if flat:
        path = args.output_dir / "network_geometry.png"
        draw_positions(found.evidences[flat[0]].posterior, network, f"{args.network} on {flat[0]}", path)
    save_json(result, args.output_dir / "network_geometry.json")
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--network", default="florentine", help="name or file of the network")
    p.add_argument("--spaces", type=signature, nargs="+", default=["e2", "h2"], help="signatures of the spaces")
    p.add_argument("--degrees", action="store_true", help="give each node an effect of its own")
    p.add_argument("--links", type=positive(int), default=5, help="predicted links to show")
    p.add_argument("--chains", type=at_least(4), default=16, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=300, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(8), default=800, help="samples per chain")
    add_common(p, "--seed", "--device", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
