"""Pyro's ELBOs as tensors: no host synchronisation, no branch on data.

``Trace_ELBO`` and its relatives read every term on the host (``.item()``) and test it for ``nan``; neither can be done
under ``vmap``, in a traced program or in a captured CUDA graph. The functions here run the same traces and sum
the same terms, for guides whose every site is reparametrised; then the gradient of the sum is the one that Pyro forms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from pyro.distributions import Independent, MaskedDistribution
from pyro.distributions.util import is_identically_zero, scale_and_mask
from pyro.infer import ELBO, RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from pyro.infer.util import get_dependent_plate_dims, torch_sum
from torch import Tensor
from torch.distributions import kl_divergence

from pyro_hyperbolic.accelerate import private
from pyro_hyperbolic.accelerate.bounds.enumeration import enumerated_elbo
from pyro_hyperbolic.accelerate.programs.arguments import split_tensors
from pyro_hyperbolic.accelerate.programs.checks import check_traces, checked_run

TensorLoss = Callable[..., Tensor]

_REGISTERED: dict[type[ELBO], bool] = {}


def register_loss(kind: type[ELBO], *, separable: bool) -> None:
    """Let trainers take losses of a class of one's own.

    Its ``differentiable_loss`` must return a 0-dim tensor without reading a value on the host, and should make the
    checks of :mod:`~pyro_hyperbolic.accelerate.programs.checks`.

    :param separable: it is a sum of one term per datum, and of terms of the sites outside of the data plate.
    """
    _REGISTERED[kind] = separable


def is_separable(loss: Any) -> bool:
    """Whether a loss is such a sum, so that several processes can share the data; a function has to be one."""
    if isinstance(loss, RenyiELBO):
        return False
    return next((separable for kind, separable in _REGISTERED.items() if isinstance(loss, kind)), True)


def tensor_loss(loss: ELBO | TensorLoss) -> TensorLoss:
    """A function ``(model, guide, *args, **kwargs) -> 0-dim tensor`` that equals the loss of ``loss``.

    :param loss: one of Pyro's ``Trace_ELBO``, ``TraceMeanField_ELBO``, ``RenyiELBO`` and ``TraceEnum_ELBO``, or
        one that was registered, with any number of particles; or a function with that signature, taken as it is.
    """
    if not isinstance(loss, ELBO):
        if isinstance(loss, type) and issubclass(loss, ELBO):
            raise ValueError(f"loss must be an object, got the class {loss.__name__}; pass loss={loss.__name__}().")
        if callable(loss):
            return _checked(loss)
        raise ValueError(f"loss must be an ELBO or a function, got {loss!r}.")
    if isinstance(loss, tuple(_REGISTERED)):
        evaluate_registered: TensorLoss = loss.differentiable_loss  # type: ignore[attr-defined]  # which they must have
        return evaluate_registered
    if type(loss) not in _LOSSES:
        name, names = type(loss).__name__, ", ".join(sorted(t.__name__ for t in (*_LOSSES, *_REGISTERED)))
        plain = name.removeprefix("Jit")
        remedy = "use pyro.infer.SVI for that loss"
        if plain != name and plain in names:
            remedy = f"use {plain} and, to have the step compiled, compile=True"
        raise ValueError(f"loss must be one of {names}, got {name}; {remedy}.")
    terms = _LOSSES[type(loss)]

    def evaluate(model: Callable[..., Any], guide: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(loss, TraceEnum_ELBO) and not private.can_enumerate():
            return loss.differentiable_loss(model, guide, *args, **kwargs)  # which reads values on the host
        with checked_run():
            traces = private.traces(loss, model, guide, args, kwargs)
        check_traces(*traces[0])
        value = terms(loss, traces)
        if isinstance(value, Tensor):
            return value
        # Programs without a site, as of an auxiliary loss in a step that has no labels for it.
        like = next(iter(split_tensors(args, kwargs)[0]), torch.empty(()))
        return torch.full((), value, device=like.device)

    return evaluate


def _checked(loss: TensorLoss) -> TensorLoss:
    """A function of the user's, which must return one number with its graph."""

    @functools.wraps(loss)
    def evaluate(*args: Any, **kwargs: Any) -> Tensor:
        value = loss(*args, **kwargs)
        if not isinstance(value, Tensor):
            raise ValueError(
                f"loss must return a tensor, got {type(value).__name__}; of an ELBO pass the object itself,"
                " as in loss=Trace_ELBO(), or its differentiable_loss."
            )
        if value.numel() != 1:
            raise ValueError(f"loss must return one number, got shape {tuple(value.shape)}; sum over it.")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise ValueError(
                "loss returned a tensor without gradients, so no parameter would be trained; do not detach it, and do"
                " not compute it under torch.no_grad()."
            )
        return value.reshape(())

    return evaluate


