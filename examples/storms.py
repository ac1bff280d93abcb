"""Where do storms turn? A mixture of directions and latitudes of Atlantic storms on a cylinder, a circle times a line.

Storms of the North Atlantic start in the tropics, go west with the trade winds, turn north and end in the westerlies,
which take them north-east. A day of a storm is a direction and a latitude: a point of the product ``"s1,e1"``. The
model is an ordinary Pyro program,

    x ~ sum_k weights[k] WrappedNormal(centre[k], covariance[k]),

where the centres are points of the product, and the covariances couple the two factors: within a component, the
direction may turn as the latitude grows. ``infer.sample_posterior`` runs all chains at once. The components may change
their numbers and the model stays the same, so the chains are given a start: the centres that k-means finds.

    python examples/storms.py
    python examples/storms.py --components 4

What to look for in ``storms.png``: the left panel shows the square root of the density (darker is greater). It runs
through north without a seam, from west at the bottom to east at the top, as the days (dots) do. The right panel shows
the mean direction at each latitude with its 90% interval. The red band is where the mean direction is north: the storms
turn there. ``python -m experiments.storms`` compares the model with flat ones, which cut the circle open.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from command import add_common, at_least, command, make_parser, positive
from runs import record, save_json
from torch import Tensor

from pyro_hyperbolic import geometry, plotting
from pyro_hyperbolic.analysis import k_means
from pyro_hyperbolic.datasets import StormDays, storms
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import Posterior, sample_posterior

Values = dict[str, Tensor]
CYLINDER = geometry.from_signature("s1,e1")
MIDDLE, UNIT = 25.0, 10.0  # latitudes are tens of degrees from here, so that both factors have about one scale
SPREAD = (2.0, 1.0)  # of the centres: next to uniform on the circle; ten degrees of latitude
SHOWN = 400  # draws in the picture
SITES = "weights", "centre", "scale", "tilt"
LATITUDES = torch.linspace(9, 64, 56, dtype=torch.float64)
HEADINGS = 2 * math.pi * (torch.arange(72, dtype=torch.float64) + 0.5) / 72 - math.pi


def points(heading: Tensor, latitude: Tensor) -> Tensor:
    """Directions in radians and latitudes in degrees as points of the cylinder."""
    return torch.stack([heading.cos(), heading.sin(), (latitude - MIDDLE) / UNIT], -1)


def mixture(values: Values) -> Any:
    """The distribution of a day given parameters."""
    r, zero = 2 * values["tilt"] - 1, torch.zeros_like(values["tilt"])  # the correlation
    root = torch.stack([1 + zero, zero, r, (1 - r.square()).sqrt()], -1).unflatten(-1, (2, 2))
    root = values["scale"].unsqueeze(-1) * root
    components = WrappedNormal(values["centre"], manifold=CYLINDER, scale_tril=root)
    return dist.MixtureSameFamily(dist.Categorical(values["weights"]), components)


def model(components: int, x: Tensor) -> None:
    """A mixture with all its parameters drawn, and the latitude where it turns."""
    values = {"weights": pyro.sample("weights", dist.Dirichlet(torch.full((components,), 2.0)))}
    with pyro.plate("components", components):
        values["centre"] = pyro.sample("centre", WrappedNormal(CYLINDER.origin(2), torch.tensor(SPREAD), CYLINDER))
        values["scale"] = pyro.sample("scale", dist.LogNormal(math.log(0.5), 0.5).expand([2]).to_event(1))
        values["tilt"] = pyro.sample("tilt", dist.Beta(1.5, 1.5))  # of one more than the correlation
    with pyro.plate("days", len(x)):
        pyro.sample("x", mixture(values), obs=x)
    pyro.deterministic("turn", turning_latitude(mean_heading(on_grid(values))))


def sample(components: int, x: Tensor, args: argparse.Namespace) -> Posterior:
    """The posterior, from the centres of k-means: from elsewhere chains would number the components in other ways."""
    start = {"centre": k_means(x, CYLINDER, components, seed=args.seed).centres}
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    return sample_posterior(model, components, x, start=start, **settings)


def on_grid(values: Values) -> Tensor:
    """Densities ``(latitudes, headings, ...)`` on the grid, for parameters with any batch dimensions."""
    latitude, heading = torch.meshgrid(LATITUDES, HEADINGS, indexing="ij")
    x = points(heading, latitude)
    return mixture(values).log_prob(x.reshape(x.shape[:2] + (1,) * (values["weights"].dim() - 1) + (3,))).exp()


def mean_heading(density: Tensor) -> Tensor:
    """The mean direction at every latitude, ``(latitudes, ...)``."""
    sine, cosine = (torch.einsum("lh...,h->l...", density, f(HEADINGS)) for f in (torch.sin, torch.cos))
    return torch.atan2(sine, cosine)


def turning_latitude(heading: Tensor) -> Tensor:
    """Where the mean direction turns from the west of north to the east, in degrees; ``nan`` if it never does."""
    before, after = heading.movedim(0, -1)[..., :-1], heading.movedim(0, -1)[..., 1:]
    turns = (before < 0) & (after >= 0) & (after - before < math.pi)
    at = LATITUDES[:-1] - before / (after - before) * (LATITUDES[1] - LATITUDES[0])
    first = turns.to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(turns.any(-1), at.gather(-1, first).squeeze(-1), torch.nan)


def draw(density: Tensor, turn: Tensor, days: StormDays, path: Path) -> None:
    """The mean density with the days, and the mean direction by latitude with its interval."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.6), sharey=True, layout="constrained")
    # The root of the density: there are many more days in the tropics than in the north.
    cells = HEADINGS.rad2deg().numpy(), LATITUDES.numpy(), density.mean(-1).sqrt().numpy()
    left.pcolormesh(*cells, cmap="Blues", shading="gouraud", rasterized=True)
    left.plot(days.heading.rad2deg(), days.latitude, ".", color="0.15", markersize=2)
    heading = mean_heading(density)
    low, middle, high = heading.rad2deg().quantile(torch.tensor([0.05, 0.5, 0.95]), -1).numpy()
    right.fill_betweenx(LATITUDES.numpy(), low, high, color="#3f90da", alpha=0.3, linewidth=0)
    right.plot(middle, LATITUDES, color="#3f90da", linewidth=1.5)
    right.axhspan(*turn.quantile(torch.tensor([0.05, 0.95])).tolist(), color="#bd1f01", alpha=0.25, linewidth=0)
    for ax in (left, right):
        ax.set(xlim=(-180, 180), ylim=(9, 64), xlabel="direction of motion")
        ax.set_xticks([-180, -90, 0, 90, 180], ["S", "W", "N", "E", "S"])
    left.set_ylabel("latitude")
    plotting.save(figure, path, dpi=150)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    days = storms()
    days = days[days.day % 2 == 0]  # neighbouring days are much alike
    x = points(days.heading, days.latitude)
    if args.components > len(x):
        raise ValueError(f"--components must not exceed the {len(x)} days, got {args.components}.")
    posterior = sample(args.components, x, args)
    turn, found = posterior.samples["turn"].flatten(), posterior.diagnostics()["turn"]
    print(posterior.summary())
    print(f"{len(x)} days: storms turn at {turn.mean():.2f} ± {turn.std():.2f} degrees of latitude")
    result = record(args) | {"mean": turn.mean().item(), "std": turn.std().item(), "converged": posterior.converged}
    result |= {"r_hat": found.r_hat, "ess": found.ess_bulk, "seconds": sum(posterior.seconds.values())}
    save_json(result, args.output_dir / "storms.json")
    some = torch.linspace(0, len(turn) - 1, min(SHOWN, len(turn))).long()
    density = on_grid({name: posterior.samples[name].flatten(0, 1)[some] for name in SITES})
    draw(density, turn, days, args.output_dir / "storms.png")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--components", type=positive(int), default=3, help="components of the mixture")
    p.add_argument("--chains", type=at_least(2), default=4, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=200, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(4), default=1000, help="samples per chain")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
