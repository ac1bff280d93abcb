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

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, Metric, State, trajectories
from pyro_hyperbolic.infer.posterior.sampler import Chains

_STEPS = 4  # of a trajectory at a level: many levels of short ones lose less than few of long ones
_SHARE = 0.5  # of a step of the logarithm of the weight in the pilot, in standard deviations


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
        self.chains, self.normal = chains, normal

    def there(self, levels: list[float]) -> Tensor:
        """Logarithms of the weights ``(P,)`` of paths from new draws of the normal distribution."""
        return self._sum(self.normal.draw(self.chains.target.count), levels)

    def back(self, x: Tensor, levels: list[float]) -> Tensor:
        """The same of paths from draws ``(P, D)`` of the target."""
        return -self._sum(x, levels[::-1])

    def levels(self, x: Tensor) -> list[float]:
        """Levels between which the weights of all paths change about alike, found on the way back from draws."""
        found = [1.0]
        while found[-1] > 0:
            spread = (self.normal.gradients(x)[0] - self.chains.target.gradients(x)[0]).double().std().item()
            found.append(max(0.0, found[-1] - _SHARE / spread))
            x = self._moved(State.at(self._level(found[-1]), x), found[-1]).x
        return found[::-1]

    def _sum(self, x: Tensor, levels: list[float]) -> Tensor:
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        state = State.at(self._level(levels[0]), x)
        for level in levels[1:]:
            there = State.at(self._level(level), state.x)
            total += (state.energy - there.energy).double()
            state = self._moved(there, level)
        return total

    def _moved(self, state: State, level: float) -> State:
        if not 0 < level < 1:
            return state
        size = self.chains.size * torch.rand(()).item() ** 0.5
        return trajectories(self._level(level), state, self.chains.metric, size, _STEPS)[0]

    def _level(self, level: float) -> Gradients:
        def gradients(x: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = self.normal.gradients(x)
            if level == 0:
                return energy, gradient
            own, slope = self.chains.target.gradients(x)
            return (1 - level) * energy + level * own, (1 - level) * gradient + level * slope

        return gradients


def finer(levels: list[float], count: int) -> list[float]:
    """So many levels after the first, as dense as the given ones are where they are."""
    last, out = len(levels) - 1, []
    for number in range(count + 1):
        place, rest = divmod(number * last, count)
        low, high = levels[place], levels[min(place + 1, last)]
        out.append(low + rest / count * (high - low))
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
