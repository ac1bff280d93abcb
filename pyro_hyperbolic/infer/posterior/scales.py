"""Metropolis steps of locations and scales, in which what they are the location and scale of goes with them."""

from __future__ import annotations

from typing import Any

import torch

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.infer.posterior.target import Target

_TRIES = 4  # between two trajectories, each of another number
_ACCEPTED = 0.4  # of them
_SLOWER = 0.6  # how fast learning slows down, as a power of how often a number was tried


class ScaleMoves:
    """Moves of the numbers that locations and scales of sites are computed from; these sites keep their noise.

    Where data say little about the numbers of a site, their scale can change as far as those numbers allow: next to
    nothing where they are near each other. Chains do not get into the neck of such a funnel, or out of it. A move that
    takes the numbers along does. Where data say much about the numbers it is the trajectories that get on, so the two
    are done in turns (Yu and Meng, *To center or not to center: that is not the question*, 2011).

    :param target: the energy, and how vectors are moved.

    :ivar sizes: standard deviations of the moves, one for each number.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._columns = [c for name in target.energy.moved for c in target.energy.columns(name).flatten().tolist()]
        self.sizes = torch.ones_like(target.prior[0, : len(self._columns)])
        self._tried, self._taken, self._rounds = 0, torch.zeros_like(self.sizes), 0

    @property
    def settings(self) -> dict[str, Any]:
        """What a record tells: the share of tries since :meth:`forget` that chains took, and how often.

        The latter, if there are no scales that do not move, is the least number of times a number moved between two
        trajectories, in the mean.
        """
        if not self._tried:
            return {}
        found: dict[str, Any] = {"scale_moves": self._taken.sum().item() / self._tried}
        if self.target.energy.all_scales_move:
            found["scales_moved"] = self._taken.min().item() / self._rounds
        return found

    def forget(self) -> None:
        """Count anew."""
        self._tried, self._taken, self._rounds = 0, torch.zeros_like(self._taken), 0

    def __call__(self, state: State, gradients: Gradients, *, learn: bool) -> State:
        """The chains after a few tries.

        :param gradients: at the temperatures of the chains.
        """
        self._rounds += 1
        for _ in range(min(_TRIES, len(self._columns))):
            which = self._tried % len(self._columns)
            # Now and then far more or less, for funnels are as wide in one place as narrow in another.
            size = self.sizes[which] * torch.rand_like(state.energy).mul(4).sub(2).exp()
            shift = torch.zeros_like(state.x)
            shift[:, self._columns[which]] = size * torch.randn_like(size)
            x, log_det = self.target.moved(state.x, shift)
            there = State.at(gradients, x)
            chance = (state.energy - there.energy + log_det).nan_to_num(-torch.inf).clamp(max=0).exp()
            chance = torch.where(there.gradient.isfinite().all(-1), chance, 0.0)
            state = state.taken(there, torch.rand_like(chance) < chance)
            self._tried += 1
            self._taken[which] += chance.mean()
            if learn:
                rate = (1 + self._tried // len(self._columns)) ** -_SLOWER
                self.sizes[which] *= (rate * (chance.mean() - _ACCEPTED)).exp()
        return state

    def state(self) -> list[Any]:
        """What a checkpoint keeps."""
        return [self.sizes, self._tried, self._taken, self._rounds]

    def load(self, state: list[Any]) -> None:
        """Go on from there."""
        self.sizes, self._tried, self._taken, self._rounds = state
