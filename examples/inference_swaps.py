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
import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from command import Parser, at_least, command, positive, record, save_json
from pyro import poutine
from pyro.infer import (
    HMC,
    MCMC,
    NUTS,
    SVGD,
    SVI,
    Predictive,
    RBFSteinKernel,
    RenyiELBO,
    SMCFilter,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)
from pyro.infer.importance import vectorized_importance_weights
from pyro.infer.reparam import NeuTraReparam
from torch import Tensor

import pyro_hyperbolic.distributions as hdist
from pyro_hyperbolic import Lorentz, PoincareBall, infer, plotting

PRIORS = {"wrapped": hdist.WrappedNormal, "riemannian": hdist.RiemannianNormal}
CHARTS: dict[str, type[PoincareBall] | type[Lorentz]] = {"poincare": PoincareBall, "lorentz": Lorentz}
# Normal coordinates at the origin, the distances measured to them, and the error of a measurement.
ANCHORS = [[2.5, 0.3], [-0.5, 0.3], [0.4, -1.8]]
DISTANCES = [1.6, 1.8, 2.0]
NOISE, PRIOR_SCALE = 0.5, 1.5
LEARNING_RATE, PARTICLES, WARMUP = 0.1, 32, 100
GRID, GRID_REACH = 301, 7.0  # nodes on a side, and the largest normal coordinate


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
        loc = pyro.param("loc", self.origin.clone(), constraint=hdist.constraints.on_manifold(self.manifold))
        scale_tril = pyro.param("scale_tril", torch.eye(2), constraint=dist.constraints.lower_cholesky)
        return pyro.sample("z", hdist.WrappedNormal(loc, manifold=self.manifold, scale_tril=scale_tril))

    def log_joint(self, z: Tensor) -> Tensor:
        """Log-density of points ``(n, D)`` and the data: the model, run at given values of its latent."""
        with pyro.plate("points", len(z), dim=-2):
            trace = poutine.trace(poutine.condition(self.model, data={"z": z.unsqueeze(-2)})).get_trace()
        trace.compute_log_prob()
        return sum(trace.nodes[name]["log_prob"].sum(-1) for name in ("z", "distance"))


class Found(NamedTuple):
    """What a method says: draws ``(n, D)``, their log-weights, a bound of the evidence, the evidence and its error."""

    draws: Tensor
    log_weights: Tensor | None = None
    bound: float | None = None
    evidence: tuple[float, float] | None = None
    note: str = ""

    @property
    def weights(self) -> Tensor:
        return torch.ones(len(self.draws)) if self.log_weights is None else self.log_weights.softmax(0)


