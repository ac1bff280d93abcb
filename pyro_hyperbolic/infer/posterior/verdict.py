"""Whether to believe a posterior, in plain words, and what to do if not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from pyro_hyperbolic.infer.posterior.diagnostics import FEWEST_DRAWS, Diagnosis
from pyro_hyperbolic.infer.posterior.record import Record

LARGEST_R_HAT = 1.01
SMALLEST_ESS = 400
# Every few trajectories have smaller steps, for places where the usual ones diverge.
_MOST_DIVERGED = 0.02
# The same where every scale moves so often between trajectories: these moves take chains into the neck of a funnel and
# out of it, and steps alone need not.
_MOST_WITH_MOVES, _OFTEN = 0.2, 0.1
_MOST_AT_THE_BORDER = 0.001  # share of points
_EXPLORED = 10  # effective samples of half a chain with which it knows its surroundings
_SIGMAS, _SLACK = 4.0, 3.0  # beyond which R-hat is not what slow but healthy chains have by chance
_SLOW = 10.0  # times as many draws, when a better metric may be cheaper


class Finding(NamedTuple):
    """A reason not to believe the draws, and what may help."""

    problem: str
    remedy: str


def verdict(record: Record, found: list[Finding]) -> str:
    """The last line of a summary."""
    if found:
        return "Do not believe it yet: " + "; ".join(f"{problem} (remedy: {remedy})" for problem, remedy in found) + "."
    line = (
        f"Believe it: every R-hat is at most {LARGEST_R_HAT} and every effective sample size at least {SMALLEST_ESS}."
    )
    diverged = int(record.divergences.sum())
    return line + (f" ({diverged} of {record.divergences.numel()} steps diverged.)" if diverged else "")


def findings(record: Record, diagnostics: Mapping[str, Diagnosis]) -> list[Finding]:
    """All that speaks against the draws."""
    bad = [f"draws of {name} are not finite in {numbered(chains)}" for name, chains in record.not_finite().items()]
    # Of finite coordinates distances may still be nan: those of points that rounding has put outside of the space.
    bad = bad or [f"{name} are not finite" for name, d in diagnostics.items() if not bool(d.finite.all())]
    out = [Finding(problem, _numerical_remedy(record)) for problem in bad]
    if record.failed:
        remedy = "more warmup or start=, as the reasons above suggest"
        out.append(Finding(f"{numbered(sorted(record.failed))} failed", remedy))
    for name in [name for name in record.samples if name not in record.deterministic]:
        if all(d.is_constant for group, d in diagnostics.items() if group == name or group.endswith(f" of {name}")):
            remedy = _or_float64("another start=, and a check of the model", record)
            out.append(Finding(f"{name} is the same in all draws", remedy))
    for name, share in record.at_the_border().items():
        if share > _MOST_AT_THE_BORDER:
            kind = str(record.samples[name].dtype).removeprefix("torch.")
            remedy = "Lorentz in the place of a ball" + (", or float64" if kind == "float32" else "")
            out.append(Finding(f"{share:.1%} of the points of {name} lie where coordinates of {kind} end", remedy))
    share = record.divergences.double().mean().item()
    most = _MOST_WITH_MOVES if record.settings.get("scales_moved", 0.0) > _OFTEN else _MOST_DIVERGED
    if share > most:
        remedy = "another parametrisation of the narrow sites (NoiseReparam, with_drawn_curvature(centered=False))"
        out.append(Finding(f"{share:.1%} of the steps diverged", _or_float64(remedy, record)))
    return out + _of_mixing(record, {name: d for name, d in diagnostics.items() if not d.is_constant})


def numbered(chains: list[int]) -> str:
    """Chains by their numbers."""
    shown = ", ".join(map(str, chains[:8])) + (", ..." if len(chains) > 8 else "")
    return f"{len(chains)} chains ({shown})" if len(chains) > 1 else f"chain {shown}"


def _of_mixing(record: Record, diagnostics: Mapping[str, Diagnosis]) -> list[Finding]:
    if record.num_draws < FEWEST_DRAWS:
        remedy = f"num_samples={SMALLEST_ESS} or so"
        return [Finding(f"{record.num_draws} draws of each chain are too few to judge them", remedy)]
    known = {name: d for name, d in diagnostics.items() if bool(d.finite.all())}
    if not known:
        return []
    by_r_hat = max(known, key=lambda name: known[name].r_hat)
    by_bulk = min(known, key=lambda name: known[name].ess_bulk)
    by_tail = min(known, key=lambda name: known[name].ess_tail)
    r_hat, bulk, tail = known[by_r_hat].r_hat, known[by_bulk].ess_bulk, known[by_tail].ess_tail
    fewest = min(bulk, tail)
    problems = []
    if r_hat > LARGEST_R_HAT:
        problems.append(f"R-hat of {by_r_hat} is {_shown(r_hat)}")
    if fewest < SMALLEST_ESS:
        name, where = (by_bulk, "") if bulk <= tail else (by_tail, " in its tails")
        problems.append(f"the effective sample size of {name} is {fewest:.0f}{where}")
    if not problems:
        return []
    if r_hat > LARGEST_R_HAT and not _by_chance(known[by_r_hat], record.num_chains):
        temperature = max(4.0, 2 * record.settings.get("hottest", 1.0))
        hotter = f"hottest={temperature:g} in sample_posterior to take them to each other"
        if record.modes is not None and len(record.modes) > 1:
            words = f"the chains are in {len(record.modes)} modes, so take their weights above"
            remedy = f"{words}, {hotter}, or one mode by start="
        else:
            remedy = f"the chains are in different places, so more warmup, {hotter}, or start= in the right one"
    else:
        excess = (r_hat**2 - 1) / (LARGEST_R_HAT**2 - 1)
        factor = max(excess, SMALLEST_ESS / fewest)
        remedy = f"num_samples={_round_number(factor * record.num_draws)} or so"
        if factor > _SLOW:
            remedy += ", or more warmup for a better metric"
    return [Finding(", ".join(problems), remedy)]


def _by_chance(diagnosis: Diagnosis, num_chains: int) -> bool:
    r"""Whether chains of one distribution, as slow as these, may have such an R-hat.

    With the effective sample size :math:`n` that chains with one mean would have, :math:`(\hat R^2 - 1)\,n/m` is about
    a :math:`\chi^2` of :math:`m - 1` degrees of freedom, divided by these, for ``m`` halves of chains. Its quantile is
    Wilson and Hilferty's. Of chains that are slow, ``n`` is too large, and nothing is known of very slow ones.
    """
    if math.isinf(diagnosis.r_hat):  # chains that stay where they are, each elsewhere
        return False
    worst = diagnosis.r_hats.nan_to_num(0.0).argmax()
    halves = 2 * num_chains
    each = diagnosis.withins[worst].item() / halves
    spread = 2 / (9 * (halves - 1))
    return each < _EXPLORED or (diagnosis.r_hat**2 - 1) * each <= _SLACK * (1 - spread + _SIGMAS * spread**0.5) ** 3


def _numerical_remedy(record: Record) -> str:
    return "float64" if _single(record) else "a check of the model where its numbers grow large"


def _or_float64(remedy: str, record: Record) -> str:
    return f"float64, or {remedy}" if _single(record) else remedy


def _single(record: Record) -> bool:
    return any(draws.dtype == torch.float32 for draws in record.samples.values())


def _shown(r_hat: float) -> str:
    """With as many digits as tell it from the bound."""
    return f"{r_hat:.2f}" if r_hat >= LARGEST_R_HAT + 0.005 else f"{r_hat:.4f}"


def _round_number(number: float) -> int:
    """The next one with two digits."""
    unit = 10 ** max(math.floor(math.log10(number)) - 1, 0)
    return math.ceil(number / unit) * unit
