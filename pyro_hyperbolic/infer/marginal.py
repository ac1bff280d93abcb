"""Estimates of the log marginal likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic.infer.functional import compile_function

_PARTICLES = "_importance_samples"


@torch.no_grad()
def log_marginal_likelihood(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Tensor | tuple[Tensor, ...],
    num_samples: int = 5000,
    chunk: int = 8192,
    *,
    standard_error: bool = False,
    progress: bool = False,
    compile: bool = False,
    **kwargs: Any,
) -> Any:
    r"""The IWAE estimate of :math:`\log p(x_i)` for every datum, in bounded memory.

    .. math::

        \log \frac{1}{K} \sum_{k=1}^{K} \frac{p(x_i, z_{ik})}{q(z_{ik} \mid x_i)}, \qquad z_{ik} \sim q(\cdot \mid x_i)

    (Burda et al., *Importance weighted autoencoders*, 2016; the paper's tables use :math:`K = 5000`.) The
    estimate is below :math:`\log p(x_i)` on average and tends to it as ``K`` grows. For any pair of Pyro programs whose
    latents are local to a data plate at dimension -1: a global latent or observation belongs to no datum and is
    an error.

    :param model: called as ``model(*data, **kwargs)`` with slices of the data.
    :param guide: called likewise.
    :param data: a tensor, or a tuple of tensors, whose first dimension runs over the data.
    :param num_samples: ``K``.
    :param chunk: how many pairs of a datum and a sample are held at a time.
    :param standard_error: also return the standard error of each estimate, by the delta method.
    :param progress: show a progress bar.
    :param compile: compile the programs for the shape of a full chunk; worth its while on a GPU.
    :returns: estimates ``(N,)`` in float64; with ``standard_error`` a pair of such tensors.
    """
    tensors = data if isinstance(data, tuple) else (data,)

    def weights(batch: tuple[Tensor, ...], count: int) -> Tensor:
        return log_weights(model, guide, batch, kwargs, count)

    return iwae_estimates(weights, tensors, num_samples, chunk, standard_error, progress, compile)


def iwae_estimates(
    weights: Callable[[tuple[Tensor, ...], int], Tensor],
    tensors: tuple[Tensor, ...],
    num_samples: int,
    chunk: int,
    standard_error: bool = False,
    progress: bool = False,
    compile: bool = False,
) -> Any:
    """Accumulate log-weights ``(count, ..., N)`` over chunks; the other arguments are those of the function above."""
    if not all(isinstance(t, Tensor) and t.dim() > 0 for t in tensors):
        raise ValueError("data must be a tensor, or a tuple of tensors, whose first dimension runs over the data.")
    if not tensors or any(len(t) != len(tensors[0]) for t in tensors) or len(tensors[0]) == 0:
        raise ValueError("data must be tensors of one non-zero length: the first dimension runs over the data.")
    for name, value in (("num_samples", num_samples), ("chunk", chunk)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    size = len(tensors[0])
    width = max(1, chunk // num_samples)
    bar = tqdm(total=size, desc=f"IWAE-{num_samples}", disable=None if progress else True, unit=" data")
    full = min(width, size), min(num_samples, max(1, chunk // min(width, size)))
    compiled = None
    if compile:
        example = [t[: full[0]] for t in tensors]
        compiled = compile_function(lambda batch: weights(tuple(batch), full[1]), example)
    estimates, errors = [], []
    for start in range(0, size, width):
        batch = tuple(t[start : start + width] for t in tensors)
        log_sum = log_square_sum = torch.tensor(-math.inf, dtype=torch.float64, device=batch[0].device)
        for count in _pieces(num_samples, max(1, chunk // len(batch[0]))):
            if compiled is not None and (len(batch[0]), count) == full:
                piece = compiled(list(batch)).double()
            else:
                piece = weights(batch, count).double()
            log_sum = torch.logaddexp(log_sum, piece.logsumexp(0))
            log_square_sum = torch.logaddexp(log_square_sum, (2 * piece).logsumexp(0))
        estimates.append(log_sum - math.log(num_samples))
        # Var(log mean w) ~ Var(w) / (K E[w]^2) = sum(w^2)/sum(w)^2 - 1/K.
        relative = (log_square_sum - 2 * log_sum).exp() - 1 / num_samples
        errors.append(relative.clamp(min=0).sqrt())
        bar.update(len(batch[0]))
    bar.close()
    return (torch.cat(estimates, -1), torch.cat(errors, -1)) if standard_error else torch.cat(estimates, -1)


def _pieces(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most


def log_weights(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    count: int,
) -> Tensor:
    r""":math:`\log p(x_i, z_{ki}) - \log q(z_{ki} \mid x_i)` as ``(count, N)``, without the scales of subsampling."""
    particles = pyro.plate(_PARTICLES, count, dim=-2)
    guide_trace = poutine.trace(particles(guide)).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(particles(model), trace=guide_trace)).get_trace(*args, **kwargs)
    shape = (count, len(args[0]))
    total = torch.zeros(())
    for trace, sign in ((model_trace, 1.0), (guide_trace, -1.0)):
        trace.compute_log_prob()
        for name, site in trace.nodes.items():
            if site["type"] != "sample" or not _has_density(site):
                continue
            log_prob = site["unscaled_log_prob"]
            if not _is_local(site):
                raise ValueError(
                    f"site {name!r} is outside of every data plate, so its density belongs to no datum;"
                    " log_marginal_likelihood needs latents and observations inside a plate at dim -1."
                )
            total = total.to(log_prob.device) + sign * log_prob
    if total.shape != shape:
        raise ValueError(
            f"the programs see {total.shape[-1]} of {shape[-1]} data; log_marginal_likelihood needs every datum,"
            " without subsample_size."
        )
    return total


def _has_density(site: dict[str, Any]) -> bool:
    return type(site["fn"]).__name__ != "_Subsample" and not site["infer"].get("_deterministic")


def _is_local(site: dict[str, Any]) -> bool:
    return any(frame.name != _PARTICLES and frame.dim == -1 for frame in site["cond_indep_stack"])
