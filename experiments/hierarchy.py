"""Is my data hierarchical? Gromov's delta of graphs and of point clouds.

The delta of any four points is 0 in a tree. For each space, the table gives twice the largest delta divided by the
diameter, and twice the average delta divided by the average distance. Next to it is the same average for a *null*:
random data that show what the diagnostic says without the structure in question. The null is

- for a graph: a connected random graph with the same degrees;
- for points: Gaussian points with the same covariance;
- for the latents of a model: a sample of the model's prior.

Without options, the example compares spaces of known shape.

What to look for: each row of ``hierarchy.png`` shows the distribution of the deltas of a space (filled) and of its null
(line). A tree is a single bar at 0. Where the filled part ends well to the left of the line, the space is more like a
tree than its null. Where they agree, the diagnostic sees no hierarchy. ``hierarchy.html`` shows the first space in the
disc.

    python -m experiments.hierarchy
    python -m experiments.hierarchy --graph karate --graph my.edges
    python -m experiments.hierarchy --points my_points.npy
    python -m experiments.hierarchy --mnist --num-epochs 5
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import networkx
import numpy as np
import pyro
import torch
from matplotlib.figure import Figure
from pyro.infer import SVI, Trace_ELBO
from torch import Tensor
from tqdm.auto import tqdm

from examples.command import add_common, command, input_file, make_parser, picture_file, positive
from pyro_hyperbolic import PoincareBall, datasets, plotting
from pyro_hyperbolic.analysis import hyperbolic_mds
from pyro_hyperbolic.geometry import DeltaHyperbolicity, delta_hyperbolicity, four_point_deltas
from pyro_hyperbolic.models import VAE, EuclideanVAE, HyperbolicVAE

# Spaces of at most this many points are measured by all of their quadruples.
EXACT = 150
# Swaps per edge after which little is left of a graph but its degrees.
SWAPS = 10
MODELS = ("hyperbolic", "euclidean")
COLOUR = "#3f90da"
# Of a space that is placed in the disc, in radii of curvature.
DIAMETER = 12.0


class Space(NamedTuple):
    """A matrix of distances, and that of the null to compare with, if there is one."""

    name: str
    distances: Tensor
    null: Tensor | None = None


def euclidean(points: Tensor) -> Tensor:
    """Distances of all pairs, from differences: a matrix product would lose near pairs."""
    x = points.flatten(1).double()
    return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")


def of_graph(name: str, graph: networkx.Graph, seed: int) -> Space:
    """The largest component of a graph, and a connected graph with the same degrees."""
    component = graph.subgraph(max(networkx.connected_components(graph), key=len))
    rewired = networkx.Graph(component.edges)
    if len(rewired) >= 4:
        networkx.connected_double_edge_swap(rewired, nswap=SWAPS * rewired.number_of_edges(), seed=seed)
    return Space(name, datasets.graph_distances(component), datasets.graph_distances(rewired))


def of_points(name: str, points: Tensor, seed: int) -> Space:
    """A point cloud, and a Gaussian one with the same covariance."""
    x = points.flatten(1).double()
    _, singular, directions = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    noise = torch.randn(len(x), len(singular), generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    surrogate = noise * (singular / math.sqrt(len(x) - 1)) @ directions
    return Space(name, euclidean(x), euclidean(surrogate))


def known_spaces(num_points: int, seed: int) -> list[Space]:
    """Spaces whose shape is known, and the branching diffusion, whose tree is known."""
    generator = torch.Generator().manual_seed(seed)

    def normal(dim: int) -> Tensor:
        return torch.randn(num_points, dim, generator=generator, dtype=torch.float64)

    ball = PoincareBall(1.0)
    disc = ball.from_normal_coords(None, 2 * normal(2))
    side = max(2, math.isqrt(num_points // 2))
    data = datasets.branching_diffusion(seed=seed)
    random_graph = networkx.gnm_random_graph(num_points, 2 * num_points, seed=seed)
    return [
        of_graph("binary tree", networkx.balanced_tree(2, 6), seed),
        Space("normal, hyperbolic plane, scale 2", ball.pairwise_dist(disc, disc)),
        *(Space(f"normal, {dim} dimensions", euclidean(normal(dim))) for dim in (2, 10, 50, 500)),
        Space(f"grid {side} x {side}", datasets.graph_distances(networkx.grid_2d_graph(side, side))),
        Space("random graph, mean degree 4", datasets.graph_distances(random_graph, largest_component=True)),
        of_points("branching diffusion, nodes", data.nodes, seed),
        of_points("branching diffusion, observations", data.train, seed),
    ]


def mnist_spaces(args: argparse.Namespace) -> list[Space]:
    """Test digits by their pixels, and by their latents in two auto-encoders that were trained for a short time."""
    train, test = (datasets.mnist(args.data_dir, train=is_train).images for is_train in (True, False))
    test = test[: args.num_points]
    spaces = [of_points("MNIST, pixels", test, args.seed)]
    for name in MODELS:
        vae = trained(name, train, args)
        with torch.no_grad():
            z = vae.encode(test).mean.double()
            prior = vae.prior().sample((len(test),)).double()
            title = f"MNIST, {name} latents, d = {args.latent_dim}"
            if not isinstance(vae, EuclideanVAE):
                ball = PoincareBall(args.curvature)
                spaces.append(Space(title, ball.pairwise_dist(z, z), ball.pairwise_dist(prior, prior)))
            else:
                spaces.append(Space(title, euclidean(z), euclidean(prior)))
    return spaces


def trained(name: str, images: Tensor, args: argparse.Namespace) -> VAE:
    """An auto-encoder of the images; ``.model`` and ``.guide`` are its Pyro programs."""
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    shape, hidden = tuple(images.shape[1:]), args.hidden_dim
    if name == "hyperbolic":
        vae: VAE = HyperbolicVAE(PoincareBall(args.curvature), args.latent_dim, shape, hidden)
    else:
        vae = EuclideanVAE(args.latent_dim, shape, hidden)
    vae.init_output_bias(images)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 5e-4}), Trace_ELBO())
    for _ in tqdm(range(args.num_epochs), desc=name, leave=False, unit="epoch", disable=None):
        for index in torch.randperm(len(images)).split(128):
            svi.step(images[index])
    return vae


def measure(distances: Tensor, args: argparse.Namespace) -> DeltaHyperbolicity:
    num_samples = None if len(distances) <= EXACT else args.num_samples
    return delta_hyperbolicity(distances, num_samples, args.seed)


def report(spaces: list[Space], args: argparse.Namespace) -> None:
    """The table: a star marks the largest of a sample, which is a lower bound."""
    print(f"{'space':<34} {'points':>6} {'diameter':>9} {'largest':>9} {'average':>9} {'null':>7}")
    for space in spaces:
        found = measure(space.distances, args)
        null = "" if space.null is None else f"{measure(space.null, args).relative_mean:.4f}"
        largest = f"{found.relative:.3f}" + (" " if found.is_exact else "*")
        print(
            f"{space.name:<34} {len(space.distances):>6} {found.diameter:>9.4g} {largest:>9}"
            f" {found.relative_mean:>9.4f} {null:>7}"
        )


def draw(spaces: list[Space], args: argparse.Namespace) -> Figure:
    """Histograms of twice the four-point delta over the average distance: the space filled, its null as a line."""
    count = min(args.num_samples, 200_000)
    filled = {"color": COLOUR, "histtype": "stepfilled"}
    line = {"color": "0.25", "histtype": "step", "linewidth": 0.9}
    drawn = []
    for row, space in enumerate(spaces):
        for distances, style in ((space.distances, filled), (space.null, line)):
            if distances is not None:
                unit = delta_hyperbolicity(distances, 1).mean_distance
                drawn.append((row, 2 * four_point_deltas(distances, count, args.seed) / unit, style))
    end = max(0.1, *(float(deltas.max()) for _, deltas, _ in drawn))
    figure, axes = plt.subplots(
        len(spaces), 1, figsize=(6.4, 0.6 + 0.72 * len(spaces)), sharex=True, layout="constrained", squeeze=False
    )
    for row, deltas, style in drawn:
        weights = np.full(count, 1 / count)
        axes[row, 0].hist(deltas.numpy(), bins=np.linspace(0, end, 61), weights=weights, **style)
    for ax, space in zip(axes[:, 0], spaces, strict=True):
        ax.set_yscale("log")
        ax.set_ylim(1e-5, 2)
        ax.set_yticks([1e-4, 1e-2, 1])
        ax.minorticks_off()
        ax.text(0.99, 0.9, space.name, transform=ax.transAxes, ha="right", va="top", fontsize="small")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize="x-small")
    axes[-1, 0].set_xlim(0, end)
    axes[-1, 0].set_xlabel("2 · four-point delta / average distance", fontsize="small")
    figure.supylabel("share of quadruples", fontsize="small")
    return figure


def run(args: argparse.Namespace) -> None:
    if args.num_points < 4:
        raise ValueError(f"--num-points must be at least 4, got {args.num_points}: a delta takes four points.")
    spaces = []
    for name in args.graph:
        try:
            graph = datasets.graph(name, args.data_dir).to_networkx()
        except (OSError, ValueError) as error:
            raise ValueError(f"--graph {name}: {error}") from error
        spaces.append(of_graph(Path(name).name, graph, args.seed))
    for path in args.points:
        spaces.append(of_points(path.name, load_points(path, args.num_points, args.seed), args.seed))
    if args.mnist:
        spaces += mnist_spaces(args)
    if not spaces:
        spaces = known_spaces(args.num_points, args.seed)
    report(spaces, args)
    figure = draw(spaces, args)
    path = plotting.save(figure, args.output)
    plt.close(figure)
    page = explore(spaces[0], args.output.with_suffix(".html"))
    print(
        f"* of {args.num_samples} random quadruples: a lower bound. Picture: {path}. To move through the first space,"
        f" placed in the disc by its distances, open {page.path} in a browser."
    )


def explore(space: Space, path: Path) -> plotting.Explorer:
    """The points of a space in the disc, by their distances alone."""
    ball = PoincareBall(1.0)
    distances = space.distances.double()
    # As many radii of curvature as show a tree, and no more than classical scaling bears.
    points = hyperbolic_mds(distances * (DIAMETER / distances.max()), 2, ball)
    middle = int(distances.mean(1).argmin())
    return plotting.explore(
        points,
        ball,
        path,
        labels=distances[middle],
        center=middle,
        title=space.name,
        description=f"{len(points)} points placed by their distances alone; colours: distance from the central one.",
    )


def load_points(path: Path, num_points: int, seed: int) -> Tensor:
    """At most ``num_points`` rows, drawn without replacement, of an array ``(N, ...)``."""
    try:
        points = torch.as_tensor(np.load(path, allow_pickle=False))
    except (ValueError, EOFError, TypeError) as error:
        raise ValueError(f"--points {path} is no array of numpy.save ({error}); give a .npy file.") from error
    if points.dim() < 2 or len(points) < 4 or points.is_complex():
        raise ValueError(
            f"--points {path} must hold an array (N, ...) of at least 4 points, got {tuple(points.shape)}."
        )
    if not points.isfinite().all():
        raise ValueError(f"--points {path} must hold finite numbers; leave out the points that have others.")
    if (points == points[0]).all():
        raise ValueError(f"--points {path} holds one point many times; give points that differ.")
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    return points[order[:num_points]]


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.hierarchy")
    p.add_argument("--graph", action="append", default=[], help="name or edge list; may be repeated (default: none)")
    text = ".npy file with one point per row; may be repeated (default: none)"
    p.add_argument("--points", action="append", default=[], type=input_file, help=text)
    p.add_argument("--mnist", action="store_true", help="use pixels and latents of MNIST")
    p.add_argument("--num-points", type=positive(int), default=1000, help="maximum number of points of a cloud")
    text = f"quadruples to sample in spaces of more than {EXACT} points"
    p.add_argument("--num-samples", type=positive(int), default=1_000_000, help=text)
    p.add_argument("--latent-dim", type=positive(int), default=2, help="dimension of the latent spaces of --mnist")
    p.add_argument("--hidden-dim", type=positive(int), default=600, help="width of the hidden layers of --mnist")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c of the hyperbolic model (curvature -c)")
    p.add_argument("--num-epochs", type=positive(int), default=5, help="epochs of the auto-encoders of --mnist")
    add_common(p, "--seed", "--data-dir")
    p.add_argument("--output", type=picture_file, default=Path("hierarchy.png"), help="file for the picture")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
