"""Estimates of the log marginal likelihood."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import pyro
import pyro.poutine as poutine
import torch
from pyro.distributions.util import scale_and_mask
from pyro.infer.util import is_validation_enabled
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import constraints
from tqdm.auto import tqdm

from pyro_hyperbolic.accelerate.programs.arguments import length, narrowed, signature, split_tensors
from pyro_hyperbolic.accelerate.programs.checks import checked_run
from pyro_hyperbolic.accelerate.programs.compiled import compile_function
from pyro_hyperbolic.accelerate.programs.functional import Found, Parameters, Program, Site
from pyro_hyperbolic.accelerate.programs.isolation import isolated
from pyro_hyperbolic.ops.checks import checked_integer

_PARTICLES = "_importance_samples"
# The dimension of the samples in log-densities, beside that of the data; those of enumerated sites lie further left.
_SAMPLE = -2

# Pairs of a datum and a sample that are held at a time where nobody says how many: on a CPU, at most on a GPU, and
# there to measure what they cost.
_CHUNK = 8192
_MOST_ON_GPU = 1 << 19
_MEASURED = 1024

Weights = Callable[[list[Tensor], int], Tensor]  # log-weights of data, by so many samples
Sums = Callable[[list[Tensor], int], tuple[Tensor, Tensor]]  # logarithms of the sums of these and of their squares


@dataclass
class Compiled:
    """What is compiled for data of one form, by the numbers of data and of samples.

    :ivar cost: bytes that a datum with a sample takes, where they were measured.
    """

    functions: dict[tuple[int, int], Callable[[list[Tensor]], tuple[Tensor, ...]]] = field(default_factory=dict)
    cost: float | None = None

    def sums(self, weights: Weights, batch: list[Tensor], count: int) -> Sums:
        """Compiled for so many samples of so many data; of fewer samples they are of the first ones."""

        def compute(own: list[Tensor]) -> tuple[Tensor, ...]:
            found = weights(own, count)
            return found, *_log_sums(found)

        key = length((batch,), {}), count
        if key not in self.functions:
            self.functions[key] = compile_function(compute, batch, forward=True)
        function = self.functions[key]

        def run(own: list[Tensor], own_count: int) -> tuple[Tensor, Tensor]:
            found, log_sum, log_square_sum = function(own)
            return (log_sum, log_square_sum) if own_count == count else _log_sums(found[:own_count])

        return run


# What is compiled, with the tensors that it holds, by all else that it depends on; what was last used is at the end.
Kept = OrderedDict[Any, tuple[list[Tensor], Compiled]]


class _Met:
    """What a run of programs has met, without keeping them alive."""

    def __init__(self, parameters: Parameters) -> None:
        # Without the constraints, which may hold what belongs to the programs.
        self._sites: dict[str, Site] = {name: (leaf, constraints.real) for name, (leaf, _) in parameters.sites.items()}
        self._roots = [ref(root) for root in parameters.roots]
        self._written = parameters.surroundings.written

    def parameters(self, programs: tuple[Program, Program]) -> Parameters | None:
        """Those that the programs would find now, if that can be told without running them."""
        roots = [root for reference in self._roots if (root := reference()) is not None]
        parameters = Parameters(self._sites, roots, programs)
        parameters.surroundings.written = self._written
        return parameters if len(roots) == len(self._roots) and parameters.are_current() else None


@dataclass
class _Pair:
    """What is kept of a pair of programs: what is compiled, and what was met with arguments of each kind."""

    kept: Kept = field(default_factory=OrderedDict)
    met: OrderedDict[Any, _Met] = field(default_factory=OrderedDict)


# Of pairs that live, by the modules or functions that the model and the guide are or belong to.
_KEPT: WeakKeyDictionary[Any, WeakKeyDictionary[Any, _Pair]] = WeakKeyDictionary()
_OWNERS = (nn.Module, FunctionType, functools.partial)
_MOST_KEPT = 8
# Arguments that cannot change unseen.
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)

ESTIMATE_OPTIONS = frozenset({"num_samples", "chunk", "progress", "compile"})
"""The options of an estimate that are not arguments of the programs, beside ``standard_error``."""


@torch.no_grad()
def log_marginal_likelihood(
    model: Program,
    guide: Program,
    *args: Any,
    num_samples: int = 5000,
    chunk: int | None = None,
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

    Masks count: what ``poutine.mask``, ``fn.mask`` or ``obs_mask=`` of ``pyro.sample`` switch off is not observed, so
    that :math:`p(x_i)` is the density of what is. The missing values of ``obs_mask`` that the guide does not draw are
    drawn by the model. Scales do not count, be they of subsampling or of ``poutine.scale``: a model that was trained
    with a weighted bound, as a beta-VAE is, has the marginal likelihood of its densities without the weight.

    :param model: called as ``model(*args, **kwargs)`` with slices of the data.
    :param guide: called likewise.
    :param args: as ``SVI.step`` takes them, like ``kwargs``. The first dimension of every tensor among them, in tuples,
        lists and dictionaries too, runs over the data; tensors without dimensions and all else are passed on.
        A number has to be passed by its keyword.
    :param num_samples: ``K``.
    :param chunk: how many pairs of a datum and a sample are held at a time, each with all values of the enumerated
        sites. By default 8,192 on a CPU. On a GPU a small run, which leaves the random numbers alone, measures what a
        pair costs, and as many as half of the free memory holds are taken, but at most 2**19. The default is halved
        where memory ends: the data in question begin again, with the random numbers that they began with. Another chunk
        gives other random numbers, so give one where a result has to be repeated on another machine.
    :param standard_error: also return the standard error of each estimate, by the delta method.
    :param progress: show a progress bar.
    :param compile: compile the programs for one number of data and one of samples; worth its while on a GPU. Where the
        data are no multiple of it, the last part begins within the part before. Functions, modules and methods of
        modules are compiled once for every shape of the arguments and kept as long as they live; they are read again
        where a parameter has been replaced or :class:`what they can read
        <pyro_hyperbolic.accelerate.programs.surroundings.Surroundings>` has changed. Other programs are read again by
        every call. Compiled code checks nothing: where Pyro validates, the first data are run uncompiled too.
    :returns: estimates ``(N,)`` in float64; with ``standard_error`` a pair of such tensors.
    """
    check_arguments(args)
    inputs, rebuild = split_tensors(args, kwargs)

    def weights(batch: list[Tensor], count: int) -> Tensor:
        own_args, own_kwargs = rebuild(batch)
        with checked_run():
            return log_weights(model, guide, own_args, own_kwargs, count)

    def kept(batch: list[Tensor]) -> Compiled:
        if is_validation_enabled():
            with isolated():
                weights(batch, 1)
        return _kept(model, guide, *rebuild(batch))

    compiled = kept if compile else None
    return iwae_estimates(weights, inputs, num_samples, chunk, standard_error, progress, compiled)


