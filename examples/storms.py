"""Where do storms turn? Directions and latitudes of Atlantic storms as a mixture on a cylinder, a circle times a line.

Storms of the North Atlantic start in the tropics, go west with the trade winds, turn north and end in the westerlies,
which take them north-east. A day of a storm is a direction and a latitude: a point of the product ``"s1,e1"``. The
program is an ordinary Pyro model,

    x ~ sum_k weights[k] WrappedNormal(centre[k], covariance[k]),

whose centres are points of the product, and whose covariances couple the two factors: within a component, the direction
may turn as the latitude grows. Three other models are fitted besides: independent factors, and two flat ones, which
need a cut of the circle, at north as a compass has it, or at south, where hardly a storm goes.

SVI fits each model with several numbers of components, of which the validation storms choose one; test storms, which no
model has seen, compare the models. NUTS samples the coupled one from several starts. The results are two tables,
``storms.json`` and ``storms.png``.

The data are those of the National Hurricane Center (HURDAT2), in ``examples/storm_parts/storms.csv``.

    python examples/storms.py
    python examples/storms.py --components 2 3 4 5 6 --num-steps 1500 --starts 4
    python examples/storms.py --warmup 500 --num-samples 500 --chains 4
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import init_to_value
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from storm_parts.data import Days, read_days, split
from storm_parts.densities import MAIN, SETUPS, Setup, log_density, log_predictive, mixture, turning_latitude
from storm_parts.pictures import draw
from torch import Tensor

from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.geometry import space
from pyro_hyperbolic.infer import AutoWrappedNormal, save_json

Values = dict[str, Tensor]
SPREAD = (2.0, 1.0)  # of the centres: next to uniform on the circle; ten degrees of latitude


def model(setup: Setup, components: int, points: Tensor | None = None) -> None:
    """A mixture with all its parameters drawn; without points it draws one."""
    manifold = space(setup.signature)
    values = {"weights": pyro.sample("weights", dist.Dirichlet(torch.full((components,), 2.0)))}
    with pyro.plate("components", components):
        values["centre"] = pyro.sample("centre", WrappedNormal(manifold.origin(2), torch.tensor(SPREAD), manifold))
        values["scale"] = pyro.sample("scale", dist.LogNormal(math.log(0.5), 0.5).expand([2]).to_event(1))
        if setup.coupled:
            values["correlation"] = pyro.sample("correlation", dist.LKJCholesky(2, 1.5))
    with pyro.plate("days", 1 if points is None else len(points)):
        pyro.sample("x", mixture(setup, values), obs=points)


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
                found = [guide(setup, components, points) for _ in range(args.draws)]
            draws = {name: torch.stack([draw[name] for draw in found]) for name in found[0]}
    return draws


def choose(setup: Setup, train: Days, validation: Days, args: argparse.Namespace) -> tuple[dict[int, float], Values]:
    """Densities of the validation storms by the number of components, and the draws of the best."""
    points = setup.points(train.heading, train.latitude)
    found = {components: fit(setup, components, points, args) for components in args.components}
    scores = {number: log_predictive(setup, draws, validation).mean().item() for number, draws in found.items()}
    return scores, found[max(scores, key=lambda number: scores[number])]


def sample(components: int, points: Tensor, draws: Values, args: argparse.Namespace) -> tuple[Values, int]:
    """Samples of the coupled model as ``(chains, samples, ...)``, and the number of divergences.

    Every chain starts at a draw of the guide. From elsewhere the components would be found in another order.
    """
    chains, divergences = [], 0
    for chain in range(args.chains):
        pyro.set_rng_seed(args.seed + chain)
        begin = {name: value[chain] for name, value in draws.items()}
        kernel = NUTS(model, max_tree_depth=args.max_tree_depth, init_strategy=init_to_value(values=begin))
        mcmc = MCMC(kernel, num_samples=args.num_samples, warmup_steps=args.warmup, disable_progbar=True)
        mcmc.run(SETUPS[MAIN], components, points)
        chains.append(mcmc.get_samples())
        divergences += sum(map(len, mcmc.diagnostics()["divergences"].values()))
    return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}, divergences


def health(values: Tensor) -> dict[str, float]:
    """Mean, standard deviation and diagnostics of a number that was sampled, ``(chains, samples)``."""
    return {
        "mean": values.mean().item(),
        "std": values.std().item(),
        "r_hat": split_gelman_rubin(values).item(),
        "n_eff": effective_sample_size(values).item(),
    }


def difference(one: Tensor, other: Tensor, storm: Tensor) -> tuple[float, float]:
    """Mean difference per day with the half width of its 95% interval; the days of a storm are not independent."""
    gains = one - other
    mean = gains.mean()
    storms = storm.unique(return_inverse=True)[1]
    total = torch.zeros(int(storms.max()) + 1).index_add(0, storms, gains - mean)
    return mean.item(), 1.96 * total.square().sum().sqrt().item() / len(gains)


def main(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_default_dtype(torch.float64)
    began = time.perf_counter()
    train, validation, test = split(read_days(), args.seed)
    print(f"days of storms: {len(train)} to train, {len(validation)} to validate, {len(test)} to test", flush=True)
    result: dict[str, Any] = {"options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}}
    posteriors, scores = {}, {}
    print(f"\n{'model':22}{'components':>12}{'validation':>12}{'test':>8}   coupled circle minus this")
    for name, setup in SETUPS.items():
        by_components, posteriors[name] = choose(setup, train, validation, args)
        components, score = max(by_components.items(), key=lambda item: item[1])
        scores[name] = log_predictive(setup, posteriors[name], test)
        mean, half = difference(scores[MAIN], scores[name], test.storm)
        row = {"components": components, "test": scores[name].mean().item(), "gain": [mean, half]}
        result[name] = row | {"validation by components": by_components}
        gain = "" if name == MAIN else f"{mean:8.3f} ± {half:.3f}"
        print(f"{name:22}{components:12}{score:12.3f}{row['test']:8.3f}{gain}", flush=True)
    print("log-density per day in nats, of direction in radians and latitude in tens of degrees\n", flush=True)

    setup, components = SETUPS[MAIN], result[MAIN]["components"]
    points = setup.points(train.heading, train.latitude)
    samples, divergences = sample(components, points, posteriors[MAIN], args)
    flat = {name: value.flatten(0, 1) for name, value in samples.items()}
    shape = args.chains, args.num_samples
    result["NUTS"] = {
        "turning latitude": health(turning_latitude(setup, flat).reshape(shape)),
        "density of test days": health(log_density(setup, flat, test).mean(0).reshape(shape)),
        "divergences": divergences,
    }
    turn = turning_latitude(setup, posteriors[MAIN])
    result["SVI"] = {"turning latitude": {"mean": turn.mean().item(), "std": turn.std().item()}}
    for name in ("turning latitude", "density of test days"):
        row = result["NUTS"][name]
        marks = f"R-hat {row['r_hat']:.2f}, n_eff {row['n_eff']:.0f}"
        print(f"NUTS: {name} {row['mean']:.3f} ± {row['std']:.3f} (standard deviation), {marks}")
    print(f"SVI: turning latitude {turn.mean():.3f} ± {turn.std():.3f}")
    mean, half = difference(log_predictive(setup, flat, test), scores[MAIN], test.storm)
    result["NUTS"]["gain over SVI"] = [mean, half]
    print(f"NUTS minus SVI, density of test days: {mean:.3f} ± {half:.3f}; {divergences} divergences")
    result["seconds"] = time.perf_counter() - began
    print(f"{result['seconds']:.0f} s")
    args.output.mkdir(parents=True, exist_ok=True)
    save_json(result, args.output / "storms.json")
    draw({name: posteriors[name] for name in (MAIN, "flat, cut at north")}, flat, test, args.output / "storms.png")
    return result


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--components", type=int, nargs="+", default=[1, 2, 4], help="of the mixture, to choose from")
    p.add_argument("--num-steps", type=int, default=250, help="of SVI")
    p.add_argument("--starts", type=int, default=2, help="of SVI, of which the best is taken")
    p.add_argument("--draws", type=int, default=50, help="of a guide, for its predictive density")
    p.add_argument("--chains", type=int, default=2, help="of NUTS")
    p.add_argument("--warmup", type=int, default=100, help="steps of NUTS before the samples")
    p.add_argument("--num-samples", type=int, default=100, help="per chain")
    p.add_argument("--max-tree-depth", type=int, default=4, help="of NUTS")
    p.add_argument("--seed", type=int, default=0, help="of the split and of everything else random")
    p.add_argument("--output", type=Path, default=Path("outputs/storms"), help="folder of the results")
    return p


if __name__ == "__main__":
    main(parser().parse_args())