def _trace(loss: Trace_ELBO, traces: list[tuple[Any, Any]]) -> Tensor:
    total: Any = 0.0
    for model_trace, guide_trace in traces:
        for site in _samples(model_trace):
            total = total - site["log_prob_sum"]
        for site in _samples(guide_trace):
            _check_reparametrised(site)
            total = total + site["log_prob_sum"]
    return total / loss.num_particles


def _mean_field(loss: TraceMeanField_ELBO, traces: list[tuple[Any, Any]]) -> Tensor:
    total: Any = 0.0
    for model_trace, guide_trace in traces:
        for site in _samples(model_trace):
            if site["is_observed"]:
                total = total - site["log_prob_sum"]
                continue
            guide_site = guide_trace.nodes[site["name"]]
            _check_reparametrised(guide_site)
            try:
                kl = kl_divergence(guide_site["fn"], site["fn"])
                kl = scale_and_mask(kl, scale=guide_site["scale"], mask=guide_site["mask"])
                # Where the mask is False it is a plain 0.
                total = total + (kl.sum() if isinstance(kl, Tensor) else kl)
            except NotImplementedError:
                total = total - site["log_prob_sum"] + guide_site["log_prob_sum"]
        for site in _samples(guide_trace):
            if site["name"] not in model_trace.nodes:
                _check_reparametrised(site)
                total = total + site["log_prob_sum"]
    return total / loss.num_particles


def _renyi(loss: RenyiELBO, traces: list[tuple[Any, Any]]) -> Tensor:
    particles = []
    for model_trace, guide_trace in traces:
        sum_dims = get_dependent_plate_dims(model_trace.nodes.values())
        log_weight: Any = 0.0
        for site in _samples(model_trace):
            log_weight = log_weight + torch_sum(site["log_prob"], sum_dims)
        for site in _samples(guide_trace):
            _check_reparametrised(site)
            log_weight = log_weight - torch_sum(site["log_prob"], sum_dims)
        particles.append(log_weight)
    vectorised = loss.vectorize_particles and loss.num_particles > 1
    log_weights = particles[0] if vectorised else torch.stack(particles)
    power = 1.0 - loss.alpha
    log_mean = torch.logsumexp(power * log_weights, 0) - math.log(loss.num_particles)
    return -log_mean.sum() / power


def _enumerated(loss: TraceEnum_ELBO, traces: list[tuple[Any, Any]]) -> Tensor:
    total: Any = 0.0
    for model_trace, guide_trace in traces:
        for site in _samples(guide_trace):
            if not site["infer"].get("enumerate"):
                _check_reparametrised(site)
        total = total - enumerated_elbo(model_trace, guide_trace)
    return total / loss.num_particles


_LOSSES: dict[type[ELBO], Callable[..., Tensor]] = {
    Trace_ELBO: _trace,
    TraceEnum_ELBO: _enumerated,
    TraceMeanField_ELBO: _mean_field,
    RenyiELBO: _renyi,
}


def _samples(trace: Any) -> list[dict[str, Any]]:
    return [site for site in trace.nodes.values() if site["type"] == "sample"]


def _check_reparametrised(site: dict[str, Any]) -> None:
    if site["infer"].get("enumerate") or site["infer"].get("_enumerate_dim") is not None:
        raise ValueError(f"site {site['name']!r} is enumerated; use the loss TraceEnum_ELBO.")
    if not is_identically_zero(site["score_parts"].score_function):
        fn = site["fn"]
        while isinstance(fn, (Independent, MaskedDistribution)):
            fn = fn.base_dist
        kind = type(fn).__name__
        raise ValueError(
            f"site {site['name']!r} is drawn from {kind}, which is not reparametrised,"
            " so its gradient needs a score function; use pyro.infer.SVI, or a reparametrised distribution."
        )