def check_arguments(args: tuple[Any, ...]) -> None:
    """Refuse a number among the positional arguments, which may have been meant for ``num_samples``."""
    for x in args:
        if isinstance(x, (int, float)):
            raise ValueError(
                f"pass numbers by their keyword, got {x!r}: num_samples={x!r} if it is the number of samples, or the"
                f" keyword that the programs have for it, such as data_size={x!r}."
            )


def iwae_estimates(
    weights: Weights,
    inputs: list[Tensor],
    num_samples: int,
    chunk: int | None,
    standard_error: bool = False,
    progress: bool = False,
    compiled: Callable[[list[Tensor]], Compiled] | None = None,
    members: int = 1,
) -> Any:
    """Accumulate log-weights ``(count, ..., N)`` over chunks; the other arguments are those of the function above.

    :param compiled: what gives the weights that are compiled already for data like some, to which others are added.
    :param members: for how many models ``weights`` are at once; ``chunk`` counts each of them.
    """
    size = length((inputs,), {})
    num_samples = checked_integer("num_samples", num_samples, least=1)
    asked = None if chunk is None else checked_integer("chunk", chunk, least=1)
    # As many data as the chunk of a CPU would hold: some programs want the whole of a small set.
    ((first,), _) = narrowed((inputs,), {}, 0, max(1, (asked or _CHUNK) // members // num_samples))
    kept = None if compiled is None else compiled(first)
    pairs = max(1, (asked or _chosen_chunk(weights, first, num_samples, kept)) // members)

    def sums(batch: list[Tensor], count: int) -> tuple[Tensor, Tensor]:
        return _log_sums(weights(batch, count))

    start, results = 0, []
    with tqdm(total=size, desc=f"IWAE-{num_samples}", disable=None if progress else True, unit=" data") as bar:
        while start < size:
            # Compiled code is of one shape: the last data are evaluated with some before them.
            here = min(max(1, pairs // num_samples), size - start if kept is None else size)
            most = min(num_samples, max(1, pairs // here))
            if kept is not None:
                most = math.ceil(num_samples / math.ceil(num_samples / most))  # in parts of one size
            begin = min(start, size - here)
            ((batch,), _) = narrowed((inputs,), {}, begin, begin + here)
            before = _random_states(batch[0].device)
            found: tuple[Tensor, Tensor] | None
            try:
                run = sums if kept is None else kept.sums(weights, batch, most)
                found = _estimate(run, batch, num_samples, most)
            except torch.OutOfMemoryError as error:
                if asked is not None or pairs == 1:
                    remedy = "one pair of a datum and a sample is too many" if pairs == 1 else "pass a smaller chunk"
                    own = asked or pairs * members
                    raise torch.OutOfMemoryError(f"memory ended with chunk={own}: {remedy}.") from error
                found = None  # try again below, where the error no longer keeps the tensors of the run
            if found is None:
                pairs //= 2
                _set_random_states(batch[0].device, before)
                continue
            results.append([t[..., start - begin :] for t in found])
            bar.update(begin + here - start)
            start = begin + here
    estimates, errors = (torch.cat(parts, -1) for parts in zip(*results, strict=True))
    return (estimates, errors) if standard_error else estimates


def _estimate(run: Sums, batch: list[Tensor], num_samples: int, most: int) -> tuple[Tensor, Tensor]:
    """The estimates of some data and their standard errors, from at most so many samples at a time."""
    parts = [run(batch, count) for count in _pieces(num_samples, most)]
    log_sum, log_square_sum = (functools.reduce(torch.logaddexp, part) for part in zip(*parts, strict=True))
    # Var(log mean w) ~ Var(w) / (K E[w]^2) = sum(w^2)/sum(w)^2 - 1/K.
    relative = (log_square_sum - 2 * log_sum).exp() - 1 / num_samples
    return log_sum - math.log(num_samples), relative.clamp(min=0).sqrt()


def _log_sums(log_weights: Tensor) -> tuple[Tensor, Tensor]:
    wide = log_weights.double()
    return wide.logsumexp(0), (2 * wide).logsumexp(0)


def _chosen_chunk(weights: Weights, first: list[Tensor], num_samples: int, kept: Compiled | None) -> int:
    """Pairs, each member's counted, that half of the free memory holds."""
    device = first[0].device
    if device.type != "cuda":
        return _CHUNK
    cost = None if kept is None else kept.cost
    if cost is None:
        width = length((first,), {})
        count = min(num_samples, max(1, _MEASURED // width))
        before = _allocations(device)
        try:
            with isolated():
                pairs = weights(first, count).numel()
        except torch.OutOfMemoryError:
            return max(1, width * count // 2)
        # All that was allocated, freed again or not: no less than what is held at a time.
        cost = max(1, _allocations(device) - before) / pairs
        if kept is not None:
            kept.cost = cost
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    # A power of two, so that another call is likely to find its program compiled.
    return 1 << min(_MOST_ON_GPU, max(1, int(free / 2 / cost))).bit_length() - 1


def _allocations(device: torch.device) -> int:
    """All bytes that were ever allocated."""
    return torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0)


def _random_states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_states(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def _kept(model: Program, guide: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled:
    """What earlier calls with such data have compiled, if nothing has changed of what compiled code holds."""
    programs = model, guide
    owners: list[Any] = [getattr(program, "__self__", program) for program in programs]
    inputs = split_tensors(args, kwargs)[0]
    try:
        form, values = signature(*narrowed(args, kwargs, 0, 1))
    except ValueError:  # an argument that cannot be compared
        return Compiled()
    plain = all(isinstance(x, (*_PLAIN, tuple)) for x in values)
    if not plain or not all(isinstance(owner, _OWNERS) for owner in owners):
        return Compiled()
    methods = tuple([getattr(program, "__func__", None) for program in programs])
    settings = torch.get_default_dtype(), torch.is_autocast_enabled(), torch.is_autocast_enabled("cpu")
    front = methods, form, values, tuple([t.device for t in inputs]), settings
    pair = _KEPT.setdefault(owners[0], WeakKeyDictionary()).setdefault(owners[1], _Pair())
    met = pair.met.pop(front, None)
    parameters = None if met is None else met.parameters(programs)
    if met is not None and parameters is not None:
        key, tensors = _key_and_tensors(front, parameters)
        if key in pair.kept:
            pair.met[front] = met
            return kept_for(pair.kept, key, tensors)
    with isolated(), Found(model, guide, undo=True) as found:
        log_weights(model, guide, args, kwargs, 1)
    parameters = found.parameters
    with isolated(), parameters.kept_buffers():
        parameters.surroundings.ignore_written(lambda: log_weights(model, guide, args, kwargs, 1))
    pair.met[front] = _Met(parameters)
    _forget_first(pair.met)
    return kept_for(pair.kept, *_key_and_tensors(front, parameters))


def _key_and_tensors(front: Any, parameters: Parameters) -> tuple[Any, list[Tensor]]:
    # The store may hold other parameters than a module, which runs with its own.
    own = [t for module in parameters.modules for t in module.parameters(recurse=False)]
    tensors = [*parameters.tensors.values(), *own, *parameters.buffers.values()]
    return (front, parameters.surroundings.key(), tuple([t.device for t in tensors])), tensors


def kept_for(entries: Kept, key: Any, tensors: list[Tensor]) -> Compiled:
    """What is kept under a key, and nothing if that is of other tensors."""
    known, compiled = entries.pop(key, ([], Compiled()))
    if len(known) != len(tensors) or any(old is not new for old, new in zip(known, tensors, strict=True)):
        compiled = Compiled()
    entries[key] = tensors, compiled
    _forget_first(entries)
    return compiled


def _forget_first(entries: OrderedDict[Any, Any]) -> None:
    if len(entries) > _MOST_KEPT:
        entries.popitem(last=False)


def _pieces(total: int, most: int) -> Iterator[int]:
    while total > 0:
        yield min(total, most)
        total -= most


def log_weights(
    model: Program,
    guide: Program,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    count: int,
) -> Tensor:
    r""":math:`\log p(x_i, z_{ki}) - \log q(z_{ki} \mid x_i)` as ``(count, N)``, with masks and without scales."""
    particles = pyro.plate(_PARTICLES, count, dim=_SAMPLE)
    guide_trace = poutine.trace(particles(guide)).get_trace(*args, **kwargs)
    model_trace = poutine.trace(poutine.replay(particles(model), trace=guide_trace)).get_trace(*args, **kwargs)
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
            if trace is model_trace and _is_imputed(site, model_trace, guide_trace):
                continue
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
    for frame in site["cond_indep_stack"]:
        # Of the data's own plate the slices are known; one that is a Python loop has no dimension.
        if frame.dim not in (-1, _SAMPLE) and frame.full_size is not None and frame.full_size != frame.size:
            raise ValueError(
                f"site {site['name']!r} is in the plate {frame.name!r}, which shows {frame.size} of its"
                f" {frame.full_size} elements; log_marginal_likelihood needs them all, without subsample_size."
            )
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized and frame.dim < _SAMPLE]
    for frame in frames:
        if "_enumerate_dim" in site["infer"]:
            raise ValueError(
                f"site {site['name']!r} is summed out in the plate {frame.name!r} inside the data plate, which"
                " log_marginal_likelihood cannot do; replace that plate by a Python loop, or sample the site in the"
                " guide."
            )
    log_prob = _masked_log_prob(site)
    return log_prob.sum([frame.dim for frame in frames], keepdim=True) if frames else log_prob


def _masked_log_prob(site: dict[str, Any]) -> Tensor:
    """The log-density with its mask and without its scale; as in ``TraceEnum_ELBO`` what is summed out sums to 1."""
    if "_enumerate_dim" in site["infer"]:
        return site["unscaled_log_prob"]
    return scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])


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


def _is_imputed(site: dict[str, Any], model_trace: Any, guide_trace: Any) -> bool:
    """Whether ``pyro.sample(..., obs_mask=)`` drew it and not the guide: then its density is that of its draw too."""
    stem = site["name"].removesuffix("_unobserved")
    is_drawn = "_enumerate_dim" not in site["infer"] and site["name"] not in guide_trace
    return is_drawn and stem != site["name"] and f"{stem}_observed" in model_trace


def _is_accounted_for(site: dict[str, Any], guide_trace: Any) -> bool:
    return site["is_observed"] or site["name"] in guide_trace or "_enumerate_dim" in site["infer"]