def grid(program: Program) -> Found:
    """The nodes of a square of normal coordinates, weighted by density and volume."""
    axis = torch.linspace(-GRID_REACH, GRID_REACH, GRID)
    v = torch.cartesian_prod(axis, axis)
    z = program.manifold.from_normal_coords(None, v)
    log_volume = hdist.ExpMapTransform(program.manifold).log_abs_det_jacobian(v, z) + 2 * (axis[1] - axis[0]).log()
    log_weights = program.log_joint(z) + log_volume
    return Found(z, log_weights, evidence=(log_weights.logsumexp(0).item(), 0.0))


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean weight, and its standard error by the delta method."""
    n = len(log_weights)
    return log_weights.logsumexp(0).item() - math.log(n), math.sqrt(max(0.0, 1 / n_eff(log_weights) - 1 / n))


def n_eff(log_weights: Tensor) -> float:
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp().item()


# Every method is a function of the program and the options, and an entry in METHODS.


def weigh(program: Program, guide: Callable[..., Any], args: argparse.Namespace, is_posterior: bool = True) -> Found:
    """Draws of a guide, and the evidence from their weights; as a posterior, the draws count alike."""
    with torch.no_grad():
        log_weights, _, trace = vectorized_importance_weights(
            program.model, guide, num_samples=args.num_draws, max_plate_nesting=1
        )
    z = trace.nodes["z"]["value"].reshape(args.num_draws, -1)
    if is_posterior:
        return Found(z, bound=log_weights.mean().item(), evidence=log_mean(log_weights))
    return Found(z, log_weights, evidence=log_mean(log_weights), note=f"n_eff {n_eff(log_weights):.0f}")


def importance(program: Program, args: argparse.Namespace) -> Found:
    """The prior proposes."""
    return weigh(program, poutine.block(program.model, hide=["distance"]), args, is_posterior=False)


def train(program: Program, guide: Callable[..., Any], args: argparse.Namespace, loss: Any = Trace_ELBO) -> Any:
    """A guide, trained with a learning rate that falls to a fiftieth."""
    optimiser = pyro.optim.ClippedAdam({"lr": LEARNING_RATE, "lrd": 0.02 ** (1 / args.num_steps)})
    elbo = loss(num_particles=PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(program.model, guide, optimiser, elbo)
    for _ in range(args.num_steps):
        svi.step()
    return guide


def by_loss(loss: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    """The guide above, trained by a loss."""
    return weigh(program, train(program, program.guide, args, loss), args)


def by_guide(make: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    """An automatic guide, trained by the ELBO."""
    return weigh(program, train(program, make(program.model), args), args)


def laplace(program: Program, args: argparse.Namespace) -> Found:
    guide = train(program, autoguide.AutoLaplaceApproximation(program.model), args)
    return weigh(program, guide.laplace_approximation(), args)


def mode(program: Program, args: argparse.Namespace) -> Found:
    guide = train(program, autoguide.AutoDelta(program.model), args)
    return Found(guide.median()["z"].unsqueeze(0), note="a point")


def chains(kernel: Any, args: argparse.Namespace) -> tuple[dict[str, Tensor], str]:
    """Samples, and how the chains fared."""
    with warnings.catch_warnings():
        # Where there are not enough processors, the chains are drawn one after the other.
        warnings.filterwarnings("ignore", message="num_chains")
        mcmc = MCMC(kernel, args.num_samples, WARMUP, num_chains=args.num_chains, disable_progbar=True)
        mcmc.run()
    (diagnostics,) = (row for name, row in mcmc.diagnostics().items() if name in mcmc.get_samples())
    return mcmc.get_samples(), f"r_hat {diagnostics['r_hat'].max():.2f}, n_eff {diagnostics['n_eff'].min():.0f}"


def by_kernel(kernel: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    samples, note = chains(kernel(program.model), args)
    return Found(samples["z"], note=note)


def in_tangent_space(program: Program, args: argparse.Namespace) -> Found:
    """NUTS in white noise at the prior's mean, a form that the wrapped normal has."""
    model = poutine.reparam(program.model, {"z": infer.WrappedNormalReparam()})
    samples, note = chains(NUTS(model), args)
    z = Predictive(model, samples, return_sites=["z"])()["z"]
    return Found(z.reshape(-1, z.shape[-1]), note=note)


def in_guide_space(program: Program, args: argparse.Namespace) -> Found:
    """NUTS in the coordinates of a normalising flow."""
    guide = train(program, autoguide.AutoIAFNormal(program.model, hidden_dim=[16]), args)
    neutra = NeuTraReparam(guide.requires_grad_(False))
    samples, note = chains(NUTS(neutra.reparam(program.model)), args)
    return Found(neutra.transform_sample(samples["z_shared_latent"])["z"], note=note)


