"""Whether chains agree, and how many independent draws theirs are worth.

Vehtari, Gelman, Simpson, Carpenter and Bürkner, *Rank-normalization, folding, and localization: an improved R-hat for
assessing convergence of MCMC* (2021), for many quantities at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_hyperbolic.ops.tolerances import agreement_tolerance

FEWEST_DRAWS = 4
_TAILS = 0.05, 0.95
_OFFSET = 3 / 8  # Blom's, of ranks
_BLOCK = 1 << 21  # numbers that are worked on at a time


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What is known of a group of quantities. The tensors ``(Q,)`` have an entry for each.

    :param total: how many quantities there are; a few thousand of them are judged where there are more.
    :param r_hats: rank-normalised split R-hat; ``nan`` where a quantity is constant or not finite, like the next two.
    :param bulks: effective sample sizes of the bulk.
    :param tails: effective sample sizes of the tails, the smaller of those of the 5% and 95% quantiles.
    :param withins: as ``bulks``, as if the means of all chains were the same.
    :param means: means over all draws.
    :param constant: which quantities have the same value in all draws, up to rounding.
    :param finite: which quantities are finite in all draws.
    """

    total: int
    r_hats: Tensor
    bulks: Tensor
    tails: Tensor
    withins: Tensor
    means: Tensor
    constant: Tensor
    finite: Tensor

    @property
    def count(self) -> int:
        """How many quantities are judged."""
        return len(self.r_hats)

    @property
    def is_constant(self) -> bool:
        """Whether no quantity moves."""
        return bool(self.constant.all())

    @property
    def r_hat(self) -> float:
        """The largest R-hat of those that move; ``nan`` if one of them is not finite."""
        return self.r_hats[~self.constant].max().item() if not self.is_constant else math.nan

    @property
    def ess_bulk(self) -> float:
        """The smallest effective sample size of the bulk."""
        return self.bulks[~self.constant].min().item() if not self.is_constant else math.nan

    @property
    def ess_tail(self) -> float:
        """The smallest effective sample size of a tail."""
        return self.tails[~self.constant].min().item() if not self.is_constant else math.nan

    def __repr__(self) -> str:
        return (
            f"Diagnosis(r_hat={self.r_hat:.4g}, ess_bulk={self.ess_bulk:.0f}, ess_tail={self.ess_tail:.0f},"
            f" count={self.count})"
        )


@torch.no_grad()
def diagnose(blocks: Iterable[Tensor], total: int) -> Diagnosis:
    """The figures of quantities that come in blocks ``(chains, draws, Q)``.

    >>> figures = diagnose([torch.randn(4, 500, 2)], 2)
    >>> figures.count, figures.r_hat < 1.02, figures.ess_bulk > 1000
    (2, True, True)
    """
    rows = [torch.cat(row).cpu() for row in zip(*map(_figures, blocks), strict=True)]
    return Diagnosis(total, *rows)


def block_size(x: Tensor, numbers: int = 1) -> int:
    """How many quantities of so many numbers each to work on at a time, for draws ``(chains, draws, ...)``."""
    return max(1, _BLOCK // max(1, x.shape[0] * x.shape[1] * numbers))


def elements(x: Tensor) -> Iterable[Tensor]:
    """The elements of draws ``(chains, draws, ...)``, in blocks."""
    return x.flatten(2).split(block_size(x), -1) if x.dim() > 2 else [x.unsqueeze(-1)]


def _figures(x: Tensor) -> tuple[Tensor, ...]:
    """The fields of a :class:`Diagnosis`, of quantities ``(chains, draws, Q)``."""
    tolerance = agreement_tolerance(x.dtype) if x.is_floating_point() else 0.0
    x = x.movedim(-1, 0).double()
    finite = x.isfinite().all(-1).all(-1)
    low, high = x.amin((-2, -1)), x.amax((-2, -1))
    constant = finite & (high - low <= tolerance * torch.maximum(low.abs(), high.abs()))
    means = x.mean((-2, -1))
    usable = finite & ~constant if x.shape[-1] >= FEWEST_DRAWS else torch.zeros_like(finite)
    figures = torch.full((4, len(x)), torch.nan, dtype=torch.float64, device=x.device)
    if bool(usable.any()):
        figures[:, usable] = _of_moving(x[usable])
    return (*figures, means, constant, finite)


def _of_moving(x: Tensor) -> Tensor:
    """R-hat and the three effective sample sizes of quantities ``(Q, chains, draws)``, as ``(4, Q)``."""
    halves = _split(x)
    values, order = halves.flatten(1).sort(-1)
    middle = values.shape[-1] // 2
    median = (values[:, middle - 1] + values[:, middle]) / 2
    scores = _scores(values, order).view_as(halves)
    folded = _scores(*(halves - median[:, None, None]).abs().flatten(1).sort(-1)).view_as(halves)
    bulk, within = _effective_sizes(scores)
    ordered = values if x.shape[-1] % 2 == 0 else x.flatten(1).sort(-1).values
    below = [_split((x <= _quantile(ordered, share)[:, None, None]).double()) for share in _TAILS]
    tails = [_effective_sizes(inside)[0] for inside in below]
    return torch.stack([torch.maximum(_r_hat(scores), _r_hat(folded)), bulk, torch.minimum(*tails), within])


def _split(x: Tensor) -> Tensor:
    """The halves of chains as chains, without the middle draw of an odd number."""
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], x[..., -half:]], -2)


