"""Where do storms turn? A mixture of directions and latitudes of Atlantic storms on a cylinder, a circle times a line.

Storms of the North Atlantic start in the tropics, go west with the trade winds, turn north and end in the westerlies,
which take them north-east. A day of a storm is a direction and a latitude: a point of the product ``"s1,e1"``. The
model is an ordinary Pyro program,

    x ~ sum_k weights[k] WrappedNormal(centre[k], covariance[k]),

where the centres are points of the product, and the covariances couple the two factors: within a component, the
direction may turn as the latitude grows. Three other models are fitted for comparison: one without that coupling, and
two flat ones, which cut the circle open, either at north, as a compass does, or at south, where hardly a storm goes.

SVI fits each model with several numbers of components, and the validation storms choose one of them. The models are
then compared on test storms, which none has seen. ``infer.sample_posterior`` samples the coupled model, from the fit.
The data are :func:`pyro_hyperbolic.datasets.storms`.

What to look for in ``storms.png``: the left panel shows the square root of the density of the coupled model (darker is
greater). It runs through north without a seam, from west at the bottom to east at the top, as the test days (dots) do.
The middle panel shows the same for the model with a cut at north. It has a gap there, because no component can lie
across the cut. The right panel shows the mean direction at each latitude with its 90% interval by the chains. The red
band is where the mean direction is north: the storms turn there.

    python -m experiments.storms
    python -m experiments.storms --components 2 3 4 5 6 --num-steps 1500 --starts 4
    python -m experiments.storms --components 4 --chains 8
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from examples.command import add_common, at_least, command, make_parser, positive
from examples.runs import record, save_json
from pyro_hyperbolic import plotting
from pyro_hyperbolic.datasets import StormDays, storms
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import from_signature
from pyro_hyperbolic.infer import AutoWrappedNormal, Posterior, sample_posterior

Values = dict[str, Tensor]
MIDDLE, UNIT = 25.0, 10.0  # latitudes are tens of degrees from here, so that both factors have about one scale
SPREAD = (2.0, 1.0)  # of the centres: next to uniform on the circle; ten degrees of latitude
DRAWS = 50  # of a guide for its predictive density
SHOWN = 400  # draws of the chains for theirs
LATITUDES = torch.linspace(9, 64, 56, dtype=torch.float64)
HEADINGS = 2 * math.pi * (torch.arange(72, dtype=torch.float64) + 0.5) / 72 - math.pi


class Setup(NamedTuple):
    """One of the models.

    :param signature: the space of a day.
    :param coupled: whether covariances couple direction and latitude.
    :param cut: where a flat space cuts the circle, in radians from north.
    """

    signature: str
    coupled: bool = True
    cut: float = math.pi

    def points(self, heading: Tensor, latitude: Tensor) -> Tensor:
        """Directions in radians and latitudes in degrees as points of the space."""
        height = (latitude - MIDDLE) / UNIT
        if self.signature == "e2":
            return torch.stack([torch.remainder(heading - self.cut, 2 * math.pi) - math.pi, height], -1)
        return torch.stack([heading.cos(), heading.sin(), height], -1)


MAIN = "circle, coupled"
SETUPS = {
    MAIN: Setup("s1,e1"),
    "circle, independent": Setup("s1,e1", coupled=False),
    "flat, cut at south": Setup("e2"),
    "flat, cut at north": Setup("e2", cut=0.0),
}


def mixture(setup: Setup, values: Values) -> Any:
    """The distribution of a day given parameters, with the batch shape of the weights without their last dimension."""
    root = values["scale"].diag_embed()
    if setup.coupled:
        r, zero = 2 * values["tilt"] - 1, torch.zeros_like(values["tilt"])  # the correlation
        root = torch.stack([1 + zero, zero, r, (1 - r.square()).sqrt()], -1).unflatten(-1, (2, 2))
        root = values["scale"].unsqueeze(-1) * root
    components = WrappedNormal(values["centre"], manifold=from_signature(setup.signature), scale_tril=root)
    return dist.MixtureSameFamily(dist.Categorical(values["weights"]), components)


def model(setup: Setup, components: int, points: Tensor) -> Values:
    """A mixture with all its parameters drawn."""
    manifold = from_signature(setup.signature)
    values = {"weights": pyro.sample("weights", dist.Dirichlet(torch.full((components,), 2.0)))}
    with pyro.plate("components", components):
        values["centre"] = pyro.sample("centre", WrappedNormal(manifold.origin(2), torch.tensor(SPREAD), manifold))
        values["scale"] = pyro.sample("scale", dist.LogNormal(math.log(0.5), 0.5).expand([2]).to_event(1))
        if setup.coupled:
            values["tilt"] = pyro.sample("tilt", dist.Beta(1.5, 1.5))  # of one more than the correlation
    with pyro.plate("days", len(points)):
        pyro.sample("x", mixture(setup, values), obs=points)
    return values


def tracked(setup: Setup, components: int, points: Tensor, test: StormDays) -> None:
    """The same model, with the latitude where it turns and the mean log-density of test days."""
    values = model(setup, components, points)
    pyro.deterministic("turn", turning_latitude(setup, values))
    pyro.deterministic("test", log_density(setup, values, test.heading, test.latitude).mean())


def split(days: StormDays, seed: int) -> tuple[StormDays, StormDays, StormDays]:
    """Whole storms for training (60%), validation and test (20% each)."""
    names = days.storm.unique()
    order = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))]
    parts = order.tensor_split([int(0.6 * len(order)), int(0.8 * len(order))])
    train, validation, test = (days[torch.isin(days.storm, part)] for part in parts)
    return train, validation, test


def fit(setup: Setup, components: int, points: Tensor, args: argparse.Namespace) -> Values:
    """Draws of the guide, from the best of several starts with centres at random days."""
    best, draws = math.inf, {}
    for start in range(args.starts):
        pyro.clear_param_store()
        pyro.set_rng_seed(args.seed + start)
        centre = points[torch.randperm(len(points))[:components]]
        begin = init_to_value(values={"centre": centre, "scale": torch.full((components, 2), 0.5)})
        guide = AutoWrappedNormal(model, init_loc_fn=begin, init_scale=0.05)
        optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.05 ** (1 / args.num_steps)})
        svi = SVI(model, guide, optimiser, Trace_ELBO())
        losses = [svi.step(setup, components, points) for _ in range(args.num_steps)]
        loss = sum(losses[-args.num_steps // 5 :])
        if loss < best:
            best = loss
            with torch.no_grad():
                found = [guide(setup, components, points) for _ in range(DRAWS)]
            draws = {name: torch.stack([draw[name] for draw in found]) for name in found[0]}
    return draws


def sample(components: int, points: Tensor, test: StormDays, draws: Values, args: argparse.Namespace) -> Posterior:
    """The posterior of the coupled model, from a draw of the guide.

    From elsewhere the components would be found in another order.
    """
    start = {name: value[0] for name, value in draws.items()}
    settings = {"num_chains": args.chains, "num_samples": args.num_samples, "warmup": args.warmup, "seed": args.seed}
    return sample_posterior(tracked, SETUPS[MAIN], components, points, test, start=start, **settings)


def log_density(setup: Setup, values: Values, heading: Tensor, latitude: Tensor) -> Tensor:
    """Log-densities ``(days..., ...)`` of directions and latitudes ``(days...)``, for parameters of any batch shape."""
    x = setup.points(heading, latitude)
    batch = (1,) * (values["weights"].dim() - 1)
    return mixture(setup, values).log_prob(x.reshape(x.shape[:-1] + batch + x.shape[-1:]))


def log_predictive(setup: Setup, draws: Values, days: StormDays) -> Tensor:
    """Log-densities of days, averaged over draws of the parameters."""
    return log_density(setup, draws, days.heading, days.latitude).logsumexp(-1) - math.log(len(draws["weights"]))


def on_grid(setup: Setup, values: Values) -> Tensor:
    """Densities ``(latitudes, headings, ...)`` on the grid of ``LATITUDES`` and ``HEADINGS``."""
    latitude, heading = torch.meshgrid(LATITUDES, HEADINGS, indexing="ij")
    return log_density(setup, values, heading, latitude).exp()


def mean_heading(setup: Setup, values: Values) -> Tensor:
    """The mean direction at every latitude, ``(latitudes, ...)``."""
    density = on_grid(setup, values)
    sine, cosine = (torch.einsum("lh...,h->l...", density, f(HEADINGS)) for f in (torch.sin, torch.cos))
    return torch.atan2(sine, cosine)


def turning_latitude(setup: Setup, values: Values) -> Tensor:
    """Where the mean direction turns from the west of north to the east, in degrees; ``nan`` if it never does."""
    heading = mean_heading(setup, values).movedim(0, -1)
    before, after = heading[..., :-1], heading[..., 1:]
    turns = (before < 0) & (after >= 0) & (after - before < math.pi)
    at = LATITUDES[:-1] - before / (after - before) * (LATITUDES[1] - LATITUDES[0])
    first = turns.to(torch.uint8).argmax(-1, keepdim=True)
    return torch.where(turns.any(-1), at.gather(-1, first).squeeze(-1), torch.nan)


def difference(one: Tensor, other: Tensor, storm: Tensor) -> tuple[float, float]:
    """Mean difference per day with the half width of its 95% interval; the days of a storm are not independent."""
    gains = one - other
    _, storms = storm.unique(return_inverse=True)
    total = torch.zeros(int(storms.max()) + 1).index_add(0, storms, gains - gains.mean())
    return gains.mean().item(), 1.96 * total.square().sum().sqrt().item() / len(gains)


def draw(posteriors: dict[str, Values], samples: Values, turn: Tensor, test: StormDays, path: Path) -> None:
    """Predictive densities with the test days, and the mean direction by latitude with its intervals."""
    headings, latitudes = HEADINGS.rad2deg().numpy(), LATITUDES.numpy()
    figure, axes = plt.subplots(
        1, len(posteriors) + 1, figsize=(3.6 * (len(posteriors) + 1), 3.6), sharey=True, layout="constrained"
    )
    for ax, (name, draws) in zip(axes, posteriors.items(), strict=False):
        density = on_grid(SETUPS[name], draws).mean(-1).numpy()
        # The root of the density: there are many more days in the tropics than in the north.
        ax.pcolormesh(headings, latitudes, density**0.5, cmap="Blues", shading="gouraud", rasterized=True)
        ax.plot(test.heading.rad2deg(), test.latitude, ".", color="0.15", markersize=2.5)
        ax.set_title(name, fontsize="medium")
    right = axes[-1]
    heading = mean_heading(SETUPS[MAIN], samples).rad2deg()
    low, middle, high = heading.quantile(torch.tensor([0.05, 0.5, 0.95]), -1).numpy()
    right.fill_betweenx(latitudes, low, high, color="#3f90da", alpha=0.3, linewidth=0)
    right.plot(middle, latitudes, color="#3f90da", linewidth=1.5)
    right.axhspan(*turn.quantile(torch.tensor([0.05, 0.95])).tolist(), color="#bd1f01", alpha=0.25, linewidth=0)
    right.axvline(0, color="0.6", linewidth=0.8)
    right.set_title("mean direction, median and 90%", fontsize="medium")
    for ax in axes:
        ax.set(xlim=(-180, 180), ylim=(latitudes[0], latitudes[-1]), xlabel="direction of motion")
        ax.set_xticks([-180, -90, 0, 90, 180], ["S", "W", "N", "E", "S"])
    axes[0].set_ylabel("latitude (degrees north)")
    plotting.save(figure, path, dpi=150)
    plt.close(figure)


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    began = time.perf_counter()
    days = storms()
    train, validation, test = split(days[days.day % 2 == 0], args.seed)  # neighbouring days are much alike
    print(f"days of storms: {len(train)} to train, {len(validation)} to validate, {len(test)} to test", flush=True)
    if max(args.components) > len(train):
        raise ValueError(
            f"--components must not exceed the days to train on, {len(train)}, got {max(args.components)}."
        )
    result, posteriors, scores = record(args), {}, {}
    print(f"\n{'model':22}{'components':>12}{'validation':>12}{'test':>8}   coupled circle minus this")
    for name, setup in SETUPS.items():
        points = setup.points(train.heading, train.latitude)
        found = {components: fit(setup, components, points, args) for components in args.components}
        by_number = {n: log_predictive(setup, draws, validation).mean().item() for n, draws in found.items()}
        components = max(by_number, key=lambda n: by_number[n])
        posteriors[name] = found[components]
        scores[name] = log_predictive(setup, posteriors[name], test)
        mean, half = difference(scores[MAIN], scores[name], test.storm)
        result[name] = {"components": components, "test": scores[name].mean().item(), "gain": [mean, half]}
        result[name]["validation by components"] = by_number
        gain = "" if name == MAIN else f"{mean:8.3f} ± {half:.3f}"
        print(f"{name:22}{components:12}{by_number[components]:12.3f}{scores[name].mean():8.3f}{gain}", flush=True)
    print("log-density per day in nats, of direction in radians and latitude in tens of degrees\n", flush=True)

    setup = SETUPS[MAIN]
    points = setup.points(train.heading, train.latitude)
    posterior = sample(result[MAIN]["components"], points, test, posteriors[MAIN], args)
    print(posterior.summary())
    result["chains"] = {"converged": posterior.converged, "seconds": sum(posterior.seconds.values())}
    for name in ("turn", "test"):
        values, judged = posterior.samples[name], posterior.diagnostics()[name]
        result["chains"][name] = {"mean": values.mean().item(), "std": values.std().item()}
        result["chains"][name] |= {"r_hat": judged.r_hat, "ess": judged.ess_bulk}
    turn = turning_latitude(setup, posteriors[MAIN])
    result["SVI"] = {"turn": {"mean": turn.mean().item(), "std": turn.std().item()}}
    print(f"SVI: turn {turn.mean():.3f} ± {turn.std():.3f}")
    thin = max(1, args.chains * args.num_samples // SHOWN)
    some = {name: posterior.samples[name].flatten(0, 1)[::thin] for name in posteriors[MAIN]}
    mean, half = difference(log_predictive(setup, some, test), scores[MAIN], test.storm)
    result["chains"]["gain over SVI"] = [mean, half]
    print(f"chains minus SVI, density of test days: {mean:.3f} ± {half:.3f}")
    result["seconds"] = time.perf_counter() - began
    save_json(result, args.output_dir / "storms.json")
    shown = {name: posteriors[name] for name in (MAIN, "flat, cut at north")}
    draw(shown, some, posterior.samples["turn"].flatten(), test, args.output_dir / "storms.png")
    print(f"{result['seconds']:.0f} s; results in {args.output_dir}")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, "experiments.storms")
    p.add_argument("--components", type=positive(int), nargs="+", default=[1, 2, 4], help="components to choose from")
    p.add_argument("--num-steps", type=positive(int), default=250, help="steps of SVI")
    p.add_argument("--starts", type=positive(int), default=2, help="starts of SVI; the best is kept")
    p.add_argument("--chains", type=at_least(2), default=4, help="number of chains")
    p.add_argument("--warmup", type=at_least(20), default=200, help="trajectories of each chain that are not kept")
    p.add_argument("--num-samples", type=at_least(4), default=500, help="samples per chain")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
