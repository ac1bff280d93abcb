"""Whether what a method found is the posterior of the grid, within the method's own error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer.importance import vectorized_importance_weights
from torch import Tensor

from pyro_hyperbolic.geometry import Manifold
from tests.infer.posterior_models import BALL, Posterior, on_disc

# Standard errors that an estimate may be off. Six statistics for each of some fifty rows: an error of this size
# happens to one table in fifty by chance, and the tables are seeded.
SIGMAS = 4.0
# Standard errors by which an estimate must miss a wrong posterior.
REFUTES = 3.0


@dataclass(frozen=True)
class Found:
    """What a method says about a posterior.

    :param draws: points of the disc: ``(n, 2)`` independent ones, or ``(chains, n, 2)`` of many independent chains.
    :param log_weights: of independent draws, ``(n,)``.
    :param evidence: log-evidence and its standard error.
    :param bound: lower bound of the log-evidence, and the standard error of the estimate.
    :param gap: greatest Kullback-Leibler divergence, in nats, of the draws' distribution from the posterior.
    """

    draws: Tensor
    log_weights: Tensor | None = None
    evidence: tuple[float, float] | None = None
    bound: tuple[float, float] | None = None
    gap: float = 0.0


def agrees(found: Found, program: Any) -> None:
    """Assert that statistics, bound and evidence are those of the program, and not those of another measure."""
    mistakes = disagreements(found, program.exact())
    assert not mistakes, "; ".join(mistakes)
    seen = disagreements(found, program.exact(volume=False), REFUTES)
    assert seen, "the errors are too large to see a forgotten Jacobian"


def disagreements(found: Found, exact: Posterior, sigmas: float = SIGMAS) -> list[str]:
    """What of ``found`` cannot be an estimate for ``exact``.

    A distribution of divergence ``gap`` moves the mean of a statistic of standard deviation ``s`` by at most
    ``s sqrt(2 gap)`` if its tails are no heavier than a Gaussian's (S. Bobkov and F. Götze, 1999), and of any other
    to first order in ``sqrt(gap)``. Monte Carlo errors come on top.
    """
    mistakes = []
    mean, sd = exact.moments
    estimate, error = _estimates(exact.statistics(found.draws), found.log_weights, sd)
    allowed = sigmas * error + math.sqrt(2 * found.gap) * sd
    excess = (estimate - mean).abs() / allowed
    if not bool((excess <= 1).all()):
        mistakes.append(f"statistics {estimate.tolist()} are not {mean.tolist()} within {allowed.tolist()}")
    if found.evidence is not None:
        value, error_of_value = found.evidence
        if not abs(value - exact.log_evidence) <= sigmas * error_of_value:
            mistakes.append(f"evidence {value} ± {error_of_value} is not {exact.log_evidence}")
    if found.bound is not None:
        value, error_of_value = found.bound
        slack = sigmas * error_of_value
        if not exact.log_evidence - found.gap - slack <= value <= exact.log_evidence + slack:
            mistakes.append(f"bound {value} ± {error_of_value} is not below {exact.log_evidence} by {found.gap}")
    return mistakes


def _estimates(values: Tensor, log_weights: Tensor | None, sd: Tensor) -> tuple[Tensor, Tensor]:
    """Means of statistics and their standard errors."""
    if log_weights is not None:
        weights = log_weights.softmax(0).unsqueeze(-1)
        mean = (weights * values).sum(0)
        return mean, (weights.square() * (values - mean).square()).sum(0).sqrt()
    if values.dim() == 2:
        return values.mean(0), sd / math.sqrt(len(values))
    means = values.mean(1)
    # Of all statistics the largest error in units of its standard deviation: tails that few chains have been in hide
    # in the spread of their own.
    relative = (means.std(0) / sd).max() / math.sqrt(len(means))
    return means.mean(0), relative * sd


def evidence(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean weight, with its standard error by the delta method."""
    n = len(log_weights)
    relative = (2 * log_weights).logsumexp(0) - 2 * log_weights.logsumexp(0)
    return log_weights.logsumexp(0).item() - math.log(n), math.sqrt(max(relative.exp().item() - 1 / n, 0.0))


def look_at(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    gap: float,
    manifold: Manifold = BALL,
    num_samples: int = 4000,
    max_plate_nesting: int = 2,
) -> Found:
    """Draws of a guide, its bound, and the evidence by importance weights."""
    # A guide that is a handler runs the model, observations and all.
    guide = poutine.block(guide, hide_types=["observe"])
    with torch.no_grad():
        log_weights, _, trace = vectorized_importance_weights(
            model, guide, num_samples=num_samples, max_plate_nesting=max_plate_nesting
        )
    draws = on_disc(trace.nodes["z"]["value"].reshape(num_samples, -1), manifold)
    bound = log_weights.mean().item(), log_weights.std().item() / math.sqrt(num_samples)
    return Found(draws, evidence=evidence(log_weights), bound=bound, gap=gap)
