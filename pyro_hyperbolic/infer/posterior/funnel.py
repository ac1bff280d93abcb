"""Coordinates in which all numbers are about as wide wherever a few of them are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.hmc import State
from pyro_hyperbolic.infer.posterior.energy import Energy

_MOST = 4  # numbers that lead, and numbers of a site that may
_CORRELATED = 0.3  # with the energy, from which on they do
_FORCE = 1.5  # how much larger the squares of the derivatives by the leading numbers may become
_WORTH = 0.5  # how much of the energy goes with them, as a share of what a momentum brings, from which on


class Funnel:
    r"""Coordinates in which numbers do not follow those of a few others, the leading ones ``s``.

    .. math:: x_i = m_i + b_i \cdot s + e^{k_i \cdot s} (y_i - m_i)

    A temperature, a scale or a curvature tells how far all other numbers may spread. Then the energy changes along it,
    by as much as the volume does the other way, and a trajectory, which changes no energy by more than its momentum
    has, is only a small step there. With respect to ``y`` the volume stays, and the way is free. How much volume there
    is to lose, in all, the energies of draws tell; which sites lose it, their gradients.

    :param energy: whose sites of a few numbers may lead.
    :param like: a tensor of vectors.

    :ivar is_flat: whether ``y`` is ``x``.
    :ivar terms: what :meth:`place` takes; nothing where no numbers may lead. They change in place, for compiled
        functions.
    """

    def __init__(self, energy: Energy, like: Tensor) -> None:
        self._sites = {name: energy.columns(name).flatten() for name in energy.sites}
        few = [name for name, site in energy.sites.items() if site.size <= _MOST and site.point is None]
        self._few = torch.cat([like.new_zeros(0, dtype=torch.long), *(self._sites[name] for name in few)])
        self.is_flat = True
        self._is_on = like.new_zeros(())
        size, most = like.shape[-1], min(_MOST, len(self._few))
        shapes = (size,), (size, most), (size, most), (size, most), (most,)
        self._middle, self._leads, self._drift, self._growth, self._centre = map(like.new_zeros, shapes)
        self.terms = [*self._parts, self._is_on] if most else []

    @property
    def _parts(self) -> list[Tensor]:
        return [self._middle, self._leads, self._drift, self._growth, self._centre]

    @property
    def leads(self) -> list[str]:
        """The sites of the leading numbers."""
        if self.is_flat:
            return []
        return sorted(name for name, rows in self._sites.items() if bool(self._leads[rows].any()))

    def _set(self, parts: list[Tensor]) -> None:
        """Where fewer numbers lead than may, the columns of the others are 0."""
        for own, part in zip(self._parts, parts, strict=True):
            own.zero_()
            own[tuple(map(slice, part.shape))] = part

    @staticmethod
    def place(
        y: Tensor, middle: Tensor, leads: Tensor, drift: Tensor, growth: Tensor, centre: Tensor, is_on: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``x`` of one vector, and by how much the logarithm of the volume grows there; ``y`` and 0 if it is not on."""
        s = is_on * ((y.unsqueeze(-1) * leads).sum(-2) - centre)
        fixed = is_on * middle
        x = fixed + (drift * s).sum(-1) + (growth * s).sum(-1).exp() * (y - fixed)
        return x, (growth.sum(0) * s).sum()

    @contextlib.contextmanager
    def is_entered(self) -> Iterator[None]:
        """Compiled energies are those with respect to these coordinates while this is open."""
        self._is_on.fill_(not self.is_flat)
        try:
            yield
        finally:
            self._is_on.zero_()

    def learn(self, draws: State) -> None:
        """From draws ``(N, D)``."""
        self.is_flat = True
        if not len(self._few) or not bool(draws.energy.isfinite().all() & draws.gradient.isfinite().all()):
            return
        x, energies = draws.x, draws.energy - draws.energy.mean()
        strength = torch.corrcoef(torch.cat([energies.unsqueeze(-1), x[:, self._few]], -1).mT)[0, 1:].abs().nan_to_num()
        order = strength.argsort(descending=True)[:_MOST]
        leads = self._few[order[strength[order] > _CORRELATED]]
        others = torch.ones(x.shape[-1], dtype=torch.bool, device=x.device)
        others[leads] = False
        if not len(leads) or not bool(others.any()):
            return
        centre = x[:, leads].mean(0)
        s = x[:, leads] - centre
        middle = torch.where(others, x.mean(0), 0.0)
        drift = torch.where(others.unsqueeze(-1), _slopes(s, x - x.mean(0)).mT, 0.0)
        slope = _slopes(s, energies)  # that of the volume, too
        told = s @ slope
        # Gradients tell widths where draws are, in whichever mode that is. A site that gets narrower does not follow.
        log_width = -draws.gradient.abs().clamp(min=torch.finfo(x.dtype).tiny).log()
        share = torch.zeros_like(middle)
        for rows in self._sites.values():
            own = rows[others[rows]]
            if len(own):
                width = log_width[:, own].mean(-1)
                share[own] = _slopes(told.unsqueeze(-1), width - width.mean()).clamp(min=0.0)
        enough = told.std() > _WORTH * math.sqrt(x.shape[-1] / 2)
        if bool(share.any() & enough):
            self.is_flat = False
            one_hot = torch.nn.functional.one_hot(leads, x.shape[-1]).to(x).mT
            self._set([middle, one_hot, drift, (share / share.sum()).outer(slope), centre])
            # Between modes that are far from the middle, numbers that follow would have to be pushed back.
            before, after = (state.gradient[:, leads] * x[:, leads].std(0) for state in (draws, self.enter(draws)))
            self.is_flat = not bool(after.square().mean() < _FORCE * before.square().mean())

    def enter(self, state: State) -> State:
        """A state in these coordinates, with the energy and the gradient with respect to them."""
        if self.is_flat:
            return state
        s, wide = self._at(state.x)
        away = state.x - self._middle - s @ self._drift.mT
        energy, gradient = self._pulled(s, wide, away, state.energy, state.gradient)
        return State(self._middle + away / wide, energy, gradient)

    def leave(self, state: State) -> State:
        """The state that :meth:`enter` takes to this one."""
        if self.is_flat:
            return state
        s, wide = self._at(state.x)
        away = wide * (state.x - self._middle)
        others = state.gradient / wide
        gradient = others - self._force(away, others) @ self._leads.mT
        return State(self._middle + s @ self._drift.mT + away, state.energy + s @ self._growth.sum(0), gradient)

    def state(self) -> list[Any]:
        """What a checkpoint keeps."""
        return [self.is_flat, self._parts]

    def load(self, state: list[Any]) -> None:
        """Go on from there."""
        self.is_flat = state[0]
        self._set([part.clone() for part in state[1]])

    def _at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s = x @ self._leads - self._centre
        return s, (s @ self._growth.mT).exp()

    def _force(self, away: Tensor, gradient: Tensor) -> Tensor:
        return gradient @ self._drift + (gradient * away) @ self._growth - self._growth.sum(0)

    def _pulled(self, s: Tensor, wide: Tensor, away: Tensor, energy: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        force = self._force(away, gradient)
        return energy - s @ self._growth.sum(0), wide * gradient + force @ self._leads.mT


def _slopes(s: Tensor, x: Tensor) -> Tensor:
    """Of least squares, of columns of mean 0."""
    return torch.linalg.pinv(s) @ x
