"""Posteriors by many chains at once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.checkpoint import load_checkpoint, save_checkpoint
from pyro_hyperbolic.accelerate.hmc import Metric, State, StepSize, Sweep, drawn, trajectories
from pyro_hyperbolic.accelerate.leapfrog import leapfrog_of
from pyro_hyperbolic.accelerate.programs.functional import check_program
from pyro_hyperbolic.accelerate.programs.modes import Largest
from pyro_hyperbolic.infer.posterior.energy import Energy, Program
from pyro_hyperbolic.infer.posterior.jumps import Jumps
from pyro_hyperbolic.infer.posterior.moves import Points
from pyro_hyperbolic.infer.posterior.result import Posterior
from pyro_hyperbolic.infer.posterior.scales import ScaleMoves
from pyro_hyperbolic.infer.posterior.start import Start, find_start, modes
from pyro_hyperbolic.infer.posterior.target import Target
from pyro_hyperbolic.infer.posterior.tempering import Ladder, levels_of
from pyro_hyperbolic.ops.checks import checked_integer, is_number

_WINDOWS = 0.15, 0.35, 0.6  # shares of the warm-up after which the metric is learned
_FIRST_STEPS = 32  # of a trajectory in the first window, in which the step size may be far too small
_EVERY = 2  # trajectories for each round of moves of points that are often accepted, at least
_LOOK = 8.0  # how long the energies of tries take, in steps of a trajectory
_RARE = 0.001  # share of moves of points below which they are left out
_STUCK = 0.05  # mean acceptance in the first window below which a chain begins anew where another one is
_WORSE = 5.0  # by how much more than the noise a mean energy must be above the median for the same
_MOVED = 0.01  # mean acceptance below which a chain has failed
_FIT_STEPS = 500  # from the last draws to their modes
_APART = 0.1  # energies of fits that are two
_LOOKED_AT = 4  # draws, that tell which sites see an orientation
_AT_ONCE = 2**24  # numbers of a tensor of the values of some draws
_SECONDS = 30.0  # between two checkpoints
_FIELDS = "acceptance", "diverged", "energy"


def sample_posterior(
    model: Program,
    *args: Any,
    num_chains: int = 8,
    num_samples: int = 1500,
    warmup: int = 500,
    seed: int = 0,
    start: Mapping[str, Tensor] | Callable[..., Any] | None = None,
    hottest: float = 1.0,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Posterior:
    """Draws of the posterior of a Pyro program by many chains, which move together.

    All chains take their steps of Hamiltonian Monte Carlo in one compiled function, on the device of the model, and
    learn step size and metric from each other. They begin around fits, where the posterior is
    near to a normal distribution there, and at draws of the prior otherwise. Where points can be rotated or mirrored
    together and the energy does not change, the chains are kept from turning against each other; distances and all else
    that rotations leave alone have their distribution. Between two trajectories points change places or are mirrored in
    groups, so that chains reach other arrangements (:mod:`pyro_hyperbolic.infer.posterior.moves`).

    The program must have a fixed structure. Its curvature may be a latent, with or without
    :func:`~pyro_hyperbolic.infer.with_drawn_curvature`. Discrete sites must be marked to be enumerated. Draws are in
    the precision of the model: use float64 for points that are far from each other. Points of a sphere of which the
    data say little, so that some may be near the antipode of the origin, are sampled faster with
    ``infer={"noise": True}`` in their ``pyro.sample``; they then are not exchanged or mirrored.

    :param model: the program.
    :param args: its arguments, like ``kwargs``.
    :param num_chains: how many chains. More of them cost little on a GPU, and their time on a CPU. Each one needs
        enough draws of its own.
    :param num_samples: draws of each chain that are kept.
    :param warmup: trajectories of each chain before that.
    :param seed: of all random numbers; the state of torch's generators stays as it is.
    :param start: values by site to begin the fits from, or a guide that draws them. By default the fits begin at draws
        of the prior, and then from their own arrangements changed in part.
    :param hottest: a temperature above 1, such as 4, where chains stay in different modes: every chain then has
        companions at temperatures up to this one, with which it exchanges places
        (:class:`~pyro_hyperbolic.infer.posterior.tempering.Ladder`). There are about
        ``2 * log(hottest) * sqrt(D / 2)`` of them for ``D`` numbers, so this is for a GPU, or for few numbers. The
        density to the power ``1 / hottest`` must have an integral: that of a Cauchy prior has none from 2 on.
    :param progress: show a bar.
    :param checkpoint: a file to which the draws are written from time to time. If it is there, the run goes on from it,
        also to more draws than it was made for.

    >>> import pyro.distributions as dist
    >>> def model(data):
    ...     loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("data", len(data)):
    ...         pyro.sample("x", dist.Normal(loc, 1.0), obs=data)
    >>> posterior = sample_posterior(model, torch.tensor([1.0, 2.0, 3.0]), num_chains=4, progress=False)
    >>> posterior.samples["loc"].shape, posterior.converged
    (torch.Size([4, 1500]), True)
    """
    with seeded(seed):
        chains = run_chains(
            (model, args, kwargs),
            {"num_chains": num_chains, "num_samples": num_samples, "warmup": warmup, "seed": seed},
            start=start,
            hottest=hottest,
            progress=progress,
            checkpoint=checkpoint,
        )
        return chains.result()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of a seed inside, and the state of torch's generators as it was outside; no gradients."""
    seed = checked_integer("seed", seed, least=0)
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices), pyro.validation_enabled(False), torch.no_grad():
        torch.manual_seed(seed)
        yield