def filtered(program: Program, args: argparse.Namespace, filters: int = 16) -> Found:
    """A particle filter that meets one distance after the other."""

    class Model:
        def init(self, state: Any) -> None:
            state["z"] = pyro.sample("z", program.prior())

        def step(self, state: Any, i: int) -> None:
            likelihood = program.measurement(state["z"], program.anchors[i])
            pyro.sample(f"distance_{i}", likelihood, obs=program.distances[i])

    class Guide:
        def init(self, state: Any) -> None:
            pyro.sample("z", program.prior())

        def step(self, state: Any, i: int) -> None:
            pass

    draws, evidences = [], []
    for _ in range(filters):
        smc = SMCFilter(Model(), Guide(), args.num_draws // filters, max_plate_nesting=0)
        smc.init()
        total = torch.zeros(())
        for i, distance in enumerate(program.distances):
            before = smc.get_empirical()["z"]
            likelihood = program.measurement(before.enumerate_support(), program.anchors[i])
            total = total + (before.log_weights.log_softmax(0) + likelihood.log_prob(distance)).logsumexp(0)
            smc.step(i)
        draws.append(smc.get_empirical()["z"].sample((args.num_draws // filters,)))
        evidences.append(total)
    return Found(torch.cat(draws), evidence=log_mean(torch.stack(evidences)))


def stein(program: Program, args: argparse.Namespace, particles: int = 100) -> Found:
    optimiser = pyro.optim.Adam({"lr": LEARNING_RATE})
    svgd = SVGD(program.model, RBFSteinKernel(), optimiser, num_particles=particles, max_plate_nesting=1)
    for _ in range(args.num_steps):
        svgd.step()
    z = svgd.get_named_particles()["z"].detach()
    return Found(z.reshape(particles, -1), note=f"{particles} particles")


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
HEADER = f"{'method':<18}{'mean off by':>12}{'spread':>8}{'bound':>9}{'log evidence':>20}{'CPU s':>8}  note"


def row(name: str, found: Found, exact: Found, program: Program, seconds: float) -> dict[str, Any]:
    """Fréchet mean, its distance from that of the grid, and the root of the mean squared distance from it."""
    mean, reference = (program.manifold.frechet_mean(each.draws, each.weights) for each in (found, exact))
    square = program.manifold.dist(mean, found.draws).square()
    value, error = found.evidence or (None, None)
    return {
        "method": name,
        "mean": on_disc(mean, program).tolist(),
        "distance_of_means": program.manifold.dist(mean, reference).item(),
        "spread": math.sqrt((found.weights * square).sum().item() / found.weights.sum().item()),
        "bound": found.bound,
        "log_evidence": value,
        "log_evidence_error": error,
        "cpu_seconds": seconds,
        "note": found.note,
    }


def line(entry: dict[str, Any]) -> str:
    """A row as it is printed."""
    bound = "" if entry["bound"] is None else f"{entry['bound']:.3f}"
    value, error = entry["log_evidence"], entry["log_evidence_error"]
    evidence = "" if value is None else f"{value:.3f} ± {error:.3f}"
    start = f"{entry['method']:<18}{entry['distance_of_means']:>12.3f}{entry['spread']:>8.3f}{bound:>9}{evidence:>20}"
    return f"{start}{entry['cpu_seconds']:>8.1f}  {entry['note']}".rstrip()


def on_disc(z: Tensor, program: Program) -> Tensor:
    return program.manifold.to_poincare(z) if isinstance(program.manifold, Lorentz) else z


def draw(found: dict[str, Found], program: Program, resolution: int, path: Path) -> None:
    """A panel for each method: a hundred of its draws on the regions of the grid."""
    ball = PoincareBall(program.manifold.c)
    columns = min(7, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 1.9 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()

    def log_joint(z: Tensor) -> Tensor:
        return program.log_joint(program.manifold.from_normal_coords(None, ball.to_normal_coords(None, z)))

    for ax, (name, entry) in zip(axes.flat, found.items(), strict=False):
        ax.set_title(name, fontsize="medium")
        plotting.credible_regions(log_joint, ball, ax=ax, resolution=resolution, filled=True)
        plotting.embedding(on_disc(program.anchors, program), ball, ax=ax, marker="^", color="0.2", s=12)
        if name != "grid":
            some = torch.multinomial(entry.weights, min(100, len(entry.draws)), replacement=len(entry.draws) > 100)
            size = 2 if len(some) > 1 else 20
            plotting.embedding(on_disc(entry.draws[some], program), ball, ax=ax, color="#bd1f01", s=size)
    plotting.save(figure, path, dpi=130)
    plt.close(figure)


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


def parser() -> Parser:
    p = Parser(__doc__, __file__)
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
    p.add_seed()
    p.add_output_dir()
    return p


main = command(parser, run)

if __name__ == "__main__":
    main()
