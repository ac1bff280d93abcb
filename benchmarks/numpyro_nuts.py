"""NUTS on two posteriors, in Pyro with this package and in NumPyro: rows of :mod:`benchmarks.numpyro`.

Points of the hyperbolic plane have a wrapped normal prior at the origin, and their distances are observed with noise.
Both sides walk in normal coordinates, in which that prior is an ordinary Gaussian: ours by ``NoiseReparam``,
NumPyro's with the exponential map written by hand. Both have one chain, a diagonal mass matrix, the same number of
steps, and the same target of acceptance, in float32. Each is as fast as it goes: ours is ``FastNUTS``, and
NumPyro's runs in one jitted scan. The warm-up and the compilation are not counted.

Then ``sample_posterior`` beside the same NUTS: 32 chains of ours and four of theirs, one after another, on a CPU
thread, 64 of each on a GPU, where NumPyro's are vectorised. Sizes of samples are those of all chains together, which
know of other modes what a single chain does not.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import networkx
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import MCMC
from pyro.ops.stats import effective_sample_size
from torch import Tensor

from pyro_hyperbolic import PoincareBall
from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.infer import FastNUTS, NoiseReparam, sample_posterior

BALL = PoincareBall(1.0)
PRIOR_SCALE = 1.5
MAX_TREE_DEPTH = 8


class Walk(NamedTuple):
    """What a chain has done after its warm-up."""

    seconds: float
    leapfrogs: int
    effective: float

    def per_leapfrog(self) -> float:
        """Microseconds."""
        return self.seconds / self.leapfrogs * 1e6

    def per_effective_sample(self) -> float:
        """Microseconds."""
        return self.seconds / self.effective * 1e6


class OnDevice:
    """Data that can be moved."""

    def on(self, device: str) -> Any:
        """The same with tensors elsewhere."""
        other = copy.copy(self)
        for name in dir(self):
            if isinstance(value := getattr(self, name), Tensor):
                setattr(other, name, value.to(device))
        return other


class ThreePoints(OnDevice):
    """A position, of which the distances to three known points were measured."""

    anchors = torch.tensor([[2.5, 0.3], [-0.5, 0.3], [0.4, -1.8]])
    distances = torch.tensor([1.6, 1.8, 2.0])
    noise = 0.5

    def model(self) -> None:
        z = pyro.sample("z", WrappedNormal(torch.zeros(2), PRIOR_SCALE, BALL))
        found = BALL.dist(z, BALL.from_normal_coords(None, self.anchors))
        pyro.sample("y", dist.Normal(found, self.noise).to_event(1), obs=self.distances)

    def rival(self) -> None:
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        from benchmarks.numpyro_vae import distance, point

        v = numpyro.sample("z", ndist.Normal(jnp.zeros(2), PRIOR_SCALE).to_event(1))
        found = distance(point(v), point(jnp.asarray(self.anchors.numpy())))
        numpyro.sample("y", ndist.Normal(found, self.noise).to_event(1), obs=jnp.asarray(self.distances.numpy()))

    def statistics(self, samples: dict[str, Tensor]) -> Tensor:
        """What the effective sample sizes are of, ``(samples, statistics)``; normal coordinates are given."""
        return samples["z"]


class Tree(OnDevice):
    """Positions of the leaves of a tree, of which all distances were measured; the scale and the noise are unknown.

    The root has three children, these have four and those five each: 60 leaves.
    """

    def __init__(self) -> None:
        tree, level = networkx.Graph(), ["root"]
        for children in (3, 4, 5):
            edges = [(parent, f"{parent}.{i}") for parent in level for i in range(children)]
            tree.add_edges_from(edges)
            level = [child for _, child in edges]
        self.number = len(level)
        steps = dict(networkx.all_pairs_shortest_path_length(tree))
        truth = torch.tensor([[float(steps[a][b]) for b in level] for a in level])
        noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(0)).triu(1)
        self.rows, self.columns = torch.triu_indices(self.number, self.number, 1)
        self.distances = (truth + 0.3 * noise)[self.rows, self.columns]

    def model(self) -> None:
        length = pyro.sample("length", dist.LogNormal(0.0, 0.5))
        noise = pyro.sample("noise", dist.LogNormal(math.log(0.3), 0.5))
        z = pyro.sample("z", WrappedNormal(torch.zeros(self.number, 2), PRIOR_SCALE, BALL).to_event(1))
        found = BALL.dist(z[self.rows], z[self.columns])
        pyro.sample("y", dist.Normal(length * found, noise).to_event(1), obs=self.distances)

    def rival(self) -> None:
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        from benchmarks.numpyro_vae import distance, point

        length = numpyro.sample("length", ndist.LogNormal(0.0, 0.5))
        noise = numpyro.sample("noise", ndist.LogNormal(math.log(0.3), 0.5))
        v = numpyro.sample("z", ndist.Normal(jnp.zeros((self.number, 2)), PRIOR_SCALE).to_event(2))
        z = point(v)
        found = distance(z[self.rows.numpy()], z[self.columns.numpy()])
        observed = jnp.asarray(self.distances.numpy())
        numpyro.sample("y", ndist.Normal(length * found, noise).to_event(1), obs=observed)

    def statistics(self, samples: dict[str, Tensor]) -> Tensor:
        """The two numbers, and distances of some pairs: positions are determined up to a rotation."""
        z = BALL.from_normal_coords(None, samples["z"])
        pairs = slice(None, None, 97)
        distances = BALL.dist(z[:, self.rows[pairs]], z[:, self.columns[pairs]])
        return torch.cat([samples["length"].unsqueeze(-1), samples["noise"].unsqueeze(-1), distances], -1)


POSTERIORS: dict[str, Callable[[], Any]] = {"three points": ThreePoints, "60 leaves of a tree": Tree}


def effective(statistics: Tensor) -> float:
    """The least effective sample size of statistics ``(chains, draws, ...)``, by the same estimate for both sides."""
    return float(effective_sample_size(statistics.double().cpu(), chain_dim=0, sample_dim=1).min())


def ours(posterior: Any, warmup: int, samples: int, seed: int) -> Walk:
    pyro.set_rng_seed(seed)
    model = poutine.reparam(posterior.model, {"z": NoiseReparam()})
    leapfrogs, start = 0, 0.0

    def note(kernel: FastNUTS, values: Any, stage: str, step: int) -> None:
        nonlocal leapfrogs, start
        if stage == "Warmup" and step == warmup - 1:
            leapfrogs, start = kernel.num_leapfrogs, time.perf_counter()

    kernel = FastNUTS(model, max_tree_depth=MAX_TREE_DEPTH, target_accept_prob=0.8)
    chain = MCMC(kernel, samples, warmup_steps=warmup, disable_progbar=True, hook_fn=note)
    chain.run()
    seconds = time.perf_counter() - start
    found = dict(chain.get_samples())
    found["z"] = PRIOR_SCALE * found.pop("z_base")
    return Walk(seconds, kernel.num_leapfrogs - leapfrogs, effective(posterior.statistics(found).unsqueeze(0)))


def theirs(posterior: Any, warmup: int, samples: int, seeds: Sequence[int], chains: int = 1) -> Walk:
    """Chains on the CPU, one after another, or several at once for each seed, vectorised on the default device."""
    parts = [_their_chain(posterior, warmup, samples, seed, chains) for seed in seeds]
    seconds, steps, statistics = zip(*parts, strict=True)
    return Walk(sum(seconds), sum(steps), effective(torch.cat(statistics)))


def _their_chain(posterior: Any, warmup: int, samples: int, seed: int, chains: int) -> tuple[float, int, Tensor]:
    """Seconds and leapfrog steps after the warm-up, and the statistics of each chain."""
    import jax
    import numpyro.infer

    kernel = numpyro.infer.NUTS(posterior.rival, max_tree_depth=MAX_TREE_DEPTH, target_accept_prob=0.8)
    chain = numpyro.infer.MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=samples,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    with jax.default_device(jax.devices()[0] if chains > 1 else jax.devices("cpu")[0]):
        chain.warmup(jax.random.PRNGKey(seed))

        def step(state: Any, _: Any) -> Any:
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        # MCMC.run would compile its loop again in every call.
        walk = jax.jit(lambda state: jax.lax.scan(step, state, length=samples))
        state, _ = jax.block_until_ready(walk(chain.post_warmup_state))
        start = time.perf_counter()
        _, (z, steps) = jax.block_until_ready(walk(state))
        seconds = time.perf_counter() - start
        change = jax.vmap(kernel.postprocess_fn((), {}))
        values = (jax.vmap(change) if chains > 1 else change)(z)
    # Draws come before chains.
    found = {name: torch.tensor(jax.device_get(value)) for name, value in values.items()}
    found = {name: value.transpose(0, 1) if chains > 1 else value.unsqueeze(0) for name, value in found.items()}
    return seconds, int(steps.sum()), _by_chain(posterior, found)


def arrived(posterior: Any, warmup: int, samples: int, seed: int, device: str) -> Walk:
    """Chains of ``sample_posterior``."""
    settings: dict[str, Any] = {
        "num_chains": 64 if device == "cuda" else 32,
        "num_samples": samples,
        "warmup": warmup,
        "seed": seed,
    }
    with torch.device(device):
        found = sample_posterior(posterior.on(device).model, progress=False, **settings)
    draws = {name: value.cpu() for name, value in found.samples.items()}
    draws["z"] = BALL.to_normal_coords(None, draws["z"])
    size = effective(_by_chain(posterior, draws))
    return Walk(found.seconds["sampling"], round(found.settings["steps"] * samples), size)


def _by_chain(posterior: Any, samples: dict[str, Tensor]) -> Tensor:
    """The statistics of each chain, from samples ``(chains, draws, ...)``."""
    chains = range(len(samples["z"]))
    return torch.stack([posterior.statistics({name: x[chain] for name, x in samples.items()}) for chain in chains])


@functools.cache
def walks(name: str, warmup: int, samples: int, repeats: int) -> dict[str, list[Walk]]:
    """Chains of both sides in turns."""
    posterior = POSTERIORS[name]()
    found: dict[str, list[Walk]] = {"wrapped": [], "numpyro": []}
    for seed in range(repeats):
        found["wrapped"].append(ours(posterior, warmup, samples, seed))
        found["numpyro"].append(theirs(posterior, warmup, samples, [seed]))
    return found


def many(name: str, warmup: int, samples: int, device: str) -> dict[str, Walk]:
    """Chains of ``sample_posterior`` and of NumPyro."""
    posterior = POSTERIORS[name]()
    seeds, chains = (range(1), 64) if device == "cuda" else (range(4), 1)
    return {
        "wrapped": arrived(posterior, warmup, samples, 0, device),
        "numpyro": theirs(posterior, warmup, samples, seeds, chains),
    }
