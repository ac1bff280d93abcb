"""Where chains begin: many fits at once, their points moved and fitted again, and the shape of the energy there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Metric, State
from pyro_hyperbolic.infer.posterior.fits import diagonal, hessian, root_of_inverse
from pyro_hyperbolic.infer.posterior.jumps import Jumps
from pyro_hyperbolic.infer.posterior.target import Target

_STEPS = 1000  # of a fit
_SMALL_RATE = 0.01  # of one that is to end near to where it begins
# How often points are moved and fitted again: for each of them, at most, in how many steps, and how often it is looked
# anew which of them are near each other. Half as often where there are so many fits that some will be good.
_SWEEPS, _MOST_SWEEPS, _FEW_STEPS, _LOOKS, _MANY = 4, 240, 15, 10, 128
_LARGEST_DENSE = 1000  # numbers of a vector; beyond, every number has a width of its own
_MOST_MODES = 8
_NEAR = 0.5  # standard deviations in every direction, within which fits are one: they do not end at the very same place
_NORMAL = 0.2, 5.0  # excess energies between which a fit tells where the posterior is


@dataclass
class Mode:
    """A fit, and the normal approximation there.

    :ivar vector: ``(D,)``.
    :ivar root: of the covariance, ``(D, D)``, or ``(D,)`` with the width of each number where the others stay.
    :ivar evidence: the logarithm of the integral of the approximation; with widths alone it is at least that.
    :ivar fall: by how much a Newton step would lower the energy.
    """

    vector: Tensor
    energy: float
    root: Tensor
    evidence: float
    fall: float

    def are_here(self, vectors: Tensor) -> Tensor:
        """Which fits ``(P, D)`` are this one. Its mirror image has the same energy and is another."""
        return Metric(self.root).whitened(vectors - self.vector).square().mean(-1) <= _NEAR**2

    def draw(self, noise: Tensor) -> Tensor:
        """One of the approximation."""
        return self.vector + Metric(self.root).times(noise)


@dataclass
class Start:
    """Vectors of all chains ``(P, D)``, a root of a first covariance ``(D, D)`` or ``(D,)``, and the best fit."""

    x: Tensor
    root: Tensor
    best: Tensor


def find_start(target: Target, start: Mapping[str, Tensor] | Callable[..., Any] | None) -> Start:
    """From values by site, a guide, or nothing: then from draws of the prior."""
    begin = target.prior if start is None else _given(target, start)
    with target.by_noise():
        fits, energies = target.descend(begin, _STEPS)
        if not bool(energies.isfinite().any()):
            raise ValueError(
                f"no point of positive density was found: {target.energy.culprit(begin[0])} has density 0, or one that"
                " is not a number, at the start; check the model and its data, or pass start= with values that it can"
                " have."
            )
        if start is None:
            fits, energies = _search(target, fits, energies)
        fits = fits[energies.argsort()]
        best, found = _held(target, fits)
        places = _places(target, found)
    if target.energy.has_scales:
        # Many data on the numbers make the density with respect to these the one that is nearer to a normal one.
        others, _ = target.descend(target.turned(fits[: target.count]), _STEPS, _SMALL_RATE)
        among = [mode for mode in modes(target, others) if mode.fall < 0.5 * target.size]  # others lead to spikes
        if among and (not found or among[0].evidence > found[0].evidence):
            best, found, places = among[0].vector, among, _places(target, among)
    x, root = target.turned(begin), torch.ones_like(best)
    # A fit of less evidence than the prior alone is the tip of a funnel, where there is no mass.
    if found:
        root = root.diag() if found[0].root.dim() == 2 else root
        if found[0].evidence > target.prior_evidence:
            x, root, best = places, found[0].root, found[0].vector
    energy, gradient = target.gradients(x)
    good = energy.isfinite() & gradient.isfinite().all(-1)
    # A draw without a density begins where the best fit is; chains part from there.
    return Start(torch.where(good.unsqueeze(-1), x, best), root, best)


def _held(target: Target, fits: Tensor) -> tuple[Tensor, list[Mode]]:
    """Hold what is free as it lies in the best of some fits ``(P, D)``, the first of lowest energy: that, and modes."""
    best = fits[0]
    target.hold(fits[: target.count], best)
    found = modes(target, target.turned(fits))
    if found and found[0].energy > _above(target, target.energies(target.turned(fits[: target.count])).min().item()):
        best = found[0].vector
        target.hold(fits[: target.count], best)
        found = modes(target, target.turned(fits))
    return target.turned(best.unsqueeze(0))[0], found


def modes(target: Target, fits: Tensor) -> list[Mode]:
    """The normal approximations at the best of some fits ``(P, D)``, those of most evidence first.

    Fits of far lower energy than others need not be better: where a scale tends to 0 and all that it scales with it,
    there is a narrow spike without mass. So the best of the others are looked at too.
    """
    curvature = hessian if target.size <= _LARGEST_DENSE else diagonal
    energies = target.energies(fits)
    found: list[Mode] = []
    lowest, count, known = math.inf, 0, torch.zeros_like(energies, dtype=torch.bool)
    for index in energies.argsort().tolist():
        energy = energies[index].item()
        if not math.isfinite(energy):
            break
        if not found or energy > _above(target, lowest):
            lowest, count = energy, 0
        if bool(known[index]) or count == _MOST_MODES:
            continue
        matrix = curvature(target.gradients, fits[index], target.count)
        if bool(matrix.isfinite().all()):
            root = root_of_inverse(matrix)
            log_det = root.log().sum() if root.dim() == 1 else torch.linalg.slogdet(root).logabsdet
            log_volume = 0.5 * target.size * math.log(2 * math.pi) + log_det.item()
            here = target.filled(fits[index : index + 1])
            added = target.added(here)[0].item()
            fall = 0.5 * Metric(root).transposed(target.gradients(here)[1][0]).square().sum().item()
            found.append(Mode(fits[index], energy, root, log_volume - energy - added, fall))
            known |= found[-1].are_here(fits)
            count += 1
    found.sort(key=lambda mode: -mode.evidence)
    return [mode for mode in found[:_MOST_MODES] if _above(target, -mode.evidence) > -found[0].evidence]


def _above(target: Target, energy: float) -> float:
    """What no fit of as much mass as one of this energy has, if they are about as wide."""
    return energy + target.size + 10


def _places(target: Target, found: list[Mode]) -> Tensor:
    """Draws of the approximations, or the fits that they belong to where these say nothing about the posterior.

    That they do is told by the excess energy of draws over that of a normal distribution, which is near 1.
    Modes of less evidence have more than their share, so that chains tell whether they go over to the others, and each
    has its share to one chain.
    """
    if not found:
        return target.prior
    weights = (0.5 * torch.tensor([mode.evidence for mode in found])).softmax(0)
    noise = torch.randn_like(target.prior)
    places = (torch.arange(target.count) + torch.rand(())) / target.count
    shares = torch.searchsorted(weights.cumsum(0), places).clamp(max=len(found) - 1)
    chosen = shares[torch.randperm(target.count)].tolist()
    draws = torch.stack([found[k].draw(row) for k, row in zip(chosen, noise, strict=True)])
    lowest = torch.tensor([found[k].energy for k in chosen], dtype=draws.dtype, device=draws.device)
    excess = (target.gradients(draws)[0] - lowest) / (0.5 * noise.square().sum(-1))
    near = _NORMAL[0] < excess.nan_to_num(math.inf).median().item() < _NORMAL[1]
    return draws if near else torch.stack([found[k].vector for k in chosen])


def _search(target: Target, fits: Tensor, energies: Tensor) -> tuple[Tensor, Tensor]:
    """Fits of other arrangements of points: they move as between two trajectories, and are fitted a little each time.

    These and the given ones. A fit alone does not leave the arrangement that it begins with, and the
    energies of arrangements are hundreds apart. Steps that do not settle shake what the moves have put in place.
    """
    points = target.points(fits[energies.argmin()])
    if not points:
        return fits, energies
    sweeps = min(_SWEEPS * max(len(some.columns) for some in points), _MOST_SWEEPS)
    sweeps = math.ceil(sweeps / 2) if target.count >= _MANY else sweeps
    x, jumps = fits, Jumps(target.many, target.gradients, target.ahead)
    for sweep in range(sweeps):
        state = State.at(target.gradients, x)
        if sweep % math.ceil(sweeps / _LOOKS) == 0:
            known = points
            points = target.points(x[state.energy.argmin()])
            for some, before in zip(points, known, strict=True):
                some.known = before.known  # which depend on where the numbers of points are alone
        state, _ = jumps(state, points, target.leaves(x), learn=True)
        x, _ = target.descend(state.x, _FEW_STEPS)
    others, found = target.descend(x, _STEPS // 2)
    return torch.cat([fits, others]), torch.cat([energies, found])


def _given(target: Target, start: Mapping[str, Tensor] | Callable[..., Any]) -> Tensor:
    energy = target.energy
    if callable(start):
        rows = []
        for _ in range(target.count):
            trace = poutine.trace(start).get_trace(*energy.args, **energy.kwargs)
            drawn = {name: site["value"] for name, site in trace.nodes.items() if site["type"] == "sample"}
            if not drawn.keys() & energy.shapes.keys():
                raise ValueError(f"start must draw latents of the model, {sorted(energy.shapes)}, got {sorted(drawn)}.")
            rows.append(energy.vector_of(drawn))
        return torch.stack(rows)
    if unknown := sorted(set(start) - energy.shapes.keys()):
        raise ValueError(f"start must name latents of the model, {sorted(energy.shapes)}, got {unknown}.")
    values = {name: torch.as_tensor(value, device=energy.device) for name, value in start.items()}
    for name, value in values.items():
        if value.shape != energy.shapes[name]:
            raise ValueError(
                f"start[{name!r}] must have shape {tuple(energy.shapes[name])}, as the site has, got"
                f" {tuple(value.shape)}."
            )
    vectors = torch.stack([energy.vector_of(values) for _ in range(target.count)])
    if not bool(target.gradients(vectors)[0].isfinite().any()):
        raise ValueError(f"start has density 0: {energy.culprit(vectors[0])} cannot have such values.")
    return vectors