def run_chains(
    program: tuple[Program, tuple[Any, ...], dict[str, Any]],
    settings: dict[str, int],
    *,
    start: Mapping[str, Tensor] | Callable[..., Any] | None = None,
    hottest: float = 1.0,
    progress: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Chains:
    """The chains of :func:`sample_posterior`, after their last draw.

    :param program: the model and its arguments.
    """
    model, args, kwargs = program
    check_program("model", model)
    num_chains = checked_integer("num_chains", settings["num_chains"], least=2)
    num_samples = checked_integer("num_samples", settings["num_samples"], least=4)
    warmup = checked_integer("warmup", settings["warmup"], least=20)
    if not is_number(hottest) or not 1 <= hottest < math.inf:
        raise ValueError(f"hottest must be a temperature of at least 1, got {hottest!r}; 4 is often enough.")
    clock = _Clock()
    energy = Energy(model, args, kwargs)
    hottest = float(hottest)
    levels = levels_of(hottest, energy.size)
    target = Target(energy, num_chains * levels)
    clock.note("compile")
    known: dict[str, Any] = {"num_chains": num_chains, "warmup": warmup, "seed": settings["seed"]}
    if hottest > 1:
        known |= {"hottest": hottest, "temperatures": levels}
    ladder = Ladder(hottest, levels, num_chains, target.prior)
    chains = Chains(target, ladder, known, clock, progress)
    if checkpoint is not None and Path(checkpoint).exists():
        chains.load(checkpoint)
    else:
        chains.begin(find_start(target, start))
        clock.note("start")
        chains.warm_up(warmup)
        clock.note("warm-up")
    chains.sample(num_samples, checkpoint)
    clock.note("sampling")
    return chains


class Chains:
    """Chains of Hamiltonian Monte Carlo that move together.

    :param target: what they sample.
    :param ladder: their temperatures.
    :param settings: what the result is to remember.
    :param clock: of the phases.
    :param progress: show a bar.
    """

    metric: Metric
    state: State
    best: Tensor

    def __init__(self, target: Target, ladder: Ladder, settings: dict[str, Any], clock: _Clock, progress: bool) -> None:
        self.target, self.ladder, self.settings, self.clock, self.progress = target, ladder, settings, clock, progress
        self.gradients = ladder.gradients(target.gradients)
        self.funnel = target.funnel
        self.leap = leapfrog_of(target.leap if ladder.is_one else None, ladder.gradients(target.plain_gradients))
        self.points: list[Points] = []
        self.scales = ScaleMoves(target)
        first = 0.5 / target.size**0.25
        self.size: Any = first if ladder.is_one else first * ladder.betas.rsqrt()
        self.jumps, self.restarted = True, 0
        self.every = 1  # trajectories for each round of moves
        self.draws: list[Tensor] = []
        self.sweeps: list[Sweep] = []
        self.steps = 0

    def begin(self, start: Start) -> None:
        """Take the places of a start."""
        self.metric, self.best = Metric(start.root), start.best
        self.points = self.target.points(start.best)
        self.state = State.at(self.gradients, start.x)

    def warm_up(self, count: int) -> None:
        """Learn step size, metric and which points to move."""
        size = StepSize(self.size)
        accepted, jumped = torch.zeros_like(self.state.energy), torch.zeros_like(self.state.energy)
        windows = [max(1, int(share * count)) for share in _WINDOWS]
        seen: list[State] = []
        lengths: list[int] = []
        looks: list[int] = []
        rounds = 0
        for number in self._bar(range(count), "warm-up"):
            own, steps = self._drawn(size.size)
            if number < windows[0]:
                steps = min(steps, _FIRST_STEPS)
            lengths.append(steps)
            if number % self.every == 0:
                share, took = self._jump(learn=True)
                jumped, rounds = jumped + share, rounds + 1
                looks.append(took)
            self.state = self.scales(self.state, self.gradients, learn=True)
            sweep = self._move(own, steps)
            accepted = accepted + sweep.acceptance
            mean = self.ladder.by_level(sweep.acceptance).mean(-1)
            size.see(mean.item() if self.ladder.is_one else mean)
            self.state = self.ladder.exchanged(self.state)
            seen.append(self.state)
            if number + 1 in windows:
                seen = seen[len(seen) // 3 :]
                if self.ladder.is_one:  # otherwise places come from other temperatures
                    stuck = accepted / (number + 1) < _STUCK
                    self._restart(stuck | _worse(torch.stack([s.energy for s in seen])) if self.points else stuck)
                if self.ladder.is_one and number + 1 > windows[0]:
                    self.funnel.learn(_joined(seen))
                self.metric = self.metric.learned(*self.ladder.pooled([self.funnel.enter(s) for s in seen]))
                for points in self.points:
                    points.learn()
                if self.target.loosen(torch.cat([self.ladder.cold(s.x) for s in seen])):
                    self.state = State.at(self.gradients, self.state.x)
                self.state = self.ladder.spread(self.state)
                size.restart(size.mean)
                self.jumps = jumped.mean().item() > _RARE * rounds
                self.every, lengths, looks, seen = max(1, self._balance(lengths, looks)), [], [], []
        for points in self.points:
            points.learn()
        self.ladder.forget()
        self.scales.forget()
        self.size = size.mean
        self.jumps = jumped.mean().item() > _RARE * rounds
        self.every = max(1 if self._is_rarely_moved else _EVERY, self._balance(lengths, looks))

    def sample(self, count: int, checkpoint: str | os.PathLike[str] | None) -> None:
        """Go on until there are so many draws."""
        if len(self.draws) > count:
            self.steps = round(self.steps * count / len(self.draws))
            self.draws, self.sweeps = self.draws[:count], self.sweeps[:count]
            return
        written = time.perf_counter()
        for number in self._bar(range(len(self.draws), count), "sampling"):
            own, steps = self._drawn(self.size)
            if number % self.every == 0:
                self._jump(learn=False)
            self.state = self.scales(self.state, self.gradients, learn=False)
            sweep = self._move(own, steps)
            self.state = self.ladder.exchanged(self.state)
            self.sweeps.append(Sweep(**{name: self.ladder.cold(getattr(sweep, name)) for name in _FIELDS}))
            self.draws.append(self.ladder.cold(self.state.x))
            self.steps += steps
            if checkpoint is not None and time.perf_counter() - written > _SECONDS:
                self.save(checkpoint)
                written = time.perf_counter()
        if checkpoint is not None:
            self.save(checkpoint)

    def result(self) -> Posterior:
        """What was found."""
        energy = self.target.energy
        x = torch.stack(self.draws, 1)
        with Largest() as largest:
            energy.values(x[0, 0])
        chunk = max(1, _AT_ONCE // largest.numbers)
        by_chain = [torch.func.vmap(energy.values, chunk_size=chunk)(draws) for draws in x]
        samples = {name: torch.stack([values[name] for values in by_chain]) for name in by_chain[0]}
        oriented = self._oriented(samples.keys())
        for block in self.target.blocks:
            for names, hands in block.hands(x).items():
                sites = ", ".join(energy.sites[name].point or name for name in names)
                samples[f"handedness of {sites}"] = hands
        acceptance = torch.stack([sweep.acceptance for sweep in self.sweeps], 1)
        shares = enumerate(acceptance.mean(1).tolist())
        latents = {site.point or name for name, site in energy.sites.items()}
        found = Posterior(
            samples=samples,
            divergences=torch.stack([sweep.diverged for sweep in self.sweeps], 1),
            acceptance=acceptance,
            energy=torch.stack([sweep.energy for sweep in self.sweeps], 1),
            manifolds=self._manifolds(samples),
            deterministic=samples.keys() - latents,
            failed={chain: f"it accepted {share:.1%} of its steps" for chain, share in shares if share < _MOVED},
            gauges=self.target.free,
            seconds=self.clock.seconds,
            settings={
                **self.settings,
                "num_samples": len(self.draws),
                "step_size": self.size if self.ladder.is_one else self.size[0].item(),
                "steps": self.steps / len(self.draws),
                "numbers": energy.size,
                "restarted": self.restarted,
                "oriented": sorted(set(oriented) - latents),
                **({"leads": self.funnel.leads} if self.funnel.leads else {}),
                **self.scales.settings,
                **({} if self.ladder.is_one else {"exchanges": self.ladder.acceptance, "trips": self.ladder.trips}),
            },
        )
        self.clock.note("values")
        if found.converged:
            return found
        return dataclasses.replace(found, modes=self._modes())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write where the chains are."""
        self.clock.note("sampling")
        state = {
            "settings": self.settings,
            "sites": {name: list(site.shape) for name, site in self.target.energy.sites.items()},
            "x": self.state.x,
            "energy": self.state.energy,
            "root": self.metric.root,
            "ladder": self.ladder.state(),
            "best": self.best,
            "numbers": [self.size, self.jumps, self.every, self.restarted, self.steps],
            "terms": [[block.reference, block.weight, block.proper, block.free] for block in self.target.blocks],
            "moves": [points.state() for points in self.points],
            "scales": self.scales.state(),
            "funnel": self.funnel.state(),
            "draws": torch.stack(self.draws),
            "sweeps": {field: torch.stack([getattr(sweep, field) for sweep in self.sweeps]) for field in _FIELDS},
            "seconds": self.clock.seconds,
        }
        save_checkpoint(state, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on where a run that was written is."""
        state = load_checkpoint(path, self.target.prior.device)
        sites = {name: list(site.shape) for name, site in self.target.energy.sites.items()}
        for name, own, other in (("settings", self.settings, state["settings"]), ("sites", sites, state["sites"])):
            if own != other:
                raise ValueError(
                    f"checkpoint has the draws of another run: its {name} are {other}, not {own}; pass another file, or"
                    " delete it."
                )
        for block, (reference, weight, proper, free) in zip(self.target.blocks, state["terms"], strict=True):
            block.reference.copy_(reference)
            block.weight.copy_(weight)
            block.proper.copy_(proper)
            block.free = [tuple(names) for names in free]
        self.ladder.load(state["ladder"])
        self.begin(Start(state["x"], state["root"], state["best"]))
        energy, known = self.state.energy, state["energy"]
        if bool(((energy - known).abs() > torch.finfo(known.dtype).eps ** 0.4 * (1 + known.abs())).any()):
            raise ValueError(
                "checkpoint has the draws of another run: the density of where its chains are is another one, so that"
                " the model or its data have changed; pass another file, or delete it."
            )
        for points, known in zip(self.points, state["moves"], strict=True):
            points.load(known)
        self.scales.load(state["scales"])
        self.funnel.load(state["funnel"])
        self.size, self.jumps, self.every, self.restarted, self.steps = state["numbers"]
        self.draws = list(state["draws"])
        rows = zip(*state["sweeps"].values(), strict=True)
        self.sweeps = [Sweep(**dict(zip(state["sweeps"], row, strict=True))) for row in rows]
        self.clock.seconds = dict(state["seconds"])

    @property
    def _is_rarely_moved(self) -> bool:
        """Whether moves are rare and nothing else leads to other arrangements."""
        return self.ladder.is_one and any(points.is_rarely_moved for points in self.points)

    def _balance(self, lengths: list[int], looks: list[int]) -> int:
        """After how many trajectories of such lengths there is to be a round of moves, which takes so many looks.

        Once they have taken as long; where moves are rare that would be too seldom, and they may take longer.
        """
        cost = 1.0 if self._is_rarely_moved else _LOOK
        return round(cost * sum(looks) / max(1, len(looks)) * len(lengths) / max(1, sum(lengths)))

    def _jump(self, *, learn: bool) -> tuple[Tensor, int]:
        """Moves of points; the share of them that chains took, and how often energies of tries were computed."""
        if not (self.points and self.jumps):
            return torch.zeros_like(self.state.energy), 0
        leaves = self.target.leaves(self.state.x)
        energies = self.ladder.energies(self.target.many, self.target.ahead)
        jumps = Jumps(energies, self.gradients, self.target.ahead)
        self.state, share = jumps(self.state, self.points, leaves, learn=learn)
        return share, jumps.looks

    def _drawn(self, size: Any) -> tuple[Any, int]:
        """The step size, that of all vectors where temperatures have their own, and the number of steps."""
        if self.ladder.is_one:
            return drawn(size)
        first = size[0].item()
        own, steps = drawn(first)
        return (own / first * size).repeat_interleave(self.ladder.chains), steps

    def _move(self, size: Any, steps: int) -> Sweep:
        start = self.funnel.enter(self.state)
        with self.funnel.is_entered():
            there, sweep = trajectories(self.leap, start, self.metric, size, steps)
        # Those that stay do so to the last digit.
        self.state = self.state.taken(self.funnel.leave(there), (there.x != start.x).any(-1))
        return sweep

    def _restart(self, stuck: Tensor) -> None:
        """Chains that cannot leave where they began, or where there is next to no mass, go on from where others are."""
        if 0 < int(stuck.sum()) < len(stuck):
            self.restarted += int(stuck.sum())
            others = (~stuck).nonzero().squeeze(-1)
            chosen = others[torch.randint(len(others), stuck.shape, device=stuck.device)]
            state = State(self.state.x[chosen], self.state.energy[chosen], self.state.gradient[chosen])
            self.state = self.state.taken(state, stuck)

    def _oriented(self, names: Collection[str]) -> list[str]:
        """The deterministic sites that see the orientation in which points are held."""
        x = turned = self.draws[-1][:_LOOKED_AT]
        for block in self.target.blocks:
            turned = block.disoriented(turned)
        if turned is x:
            return []
        before, after = (torch.func.vmap(self.target.energy.values)(vectors) for vectors in (x, turned))
        eps = torch.finfo(x.dtype).eps ** 0.4

        def is_same(a: Tensor, b: Tensor) -> bool:
            return torch.allclose(a.double(), b.double(), rtol=eps, atol=eps, equal_nan=True)

        return sorted(name for name in names if not is_same(before[name], after[name]))

    def _manifolds(self, samples: dict[str, Tensor]) -> dict[str, Any]:
        """The spaces of points, with the curvatures of every draw where they are drawn."""
        spaces = self.target.energy.spaces
        if not spaces:
            return {}
        shape = len(self.draws), self.ladder.chains
        parts = torch.cat(self.draws).split(self.target.count)
        found = [self.target.curvatures(self.target.filled(x)) for x in parts]
        out = {}
        for name, space in spaces.items():
            values = []
            for number, own in enumerate(space.curvatures):
                c = torch.cat([curvatures[name][number] for curvatures in found])
                c = c[: math.prod(shape)].unflatten(0, shape).transpose(0, 1)
                if bool((c == c[:1, :1]).all()):
                    values.append(own)  # it is not drawn
                    continue
                missing = samples[name].dim() - 1 - c.dim()
                values.append(c.reshape(c.shape[:2] + (1,) * missing + c.shape[2:]))
            out[name] = space.with_curvatures(values)
        return out

    def _modes(self) -> list[dict[str, float]] | None:
        """The modes that the chains ended in, by the evidence of their normal approximations.

        There are none to speak of if the chains go from one to another.
        """
        halves = (self.target.filled(self.draws[at]) for at in (len(self.draws) // 2, -1))
        with self.target.by_noise():
            (_, before), (fits, energies) = (self.target.descend(x, _FIT_STEPS) for x in halves)
            fits = self.target.turned(fits)
            found = modes(self.target, fits)
        before, energies = self.ladder.cold(before), self.ladder.cold(energies)
        if not found or ((before - energies).abs() > _APART).double().mean() > 0.5:
            return None
        weights = torch.tensor([mode.evidence for mode in found]).softmax(0).tolist()
        at = torch.stack([mode.vector for mode in found])
        nearest = torch.cdist(self.ladder.cold(fits), at).argmin(-1)
        heights = (self.target.energies(at) + self.target.held).tolist()  # with respect to the numbers
        return [
            {"energy": height, "weight": weight, "chains": int((nearest == number).sum())}
            for number, (height, weight) in enumerate(zip(heights, weights, strict=True))
        ]

    def _bar(self, numbers: range, words: str) -> Any:
        return tqdm(numbers, words, disable=None if self.progress else True)


def _joined(states: list[State]) -> State:
    return State(*(torch.cat([getattr(state, f.name) for state in states]) for f in dataclasses.fields(State)))


def _worse(energies: Tensor) -> Tensor:
    """Which chains are in an arrangement of points without mass, by their energies ``(draws, chains)``.

    The mean energy of a mode says how much mass it has, up to its width. Arrangements of the same points are about as
    wide as each other; of other modes nothing is known, and chains stay there.
    """
    parts = torch.stack([part.mean(0) for part in energies.tensor_split(4)])
    mean, error = parts.mean(0), parts.std(0) / 2
    return mean - 3 * error > mean.median() + _WORSE


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def note(self, phase: str) -> None:
        """Count the time since the last note for a phase."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now
