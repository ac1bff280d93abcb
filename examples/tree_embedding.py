"""A regular tree isometrically embedded in the Poincaré disc (the paper's first figure).

The root lies at the origin. The children of a node are placed at one and the same distance from it, in directions
that together with that of its parent are equally spread (R. Sarkar, Low distortion Delaunay embedding of trees in
hyperbolic plane, 2011). All edges are geodesics of the same length, however short they look at
the border. The summary compares the distances of all pairs in the disc with those in the tree: the
longer the edges, the nearer the ratio is to 1, which no embedding in the Euclidean plane can do.

    python examples/tree_embedding.py --branching 3 --depth 5 --output tree.pdf
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting
from pyro_hyperbolic.experiments.figures.trees import draw_tree, embed_tree, shortest_edge

# The distances of all pairs are kept.
MOST_NODES = 3000


def tree_distances(parents: Tensor) -> Tensor:
    """Number of edges between all pairs of nodes, ``(N, N)``: parents come before their children."""
    hops = torch.zeros(len(parents), len(parents), dtype=torch.float64)
    for node in range(1, len(parents)):
        hops[node, :node] = hops[parents[node], :node] + 1
        hops[:node, node] = hops[node, :node]
    return hops


def distortion(points: Tensor, hops: Tensor, ball: PoincareBall) -> tuple[float, float]:
    """Worst and average distortion of the scaled tree distances, 1 and 0 for an isometry.

    The worst is max(ratio) / min(ratio) over all pairs of distance in the disc / distance in the tree, whatever the
    scale; the average is that of |ratio / scale - 1| with the edges' own ratio as the scale.
    """
    pairs = torch.ones_like(hops).triu(1).bool()
    ratio = (ball.pairwise_dist(points, points) / hops)[pairs]
    scale = ratio[hops[pairs] == 1].mean()
    return float(ratio.max() / ratio.min()), float((ratio / scale - 1).abs().mean())


def main(args: argparse.Namespace) -> None:
    ball, length = _checked(args)
    points, parents = embed_tree(args.branching, args.depth, length, ball)
    worst, average = distortion(points, tree_distances(parents), ball)

    figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
    draw_tree(points, parents, ball, ax)
    path = plotting.save(figure, args.output)
    plt.close(figure)
    page = explore_tree(points, parents, ball, args.output.with_suffix(".html"))
    print(
        f"{len(points)} nodes, edges of length {length:.4g}, c = {args.curvature:g}: worst distortion {worst:.4f},"
        f" average {average:.4f}; {path}; to move through the tree open {page.path} in a browser"
    )


def explore_tree(points: Tensor, parents: Tensor, ball: PoincareBall, path: Path | None) -> plotting.Explorer:
    """A page on which the tree can be dragged; a name is the way from the root, a class the first step of it."""
    ways, children = ["root"], torch.zeros(len(parents), dtype=torch.long)
    for parent in parents[1:].tolist():
        children[parent] += 1
        ways.append(f"{ways[parent]}.{children[parent]}" if parent else str(int(children[parent])))
    nodes = torch.arange(1, len(parents))
    return plotting.explore(
        points,
        ball,
        path,
        labels=[way if way == "root" else f"branch {way.split('.')[0]}" for way in ways],
        names=ways,
        edges=torch.stack([parents[1:], nodes], 1),
        title="A regular tree",
        description=f"{len(points)} nodes; all edges have the same length.",
    )


def _checked(args: argparse.Namespace) -> tuple[PoincareBall, float]:
    """The ball and the length of the edges."""
    if args.branching < 2 or args.depth < 1:
        raise ValueError(
            f"--branching must be at least 2 and --depth at least 1, got {args.branching} and {args.depth};"
            " the defaults are 3 and 5."
        )
    if not args.curvature > 0:
        raise ValueError(f"--curvature must be positive, got {args.curvature:g}; the disc has the radius 1/sqrt(c).")
    ball = PoincareBall(args.curvature)
    length = shortest_edge(args.branching, ball) if args.edge_length is None else args.edge_length
    if not length > 0:
        raise ValueError(f"--edge-length must be positive, got {length:g}; leave it out for the shortest sensible one.")
    # At three quarters of what float64 coordinates can hold, all edges are still right to five digits.
    reach = 0.75 * ball.reach(torch.float64)
    if args.depth * length > reach:
        raise ValueError(
            f"--depth {args.depth} with --edge-length {length:.4g} reaches a distance of {args.depth * length:.4g},"
            f" beyond {reach:.4g}; take shorter edges or fewer levels."
        )
    nodes = 1 + (args.branching + 1) * sum(args.branching**i for i in range(args.depth))
    if nodes > MOST_NODES:
        raise ValueError(
            f"--branching {args.branching} --depth {args.depth} is a tree of {nodes} nodes, more than {MOST_NODES};"
            " take fewer levels."
        )
    return ball, length


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--branching", type=int, default=3, help="children of a node; the root has one more")
    options.add_argument("--depth", type=int, default=5, help="edges between the root and a leaf")
    options.add_argument("--edge-length", type=float, help="default: the shortest with which branches do not meet")
    options.add_argument("--curvature", type=float, default=1.0, help="c > 0; the curvature is -c")
    options.add_argument("--output", type=Path, default=Path("tree_embedding.png"), help="file to write")
    return options


if __name__ == "__main__":
    try:
        main(parser().parse_args())
    except (ValueError, OSError) as error:
        sys.exit(f"tree_embedding.py: error: {error}")
