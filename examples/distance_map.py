"""A map of distances, with its uncertainty: points of the hyperbolic plane from the distances in a graph.

    python examples/distance_map.py
    python examples/distance_map.py --graph karate --device cuda --chains 64
    python examples/distance_map.py --likelihood truncated_normal --missing 0.2

``models.DistanceEmbedding`` draws the curvature ``c``, the spread ``s`` and the noise, and then points and distances,

    z_i ~ WrappedNormal(0, s, PoincareBall(c)),    x_ij ~ Normal(d(z_i, z_j), noise),

and ``infer.sample_posterior`` draws from the posterior. ``posterior.aligned`` lays the draws on each other. Results:

* ``distance_map.png``: regions that hold 50% and 90% of the posterior of each point.
* ``distance_map.html``: a page with the same regions, on which points can be dragged and searched.
* ``distance_map.json``: intervals, and how probable it is of each point that it is the one in the middle.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import networkx
import torch
from command import add_common, at_least, command, fraction, make_parser
from runs import record, save_json
from torch import Tensor

from pyro_hyperbolic import PoincareBall, datasets, plotting
from pyro_hyperbolic.infer import Posterior, sample_posterior
from pyro_hyperbolic.models import DistanceEmbedding

GRAPHS = {
    "florentine": networkx.florentine_families_graph,
    "karate": networkx.karate_club_graph,
    "davis": networkx.davis_southern_women_graph,
}
LIKELIHOODS = "normal", "truncated_normal", "log_normal"
DRAWS = 500  # in pictures


def regions(posterior: Posterior) -> tuple[PoincareBall, Tensor, Tensor, Tensor]:
    """The plane of the mean curvature, points in it ``(draws, N, 2)``, their means and roots of their covariances.

    Draws have curvatures of their own. Normal coordinates at the origin are the same lengths in all of them.
    """
    aligned = posterior.aligned("z").points
    v = posterior.manifolds["z"].to_normal_coords(None, aligned).flatten(0, 1).cpu()
    ball = PoincareBall(posterior.samples["c"].mean().item())
    z = ball.from_normal_coords(None, v[:: len(v) // DRAWS + 1])
    centres = ball.frechet_mean(z.transpose(0, 1))
    away = ball.to_normal_coords(centres, z)
    covariances = torch.einsum("sni,snj->nij", away, away) / len(away)
    return ball, z, centres, torch.linalg.cholesky(covariances)


def run(args: argparse.Namespace) -> dict[str, Any]:
    graph = GRAPHS[args.graph]()
    kept = max(networkx.connected_components(graph), key=len)
    graph = graph.subgraph([node for node in graph if node in kept])
    distances, names = datasets.graph_distances(graph), [str(node) for node in graph]
    hidden = torch.rand(distances.shape, generator=torch.Generator().manual_seed(args.seed)).triu(1) > 1 - args.missing
    distances[hidden | hidden.T] = torch.nan
    embedding = DistanceEmbedding("p2", len(names), likelihood=args.likelihood)
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    posterior = sample_posterior(embedding.model, distances.to(args.device), **settings)
    print(posterior.summary())

    ends = torch.tensor([0.05, 0.5, 0.95], dtype=distances.dtype)
    result = record(args) | {"converged": posterior.converged, "seconds": dict(posterior.seconds)}
    for name in ("c", "spread", "noise"):
        result[name] = posterior.samples[name].flatten().cpu().quantile(ends).tolist()
    remoteness = embedding.distances(posterior.samples).mean(-1).flatten(0, 1).cpu()
    shares = torch.bincount(remoteness.argmin(-1), minlength=len(names)) / len(remoteness)
    result["in the middle"] = {names[i]: shares[i].item() for i in shares.argsort(descending=True)[:5].tolist()}
    for name, share in result["in the middle"].items():
        print(f"{name} is in the middle with probability {share:.2f}")

    ball, z, centres, roots = regions(posterior)
    figure, ax = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
    plotting.regions(centres, roots, ball, ax=ax, view="equidistant")
    plotting.embedding(centres, ball, ax=ax, s=12)
    places: Any = ax.collections[-1].get_offsets()
    for name, (x, y) in zip(names, places, strict=True):
        ax.annotate(name, (x, y), (3, 3), textcoords="offset points", fontsize=7)
    plotting.save(figure, args.output_dir / "distance_map.png", dpi=150)
    plt.close(figure)
    row = {node: i for i, node in enumerate(names)}
    edges = torch.tensor([[row[str(a)], row[str(b)]] for a, b in graph.edges])
    page = args.output_dir / "distance_map.html"
    plotting.explore(centres, ball, page, names=names, edges=edges, scales=roots, draws=z[::10], title="A map")
    save_json(result, args.output_dir / "distance_map.json")
    print(f"results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--graph", choices=sorted(GRAPHS), default="florentine", help="whose distances")
    p.add_argument("--likelihood", choices=LIKELIHOODS, default="normal", help="of the distances")
    p.add_argument("--missing", type=fraction, default=0.0, help="share of the pairs that are not measured")
    p.add_argument("--chains", type=at_least(2), default=16, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=500, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(4), default=1000, help="samples per chain")
    add_common(p, "--seed", "--device", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
