"""What ``benchmarks.gpu`` measures: one row per kind of step and size, and the groups of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO

from benchmarks.results import require
from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import HypersphericalUniform, manifold_flow
from pyro_hyperbolic.geometry import from_signature, signature_dim
from pyro_hyperbolic.infer import EnsembleSVI, FastSVI, log_marginal_likelihood
from pyro_hyperbolic.models import EuclideanVAE, HyperbolicVGAE, ManifoldVAE

DIM, BATCH, MEMBERS = 10, 128, 90
POINTS = 1_000_000
FLOW_LAYERS, FLOW_HIDDEN = 8, (64,)  # with the networks of ``experiments flows``
UNITS = {
    "step": ("ms", 1e3),
    "ensemble": ("us/member-step", 1e6),
    "graph": ("ms", 1e3),
    "evaluation": ("s", 1.0),
    "density": ("s", 1.0),
}
KINDS, DISTRIBUTIONS = ("stock", "captured", "compiled"), ("wrapped", "riemannian", "euclidean", "flow")


@dataclass(frozen=True)
class Row:
    """One configuration.

    :param subject: ``step`` of one auto-encoder, ``ensemble``, ``graph`` (a whole-graph step of the VGAE),
        ``evaluation`` (IWAE-5000 of 10,000 images) or ``density`` (of a million points on a sphere under a flow).
    :param kind: ``stock`` (``pyro.infer.SVI``), ``captured`` in a CUDA graph, or ``compiled`` (and captured; that of
        one model with tuned products).
    :param distribution: of the prior and the posterior; ``flow`` is a posterior of eight layers alone.
    :param space: the signature of the latent space; the ball if there is none.
    """

    subject: str
    kind: str
    distribution: str = "wrapped"
    dim: int = DIM
    batch: int = BATCH
    members: int = 1
    nodes: int = 0
    space: str = ""

    @property
    def name(self) -> str:
        latent = f"{self.distribution}, {self.space or f'd={self.dim}'}"
        what = {
            "step": f"step, {self.kind}, {latent}, batch {self.batch}",
            "ensemble": f"ensemble of {self.members}, {self.kind}, {latent}, batch {self.batch}",
            "graph": f"graph step, {self.kind}, {self.distribution}, N={self.nodes}",
            "evaluation": f"IWAE-5000 of 10,000 images, {self.kind}, {latent}",
            "density": f"density of 1,000,000 points, {self.kind}, {latent}",
        }
        return what[self.subject]


@dataclass(frozen=True)
class Work:
    """A row that can be run.

    :param warm_up: what compiles and captures.
    :param run: what is timed.
    :param share: over how many members the time of a run is divided.
    :param longest: most runs per repeat.
    """

    warm_up: Callable[[], Any]
    run: Callable[[], Any]
    share: int = 1
    longest: int = 200


def _single(kind: str) -> list[Row]:
    return [Row("step", kind, distribution) for distribution in ("wrapped", "riemannian")]


def _ensembles(kind: str, members: tuple[int, ...]) -> list[Row]:
    return [Row("ensemble", kind, members=count) for count in members]


WRAPPED_90, RIEMANNIAN_90 = (
    Row("ensemble", "compiled", distribution, members=MEMBERS) for distribution in ("wrapped", "riemannian")
)
MIXED_90 = Row("ensemble", "compiled", members=MEMBERS, space="h2,s2,e2")
EVALUATION = Row("evaluation", "compiled")
FLOW, WITHOUT_FLOW = (Row("step", "compiled", distribution, space="p2") for distribution in ("flow", "wrapped"))
DENSITY = Row("density", "stock", "flow", space="s2")
GROWING = ("stock", "captured")
# A row that is in several groups is measured once. What has to be compiled costs most and is rare.
GROUPS: dict[str, list[Row]] = {
    "bounds": [
        WRAPPED_90,
        RIEMANNIAN_90,
        MIXED_90,
        *_single("compiled"),
        EVALUATION,
        *_single("stock"),
        *_single("captured"),
        FLOW,
        WITHOUT_FLOW,
        DENSITY,
    ],
    "dimension": [
        *(Row("step", kind, dim=d) for d in (2, 5, 10, 20, 50, 64) for kind in GROWING),
        *(Row("step", "captured", "riemannian", dim=d) for d in (2, 5, 10, 20, 50, 64)),
    ],
    "batch": [Row("step", kind, batch=b) for b in (128, 512, 2048, 8192) for kind in GROWING],
    "graph": [
        *(Row("graph", kind, nodes=n) for n in (256, 512, 1024, 2048, 4096, 8192) for kind in GROWING),
        *(Row("graph", "compiled", nodes=n) for n in (256, 2048, 8192)),
    ],
    "ensemble": [
        *_ensembles("captured", (1, 4, 16, 90, 360)),
        *_ensembles("compiled", (1, 16, 90, 360)),
        Row("ensemble", "compiled", "euclidean", members=MEMBERS),
    ],
    "spaces": [
        MIXED_90,
        *(Row("ensemble", "compiled", members=MEMBERS, space=space) for space in ("h6", "s6", "u6")),
        Row("ensemble", "captured", members=MEMBERS, space="h2,s2,e2"),
    ],
    "flows": [
        FLOW,
        WITHOUT_FLOW,
        DENSITY,
    ],
}
BOUNDS = {WRAPPED_90: 30.0, RIEMANNIAN_90: 30.0, MIXED_90: 27.0, EVALUATION: 2.0, DENSITY: 1.0} | dict.fromkeys(
    _single("compiled"), 0.35
)
# Name, numerator, denominator, bound.
RATIOS: list[tuple[str, Row, Row, float]] = [
    (f"Riemannian / wrapped, ensemble of {MEMBERS}, compiled", RIEMANNIAN_90, WRAPPED_90, 1.5),
    *(
        (f"Riemannian / wrapped, step, {kind}", Row("step", kind, "riemannian"), Row("step", kind), 1.5)
        for kind in ("captured", "compiled")
    ),
    (f"flow of {FLOW_LAYERS} layers / wrapped, p2, step, compiled", FLOW, WITHOUT_FLOW, 3.0),
]


def rows(groups: list[str]) -> list[Row]:
    """The rows of these groups in order, each once."""
    return list(dict.fromkeys(row for group in groups for row in GROUPS[group]))


def read(found: Any) -> dict[str, Any]:
    """What ``benchmarks.gpu`` has written, from what JSON holds."""
    require({"device", "torch", "tiny"} <= found.keys())
    found["torch"].split("+")
    for row in found["rows"]:
        sizes = {name: row[name] for name in ("dim", "batch", "members", "nodes")}
        require(row["subject"] in UNITS and row["kind"] in KINDS and row["distribution"] in DISTRIBUTIONS)
        require(all(size >= 0 for size in sizes.values()) and isinstance(row["over"], bool))
        require(row["median"] is None or 0 < row["min"] <= row["median"] <= row["max"])
    for entry in found["rows"] + found["ratios"]:
        require(isinstance(entry["name"], str) and isinstance(entry["unit"], str))
        require(entry["bound"] is None or entry["bound"] > 0)
    require(all(ratio["median"] > 0 for ratio in found["ratios"]))
    return found


def prepare(row: Row, device: str, tiny: bool) -> Work:
    """Make the model of a row.

    :param tiny: sizes for a test of the script itself, and nothing is compiled.
    """
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    return _SUBJECTS[row.subject](row, device, tiny)


def _vae(row: Row, device: str, tiny: bool) -> Any:
    hidden = 8 if tiny else 600
    if row.distribution == "euclidean":
        return EuclideanVAE(row.dim, (28, 28), hidden_dim=hidden).to(device)
    manifold, dim = (row.space, signature_dim(row.space)) if row.space else (PoincareBall(0.2), row.dim)
    options: dict[str, Any] = {"prior": row.distribution, "posterior": row.distribution}
    if row.distribution == "flow":
        options |= {"prior": "wrapped", "flow": _flow_options(tiny)}
    return ManifoldVAE(manifold, dim, (28, 28), hidden_dim=hidden, **options).to(device)


def _flow_options(tiny: bool) -> dict[str, Any]:
    return {"layers": 1 if tiny else FLOW_LAYERS, "hidden_dims": FLOW_HIDDEN}


def _trainer(row: Row, program: Any, tiny: bool) -> Any:
    if row.kind == "stock":
        return SVI(program.model, program.guide, _adam(), Trace_ELBO())
    compiled = row.kind == "compiled" and not tiny
    return FastSVI(program.model, program.guide, _adam(), Trace_ELBO(), compile="tuned" if compiled else False)


def _adam() -> Any:
    return pyro.optim.Adam({"lr": 5e-4})


def _repeat(step: Callable[[], Any], times: int = 3) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            step()

    return run


def _step(row: Row, device: str, tiny: bool) -> Work:
    svi = _trainer(row, _vae(row, device, tiny), tiny)
    x = torch.rand(min(row.batch, 8) if tiny else row.batch, 28, 28, device=device)
    return Work(_repeat(lambda: svi.step(x)), lambda: svi.step(x))


def _ensemble(row: Row, device: str, tiny: bool) -> Work:
    members, batch = (min(row.members, 3), 8) if tiny else (row.members, row.batch)
    vaes = [_vae(row, device, tiny) for _ in range(members)]
    compiled = row.kind == "compiled" and not tiny
    svi = EnsembleSVI([(v.model, v.guide) for v in vaes], _adam(), Trace_ELBO(), compile=compiled)
    x = torch.rand(members, batch, 28, 28, device=device)
    return Work(_repeat(lambda: svi.step(x)), lambda: svi.step(x), share=members)


def _graph(row: Row, device: str, tiny: bool) -> Work:
    nodes = min(row.nodes, 16) if tiny else row.nodes
    children = torch.arange(1, nodes)
    tree = torch.stack([children, children // 2], -1)
    vgae = HyperbolicVGAE(PoincareBall(1.0), nodes, tree, prior=row.distribution, posterior=row.distribution).to(device)
    svi = _trainer(row, vgae, tiny)
    return Work(_repeat(svi.step), svi.step)


def _evaluation(row: Row, device: str, tiny: bool) -> Work:
    vae = _vae(row, device, tiny)
    x = torch.rand(8 if tiny else 10_000, 28, 28, device=device)
    samples = 4 if tiny else 5000

    def evaluate(images: torch.Tensor) -> Any:
        return log_marginal_likelihood(vae.model, vae.guide, images, num_samples=samples, compile=not tiny)

    # Two full chunks are enough to compile.
    return Work(lambda: evaluate(x[:208]), lambda: evaluate(x), longest=1)


def _density(row: Row, device: str, tiny: bool) -> Work:
    dim = signature_dim(row.space)
    flow = manifold_flow(from_signature(row.space), dim, **_flow_options(tiny)).to(device)
    uniform = HypersphericalUniform(dim + 1, device=torch.device(device))
    x = uniform.sample((100 if tiny else POINTS,))

    @torch.no_grad()
    def evaluate() -> torch.Tensor:
        return dist.TransformedDistribution(uniform, [flow]).log_prob(x)

    return Work(evaluate, evaluate, longest=3)


_SUBJECTS = {"step": _step, "ensemble": _ensemble, "graph": _graph, "evaluation": _evaluation, "density": _density}
