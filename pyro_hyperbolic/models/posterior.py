"""Draws of exact posteriors: importance resampling from an encoder, and Hamiltonian Monte Carlo where that fails."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor
from torch.distributions import Transform
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.hmc import Gradients, Metric, State, StepSize, leapfrog, trajectories
from pyro_hyperbolic.accelerate.programs.compiled import compile_function, explained
from pyro_hyperbolic.distributions.base import base_distribution
from pyro_hyperbolic.ops.nested import map_tensors
from pyro_hyperbolic.ops.pareto import pareto_smoothed

Data = dict[str, Any]  # tensors whose first dimension runs over the data, if they have one, and dictionaries of these

# Pairs of a datum and a draw that are held at a time.
_CHUNK, _CHUNK_ON_GPU = 1 << 13, 1 << 15
_WORST_K = 0.7
_FEWEST_CHAINS = 24  # of a datum, so that they show its spread
# Trajectories: in rounds that learn from the chains of each datum, and then with what was learned. Each has another
# number of steps, so that no period of the motion is met each time.
_ROUNDS, _PER_ROUND, _LAST = 3, 10, 15
_STEPS = (3, 9)
_SIZE = 0.5  # of the first steps, in units of the spread


@dataclass(frozen=True)
class PosteriorDraws:
    r"""Draws from the posteriors :math:`p(z \mid x_i)` of data, made by :meth:`VAE.posterior`.

    :ivar samples: points of the latent space, ``(num_samples, N, D)``.
    :ivar pareto_k: Pareto's ``k`` of the importance weights of every datum, ``(N,)``.
    :ivar moved: which data Hamiltonian Monte Carlo has moved, ``(N,)``.
    :ivar acceptance: the mean acceptance of its last trajectories, ``(N,)``; 1 for the other data.
    """

    samples: Tensor
    pareto_k: Tensor
    moved: Tensor
    acceptance: Tensor


class Target(NamedTuple):
    """What is drawn from.

    :param proposals: from data to distributions of proposals, batch shape ``(N,)``, the first of which has a ``loc``.
    :param log_joint: from points ``(..., N, D)`` and data to log-densities ``(..., N)``.
    :param chart: from centres ``(N, D)`` to maps from vectors ``(..., N, d)`` one-to-one to points, with Jacobians.
    """

    proposals: Callable[..., list[Any]]
    log_joint: Callable[..., Tensor]
    chart: Callable[[Tensor], Transform]

    def energies(self, v: Tensor, centre: Tensor, data: Data) -> tuple[Tensor, Tensor]:
        """Energies ``(..., N)`` of vectors ``(..., N, d)``, and their gradients."""
        with torch.enable_grad(), pyro.validation_enabled(False):  # trajectories may leave what coordinates can hold
            v = v.detach().requires_grad_()
            chart = self.chart(centre)
            z = chart(v)
            energy = -self.log_joint(z, **data) - chart.log_abs_det_jacobian(v, z)
            (gradient,) = torch.autograd.grad(energy.sum(), v)
        return energy.detach(), gradient


@torch.no_grad()
def draw_posterior(
    target: Target,
    data: Data,
    num_samples: int,
    num_proposals: int,
    *,
    chunk: int | None = None,
    compile: bool = False,
    progress: bool = False,
) -> PosteriorDraws:
    """Draws for data with an ``x``; the other arguments are those of :meth:`VAE.posterior`."""
    x = data["x"]
    chunk = (_CHUNK_ON_GPU if x.is_cuda else _CHUNK) if chunk is None else chunk
    chains = max(num_samples, _FEWEST_CHAINS)
    parts = []
    with tqdm(total=len(x), desc="posteriors", disable=None if progress else True, unit=" data") as bar:
        for rows in torch.arange(len(x), device=x.device).split(max(1, chunk // num_proposals)):
            parts.append(_resampled(target, data_at(rows, data), chains, num_proposals))
            bar.update(int(parts[-1].good.sum()))
        points, k, good, centre, root = map(torch.cat, zip(*parts, strict=True))
        _check_weights(k)
        acceptance = torch.ones_like(k)
        bad = (~good).nonzero().flatten()
        # A power of two, so that another call is likely to find its steps compiled.
        width = min(max(1, chunk // chains), 1 << max(0, len(bad) - 1).bit_length())
        energies: Callable[..., Any] | None = None if compile else target.energies
        for rows in bad.split(width) if len(bad) else ():
            # Compiled steps are for so many data: the last ones stand in for those that lack.
            own = rows.repeat(-(-width // len(rows)))[:width] if compile else rows
            here = centre[own], data_at(own, data)
            chart = target.chart(here[0])
            start = chart.inv(points[own].transpose(0, 1))
            if energies is None:
                with explained("compiled", "use compile=False"):
                    energies = compile_function(target.energies, start, *here)
            v, rate = _moved(_at(energies, *here), start, Metric(root[own]))
            points[rows], acceptance[rows] = chart(v).transpose(0, 1)[: len(rows)], rate[: len(rows)].to(k.dtype)
            bar.update(len(rows))
    return PosteriorDraws(points[:, :num_samples].transpose(0, 1).contiguous(), k, ~good, acceptance)


class _Resampled(NamedTuple):
    """Draws for some data.

    :param points: ``(N, C, D)``.
    :param k: ``(N,)``.
    :param good: whether the weights can be relied on, and are worth as many draws, ``(N,)``.
    :param centre: the locations of the proposals, ``(N, D)``.
    :param root: of the spread of the draws in the chart there, ``(N, d, d)``.
    """

    points: Tensor
    k: Tensor
    good: Tensor
    centre: Tensor
    root: Tensor


def _resampled(target: Target, data: Data, count: int, num_proposals: int) -> _Resampled:
    mixture = target.proposals(**data)
    counts = [len(part) for part in torch.arange(num_proposals).tensor_split(len(mixture))]
    shares = [math.log(own / num_proposals) for own in counts]
    z = torch.cat([q.sample((own,)) for q, own in zip(mixture, counts, strict=True)])
    log_q = torch.stack([q.log_prob(z) + share for q, share in zip(mixture, shares, strict=True)]).logsumexp(0)
    with pyro.validation_enabled(False):
        log_weights = (target.log_joint(z, **data) - log_q).double()
    # A draw at which the model has no density has no weight.
    smoothed, k = pareto_smoothed(torch.where(log_weights.isnan(), -torch.inf, log_weights))
    weights = smoothed.softmax(0)
    chosen = _systematic(weights.mT, count).unsqueeze(-1)
    points = z.transpose(0, 1).gather(1, chosen.expand(-1, -1, z.shape[-1]))
    worth = 1 / weights.square().sum(0)
    # The bound of Vehtari et al. (2024).
    good = (k <= min(1 - 1 / math.log10(num_proposals), _WORST_K)) & (worth >= count)
    centre = base_distribution(mixture[0]).loc
    v = target.chart(centre).inv(z)
    # Where few draws have all the weight, the spread of the proposals counts for more.
    share = _share(worth, v)
    spread = share * _covariances(v, weights) + (1 - share) * _covariances(v)
    return _Resampled(points, k, good, centre, torch.linalg.cholesky_ex(spread).L)


def _systematic(weights: Tensor, count: int) -> Tensor:
    """Which of the entries of rows ``(N, S)``, that sum to 1, are drawn, ``(N, count)``, in random order."""
    noise = torch.rand(len(weights), 1, dtype=weights.dtype, device=weights.device)
    levels = (torch.arange(count, dtype=weights.dtype, device=weights.device) + noise) / count
    drawn = torch.searchsorted(weights.cumsum(-1), levels).clamp(max=weights.shape[-1] - 1)
    return drawn.gather(-1, torch.rand_like(levels).argsort(-1))


def _moved(gradients: Gradients, start: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
    """Where Hamiltonian Monte Carlo takes chains ``(C, N, d)``, and its mean acceptance ``(N,)``."""
    state = State.at(gradients, start)
    first = torch.full_like(start[0, :, 0], _SIZE)
    size = StepSize(first)
    for turn in range(_ROUNDS):
        if turn:
            metric = _learned(metric, state.x)
            size.restart(first)
        for _ in range(_PER_ROUND):
            state, sweep = trajectories(leapfrog(gradients), state, metric, size.size, _number_of_steps())
            size.see(sweep.acceptance.mean(0))
    acceptance = torch.zeros_like(first)
    for _ in range(_LAST):
        state, sweep = trajectories(leapfrog(gradients), state, metric, size.mean, _number_of_steps())
        acceptance += sweep.acceptance.mean(0) / _LAST
    return state.x, acceptance


def _learned(metric: Metric, v: Tensor) -> Metric:
    """From the spread of chains ``(C, N, d)`` of each datum."""
    share = _share(torch.tensor(float(len(v))), v)
    root, info = torch.linalg.cholesky_ex(share * _covariances(v) + (1 - share) * metric.root @ metric.root.mT)
    return Metric(torch.where((info == 0)[..., None, None], root, metric.root))


def _share(count: Tensor, v: Tensor) -> Tensor:
    """How much the covariance of so many draws is worth, against a guess of it."""
    return (count / (count + 5.0 * v.shape[-1])).to(v)[..., None, None]


def _covariances(v: Tensor, weights: Tensor | None = None) -> Tensor:
    """Of vectors ``(C, N, d)`` with weights ``(C, N)`` that sum to 1, as ``(N, d, d)``."""
    share = torch.full_like(v[..., :1], 1 / len(v)) if weights is None else weights.to(v.dtype).unsqueeze(-1)
    apart = v - (share * v).sum(0)
    return torch.einsum("cni,cnj->nij", share * apart, apart)


def _at(energies: Callable[..., Any], centre: Tensor, data: Data) -> Gradients:
    return lambda v: energies(v, centre, data)


def _number_of_steps() -> int:
    least, most = _STEPS
    return int(torch.randint(least, most + 1, ()))


def _check_weights(k: Tensor) -> None:
    wrong = k.isnan().nonzero().flatten().tolist()
    if wrong:
        raise ValueError(
            f"the model has no density at any draw of the encoder for {len(wrong)} data, the first of which is"
            f" {wrong[0]}; check these data, train the model further, or take more num_proposals."
        )


def data_at(index: Tensor, data: Data) -> Data:
    """Those at an index; tensors without dimensions are for all."""
    return map_tensors(lambda t: t[index] if t.dim() else t, data)
