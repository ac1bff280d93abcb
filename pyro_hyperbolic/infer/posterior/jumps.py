"""Metropolis steps of chains to other arrangements of points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import Gradients, State
from pyro_hyperbolic.accelerate.programs.rows import CompiledLater
from pyro_hyperbolic.accelerate.trainers.graphs import Captured
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.posterior.moves import Points, moved_vectors
from pyro_hyperbolic.infer.posterior.places import curvature

_BARRIER = 3.0  # between two arrangements: what the energy has more, halfway from one to the other, than at both ends
_OFTEN = 1000  # calls after which proposals are compiled on a CPU: short runs do without


@dataclass
class Jumps:
    """Metropolis steps, of which few are accepted, so that many are looked at together.

    Every chain makes its tries one after another. As long as none is accepted all begin at the same place, so the
    energies of the next ones are computed at once, and those after the first that is accepted again. What comes out
    does not depend on how many are looked at. (A chain that stopped at the first arrangement it takes would be too
    often where few others are taken.)

    :param energies: of vectors ``(P * ahead, D)``.
    :param gradients: of vectors ``(P, D)``.
    :param ahead: how many tries of each chain are looked at together.

    :ivar looks: how often that was done.
    """

    energies: Callable[[Tensor], Tensor]
    gradients: Gradients
    ahead: int
    looks: int = 0

    def __call__(
        self, state: State, points: list[Points], leaves: dict[str, list[tuple[Manifold, int]]], *, learn: bool
    ) -> tuple[State, Tensor]:
        """All tries, and the share of the groups of points that have moved in each chain ``(P,)``.

        :param leaves: the factors of their spaces, with the curvatures of each chain.
        :param learn: whether the points take note of what is accepted.
        """
        x, energy, share = state.x, state.energy, torch.zeros_like(state.energy)
        for some in points:
            space, _ = leaves[some.site][some.factor]
            x, energy, moved = self.jump(x, energy, some, space, learn=learn)
            share = share + moved / len(points)
        other = State.at(self.gradients, x)
        # No trajectory leaves a place whose gradient is not a number, which there may be at the edge of a support.
        return state.taken(other, other.gradient.isfinite().all(-1)), share

    def jump(
        self, x: Tensor, energy: Tensor, points: Points, space: Manifold, *, learn: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The tries of some points: vectors and energies after them, and which chains have moved ``(P,)``."""
        k, sign = curvature(space, x)
        tries = points.next_tries(len(x), learn=learn)
        chance, far = torch.zeros_like(tries.picks), torch.zeros_like(tries.picks, dtype=torch.bool)
        limits = torch.rand_like(chance).log()
        look = points.known.get(learn)
        if look is None:
            look = points.known[learn] = Captured(self._look(points, sign, learn))
        first, chains = torch.zeros_like(x[:, 0], dtype=torch.long), torch.arange(len(x), device=x.device)
        begun, window = x, torch.arange(self.ahead, device=x.device)
        last_one, rows = len(limits) - 1, [part.flatten(0, 1) for part in (limits, *tries.parts)]
        while bool((first <= last_one).any()):
            number = first.unsqueeze(-1) + window
            left = number <= last_one
            at = (number.clamp(max=last_one) * len(x) + chains.unsqueeze(-1)).flatten()
            parts = (part.index_select(0, at).unflatten(0, left.shape) for part in rows)
            x, energy, last, *seen = look(x, energy, k.contiguous(), left, *parts)
            first, self.looks = first + last + 1, self.looks + 1
            if learn:
                tried = left & (window <= last.unsqueeze(-1))
                for kept, new in zip((chance, far), seen, strict=True):
                    kept.view(-1)[at[tried.view(-1)]] = new[tried]
        if learn:
            points.note(tries, chance, far)
        return x, energy, (x != begun).any(-1)

    def _look(self, points: Points, sign: int | None, learn: bool) -> Callable[..., Any]:
        """A function of vectors, their energies and curvatures, and some tries of each ``(P, ahead)``.

        It gives vectors and energies after the first that is accepted, its number or that of the last one; and, to
        learn, by try the probability to be accepted, and whether it leads to another arrangement. A try that moves
        nothing counts as not accepted.
        """

        rows = points.columns.mT.contiguous()

        def proposal(x: Tensor, k: Tensor, *tries: Tensor) -> tuple[Tensor, ...]:
            return moved_vectors(rows, x, k, sign, *tries)

        def choice(
            x: Tensor, energy: Tensor, left: Tensor, limits: Tensor, y: Tensor, energies: Tensor, gain: Tensor
        ) -> tuple[tuple[Tensor, ...], Tensor]:
            chains = torch.arange(len(x), device=x.device)
            log_ratio = (energy.unsqueeze(-1) - energies + gain).nan_to_num(-torch.inf)
            stays = (y == x.unsqueeze(1)).all(-1)
            accepted = left & (limits < log_ratio) & ~stays
            last = torch.where(accepted, torch.arange(self.ahead, device=x.device), self.ahead - 1).amin(-1)
            moved = accepted[chains, last]
            x = torch.where(moved.unsqueeze(-1), y[chains, last], x)
            found = x, torch.where(moved, energies[chains, last], energy), last
            return found, torch.where(stays, 0.0, log_ratio.clamp(max=0.0).exp())

        later = CompiledLater(proposal, _OFTEN), CompiledLater(choice, _OFTEN)
        propose, choose = points.later.setdefault("moves", later)

        def look(x: Tensor, energy: Tensor, k: Tensor, left: Tensor, limits: Tensor, *tries: Tensor) -> Any:
            y, gain = propose(x, k, *tries)
            energies = self.energies(y.flatten(0, 1)).reshape_as(left)
            found, chance = choose(x, energy, left, limits, y, energies, gain)
            if not learn:
                return found
            halfway = self.energies(((x.unsqueeze(1) + y) / 2).flatten(0, 1)).reshape_as(left)
            ends = torch.maximum(energies, energy.unsqueeze(-1))
            return *found, chance, ~(halfway - ends <= _BARRIER)

        return look
