"""Estimates of the log marginal likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import pyro.poutine as poutine
import torch
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from tqdm.auto import tqdm

from pyro_hyperbolic.infer.programs.arguments import length, narrowed, split_tensors
from pyro_hyperbolic.infer.programs.compiled import compile_function
from pyro_hyperbolic.infer.programs.match import check_observations, observes_moving_points
from pyro_hyperbolic.ops.checks import checked_integer, inspectable

_PARTICLES = "_importance_samples"
# The dimension of the samples in log-densities, beside that of the data; those of enumerated sites lie further left.
_SAMPLE = -2


ESTIMATE_OPTIONS = frozenset({"num_samples", "chunk", "progress", "compile"})
"""The options of an estimate that are not arguments of the programs, beside ``standard_error``."""


@torch.no_grad()
def log_marginal_likelihood(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int = 5000,
    chunk: int = 8192,
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
    an error. Over further plates, inside the data plate, densities are multiplied. A discrete latent that the guide
    lacks is summed out if it is marked ``infer={"enumerate": "parallel"}``, as by ``TraceEnum_ELBO``; any other one, or
    one in a further plate, is an error.

    :param model: called as ``model(*args, **kwargs)`` with slices of the data.
    :param guide: called likewise.
    :param args: as ``SVI.step`` takes them, like ``kwargs``. The first dimension of every tensor among them, in tuples,
        lists and dictionaries too, runs over the data; tensors without dimensions and all else are passed on.
        A number has to be passed by its keyword.
    :param num_samples: ``K``.
    :param chunk: how many pairs of a datum and a sample are held at a time, each with all values of the enumerated
        sites.
    :param standard_error: also return the standard error of each estimate, by the delta method.
    :param progress: show a progress bar.
    :param compile: compile the programs for the shape of a full chunk; worth its while on a GPU.
    :returns: estimates ``(N,)`` in float64; with ``standard_error`` a pair of such tensors.
    """
    check_arguments(args)
    inputs, rebuild = split_tensors(args, kwargs)

    def weights(batch: list[Tensor], count: int) -> Tensor:
        own_args, own_kwargs = rebuild(batch)
        return log_weights(model, guide, own_args, own_kwargs, count)

    return iwae_estimates(weights, inputs, num_samples, chunk, standard_error, progress, compile)


def check_arguments(args: tuple[Any, ...]) -> None:
    """Refuse a number among the positional arguments, which may have been meant for ``num_samples``."""
    for x in args:
        if isinstance(x, (int, float)):
            raise ValueError(
                f"pass numbers by their keyword, got {x!r}: num_samples={x!r} if it is the number of samples, or the"
                f" keyword that the programs have for it, such as data_size={x!r}."
            )


