"""One program, every inference method: infer a position in the plane from its distances to three anchors.

The program is written once, and each method takes it as it is. The output compares the posterior and the evidence of
each method with a grid integral, which also uses nothing but the program. ``--methods`` selects methods, ``--prior``
changes the prior, and ``--manifold`` replaces the ball by the hyperboloid.

What to look for: ``inference_swaps.png`` has a disc for each method. The blue areas are the smallest regions that hold
50, 80 and 95% of the posterior on the grid. Red dots are draws of the method, and the same shares of them should lie in
these regions. You can spot a point estimate, or a guide that is far off, at a glance. Triangles are the anchors.

    python examples/inference_swaps.py
    python examples/inference_swaps.py --methods nuts auto-wrapped --prior riemannian --manifold lorentz
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from command import add_common, at_least, command, make_parser, positive
from inference_methods import (
    Found,
    by_guide,
    by_kernel,
    by_loss,
    filtered,
    importance,
    in_guide_space,
    in_tangent_space,
    laplace,
    mode,
    stein,
)
from inference_report import HEADER, draw, grid, line, row
from pyro import poutine
from pyro.infer import HMC, NUTS, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO, autoguide
from runs import record, save_json
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, infer

PRIORS = {"wrapped": hdist.WrappedNormal, "riemannian": hdist.RiemannianNormal}
CHARTS: dict[str, type[PoincareBall] | type[Lorentz]] = {"poincare": PoincareBall, "lorentz": Lorentz}
# Normal coordinates at the origin, the distances measured to them, and the error of a measurement.
ANCHORS = [[2.5, 0.3], [-0.5, 0.3], [0.4, -1.8]]
DISTANCES = [1.6, 1.8, 2.0]
NOISE, PRIOR_SCALE = 0.5, 1.5


class Program:
    """The model, and a guide for those methods that want one."""

    def __init__(self, manifold: PoincareBall | Lorentz, prior: str) -> None:
        self.manifold, self.family = manifold, PRIORS[prior]
        self.origin = manifold.origin(2)
        self.anchors = manifold.from_normal_coords(None, torch.tensor(ANCHORS))
        self.distances = torch.tensor(DISTANCES)

    def prior(self) -> Any:
        return self.family(self.origin, PRIOR_SCALE, self.manifold)

    def measurement(self, z: Tensor, anchors: Tensor) -> Any:
        return dist.Normal(self.manifold.dist(z, anchors), NOISE)

    def model(self) -> Tensor:
        z = pyro.sample("z", self.prior())
        with pyro.plate("anchors", len(self.anchors)):
            pyro.sample("distance", self.measurement(z, self.anchors), obs=self.distances)
        return z

    def guide(self) -> Tensor:
        loc = pyro.param("loc", self.origin.clone(), constraint=hdist.constraints.on(self.manifold))
        scale_tril = pyro.param("scale_tril", torch.eye(2), constraint=dist.constraints.lower_cholesky)
        return pyro.sample("z", hdist.WrappedNormal(loc, manifold=self.manifold, scale_tril=scale_tril))

    def log_joint(self, z: Tensor) -> Tensor:
        """Log-density of points ``(n, D)`` and the data: the model, run at given values of its latent."""
        with pyro.plate("points", len(z), dim=-2):
            trace = poutine.trace(poutine.condition(self.model, data={"z": z.unsqueeze(-2)})).get_trace()
        trace.compute_log_prob()
        return sum(trace.nodes[name]["log_prob"].sum(-1) for name in ("z", "distance"))


METHODS: dict[str, Callable[[Program, argparse.Namespace], Found]] = {
    "importance": importance,
    "smc": filtered,
    "hmc": partial(by_kernel, partial(HMC, trajectory_length=2.0)),
    "nuts": partial(by_kernel, NUTS),
    "nuts-tangent": in_tangent_space,
    "nuts-neutra": in_guide_space,
    "elbo": partial(by_loss, Trace_ELBO),
    "mean-field-elbo": partial(by_loss, TraceMeanField_ELBO),
    "graph-elbo": partial(by_loss, TraceGraph_ELBO),
    "renyi": partial(by_loss, partial(RenyiELBO, alpha=0.5)),
    "iwae": partial(by_loss, partial(RenyiELBO, alpha=0)),
    "dreg": partial(by_loss, infer.DReG_ELBO),
    "auto-wrapped": partial(by_guide, infer.AutoWrappedNormal),
    "auto-normal": partial(by_guide, autoguide.AutoNormal),
    "auto-multivariate": partial(by_guide, autoguide.AutoMultivariateNormal),
    "auto-low-rank": partial(by_guide, autoguide.AutoLowRankMultivariateNormal),
    "auto-iaf": partial(by_guide, partial(autoguide.AutoIAFNormal, hidden_dim=[16])),
    "auto-laplace": laplace,
    "auto-delta": mode,
    "svgd": stein,
}


def cpu_seconds() -> float:
    """Time that this process and its chains have computed, whatever else the machine does."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def run(args: argparse.Namespace) -> dict[str, Any]:
    unsuited = {"riemannian": {"nuts-tangent"}}.get(args.prior, set())
    if unsuited & {*(args.methods or [])}:
        raise ValueError(
            "nuts-tangent needs --prior wrapped, whose noise it walks in; leave it out, or change the prior."
        )
    torch.set_default_dtype(torch.float64)
    program = Program(CHARTS[args.manifold](args.curvature), args.prior)
    start = cpu_seconds()
    found = {"grid": grid(program)}
    entries = [row("grid", found["grid"], found["grid"], program, cpu_seconds() - start)]
    print(HEADER, line(entries[0]), sep="\n", flush=True)
    for name in args.methods or [name for name in METHODS if name not in unsuited]:
        pyro.clear_param_store()
        pyro.set_rng_seed(args.seed)
        start = cpu_seconds()
        found[name] = METHODS[name](program, args)
        entries.append(row(name, found[name], found["grid"], program, cpu_seconds() - start))
        print(line(entries[-1]), flush=True)
    result = record(args) | {"rows": entries}
    save_json(result, args.output_dir / "inference_swaps.json")
    draw(found, program, args.resolution, args.output_dir / "inference_swaps.png")
    print(args.output_dir / "inference_swaps.png")
    return result


def parser() -> argparse.ArgumentParser:
    p = make_parser(__doc__, __file__)
    methods = f"methods to run: {', '.join(METHODS)} (default: all that suit the prior)"
    p.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD", help=methods)
    p.add_argument("--prior", choices=sorted(PRIORS), default="wrapped", help="prior of the position")
    p.add_argument("--manifold", choices=sorted(CHARTS), default="poincare", help="chart of the plane")
    p.add_argument("--curvature", type=positive(float), default=1.0, help="c > 0; the curvature is -c")
    p.add_argument("--num-steps", type=positive(int), default=300, help="steps of the optimisers")
    p.add_argument("--num-draws", type=at_least(100), default=20_000, help="draws of guides, filters and importance")
    p.add_argument("--num-samples", type=at_least(4), default=250, help="samples per chain")
    p.add_argument("--num-chains", type=positive(int), default=2, help="chains of HMC and NUTS")
    p.add_argument("--resolution", type=at_least(2), default=256, help="grid points per side of a panel")
    add_common(p, "--seed", "--output-dir")
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
