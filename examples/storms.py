"""Where do storms turn? A mixture of directions and latitudes of Atlantic storms on a cylinder, a circle times a line.

Storms of the North Atlantic start in the tropics, go west with the trade winds, turn north and end in the westerlies,
which take them north-east. A day of a storm is a direction and a latitude: a point of the product ``"s1,e1"``. The
model is an ordinary Pyro program,

    x ~ sum_k weights[k] WrappedNormal(centre[k], covariance[k]),

where the centres are points of the product, and the covariances couple the two factors: within a component, the
direction may turn as the latitude grows. SVI fits it, and NUTS samples it from there.

    python examples/storms.py
    python examples/storms.py --components 6 --num-steps 1500 --warmup 500 --num-samples 500 --chains 4

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
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from runs import record, save_json
from torch import Tensor

from pyro_hyperbolic import geometry, plotting
from pyro_hyperbolic.datasets import StormDays, storms
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import AutoWrappedNormal

Values = dict[str, Tensor]
CYLINDER = geometry.from_signature("s1,e1")
MIDDLE, UNIT = 25.0, 10.0  # latitudes are tens of degrees from here, so that both factors have about one scale
SPREAD = (2.0, 1.0)  # of the centres: next to uniform on the circle; ten degrees of latitude
TREE_DEPTH = 4  # doublings of a step of NUTS
LATITUDES = torch.linspace(9, 64, 56, dtype=torch.float64)
HEADINGS = 2 * math.pi * (torch.arange(72, dtype=torch.float64) + 0.5) / 72 - math.pi


def points(heading: Tensor, latitude: Tensor) -> Tensor:
    """Directions in radians and latitudes in degrees as points of the cylinder."""
    return torch.stack([heading.cos(), heading.sin(), (latitude - MIDDLE) / UNIT], -1)


def mixture(values: Values) -> Any:
    """The distribution of a day given parameters."""
    root = values["scale"].unsqueeze(-1) * values["correlation"]
    components = WrappedNormal(values["centre"], manifold=CYLINDER, scale_tril=root)
    return dist.MixtureSameFamily(dist.Categorical(values["weights"]), components)


def model(components: int, x: Tensor | None = None) -> None:
    """A mixture with all its parameters drawn; without points it draws one."""
    values = {"weights": pyro.sample("weights", dist.Dirichlet(torch.full((components,), 2.0)))}
    with pyro.plate("components", components):
        values["centre"] = pyro.sample("centre", WrappedNormal(CYLINDER.origin(2), torch.tensor(SPREAD), CYLINDER))
        values["scale"] = pyro.sample("scale", dist.LogNormal(math.log(0.5), 0.5).expand([2]).to_event(1))
        values["correlation"] = pyro.sample("correlation", dist.LKJCholesky(2, 1.5))
    with pyro.plate("days", 1 if x is None else len(x)):
        pyro.sample("x", mixture(values), obs=x)


def fit(components: int, x: Tensor, args: argparse.Namespace) -> list[Values]:
    """Draws of a guide, one for each chain, with centres that start at random days."""
    centre = x[torch.randperm(len(x))[:components]]
    begin = init_to_value(values={"centre": centre, "scale": torch.full((components, 2), 0.5)})
    guide = AutoWrappedNormal(model, init_loc_fn=begin, init_scale=0.05)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / args.num_steps)})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(args.num_steps):
        svi.step(components, x)
    with torch.no_grad():
        return [guide(components, x) for _ in range(args.chains)]


def sample(components: int, x: Tensor, begin: Values, args: argparse.Namespace) -> tuple[Values, int]:
    """Samples of a chain, and its divergences; from elsewhere it would find the components in another order."""
    kernel = NUTS(model, max_tree_depth=TREE_DEPTH, init_strategy=init_to_value(values=begin))
    mcmc = MCMC(kernel, args.num_samples, args.warmup, disable_progbar=True)
    mcmc.run(components, x)
    return mcmc.get_samples(), sum(map(len, mcmc.diagnostics()["divergences"].values()))


@torch.no_grad()
def on_grid(draws: Values) -> Tensor:
    """Densities ``(latitudes, headings, draws)`` on the grid of ``LATITUDES`` and ``HEADINGS``."""
    latitude, heading = torch.meshgrid(LATITUDES, HEADINGS, indexing="ij")
    return mixture(draws).log_prob(points(heading, latitude).unsqueeze(-2)).exp()


def mean_heading(density: Tensor) -> Tensor:
    """The mean direction at every latitude in every draw, ``(latitudes, draws)``."""
    sine, cosine = ((density * f(HEADINGS).unsqueeze(-1)).sum(-2) for f in (torch.sin, torch.cos))
    return torch.atan2(sine, cosine)


def turning_latitude(heading: Tensor) -> Tensor:
    """Where the mean direction turns from the west of north to the east, in degrees; ``nan`` if it never does."""
    before, after = heading[:-1], heading[1:]
    turns = (before < 0) & (after >= 0) & (after - before < math.pi)
    at = LATITUDES[:-1].unsqueeze(-1) - before / (after - before) * (LATITUDES[1] - LATITUDES[0])
    first = turns.to(torch.uint8).argmax(0, keepdim=True)
    return torch.where(turns.any(0), at.gather(0, first).squeeze(0), torch.nan)


def draw(density: Tensor, days: StormDays, path: Path) -> None:
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
    turn = turning_latitude(heading).nanquantile(torch.tensor([0.05, 0.95])).tolist()
    right.axhspan(*turn, color="#bd1f01", alpha=0.25, linewidth=0)
    for ax in (left, right):
        ax.set(xlim=(-180, 180), ylim=(9, 64), xlabel="direction of motion")
        ax.set_xticks([-180, -90, 0, 90, 180], ["S", "W", "N", "E", "S"])
    left.set_ylabel("latitude")
    plotting.save(figure, path, dpi=150)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    pyro.clear_param_store()
    pyro.set_rng_seed(args.seed)
    days = storms()
    days = days[days.day % 2 == 0]  # neighbouring days are much alike
    x = points(days.heading, days.latitude)
    if args.components > len(x):
        raise ValueError(f"--components must not exceed the {len(x)} days, got {args.components}.")
    chains, divergences = [], 0
    for begin in fit(args.components, x, args):
        values, count = sample(args.components, x, begin, args)
        chains.append(values)
        divergences += count
    density = on_grid({name: torch.cat([chain[name] for chain in chains]) for name in chains[0]})
    turn = turning_latitude(mean_heading(density))
    rows = turn.reshape(args.chains, args.num_samples)
    r_hat, n_eff = split_gelman_rubin(rows).item(), effective_sample_size(rows).item()
    result = record(args) | {"mean": turn.mean().item(), "std": turn.std().item(), "r_hat": r_hat, "n_eff": n_eff}
    print(f"{len(x)} days: storms turn at {result['mean']:.2f} ± {result['std']:.2f} degrees of latitude")
    print(f"R-hat {r_hat:.2f}, n_eff {n_eff:.0f}, {divergences} divergences; results in {args.output_dir}")
    save_json(result, args.output_dir / "storms.json")
    draw(density, days, args.output_dir / "storms.png")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    p.add_argument("--components", type=positive(int), default=4, help="components of the mixture")
    p.add_argument("--num-steps", type=positive(int), default=250, help="steps of SVI")
    p.add_argument("--chains", type=positive(int), default=2, help="chains of NUTS")
    p.add_argument("--warmup", type=positive(int), default=100, help="warm-up steps of NUTS")
    p.add_argument("--num-samples", type=at_least(4), default=100, help="samples per chain")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
