"""Draw a regular tree in the Poincaré disc with edges of one length, and measure the distortion of its distances.

The root lies at the origin. All children of a node are placed at the same distance from it, in directions that are
equally spread together with the direction of its parent (R. Sarkar, Low distortion Delaunay embedding of trees in
hyperbolic plane, 2011). This is not an isometry: two children of a node are nearer to each other than two edges. The
program prints the distortion: the largest ratio of a distance in the disc to that in the tree, divided by the smallest
such ratio. An isometry has distortion 1. The distortion depends on the length of the edges. With
``--branching 3 --depth 5`` it is 2.94 for the shortest edges with which branches do not meet (the default, the paper's
first figure), 1.91 for edges of length 2, 1.31 for 3, 1.15 for 5, and tends to 1. In the Euclidean plane it would grow
with the number of nodes.

What to look for in the picture: all edges are geodesics of the same length, however short they look at the border,
where there is room for exponentially many nodes. The web page next to it shows the same tree. Drag a leaf to the
middle, and it is drawn as large as the root.

    python examples/tree_embedding.py
    python examples/tree_embedding.py --branching 2 --depth 7 --edge-length 3 --output tree.pdf
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from command import at_least, command, make_parser, picture_file, positive
from regular_tree import draw_tree, embed_tree, shortest_edge
from torch import Tensor

from pyro_hyperbolic import PoincareBall, plotting

MOST_NODES = 3000  # the distances of all pairs are kept


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


def explore_tree(points: Tensor, parents: Tensor, ball: PoincareBall, path: Path | None) -> plotting.Explorer:
    """A page on which the tree can be dragged; a name is the way from the root, a class the first step of it."""
    ways, children = ["root"], torch.zeros(len(parents), dtype=torch.long)
    for parent in parents[1:].tolist():
        children[parent] += 1
        ways.append(f"{ways[parent]}.{children[parent]}" if parent else str(int(children[parent])))
    return plotting.explore(
        points,
        ball,
        path,
        labels=[way if way == "root" else f"branch {way.split('.')[0]}" for way in ways],
        names=ways,
        edges=torch.stack([parents[1:], torch.arange(1, len(parents))], 1),
        title="A regular tree",
        description=f"{len(points)} nodes; all edges have the same length.",
    )


def run(args: argparse.Namespace) -> None:
    ball = PoincareBall(args.curvature)
    length = args.edge_length or shortest_edge(args.branching, ball)
    levels = min(args.depth, MOST_NODES.bit_length())  # with so many levels there are too many nodes in any case
    nodes = 1 + (args.branching + 1) * sum(args.branching**i for i in range(levels))
    if nodes > MOST_NODES:
        raise ValueError(
            f"--branching {args.branching} --depth {args.depth} is a tree of more than {MOST_NODES} nodes; take fewer"
            " levels."
        )
    points, parents = embed_tree(args.branching, args.depth, length, ball)
    worst, average = distortion(points, tree_distances(parents), ball)
    figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
    draw_tree(points, parents, ball, ax)
    path = plotting.save(figure, args.output)
    plt.close(figure)
    page = explore_tree(points, parents, ball, args.output.with_suffix(".html"))
    print(f"{nodes} nodes, edges of length {length:.4g}, c = {args.curvature:g}")
    print(f"distortion {worst:.2f} (1 for an isometry; longer edges have less), on average {100 * average:.0f}%")
    print(f"{path}; to move through the tree open {page.path} in a browser")


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--branching", type=at_least(2), default=3, help="children per node; the root has one more")
    p.add_argument("--depth", type=positive(int), default=5, help="edges between the root and a leaf")
    shortest = "length of an edge (default: the shortest with which branches do not meet)"
    p.add_argument("--edge-length", type=positive(float), help=shortest)
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c > 0; the curvature is -c")
    p.add_argument("--output", type=picture_file, default=Path("tree_embedding.png"), help="file for the picture")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
