r"""The integral of a posterior by paths from a normal distribution to it.

Between a normal distribution ``q`` of integral 1 and the posterior :math:`p = e^{-U}` lie the levels

.. math:: f_t = q^{1-t}\,p^t, \qquad 0 = t_0 < t_1 < \ldots < t_K = 1 .

A path begins at a draw of ``q`` and moves at each level :math:`t_1, \ldots, t_{K-1}` by steps that leave it as it is;
:math:`l = \sum_k (t_k - t_{k-1}) \log(p/q)`, each term at the place before the step, is the logarithm of its weight. A
path back begins at a draw of the posterior, and has the same sum. The expectations of :math:`e^l` there and of
:math:`e^{-l}` back are the integral of the posterior and its inverse (Jarzynski, 1997; Neal, 2001), and Crooks' (1999)
relation makes Bennett's (1976) combination of both the best one. Of paths without levels in between it is bridge
sampling (Meng and Wong, 1996).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, Metric, State, StepSize, Sweep, leapfrog, trajectories
from pyro_hyperbolic.infer.posterior.sampler import Chains

_LENGTH, _MOST_STEPS = math.pi / 2, 16  # of a trajectory at a level
_SHARE = 0.5  # of a standard deviation of the weights, between two levels of the pilot
_TRIALS = 10  # trajectories of the pilot at a level, from which the size of its steps is learned


class Level(NamedTuple):
    """A distribution between the two, and the size of steps there."""

    place: float
    size: float


class Normal:
    """The normal distribution of some draws ``(N, D)``; its covariance is drawn to that of a metric if they are few."""

    def __init__(self, draws: Tensor, metric: Metric) -> None:
        root = metric.root.diag() if metric.root.dim() == 1 else metric.root
        weight = len(draws) / (len(draws) + 5.0 * draws.shape[-1])
        self.mean = draws.mean(0)
        self.root = torch.linalg.cholesky(weight * torch.cov(draws.mT) + (1 - weight) * root @ root.mT)
        self._precision = torch.cholesky_inverse(self.root)
        self._log_volume = 0.5 * len(root) * math.log(2 * math.pi) + self.root.diagonal().log().sum()

    def draw(self, count: int) -> Tensor:
        """So many vectors ``(N, D)``."""
        noise = torch.randn(count, len(self.mean), dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + noise @ self.root.mT

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the logarithm of the density at vectors ``(N, D)``, and its gradients."""
        away = x - self.mean
        gradient = away @ self._precision
        return 0.5 * (away * gradient).sum(-1) + self._log_volume, gradient


class Paths:
    """Paths between a normal distribution and the target of chains, by their trajectories.

    :param chains: that have a metric and a step size.
    """

    def __init__(self, chains: Chains, normal: Normal) -> None:
        self.target, self.metric, self.normal = chains.target, chains.metric, normal
        self.size = chains.size if chains.ladder.is_one else chains.size[0].item()

    def ends(self) -> list[Level]:
        """The levels of a path without others in between."""
        return [Level(0.0, self.size), Level(1.0, self.size)]

    def levels(self, x: Tensor) -> list[Level]:
        """Levels between which the weights of all paths change about alike, found on the way back from draws."""
        x, size, place = self.target.filled(x), self.size, 1.0
        found = [Level(place, size)]
        while place > 0:
            spread = (self.normal.gradients(x)[0] - self.target.gradients(x)[0]).double().std().item()
            place = max(0.0, place - _SHARE / spread)
            adapted = StepSize(size)
            state = State.at(self._gradients(place), x)
            for _ in range(_TRIALS):
                state, sweep = self._trajectories(state, Level(place, adapted.size))
                adapted.see(sweep.acceptance.mean().item())
            x, size = state.x, adapted.mean
            found.append(Level(place, size))
        return found[::-1]

    def there(self, levels: list[Level]) -> Tensor:
        """Logarithms of the weights ``(P,)`` of paths from new draws of the normal distribution."""
        return self._sum(self.normal.draw(self.target.count), levels)

    def back(self, x: Tensor, levels: list[Level]) -> Tensor:
        """The same of paths from draws ``(P, D)`` of the target."""
        return -self._sum(self.target.filled(x), levels[::-1])[: len(x)]

    def _sum(self, x: Tensor, levels: list[Level]) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        state = State.at(self._gradients(levels[0].place), x)
        for number, level in enumerate(levels[1:], 2):
            here = State.at(self._gradients(level.place), state.x)
            total += (state.energy - here.energy).double()
            # Smaller steps now and then, for places where the usual ones are too large.
            own = level._replace(size=level.size * torch.rand(()).item() ** 0.5)
            state = self._trajectories(here, own)[0] if number < len(levels) else here
        return total

    def _trajectories(self, state: State, level: Level) -> tuple[State, Sweep]:
        steps = max(1, min(_MOST_STEPS, round(_LENGTH / level.size)))
        return trajectories(leapfrog(self._gradients(level.place)), state, self.metric, level.size, steps)

    def _gradients(self, place: float) -> Gradients:
        def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = self.normal.gradients(x)
            if place == 0:
                return energy, gradient
            own, slope = self.target.gradients(x)
            return (1 - place) * energy + place * own, (1 - place) * gradient + place * slope

        return gradients


def finer(levels: list[Level], count: int) -> list[Level]:
    """So many levels after the first, as dense as the given ones are where they are."""
    last, out = len(levels) - 1, []
    for number in range(count + 1):
        place, rest = divmod(number * last, count)
        low, high = levels[place], levels[min(place + 1, last)]
        out.append(Level(*(a + rest / count * (b - a) for a, b in zip(low, high, strict=True))))
    return out


@dataclass(frozen=True)
class Ratio:
    """The logarithm of a ratio of integrals.

    :ivar overlap: of the two sets of weights: 1/2 if they are the same, and near 0 if few paths count.
    """

    log: float
    error: float
    overlap: float


def bennett(there: Tensor, back: Tensor) -> Ratio:
    """From the logarithms of the weights of independent paths ``(N,)``, and of paths back from chains ``(M, P)``."""
    there = there.nan_to_num(-math.inf, posinf=-math.inf)
    shift = math.log(back.numel() / len(there))
    known = torch.cat([there[there.isfinite()], back.flatten()])
    low, high = known.min().item() - 50, known.max().item() + 50
    for _ in range(100):
        middle = 0.5 * (low + high)
        excess = (there - middle + shift).sigmoid().sum() - (middle - back - shift).sigmoid().sum()
        low, high = (middle, high) if excess > 0 else (low, middle)
    one, other = (there - middle + shift).sigmoid(), (middle - back - shift).sigmoid().mean(0)
    error = one.var() / one.mean() ** 2 / len(one) + other.var() / other.mean() ** 2 / len(other)
    return Ratio(middle, error.sqrt().item(), min(one.mean().item(), other.mean().item()))
