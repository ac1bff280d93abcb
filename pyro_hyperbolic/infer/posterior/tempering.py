"""Chains at several temperatures, which exchange their places."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.accelerate.trainers.graphs import Captured

_FINE = 2.0  # temperatures for each standard deviation that energies of the hottest are away from those of the coldest
_TIMES = 3  # that all pairs of temperatures exchange places between two trajectories
# Of exchanges, beyond which nothing is known of how far two temperatures are apart.
_LEAST_REJECTION, _LARGEST_REJECTION = 1e-6, 0.999


def levels_of(hottest: float, size: int) -> int:
    """So many temperatures up to the hottest one that more than half of the exchanges are accepted."""
    return 1 + math.ceil(_FINE * math.log(hottest) * math.sqrt(size / 2))


class Ladder:
    """Chains at temperatures from 1 on, of which those at 1 are the draws of the posterior.

    A chain at the temperature ``T`` has the energy divided by ``T``, so that it crosses what chains at 1 do not. After
    each trajectory chains of neighbouring temperatures exchange their places by Metropolis steps, so that places travel
    from hot to cold and back (Geyer, *Markov chain Monte Carlo maximum likelihood*, 1991). Each chain at 1 has
    companions of its own, so that different chains stay independent.

    :param hottest: the largest temperature.
    :param levels: how many there are.
    :param chains: at each of them. Vectors ``(P, D)`` are those of the first temperature, then those of the next one.
    :param like: a tensor of the type and the device of vectors.

    :ivar betas: inverse temperatures ``(levels,)``.
    :ivar rows: those of all vectors ``(P,)``.
    :ivar trips: how often a place has come from the hottest temperature to the posterior.
    """

    def __init__(self, hottest: float, levels: int, chains: int, like: Tensor) -> None:
        self.levels, self.chains = levels, chains
        self.betas = torch.linspace(0.0, -math.log(hottest), levels, dtype=like.dtype, device=like.device).exp()
        self.rows = self.betas.repeat_interleave(chains)
        self._from_hottest = torch.zeros(levels, chains, dtype=torch.bool, device=like.device)
        self._exchange = Captured(self._exchanged)  # a hundred small kernels
        self.forget()

    def forget(self) -> None:
        """Count exchanges anew."""
        self._accepted = torch.zeros_like(self.betas[1:])
        self._tried = 0
        self._trips = torch.zeros((), dtype=torch.long, device=self.betas.device)

    @property
    def is_one(self) -> bool:
        """Whether there is no other temperature."""
        return self.levels == 1

    @property
    def trips(self) -> int:
        return int(self._trips)

    @property
    def acceptance(self) -> float:
        """The least mean acceptance of exchanges between two temperatures."""
        return float((self._accepted / max(1, self._tried)).min())

    def gradients(self, raw: Gradients) -> Gradients:
        """Energies and gradients at the temperatures of the vectors."""
        if self.is_one:
            return raw

        def tempered(x: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = raw(x)
            return self.rows * energy, self.rows.unsqueeze(-1) * gradient

        return tempered

    def energies(self, raw: Callable[[Tensor], Tensor], ahead: int) -> Callable[[Tensor], Tensor]:
        """Energies of ``ahead`` vectors for each one, one after another, at their temperatures."""
        if self.is_one:
            return raw
        return lambda x: self.rows.repeat_interleave(ahead) * raw(x)

    def by_level(self, rows: Tensor) -> Tensor:
        """Rows ``(P, ...)`` as ``(levels, chains, ...)``."""
        return rows.unflatten(0, (self.levels, self.chains))

    def cold(self, rows: Tensor) -> Tensor:
        """Those of the posterior, without the memory of the others."""
        return rows if self.is_one else rows[: self.chains].clone()

    def exchanged(self, state: State) -> State:
        """The chains after exchanges between all neighbouring temperatures, every second pair of them first."""
        if self.is_one:
            return state
        limits = torch.rand(2 * _TIMES, *self._from_hottest.shape, dtype=state.x.dtype, device=state.x.device)
        x, energy, gradient, accepted, self._from_hottest, trips = self._exchange(
            state.x, state.energy, state.gradient, self._from_hottest, limits
        )
        self._accepted, self._trips, self._tried = self._accepted + accepted, self._trips + trips, self._tried + _TIMES
        return State(x, energy, gradient)

    def _exchanged(
        self, x: Tensor, energy: Tensor, gradient: Tensor, from_hottest: Tensor, limits: Tensor
    ) -> tuple[Tensor, ...]:
        raw = self.by_level(energy) / self.betas.unsqueeze(-1)
        source = torch.arange(self.levels, device=x.device).unsqueeze(-1).repeat(1, self.chains)
        accepted = torch.zeros_like(self.betas[1:])
        for turn, limit in enumerate(limits):
            low = torch.arange(turn % 2, self.levels - 1, 2, device=x.device)
            here, there = source[low], source[low + 1]
            gain = raw.gather(0, here) - raw.gather(0, there)
            gain = (self.betas[low] - self.betas[low + 1]).unsqueeze(-1) * gain
            chance = gain.nan_to_num(-math.inf).clamp(max=0).exp()
            accepted[low] += chance.mean(-1)
            taken = limit[low] < chance
            source[low], source[low + 1] = torch.where(taken, there, here), torch.where(taken, here, there)
        came = from_hottest.gather(0, source)
        trips = came[0].sum()
        came[0], came[-1] = False, True
        index = (source * self.chains + torch.arange(self.chains, device=x.device)).flatten()
        scale = self.rows / self.rows[index]
        return x[index], energy[index] * scale, gradient[index] * scale.unsqueeze(-1), accepted, came, trips

    def spread(self, state: State) -> State:
        """Choose temperatures whose exchanges are accepted alike; the chains at these.

        Of normal energies that differ by ``x`` standard deviations a share of ``erf(x / 2)`` is rejected. These
        differences add up along the temperatures.
        """
        if self.is_one or not self._tried:
            return state
        rejected = (1 - self._accepted / self._tried).clamp(_LEAST_REJECTION, _LARGEST_REJECTION)
        far = torch.cat([torch.zeros_like(rejected[:1]), torch.special.erfinv(rejected).cumsum(0)])
        before, log = self.rows.clone(), self.betas.log()
        wanted = torch.linspace(0, 1, self.levels, dtype=far.dtype, device=far.device) * far[-1]
        above = torch.searchsorted(far, wanted).clamp(1, self.levels - 1)
        share = (wanted - far[above - 1]) / (far[above] - far[above - 1])
        new = (log[above - 1] + share * (log[above] - log[above - 1])).exp()
        new[0], new[-1] = self.betas[0], self.betas[-1]
        # In place: they are part of functions that were captured.
        self.betas.copy_(new)
        self.rows.copy_(new.repeat_interleave(self.chains))
        self.forget()
        scale = self.rows / before
        return State(state.x, state.energy * scale, state.gradient * scale.unsqueeze(-1))

    def pooled(self, states: list[State]) -> tuple[Tensor, Tensor]:
        """Places and gradients ``(N, D)`` of all temperatures together, as if all of them were those of one posterior.

        The covariance of a normal posterior is ``T`` times as large at the temperature ``T``, where its mean may be
        another one. One metric is for all of them, and each has a step size of its own.
        """
        x, gradient = torch.stack([s.x for s in states]), torch.stack([s.gradient for s in states])
        if not self.is_one:
            by_level = x.unflatten(1, (self.levels, self.chains))
            root = self.rows.sqrt().unsqueeze(-1)
            x = (by_level - by_level.mean((0, 2), keepdim=True)).flatten(1, 2) * root
            gradient = gradient / root
        return x.flatten(0, 1), gradient.flatten(0, 1)

    def state(self) -> list[Any]:
        """What a run goes on with."""
        return [self.betas, self._from_hottest, self._trips, self._accepted, self._tried]

    def load(self, state: list[Any]) -> None:
        """Go on as it was."""
        betas, self._from_hottest, self._trips, self._accepted, self._tried = state
        self.betas.copy_(betas)
        self.rows.copy_(betas.repeat_interleave(self.chains))
