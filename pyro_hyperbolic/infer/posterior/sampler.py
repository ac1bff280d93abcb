"""Posteriors by many chains at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.programs.compiled import compile_function, explained
from pyro_hyperbolic.accelerate.programs.functional import check_program
from pyro_hyperbolic.accelerate.programs.modes import ConstantsOnDevice, DecompositionsOnDevice, OutOfPlaceRandom
from pyro_hyperbolic.infer.posterior.energy import Energy, Program
from pyro_hyperbolic.infer.posterior.fits import descend, hessian, normal_draws, root_of_inverse
from pyro_hyperbolic.infer.posterior.gauge import blocks
from pyro_hyperbolic.accelerate.hmc import Metric, State, StepSize, drawn, trajectories
from pyro_hyperbolic.infer.posterior.moves import Points, jump
from pyro_hyperbolic.infer.posterior.result import Posterior
from pyro_hyperbolic.ops.checks import checked_integer

_FIT_STEPS = 1000
_LARGEST_DENSE = 1000  # numbers of a vector; beyond, the metric is diagonal
_NORMAL = 0.2, 5.0  # excess energies between which a fit tells where the posterior is
_WINDOWS = 0.15, 0.35, 0.6  # shares of the warm-up after which the metric is learned
_JUMPS = 3  # between two trajectories
_STUCK = 0.05  # mean acceptance in the first window below which a chain begins anew where another one is
_FIRST_STEPS = 32  # of a trajectory in the first window, in which the step size may be far too small
_MOVED = 0.01  # mean acceptance below which a chain has failed
_TRIES = 20  # of draws from the prior with a density, for each chain
_ROUNDS, _PATIENCE, _GAIN = 12, 3, 0.5
_LENGTHS = 0.5, 1.0, 2.0, 4.0  # of trajectories that are tried, in quarters of a period


def sample_posterior(
    model: Program,
    *args: Any,
    num_chains: int = 64,
    num_samples: int = 500,
    warmup: int = 500,
    seed: int = 0,
    start: Mapping[str, Tensor] | Callable[..., Any] | None = None,
    progress: bool = True,
    **kwargs: Any,
) -> Posterior:
    """Draws of the posterior of a Pyro program by many chains, which move together.

    All chains take their steps in one compiled function, on the device of the model, and learn step size, length of
    trajectories and metric from each other. They begin around a fit, where the posterior is near to a normal
    distribution there, and at draws of the prior otherwise. Where points can be rotated or mirrored together and the
    energy does not change, the chains are kept from turning against each other; distances and all else that rotations
    leave alone have their distribution. Points may also change places or be mirrored in groups, so that chains reach
    other arrangements.

    The program must have a fixed structure. Its curvature may be a latent, with or without
    :func:`~pyro_hyperbolic.infer.with_drawn_curvature`. Discrete sites must be marked to be enumerated.

    :param model: the program.
    :param args: its arguments, like ``kwargs``.
    :param num_chains: how many chains.
    :param num_samples: draws of each chain that are kept.
    :param warmup: trajectories of each chain before that.
    :param seed: of all random numbers; the state of torch's generators stays as it is.
    :param start: values by site to begin the fits from, or a guide that draws them. By default the fits begin at draws
        of the prior, and then from their own arrangements changed in part.
    :param progress: show a bar.

    >>> import pyro.distributions as dist
    >>> def model(data):
    ...     loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
    ...     with pyro.plate("data", len(data)):
    ...         pyro.sample("x", dist.Normal(loc, 1.0), obs=data)
    >>> posterior = sample_posterior(model, torch.tensor([1.0, 2.0, 3.0]), num_chains=8, progress=False)
    >>> posterior.samples["loc"].shape
    torch.Size([8, 500])
    """
    check_program("model", model)
    num_chains = checked_integer("num_chains", num_chains, least=2)
    num_samples = checked_integer("num_samples", num_samples, least=4)
    warmup = checked_integer("warmup", warmup, least=20)
    seed = checked_integer("seed", seed, least=0)
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices), pyro.validation_enabled(False), torch.no_grad():
        torch.manual_seed(seed)
        run = _Run(model, args, kwargs, num_chains, progress)
        run.find_start(start)
        run.warm_up(warmup)
        settings = {"num_chains": num_chains, "num_samples": num_samples, "warmup": warmup, "seed": seed}
        return run.sample(num_samples, settings)


class _Run:
    def __init__(
        self, model: Program, args: tuple[Any, ...], kwargs: dict[str, Any], num_chains: int, progress: bool
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._clock = time.perf_counter()
        self.num_chains, self.progress = num_chains, progress
        self.energy = Energy(model, args, kwargs)
        self.x = self._prior_draws()
        self.blocks = blocks({name: site.shape for name, site in self.energy.sites.items()}, self.x)
        mapped = torch.func.vmap(torch.func.grad_and_value(self._energy, has_aux=True), in_dims=(0, None, None))
        with explained("compiled", "give the program a fixed structure, or use pyro.infer.MCMC"):
            self._compiled = compile_function(mapped, self.x, *self._terms())
            self._evaluate(self.x)
        self.points: list[Points] = []
        self._note("compile")

    def _energy(self, vector: Tensor, references: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Any]:
        with OutOfPlaceRandom(), ConstantsOnDevice(), DecompositionsOnDevice():
            energy, curvatures = self.energy(vector)
        for block, reference, weight in zip(self.blocks, references, weights, strict=True):
            energy = energy + block.term(vector, reference, weight)
        return energy, curvatures

    def _terms(self) -> tuple[list[Tensor], list[Tensor]]:
        return [block.reference for block in self.blocks], [block.weight for block in self.blocks]

    def _evaluate(self, x: Tensor) -> Any:
        return self._compiled(x, *self._terms())

    def gradients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Energies and gradients, with the terms that hold the orientation of points."""
        gradient, (energy, _) = self._evaluate(x)
        return energy, gradient

    def find_start(self, start: Mapping[str, Tensor] | Callable[..., Any] | None) -> None:
        """Where the chains begin, and a first metric."""
        begin = self.x if start is None else self._given(start)
        fits, energies = descend(self.gradients, begin, _FIT_STEPS)
        if not bool(energies.isfinite().any()):
            culprit = self.energy.culprit(begin[0])
            raise ValueError(
                f"no point of positive density was found: {culprit} has density 0, or one that is not a number, at the"
                " start; check the model and its data, or pass start= with values that it can have."
            )
        self.points = self._points(fits[energies.argmin()])
        if start is None:
            fits, energies = self._search(fits, energies)
        best = fits[energies.argmin()]
        self.points = self._points(best)
        self._note("search")
        for block in self.blocks:
            block.hold(lambda v: self.gradients(v)[0], fits, best)
        best = self._turned(best.expand_as(self.x).contiguous())[0]
        matrix = hessian(self.gradients, best, self.num_chains) if self.energy.size <= _LARGEST_DENSE else None
        self.metric = Metric(torch.ones_like(best))
        x = begin
        if matrix is not None and bool(matrix.isfinite().all()):
            root = root_of_inverse(matrix)
            draws, excess, evidence = normal_draws(self.gradients, best, root, self.num_chains)
            if _NORMAL[0] < excess < _NORMAL[1] and evidence > self.evidence:
                self.metric, x = Metric(root), draws
            else:
                self.metric = Metric(torch.eye(len(best), dtype=best.dtype, device=best.device))
        x = self._turned(x)
        state = State.at(self.gradients, x)
        good = state.energy.isfinite() & state.gradient.isfinite().all(-1)
        # A draw without a density begins where the best fit is; chains part from there.
        self.state = state.taken(State.at(self.gradients, best.expand_as(x).contiguous()), ~good)
        self._note("start")

    def warm_up(self, count: int) -> None:
        """Learn step size, metric and the length of trajectories."""
        size = StepSize(0.5 / self.energy.size**0.25)
        accepted = torch.zeros_like(self.state.energy)
        length, windows = math.pi / 2, [int(share * count) for share in _WINDOWS]
        seen: list[State] = []
        gains = dict.fromkeys(_LENGTHS, 0.0)
        for number in tqdm(range(count), "warm-up", disable=None if self.progress else True):
            last = number >= windows[-1]
            factor = _LENGTHS[number % len(_LENGTHS)] if last and number < (windows[-1] + count) // 2 else 1.0
            own, steps = drawn(factor * length, size.size)
            steps = steps if number >= windows[0] else min(steps, _FIRST_STEPS)
            sweep = self._sweep(own, steps)
            if last and number < (windows[-1] + count) // 2:
                gains[factor] += self.change / (steps + (_JUMPS if self.points else 1))
            elif last:
                length = math.pi / 2 * max(gains, key=lambda key: gains[key])
            accepted += sweep.acceptance
            if number + 1 == windows[0]:
                self._restart(accepted / windows[0] < _STUCK)
            size.see(sweep.acceptance.mean().item())
            seen.append(self.state)
            if number + 1 in windows:
                seen = seen[len(seen) // 3 :]
                self.metric = self.metric.learned(torch.cat([s.x for s in seen]), torch.cat([s.gradient for s in seen]))
                for points in self.points:
                    points.learn()
                size.restart(size.mean)
                seen = []
        self.size, self.length = size.mean, length
        self._note("warm-up")

    def _restart(self, stuck: Tensor) -> None:
        """Chains that cannot leave where they began go on from where others are."""
        self.restarted = int(stuck.sum())
        if 0 < self.restarted < self.num_chains:
            others = (~stuck).nonzero().squeeze(-1)
            chosen = others[torch.randint(len(others), stuck.shape, device=stuck.device)]
            state = State(self.state.x[chosen], self.state.energy[chosen], self.state.gradient[chosen])
            self.state = self.state.taken(state, stuck)

    def sample(self, count: int, settings: dict[str, Any]) -> Posterior:
        """The draws."""
        draws, sweeps = [], []
        for _ in tqdm(range(count), "sampling", disable=None if self.progress else True):
            sweeps.append(self._sweep(*drawn(self.length, self.size)))
            draws.append(self.state)
        self._note("sampling")
        x = torch.stack([state.x for state in draws], 1)
        mapped = torch.func.vmap(torch.func.vmap(self.energy.values), chunk_size=1)
        samples = mapped(x)
        acceptance = torch.stack([sweep.acceptance for sweep in sweeps], 1)
        stuck = {
            chain: f"it accepted {share:.1%} of its steps"
            for chain, share in enumerate(acceptance.mean(1).tolist())
            if share < _MOVED
        }
        steps = sum(sweep.steps for sweep in sweeps) / len(sweeps)
        settings = settings | {
            "step_size": self.size,
            "steps": steps,
            "numbers": self.energy.size,
            "restarted": self.restarted,
        }
        latents = {site.point or name for name, site in self.energy.sites.items()}
        manifolds = {}
        self._note("values")
        return Posterior(
            samples=samples,
            divergences=torch.stack([sweep.diverged for sweep in sweeps], 1),
            acceptance=acceptance,
            energy=torch.stack([state.energy for state in draws], 1),
            manifolds=manifolds,
            deterministic=samples.keys() - latents,
            failed=stuck,
            gauges=[[self.energy.sites[n].point or n for n in names] for block in self.blocks for names in block.free],
            seconds=self.seconds, jumps=self.jumped/max(1,self.tried),
            settings=settings,
        )

    def _sweep(self, size: float, steps: int) -> Any:
        if self.points:
            spaces = self._spaces(self.state.x)
            for number in range(_JUMPS):
                points = self.points[number % len(self.points)]
                space = spaces[points.site][points.factor][0]
                self.state, accepted = jump(self.gradients, self.state, points, space)
                self.jumped += accepted.double().mean().item()
                self.tried += 1
        before = self.state.x
        self.state, sweep = trajectories(self.gradients, self.state, self.metric, size, steps)
        # How far the squared distance from the middle changes (Hoffman et al., 2021).
        middle = before.mean(0)
        a, b = (self.metric.whitened(x - middle).square().sum(-1) for x in (before, self.state.x))
        self.change = (a - b).square().mean().item()
        return sweep

    jumped = tried = 0

    def _turned(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.turned(x)
        return x

    def _points(self, vector: Tensor) -> list[Points]:
        """The points that may be rearranged, in the order that they have at a vector ``(D,)``."""
        out = []
        spaces = self._spaces(vector.expand_as(self.x).contiguous())
        for name, site in self.energy.sites.items():
            if site.point not in spaces:
                continue
            columns = self.energy.columns(name).reshape(-1, site.shape[-1])
            start = 0
            for number, (leaf, dim) in enumerate(spaces[site.point]):
                part = columns[:, start : start + dim]
                start += dim
                if len(part) >= dim + 2:
                    points = leaf.from_unconstrained(vector[part].expand(len(self.x), -1, -1))[0]
                    one = leaf.with_curvatures([c.flatten()[0] if isinstance(c, Tensor) else c for c in leaf.curvatures])
                    order = one.dist(points.unsqueeze(0), points.unsqueeze(1)).fill_diagonal_(-1.0).argsort(-1)
                    out.append(Points(site.point, number, part, order))
        return out

    def _spaces(self, x: Tensor) -> dict[str, list[Any]]:
        """The factors of the spaces of points, with their curvatures at vectors ``(P, D)``, if all points share them."""
        out = {}
        for name, curvatures in self._evaluate(x)[1][1].items():
            if all(c[0].numel() == 1 for c in curvatures):
                space = self.energy.spaces[name].with_curvatures([c.reshape(-1, 1) for c in curvatures])
                dim = next(site.shape[-1] for site in self.energy.sites.values() if site.point == name)
                out[name] = space.leaves(dim)
        return out

    def _rearranged(self, x: Tensor) -> Tensor:
        spaces = self._spaces(x)
        for points in self.points:
            x, _ = points.moved(x, spaces[points.site][points.factor][0])
        return x

    def _search(self, vectors, energies):
        count, lowest, waited = len(vectors), energies.min(), 0
        for _ in range(_ROUNDS if self.points else 0):
            parents = vectors[energies.argsort()[: max(1, count // 4)]].repeat(4, 1)[:count]
            children, found = descend(self.gradients, self._rearranged(parents), _FIT_STEPS // 2)
            vectors, energies = torch.cat([vectors, children]), torch.cat([energies, found])
            chosen = energies.argsort()[:count]
            vectors, energies = vectors[chosen], energies[chosen]
            print(energies[:8].tolist(), energies[-1].item())
            waited = 0 if energies[0] < lowest - _GAIN else waited + 1
            lowest = torch.minimum(lowest, energies[0])
            self.points = self._points(vectors[0])
            if waited == _PATIENCE:
                break
        return vectors, energies

    def _prior_draws(self) -> Tensor:
        draws: list[Tensor] = []
        scores: list[float] = []
        for attempt in range(_TRIES * self.num_chains):
            vector, score = self.energy.draw()
            scores.append(score)
            last = _TRIES * self.num_chains - attempt <= self.num_chains - len(draws)
            if last or (bool(vector.isfinite().all()) and bool(self.energy(vector)[0].isfinite())):
                draws.append(vector.nan_to_num(0.0, 0.0, 0.0))
            if len(draws) == self.num_chains:
                break
        # What the draws of the prior alone make of it: next to nothing where there are many data.
        self.evidence = torch.tensor(scores).nan_to_num(-math.inf).logsumexp(0).item() - math.log(len(scores))
        return torch.stack(draws)

    def _given(self, start: Mapping[str, Tensor] | Callable[..., Any]) -> Tensor:
        if callable(start):
            rows = []
            for _ in range(self.num_chains):
                trace = poutine.trace(start).get_trace(*self.energy.args, **self.energy.kwargs)
                sites = {n: s["value"] for n, s in trace.nodes.items() if s["type"] == "sample"}
                rows.append(self.energy.vector_of(sites))
            return torch.stack(rows)
        known = self.energy.sites.keys() | self.energy.spaces.keys()
        if unknown := sorted(set(start) - known):
            raise ValueError(f"start must name latents of the model, {sorted(known)}, got {unknown}.")
        vectors = torch.stack([self.energy.vector_of(dict(start)) for _ in range(self.num_chains)])
        if not bool(self.gradients(vectors)[0].isfinite().any()):
            raise ValueError(f"start has density 0: {self.energy.culprit(vectors[0])} cannot have such values.")
        return vectors

    def _note(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self._clock
        self._clock = now
