"""What a method finds, and how it is printed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from inference_swaps import Program


class Found(NamedTuple):
    """What a method says: draws ``(n, D)``, their log-weights, a bound of the evidence, the evidence and its error."""

    draws: Tensor
    log_weights: Tensor | None = None
    bound: float | None = None
    evidence: tuple[float, float] | None = None
    note: str = ""


def log_mean(log_weights: Tensor) -> tuple[float, float]:
    """Logarithm of the mean weight, and its standard error by the delta method."""
    n = len(log_weights)
    error = math.sqrt(max(0.0, 1 / effective(log_weights) - 1 / n))
    return log_weights.logsumexp(0).item() - math.log(n), error


def effective(log_weights: Tensor) -> float:
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp().item()


def summary(found: Found, program: Program) -> tuple[Tensor, float]:
    """Fréchet mean, and the root of the mean squared distance from it."""
    weights = torch.ones(len(found.draws)) if found.log_weights is None else found.log_weights.softmax(0)
    mean = program.manifold.frechet_mean(found.draws, weights)
    square = program.manifold.dist(mean, found.draws).square()
    return mean, math.sqrt((weights * square).sum().item() / weights.sum().item())


def row(name: str, found: Found, exact: Found, program: Program, seconds: float) -> dict[str, Any]:
    mean, spread = summary(found, program)
    value, error = found.evidence or (None, None)
    return {
        "method": name,
        "mean": program.on_disc(mean).tolist(),
        "distance_of_means": program.manifold.dist(mean, summary(exact, program)[0]).item(),
        "spread": spread,
        "bound": found.bound,
        "log_evidence": value,
        "log_evidence_error": error,
        "cpu_seconds": seconds,
        "note": found.note,
    }


HEADER = f"{'method':<18}{'mean off by':>12}{'spread':>8}{'bound':>9}{'log evidence':>20}{'CPU s':>8}  note"


def line(entry: dict[str, Any]) -> str:
    bound = "" if entry["bound"] is None else f"{entry['bound']:.3f}"
    evidence = ""
    if entry["log_evidence"] is not None:
        evidence = f"{entry['log_evidence']:.3f} ± {entry['log_evidence_error']:.3f}"
    return (
        f"{entry['method']:<18}{entry['distance_of_means']:>12.3f}{entry['spread']:>8.3f}{bound:>9}{evidence:>20}"
        f"{entry['cpu_seconds']:>8.1f}  {entry['note']}"
    ).rstrip()
