"""The methods of ``inference_swaps.py``: each is a function of the program and the options."""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, SVGD, SVI, Predictive, RBFSteinKernel, SMCFilter, Trace_ELBO, autoguide
from pyro.infer.importance import vectorized_importance_weights
from pyro.infer.reparam import NeuTraReparam
from torch import Tensor

from pyro_hyperbolic import infer

LEARNING_RATE, PARTICLES, WARMUP = 0.1, 32, 100


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


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean weight, and its standard error by the delta method."""
    n = len(log_weights)
    return log_weights.logsumexp(0).item() - math.log(n), math.sqrt(max(0.0, 1 / n_eff(log_weights) - 1 / n))


def n_eff(log_weights: Tensor) -> float:
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp().item()


def weigh(program: Any, guide: Callable[..., Any], args: argparse.Namespace, is_posterior: bool = True) -> Found:
    """Draws of a guide, and the evidence from their weights; as a posterior, the draws count alike."""
    with torch.no_grad():
        log_weights, _, trace = vectorized_importance_weights(
            program.model, guide, num_samples=args.num_draws, max_plate_nesting=1
        )
    z = trace.nodes["z"]["value"].reshape(args.num_draws, -1)
    if is_posterior:
        return Found(z, bound=log_weights.mean().item(), evidence=log_mean(log_weights))
    return Found(z, log_weights, evidence=log_mean(log_weights), note=f"n_eff {n_eff(log_weights):.0f}")


def importance(program: Any, args: argparse.Namespace) -> Found:
    """The prior proposes."""
    return weigh(program, poutine.block(program.model, hide=["distance"]), args, is_posterior=False)


def train(program: Any, guide: Callable[..., Any], args: argparse.Namespace, loss: Any = Trace_ELBO) -> Any:
    """A guide, trained with a learning rate that falls to a fiftieth."""
    optimiser = pyro.optim.ClippedAdam({"lr": LEARNING_RATE, "lrd": 0.02 ** (1 / args.num_steps)})
    elbo = loss(num_particles=PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(program.model, guide, optimiser, elbo)
    for _ in range(args.num_steps):
        svi.step()
    return guide


def by_loss(loss: Callable[..., Any], program: Any, args: argparse.Namespace) -> Found:
    """The guide above, trained by a loss."""
    return weigh(program, train(program, program.guide, args, loss), args)


def by_guide(make: Callable[..., Any], program: Any, args: argparse.Namespace) -> Found:
    """An automatic guide, trained by the ELBO."""
    return weigh(program, train(program, make(program.model), args), args)


def laplace(program: Any, args: argparse.Namespace) -> Found:
    guide = train(program, autoguide.AutoLaplaceApproximation(program.model), args)
    return weigh(program, guide.laplace_approximation(), args)


def mode(program: Any, args: argparse.Namespace) -> Found:
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


def by_kernel(kernel: Callable[..., Any], program: Any, args: argparse.Namespace) -> Found:
    samples, note = chains(kernel(program.model), args)
    return Found(samples["z"], note=note)


def in_tangent_space(program: Any, args: argparse.Namespace) -> Found:
    """NUTS in white noise at the prior's mean, a form that the wrapped normal has."""
    model = poutine.reparam(program.model, {"z": infer.NoiseReparam()})
    samples, note = chains(NUTS(model), args)
    z = Predictive(model, samples, return_sites=["z"])()["z"]
    return Found(z.reshape(-1, z.shape[-1]), note=note)


def in_guide_space(program: Any, args: argparse.Namespace) -> Found:
    """NUTS in the coordinates of a normalising flow."""
    guide = train(program, autoguide.AutoIAFNormal(program.model, hidden_dim=[16]), args)
    neutra = NeuTraReparam(guide.requires_grad_(False))
    samples, note = chains(NUTS(neutra.reparam(program.model)), args)
    return Found(neutra.transform_sample(samples["z_shared_latent"])["z"], note=note)


def filtered(program: Any, args: argparse.Namespace, filters: int = 16) -> Found:
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


def stein(program: Any, args: argparse.Namespace, particles: int = 100) -> Found:
    optimiser = pyro.optim.Adam({"lr": LEARNING_RATE})
    svgd = SVGD(program.model, RBFSteinKernel(), optimiser, num_particles=particles, max_plate_nesting=1)
    for _ in range(args.num_steps):
        svgd.step()
    z = svgd.get_named_particles()["z"].detach()
    return Found(z.reshape(particles, -1), note=f"{particles} particles")
