"""The evidence of a model: the density of its data, all latents integrated out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from pyro_hyperbolic.infer.posterior.bridge import Level, Normal, Paths, Ratio, bennett, finer
from pyro_hyperbolic.infer.posterior.energy import Program
from pyro_hyperbolic.infer.posterior.haar import log_mean_exp_trace
from pyro_hyperbolic.infer.posterior.result import Posterior
from pyro_hyperbolic.infer.posterior.sampler import Chains, run_chains, seeded
from pyro_hyperbolic.ops.checks import checked_integer

_FEWEST_CHAINS = 4  # of which the error is known from their differences
_PATHS = 128  # in each direction
_FINER = 4  # times as many levels, if the error is too large
_OVERLAP = 0.1  # below which the error itself is not known


@dataclass(frozen=True)
class Evidence:
    """The natural logarithm of the density of the data under a model.

    :ivar value: the logarithm.
    :ivar standard_error: of the value.
    :ivar levels: between the normal distribution and the posterior, where the first alone was too far away.
    :ivar posterior: the draws that it was computed from.
    """

    value: float
    standard_error: float
    levels: int
    posterior: Posterior = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether nothing speaks against the draws; if something does, the standard error may be too small."""
        return self.posterior.converged

    def __repr__(self) -> str:
        words = "" if self.converged else ", chains did not converge"
        return f"Evidence({self.value:.3f} ± {self.standard_error:.3f}{words})"


def log_evidence(
    model: Program,
    *args: Any,
    num_chains: int = 16,
    num_samples: int = 1000,
    warmup: int = 500,
    seed: int = 0,
    tolerance: float = 0.1,
    most_levels: int = 1024,
    hottest: float = 1.0,
    progress: bool = True,
    **kwargs: Any,
) -> Evidence:
    r"""The logarithm of the evidence :math:`\int p(x \mid z)\,p(z)\,dz` of a Pyro program, with its standard error.

    The chains of :func:`~pyro_hyperbolic.infer.sample_posterior` draw from the posterior. A normal distribution is
    fitted to one half of the draws, and compared with the posterior by bridge sampling on the other. Where it is too
    far from it, levels are put between them (:mod:`pyro_hyperbolic.infer.posterior.bridge`), more and more until the
    standard error is at most ``tolerance``. What the terms add that hold free orientations is taken out.

    The standard error knows only of places that the chains have seen. Mass that they miss makes the value too low, also
    where their diagnostics are good: around the antipode of a sphere, where coordinates of points have heavy tails,
    that was 0.02 nats for one point with a drawn curvature.

    The evidence depends on the priors: a wide one is a worse guess than a narrow one around the truth. All priors must
    be proper, and constants of the likelihood count.

    :param model: the program, of fixed structure.
    :param args: its arguments, like ``kwargs``.
    :param num_chains: how many chains, 4 or more: the standard error is from their differences.
    :param num_samples: draws of each chain.
    :param warmup: trajectories of each chain before that.
    :param seed: of all random numbers; the state of torch's generators stays as it is.
    :param tolerance: the standard error to reach, in nats.
    :param most_levels: the number of levels beyond which there are no more.
    :param hottest: as of ``sample_posterior``: above 1 where chains stay in different modes, which alone have not the
        shares of the mass that the modes have.
    :param progress: show a bar.

    >>> import pyro
    >>> import pyro.distributions as dist
    >>> def model(data):
    ...     loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    ...     with pyro.plate("data", len(data)):
    ...         pyro.sample("x", dist.Normal(loc, 1.0), obs=data)
    >>> data = torch.tensor([1.0, 2.0])
    >>> evidence = log_evidence(model, data, num_samples=200, warmup=100, progress=False)
    >>> exact = dist.MultivariateNormal(torch.zeros(2), torch.eye(2) + 1).log_prob(data)
    >>> abs(evidence.value - exact.item()) < 0.05, evidence.standard_error < 0.05
    (True, True)
    """
    num_chains = checked_integer("num_chains", num_chains, least=_FEWEST_CHAINS)
    num_samples = checked_integer("num_samples", num_samples, least=2 * _FEWEST_CHAINS)
    most_levels = checked_integer("most_levels", most_levels, least=1)
    if not (isinstance(tolerance, (int, float)) and tolerance > 0):
        raise ValueError(f"tolerance must be a positive number of nats, got {tolerance!r}; 0.1 is the default.")
    settings = {"num_chains": num_chains, "num_samples": num_samples, "warmup": warmup, "seed": seed}
    with seeded(seed):
        chains = run_chains((model, args, kwargs), settings, hottest=hottest, progress=progress)
        ratio, levels = _integral(chains, tolerance, most_levels)
        chains.clock.note("evidence")
        held = sum(
            log_mean_exp_trace(weight, block.columns.shape[-1], proper=proper > 0)
            for block in chains.target.blocks
            for weight, proper in zip(block.weight.tolist(), block.proper.tolist(), strict=True)
        )
        return Evidence(ratio.log - held, ratio.error, levels, chains.result())


def _integral(chains: Chains, tolerance: float, most_levels: int) -> tuple[Ratio, int]:
    """The logarithm of the integral of the target, and how many levels it took."""
    half = len(chains.draws) // 2
    paths = Paths(chains, Normal(torch.cat(chains.draws[:half]), chains.metric))
    draws = chains.draws[half:]
    ratio = _ratio(paths, draws, paths.ends())
    if _is_enough(ratio, tolerance):
        return ratio, 0
    found = paths.levels(draws[0])
    few = draws[:: max(1, len(draws) // math.ceil(_PATHS / chains.target.count))]
    count = min(len(found) - 1, most_levels)
    while True:
        ratio = _ratio(paths, few, finer(found, count))
        if _is_enough(ratio, tolerance) or count == most_levels:
            return ratio, count - 1
        count = min(_FINER * count, most_levels)


def _ratio(paths: Paths, draws: list[torch.Tensor], levels: list[Level]) -> Ratio:
    there = torch.cat([paths.there(levels) for _ in draws])
    return bennett(there, torch.stack([paths.back(x, levels) for x in draws]))


def _is_enough(ratio: Ratio, tolerance: float) -> bool:
    return ratio.error <= tolerance and ratio.overlap >= _OVERLAP
