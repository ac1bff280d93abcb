"""One program and every way to infer: a position in the plane from its distances to three anchors.

The program is written once. Each method takes it as it is, and its posterior and evidence are printed beside those of
a grid integral, which also uses nothing but the program. ``--methods`` chooses some of them, ``--prior`` and
``--manifold`` exchange the prior and the chart. The picture shows the draws of each method on the density of the grid.

    python examples/inference_swaps.py
    python examples/inference_swaps.py --methods nuts auto-wrapped --prior riemannian --manifold lorentz
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from inference_parts.found import HEADER, line, row
from inference_parts.grid import grid
from inference_parts.methods import METHODS, UNSUITED
from inference_parts.pictures import draw
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, infer, plotting

DISTRIBUTIONS = {"wrapped": hdist.WrappedNormal, "riemannian": hdist.RiemannianNormal}
CHARTS: dict[str, type[PoincareBall] | type[Lorentz]] = {"poincare": PoincareBall, "lorentz": Lorentz}
# Normal coordinates at the origin, the distances measured to them, and the error of a measurement.
ANCHORS = [[2.5, 0.3], [-0.5, 0.3], [0.4, -1.8]]
DISTANCES = [1.6, 1.8, 2.0]
NOISE, PRIOR_SCALE = 0.5, 1.5


class Program:
    """The model, and a guide for those methods that want one."""

    def __init__(self, manifold: PoincareBall | Lorentz, law: str) -> None:
        self.manifold, self.law = manifold, DISTRIBUTIONS[law]
        self.origin = manifold.origin(2)
        self.anchors = manifold.from_normal_coords(None, torch.tensor(ANCHORS))
        self.distances = torch.tensor(DISTANCES)

    def prior(self) -> Any:
        return self.law(self.origin, PRIOR_SCALE, self.manifold)

    def measurement(self, z: Tensor, anchors: Tensor) -> Any:
        return dist.Normal(self.manifold.dist(z, anchors), NOISE)

    def model(self) -> Tensor:
        z = pyro.sample("z", self.prior())
        with pyro.plate("anchors", len(self.anchors)):
            pyro.sample("distance", self.measurement(z, self.anchors), obs=self.distances)
        return z

    def guide(self) -> Tensor:
        loc = pyro.param("loc", self.origin.clone(), constraint=hdist.constraints.on_manifold(self.manifold))
        scale_tril = pyro.param("scale_tril", torch.eye(2), constraint=dist.constraints.lower_cholesky)
        return pyro.sample("z", hdist.WrappedNormal(loc, manifold=self.manifold, scale_tril=scale_tril))

    def on_disc(self, z: Tensor) -> Tensor:
        return self.manifold.to_poincare(z) if isinstance(self.manifold, Lorentz) else z


def main(args: argparse.Namespace) -> dict[str, Any]:
    if not args.curvature > 0:
        raise ValueError(f"--curvature must be positive, got {args.curvature:g}; the disc has the radius 1/sqrt(c).")
    torch.set_default_dtype(torch.float64)
    program = Program(CHARTS[args.manifold](args.curvature), args.prior)
    start = cpu_seconds()
    exact = grid(program, args.grid)
    entries = [row("grid", exact, exact, program, cpu_seconds() - start)]
    print(HEADER, line(entries[0]), sep="\n", flush=True)
    found = {"grid": exact}
    for name in args.methods or [name for name in METHODS if name not in UNSUITED[args.prior]]:
        pyro.clear_param_store()
        pyro.set_rng_seed(args.seed)
        start = cpu_seconds()
        found[name] = METHODS[name](program, args)
        entries.append(row(name, found[name], exact, program, cpu_seconds() - start))
        print(line(entries[-1]), flush=True)
    result = {"options": {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}, "rows": entries}
    infer.save_json(result, args.output / "inference_swaps.json")
    figure = draw(found, program, args.curvature, args.resolution)
    print(plotting.save(figure, args.output / "inference_swaps.png", dpi=130))
    plt.close(figure)
    return result


def cpu_seconds() -> float:
    """Time that this process and its chains have computed, whatever else the machine does."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def parser() -> argparse.ArgumentParser:
    style = argparse.ArgumentDefaultsHelpFormatter
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=style)
    p.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="METHOD", help=HELP)
    p.add_argument("--prior", choices=sorted(DISTRIBUTIONS), default="wrapped", help="law of the position")
    p.add_argument("--manifold", choices=sorted(CHARTS), default="poincare", help="chart of the plane")
    p.add_argument("--curvature", type=float, default=1.0, help="c > 0; the curvature is -c")
    p.add_argument("--num-steps", type=int, default=300, help="of the optimisers")
    p.add_argument("--learning-rate", type=float, default=0.1, help="at the first step; it decays to a fiftieth")
    p.add_argument("--num-particles", type=int, default=32, help="draws of the guide per step")
    p.add_argument("--num-draws", type=int, default=20_000, help="of guides, filters and importance sampling")
    p.add_argument("--num-samples", type=int, default=250, help="of each chain")
    p.add_argument("--warmup-steps", type=int, default=100, help="of each chain")
    p.add_argument("--num-chains", type=int, default=2, help="chains of HMC and NUTS")
    p.add_argument("--grid", type=int, default=301, help="nodes on a side of the grid")
    p.add_argument("--resolution", type=int, default=256, help="nodes on a side of a panel")
    p.add_argument("--seed", type=int, default=0, help="of each method")
    p.add_argument("--output", type=Path, default=Path("outputs/inference_swaps"), help="folder to write to")
    return p


HELP = f"all by default, or some of {', '.join(METHODS)}"

if __name__ == "__main__":
    try:
        main(parser().parse_args())
    except (ValueError, OSError) as error:
        sys.exit(f"inference_swaps.py: error: {error}")