def iwae_estimates(
    weights: Callable[[list[Tensor], int], Tensor],
    inputs: list[Tensor],
    num_samples: int,
    chunk: int,
    standard_error: bool = False,
    progress: bool = False,
    compile: bool = False,
) -> Any:
    """Accumulate log-weights ``(count, ..., N)`` over chunks; the other arguments are those of the function above."""
    size = length((inputs,), {})
    num_samples, chunk = checked_integer("num_samples", num_samples, least=1), checked_integer("chunk", chunk, least=1)
    width = max(1, chunk // num_samples)
    bar = tqdm(total=size, desc=f"IWAE-{num_samples}", disable=None if progress else True, unit=" data")
    full = min(width, size), min(num_samples, max(1, chunk // min(width, size)))
    compiled = None
    if compile:
        ((example,), _) = narrowed((inputs,), {}, 0, full[0])
        compiled = compile_function(lambda batch: weights(batch, full[1]), example)
    estimates, errors = [], []
    for start in range(0, size, width):
        ((batch,), _) = narrowed((inputs,), {}, start, start + width)
        count_of_data = min(width, size - start)
        log_sum = log_square_sum = torch.tensor(-math.inf, dtype=torch.float64, device=batch[0].device)
        for count in _pieces(num_samples, max(1, chunk // count_of_data)):
            if compiled is not None and (count_of_data, count) == full:
                piece = compiled(batch).double()
            else:
                piece = weights(batch, count).double()
            log_sum = torch.logaddexp(log_sum, piece.logsumexp(0))
            log_square_sum = torch.logaddexp(log_square_sum, (2 * piece).logsumexp(0))
        estimates.append(log_sum - math.log(num_samples))
        # Var(log mean w) ~ Var(w) / (K E[w]^2) = sum(w^2)/sum(w)^2 - 1/K.
        relative = (log_square_sum - 2 * log_sum).exp() - 1 / num_samples
        errors.append(relative.clamp(min=0).sqrt())
        bar.update(count_of_data)
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
    particles = pyro.plate(_PARTICLES, count, dim=_SAMPLE)
    guide_trace = poutine.trace(particles(guide)).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(particles(model), trace=guide_trace)).get_trace(*args, **kwargs)
    if is_validation_enabled() and inspectable() and observes_moving_points(model_trace):
        check_observations(model, guide, *args, **kwargs)
    if any(site["infer"].get("enumerate") == "parallel" for _, site in _latents_without(guide_trace, model_trace)):
        # Only then, because Pyro's enumeration looks at data that a function transform does not show.
        enumerated = poutine.enum(particles(model), first_available_dim=_leftmost_plate(guide_trace, model_trace) - 1)
        model_trace = poutine.trace(poutine.replay(enumerated, trace=guide_trace)).get_trace(*args, **kwargs)
    shape = (count, length(args, kwargs))
    factors = []
    for trace, sign in ((model_trace, 1.0), (guide_trace, -1.0)):
        trace.compute_log_prob()
        for name, site in trace.nodes.items():
            if site["type"] != "sample" or not _has_density(site):
                continue
            if not _is_local(site):
                raise ValueError(
                    f"site {name!r} is outside of every data plate, so its density belongs to no datum;"
                    " log_marginal_likelihood needs latents and observations inside a plate at dim -1."
                )
            if trace is model_trace and not _is_accounted_for(site, guide_trace):
                raise ValueError(
                    f"site {name!r} of the model is a latent that the guide does not have; sample it in the guide, or"
                    ' mark a discrete one infer={"enumerate": "parallel"} to sum it out.'
                )
            log_prob = sign * _product_over_plates(site)
            if log_prob.shape[_SAMPLE:] != shape:
                raise ValueError(
                    f"the programs see {log_prob.shape[-1]} of {shape[-1]} data; log_marginal_likelihood needs every"
                    " datum, without subsample_size."
                )
            factors.append((log_prob, site["infer"].get("_dim_to_id", {})))
    return _sum_out(factors)


def _product_over_plates(site: dict[str, Any]) -> Tensor:
    """The log-density of a site, summed over the plates other than that of the data and that of the samples."""
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized and frame.dim < _SAMPLE]
    for frame in frames:
        if frame.full_size is not None and frame.full_size != frame.size:
            raise ValueError(
                f"site {site['name']!r} is in the plate {frame.name!r}, which shows {frame.size} of its"
                f" {frame.full_size} elements; log_marginal_likelihood needs them all, without subsample_size."
            )
        if "_enumerate_dim" in site["infer"]:
            raise ValueError(
                f"site {site['name']!r} is summed out in the plate {frame.name!r} inside the data plate, which"
                " log_marginal_likelihood cannot do; replace that plate by a Python loop, or sample the site in the"
                " guide."
            )
    log_prob = site["unscaled_log_prob"]
    return log_prob.sum([frame.dim for frame in frames], keepdim=True) if frames else log_prob


def _leftmost_plate(*traces: Any) -> int:
    sites = [site for trace in traces for site in trace.nodes.values() if site["type"] == "sample"]
    return min(frame.dim for site in sites for frame in site["cond_indep_stack"] if frame.vectorized)


def _sum_out(factors: list[tuple[Tensor, dict[int, int]]]) -> Tensor:
    """The log of the sum over all enumerated sites of the product of the factors, ``(count, N)``.

    The sites are eliminated one after the other, so that a chain of them takes time linear in its length.

    :param factors: logarithms ``(..., count, N)`` and which enumerated site each dimension further left belongs to:
        under ``pyro.markov`` several share one.
    """
    used = [[dim for dim in range(-t.dim(), _SAMPLE) if t.shape[dim] > 1] for t, _ in factors]
    sites = sorted({ids[dim] for (_, ids), dims in zip(factors, used, strict=True) for dim in dims})
    terms = []
    for (log_factor, ids), dims in zip(factors, used, strict=True):
        # One dimension for every site, in the order of the sites.
        sizes = {ids[dim]: log_factor.shape[dim] for dim in dims}
        moved = log_factor.movedim(sorted(dims, key=ids.__getitem__), [*range(len(dims))])
        terms.append(moved.reshape([sizes.get(site, 1) for site in sites] + [*log_factor.shape[_SAMPLE:]]))
    for place in range(len(sites)):
        touched: Any = sum(term for term in terms if term.shape[place] > 1)
        terms = [term for term in terms if term.shape[place] == 1] + [touched.logsumexp(place, keepdim=True)]
    total: Any = sum(terms)
    return total.reshape(total.shape[_SAMPLE:])


def _has_density(site: dict[str, Any]) -> bool:
    return not site_is_subsample(site) and not site["infer"].get("_deterministic")


def _is_local(site: dict[str, Any]) -> bool:
    return any(frame.name != _PARTICLES and frame.dim == -1 for frame in site["cond_indep_stack"])


def _latents_without(guide_trace: Any, model_trace: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Latents of the model that the guide does not have."""
    for name, site in model_trace.nodes.items():
        if site["type"] == "sample" and not site["is_observed"] and name not in guide_trace:
            yield name, site


def _is_accounted_for(site: dict[str, Any], guide_trace: Any) -> bool:
    return site["is_observed"] or site["name"] in guide_trace or "_enumerate_dim" in site["infer"]