def _scores(values: Tensor, order: Tensor) -> Tensor:
    """Normal quantiles of ranks, in the order before sorting; equal values have the mean of their ranks."""
    size = values.shape[-1]
    place = torch.arange(size, device=values.device)
    changes = values[:, 1:] != values[:, :-1]
    ends = torch.ones_like(changes[:, :1])
    first = torch.where(torch.cat([ends, changes], -1), place, 0).cummax(-1).values
    last = torch.where(torch.cat([changes, ends], -1), place, size - 1).flip(-1).cummin(-1).values.flip(-1)
    # A mean of ranks is a multiple of a half.
    ranks = torch.arange(2 * size - 1, dtype=torch.float64, device=values.device) / 2 + 1
    table = torch.special.ndtri((ranks - _OFFSET) / (size - 2 * _OFFSET + 1))
    return torch.empty_like(values).scatter_(-1, order, table[first + last])


def _quantile(ordered: Tensor, share: float) -> Tensor:
    place = share * (ordered.shape[-1] - 1)
    low, high = ordered[:, math.floor(place)], ordered[:, math.ceil(place)]
    return low + (place - math.floor(place)) * (high - low)  # not below equal values by rounding


def _r_hat(x: Tensor) -> Tensor:
    """Of ``(Q, chains, draws)``."""
    count = x.shape[-1]
    between = count * x.mean(-1).var(-1)
    return ((between / x.var(-1).mean(-1) + count - 1) / count).sqrt()


def _effective_sizes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Effective sample sizes of means of ``(Q, chains, draws)``, and as if all chains had the same mean."""
    chains, count = x.shape[-2:]
    means = x.mean(-1)
    spectrum = torch.fft.rfft(x - means.unsqueeze(-1), n=1 << (2 * count - 1).bit_length())
    power = (spectrum.real.square() + spectrum.imag.square()).mean(-2)
    covariance = torch.fft.irfft(power)[..., :count] / count
    variance = covariance[:, :1]
    lost = variance * (count / (count - 1)) - covariance
    alike = (x.amax((-2, -1)) == x.amin((-2, -1))).unsqueeze(-1)
    sizes = []
    for whole in (variance + means.var(-1, keepdim=True), variance):
        time = _correlation_time(1 - lost / torch.where(alike, 1.0, whole))
        size = chains * count / time.clamp(min=1 / math.log10(chains * count))
        sizes.append(torch.where(alike.squeeze(-1), float(chains * count), size))
    return sizes[0], sizes[1]


def _correlation_time(rho: Tensor) -> Tensor:
    """The sum of correlations ``(Q, lags)`` over both directions of time, by Geyer's initial monotone sequence.

    Sums of neighbouring correlations, of an even lag and the next, count up to the first that is not positive, and none
    more than the one before it; of the last pair the even lag counts once.
    """
    lags = rho.shape[-1]
    rho = torch.cat([torch.ones_like(rho[:, :1]), rho[:, 1:]], -1)
    last = max((lags - 3) // 2, 0)
    even, odd = rho[:, 0 : 2 * last + 1 : 2], rho[:, 1 : 2 * last + 2 : 2]
    pairs = even + odd
    ends = torch.cat([pairs[:, :-1] <= 0, torch.ones_like(pairs[:, -1:], dtype=torch.bool)], -1)
    end = ends.int().argmax(-1, keepdim=True)
    before = torch.arange(last + 1, device=rho.device) < end
    total = torch.where(before, pairs.cummin(-1).values, 0.0).sum(-1)
    final, pair = even.gather(-1, end).squeeze(-1), pairs.gather(-1, end).squeeze(-1)
    return 2 * total - 1 + torch.where((final > 0) | (pair >= 0), final, 0.0)
