"""Every way to infer: a function of the program and the options, and an entry in ``METHODS``."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pyro
import torch
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

from inference_parts.found import Found, effective, log_mean
from pyro_hyperbolic import infer

if TYPE_CHECKING:
    from inference_swaps import Program


def weigh(program: Program, guide: Callable[..., Any], args: argparse.Namespace, is_posterior: bool) -> Found:
    """Draws of a guide, and the evidence from their weights; as a posterior, the draws count alike."""
    with torch.no_grad():
        log_weights, _, trace = vectorized_importance_weights(
            program.model, guide, num_samples=args.num_draws, max_plate_nesting=1
        )
    z = trace.nodes["z"]["value"].reshape(args.num_draws, -1)
    evidence = log_mean(log_weights)
    if is_posterior:
        return Found(z, bound=log_weights.mean().item(), evidence=evidence)
    return Found(z, log_weights, evidence=evidence, note=f"n_eff {effective(log_weights):.0f}")


def importance(program: Program, args: argparse.Namespace) -> Found:
    """The prior proposes."""
    return weigh(program, poutine.block(program.model, hide=["distance"]), args, is_posterior=False)


def train(program: Program, guide: Callable[..., Any], loss: Any, args: argparse.Namespace) -> None:
    rate = 0.02 ** (1 / args.num_steps)
    svi = SVI(program.model, guide, pyro.optim.ClippedAdam({"lr": args.learning_rate, "lrd": rate}), loss)
    for _ in range(args.num_steps):
        svi.step()


def by_loss(loss: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    """The guide above, trained by a loss."""
    particles = {"num_particles": args.num_particles, "vectorize_particles": True, "max_plate_nesting": 1}
    train(program, program.guide, loss(**particles), args)
    return weigh(program, program.guide, args, is_posterior=True)


def by_guide(make: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    """An automatic guide, trained by the ELBO."""
    guide = fitted(make, program, args)
    return weigh(program, guide, args, is_posterior=True)


def fitted(make: Callable[..., Any], program: Program, args: argparse.Namespace) -> Any:
    guide = make(program.model)
    train(program, guide, Trace_ELBO(args.num_particles, vectorize_particles=True, max_plate_nesting=1), args)
    return guide


def laplace(program: Program, args: argparse.Namespace) -> Found:
    guide = fitted(autoguide.AutoLaplaceApproximation, program, args).laplace_approximation()
    return weigh(program, guide, args, is_posterior=True)


def mode(program: Program, args: argparse.Namespace) -> Found:
    guide = fitted(autoguide.AutoDelta, program, args)
    return Found(guide.median()["z"].unsqueeze(0), note="a point")


def chains(kernel: Any, args: argparse.Namespace) -> tuple[dict[str, Tensor], str]:
    with warnings.catch_warnings():
        # Where there are not enough processors, the chains are drawn one after the other.
        warnings.filterwarnings("ignore", message="num_chains")
        mcmc = MCMC(kernel, args.num_samples, args.warmup_steps, num_chains=args.num_chains, disable_progbar=True)
        mcmc.run()
    (name,) = mcmc.get_samples()
    diagnostics = mcmc.diagnostics()[name]
    note = f"r_hat {diagnostics['r_hat'].max():.2f}, n_eff {diagnostics['n_eff'].min():.0f}"
    return mcmc.get_samples(), note


def by_kernel(kernel: Callable[..., Any], program: Program, args: argparse.Namespace) -> Found:
    samples, note = chains(kernel(program.model), args)
    return Found(samples["z"], note=note)


def in_tangent_space(program: Program, args: argparse.Namespace) -> Found:
    """NUTS in white noise at the prior's mean."""
    model = poutine.reparam(program.model, {"z": infer.WrappedNormalReparam()})
    samples, note = chains(NUTS(model), args)
    z = Predictive(model, samples, return_sites=["z"])()["z"]
    return Found(z.reshape(-1, z.shape[-1]), note=note)


def in_guide_space(program: Program, args: argparse.Namespace) -> Found:
    """NUTS in the coordinates of a normalising flow."""
    guide = fitted(partial(autoguide.AutoIAFNormal, hidden_dim=[16]), program, args)
    neutra = NeuTraReparam(guide.requires_grad_(False))
    samples, note = chains(NUTS(neutra.reparam(program.model)), args)
    return Found(neutra.transform_sample(samples["z_shared_latent"])["z"], note=note)


def filtered(program: Program, args: argparse.Namespace) -> Found:
    """A particle filter that meets one distance after the other."""

    class Model:
        def init(self, state: Any) -> None:
            state["z"] = pyro.sample("z", program.prior())

        def step(self, state: Any, i: int) -> None:
            law = program.measurement(state["z"], program.anchors[i])
            pyro.sample(f"distance_{i}", law, obs=program.distances[i])

    class Guide:
        def init(self, state: Any) -> None:
            pyro.sample("z", program.prior())

        def step(self, state: Any, i: int) -> None:
            pass

    filters = 16
    draws, evidences = [], []
    for _ in range(filters):
        smc = SMCFilter(Model(), Guide(), args.num_draws // filters, max_plate_nesting=0)
        smc.init()
        total = torch.zeros(())
        for i, distance in enumerate(program.distances):
            before = smc.get_empirical()["z"]
            law = program.measurement(before.enumerate_support(), program.anchors[i])
            total = total + (before.log_weights.log_softmax(0) + law.log_prob(distance)).logsumexp(0)
            smc.step(i)
        draws.append(smc.get_empirical()["z"].sample((args.num_draws // filters,)))
        evidences.append(total)
    return Found(torch.cat(draws), evidence=log_mean(torch.stack(evidences)))


def stein(program: Program, args: argparse.Namespace) -> Found:
    optimiser = pyro.optim.Adam({"lr": args.learning_rate})
    svgd = SVGD(program.model, RBFSteinKernel(), optimiser, num_particles=100, max_plate_nesting=1)
    for _ in range(args.num_steps):
        svgd.step()
    return Found(svgd.get_named_particles()["z"].detach().reshape(100, -1), note="100 particles")


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
# White noise in the tangent space is a form of the wrapped normal only.
UNSUITED: dict[str, set[str]] = {"wrapped": set(), "riemannian": {"nuts-tangent"}}
