"""A posterior as chains see it: energies and gradients of many vectors in one compiled function."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_hyperbolic.accelerate.programs.compiled import explained
from pyro_hyperbolic.accelerate.programs.rows import CompiledRows
from pyro_hyperbolic.accelerate.trainers.graphs import Captured
from pyro_hyperbolic.geometry import Manifold
from pyro_hyperbolic.infer.posterior.energy import Energy
from pyro_hyperbolic.infer.posterior.fits import Descent
from pyro_hyperbolic.infer.posterior.funnel import Funnel
from pyro_hyperbolic.infer.posterior.gauge import blocks
from pyro_hyperbolic.infer.posterior.moves import Points

_TRIES = 20  # of draws from the prior with a density, for each one
_DRAWS = 64  # of them; of more vectors some begin at the same ones
# Tries of each chain to rearrange points whose energies are computed together: at most so many, and as many as make up
# about so many numbers in all operations together. More would save no more calls: they would only take their time. And
# of few points most can be moved, so that only the first of many tries would count: on a CPU two less than there are.
_AHEAD = 16
_NUMBERS, _NUMBERS_ON_CUDA = 6_000_000, 750_000_000
# So many times as often as at first mirrors may be tried: once for so many points, up to so often, and always as many
# times as there are tries at once.
_POINTS, _TIMES = 8, 4


class Target:
    """The energy of a program at ``count`` vectors ``(P, D)`` at a time, in one compiled function.

    :param energy: the program as a function of one vector.
    :param count: how many vectors.

    :ivar prior: vectors of draws from the prior.
    :ivar prior_evidence: logarithm of the mean likelihood of the draws: next to nothing where there are many data.
    :ivar ahead: how many vectors for each chain :meth:`many` takes.
    :ivar descend: fits from vectors.
    :ivar blocks: what may turn freely, and the terms of the energy that hold it.
    """

    def __init__(self, energy: Energy, count: int) -> None:
        self.energy, self.count, self.size = energy, count, energy.size
        # 1 where the energy is that with respect to noise.
        self._by_noise = torch.zeros((), dtype=energy.dtype, device=energy.device)
        # Functions of points, which are compiled once they are used often.
        self._later: dict[tuple[str, int], dict[str, Any]] = {}
        self.prior, self.prior_evidence = self._prior_draws()
        shapes = {name: site.shape for name, site in self.energy.sites.items()}
        self.blocks = blocks(shapes, self.prior, {name for name, site in self.energy.sites.items() if site.is_plain})
        self.funnel = Funnel(energy, self.prior)
        mapped = torch.func.vmap(torch.func.grad_and_value(self._energy, has_aux=True), in_dims=(0, None))
        with explained("compiled", "give the program a fixed structure, or use pyro.infer.MCMC"):
            self._rows = CompiledRows(mapped, [self.prior], self._state())
        most = _NUMBERS_ON_CUDA if self.prior.is_cuda else _NUMBERS
        sets = [site.shape[:-1].numel() for site in energy.sites.values() if site.point is not None]
        few = _AHEAD if self.prior.is_cuda else max(sets, default=0) - 2
        self.ahead = max(1, min(_AHEAD, few, int(most / max(1, self._rows.numbers))))
        self._evaluate = Captured(self._rows)
        self.descend = Descent(self.plain_gradients, self.prior)

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies ``(P,)`` and gradients ``(P, D)``, with the terms that hold what turns freely."""
        gradient, (energy, _) = self._evaluate(x)
        return energy, gradient

    def plain_gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same, to be used in what is captured."""
        gradient, (energy, _) = self._rows(x)
        return energy, gradient

    @property
    def leap(self) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] | None:
        """A function of places, momenta, lengths, a root of the inverse mass matrix and a number of steps.

        It gives places, momenta, energies and gradients after as many steps of Hamiltonian dynamics, without Python
        between them; ``None`` where this is not to be had.
        """
        if not self._rows.can_leap:
            return None

        def leap(*args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            x, p, (gradient, (energy, _)) = self._rows.leap(*args)
            return x, p, energy, gradient

        return leap

    @functools.cached_property
    def many(self) -> Callable[[Tensor], Tensor]:
        """A function for energies of ``count * ahead`` vectors without gradients, to be used in what is captured."""
        mapped = torch.func.vmap(lambda *args: self._energy(*args)[0], in_dims=(0, None))
        return CompiledRows(mapped, [self.prior.repeat(self.ahead, 1)], self._state())

    @functools.cached_property
    def moved(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """:meth:`Energy.move` of ``count`` vectors and shifts."""
        mapped, like = torch.func.vmap(self.energy.move), (self.prior, torch.zeros_like(self.prior))
        return Captured(CompiledRows(mapped, like))

    def energies(self, x: Tensor) -> Tensor:
        """Energies of any number of vectors ``(N, D)``."""
        parts = [self.gradients(self.filled(part))[0][: len(part)] for part in x.split(self.count)]
        return torch.cat(parts)

    def filled(self, x: Tensor) -> Tensor:
        """As many vectors as the compiled function takes, from fewer: the last one again and again."""
        return torch.cat([x, x[-1:].expand(self.count - len(x), -1)]).contiguous()

    def curvatures(self, x: Tensor) -> dict[str, list[Tensor]]:
        """Of the spaces of points at vectors ``(P, D)``, by site."""
        return self._evaluate(x)[1][1][1]

    def leaves(self, x: Tensor) -> dict[str, list[tuple[Manifold, int]]]:
        """The factors of the spaces of points, with curvatures ``(P, 1)``, and their dimensions.

        Sites whose points have curvatures of their own are left out.
        """
        out = {}
        for name, curvatures in self.curvatures(x).items():
            if all(c[0].numel() == 1 for c in curvatures):
                space = self.energy.spaces[name].with_curvatures([c.reshape(-1, 1) for c in curvatures])
                dim = next(site.shape[-1] for site in self.energy.sites.values() if site.point == name)
                out[name] = space.leaves(dim)
        return out

    def points(self, vector: Tensor) -> list[Points]:
        """The points that may be rearranged, with the distances that they have at a vector ``(D,)``."""
        out = []
        leaves = self.leaves(self.filled(vector.unsqueeze(0)))
        for name, site in self.energy.sites.items():
            if site.point not in leaves or site.is_noise:  # the noise says where a point is with other numbers alone
                continue
            columns, start = self.energy.columns(name).reshape(-1, site.shape[-1]), 0
            for number, (leaf, dim) in enumerate(leaves[site.point]):
                part = columns[:, start : start + dim]
                start += dim
                if len(part) >= dim + 2:
                    one = leaf.with_curvatures([c[0, 0] if isinstance(c, Tensor) else c for c in leaf.curvatures])
                    points = one.from_unconstrained(vector[part])
                    distances = one.dist(points.unsqueeze(0), points.unsqueeze(1)).fill_diagonal_(-1.0)
                    radius = vector[part].square().sum(-1).mean().sqrt().item()
                    times = max(self.ahead, min(_TIMES, len(part) // _POINTS))
                    later = self._later.setdefault((name, number), {})
                    out.append(Points(site.point, number, part, distances, radius, times, later))
        return out

    def hold(self, vectors: Tensor, best: Tensor) -> None:
        """Find what turns freely at vectors ``(P, D)``, and hold it as it lies in ``best`` ``(D,)``."""
        for block in self.blocks:
            block.hold(lambda x: self.gradients(x)[0], vectors, self.prior, best)

    def loosen(self, vectors: Tensor) -> bool:
        """Let go of what turns freely where draws ``(P, D)`` have no shape to hold, and tell whether there is any."""
        return sum(block.loosen(vectors) for block in self.blocks) > 0

    def turned(self, x: Tensor) -> Tensor:
        """Vectors ``(P, D)``, with all that turns freely in the orientation that is preferred."""
        for block in self.blocks:
            x = block.turned(x)
        return x

    @contextlib.contextmanager
    def by_noise(self) -> Iterator[None]:
        """Energies with respect to the noise of what is scaled by other numbers.

        With respect to the numbers themselves the energy falls without end where a scale tends to 0, and all that it
        scales with it.
        """
        self._by_noise.fill_(1.0)
        try:
            yield
        finally:
            self._by_noise.zero_()

    def added(self, x: Tensor) -> Tensor:
        """What must be added to the energies of vectors ``(P, D)`` for those with respect to the numbers."""
        return self._by_noise * self._evaluate(x)[1][1][0]

    @property
    def held(self) -> float:
        """What the terms that hold take from the energy where everything lies as is preferred."""
        return sum(float(block.weight.sum()) * block.columns.shape[-1] for block in self.blocks)

    @property
    def free(self) -> list[list[str]]:
        """The groups of sites that turn together, by their names in the program."""
        return [[self.energy.sites[n].point or n for n in names] for block in self.blocks for names in block.free]

    def _energy(self, vector: Tensor, state: tuple[list[list[Tensor]], Tensor, list[Tensor]]) -> tuple[Tensor, Any]:
        terms, by_noise, funnel = state
        growth: Tensor | float = 0.0
        if funnel:
            vector, growth = self.funnel.place(vector, *funnel)
        energy, log_scales, curvatures = self.energy(vector)
        for block, term in zip(self.blocks, terms, strict=True):
            energy = energy + block.term(vector, *term)
        return energy - by_noise * log_scales - growth, (log_scales, curvatures)

    def _state(self) -> tuple[list[list[Tensor]], Tensor, list[Tensor]]:
        terms = [[block.reference, block.weight, block.proper] for block in self.blocks]
        return terms, self._by_noise, self.funnel.terms

    def _prior_draws(self) -> tuple[Tensor, float]:
        draws: list[Tensor] = []
        scores: list[float] = []
        count = min(self.count, _DRAWS)
        for attempt in range(_TRIES * count):
            vector, score = self.energy.draw()
            scores.append(score)
            last = _TRIES * count - attempt <= count - len(draws)
            if last or (bool(vector.isfinite().all()) and bool(self.energy(vector)[0].isfinite())):
                draws.append(vector.nan_to_num(0.0, 0.0, 0.0))
            if len(draws) == count:
                break
        evidence = torch.tensor(scores).nan_to_num(-math.inf).logsumexp(0).item() - math.log(len(scores))
        return torch.stack(draws)[torch.arange(self.count, device=self.energy.device) % count], evidence
