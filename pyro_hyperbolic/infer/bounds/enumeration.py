"""Pyro's bound with enumerated sites as a tensor: no host synchronisation, no branch on data.

The factors and their contraction are Pyro's; what is done anew is the expectation over the sites that the guide
enumerates, in which Pyro selects the terms of positive probability by their values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pyro.ops.einsum.torch_log
import torch
from opt_einsum import shared_intermediates
from pyro.infer.traceenum_elbo import _compute_model_factors
from pyro.infer.util import Dice
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.einsum.adjoint import require_backward
from pyro.ops.rings import MarginalRing, SampleRing
from torch import Tensor

# Tensors that carry the names of their dimensions.
Packed = Any
Costs = dict[Any, list[Packed]]


def enumerated_elbo(model_trace: Any, guide_trace: Any) -> Any:
    """What ``TraceEnum_ELBO`` makes of a pair of packed traces, with its first derivatives."""
    with _transformable_log():
        return _elbo(model_trace, guide_trace)


def _elbo(model_trace: Any, guide_trace: Any) -> Any:
    costs, log_factors, ordering, sum_dims, scale = _compute_model_factors(model_trace, guide_trace)
    if log_factors:
        sizes: dict[str, int] = {}
        for terms in log_factors.values():
            for term in terms:
                sizes.update(zip(term._pyro_dims, term.shape, strict=False))
        with shared_intermediates() as cache:
            ring = SampleRing(cache=cache, dim_to_size=sizes)
            for place, terms in contract_tensor_tree(log_factors, sum_dims, ring=ring).items():
                costs.setdefault(place, []).extend(packed.scale_and_mask(term, scale=scale) for term in terms)
    for name, site in guide_trace.nodes.items():
        if site["type"] == "sample":
            costs.setdefault(ordering[name], []).append(packed.neg(site["packed"]["log_prob"]))
    return _expectation(Dice(guide_trace, ordering), costs)


def _expectation(dice: Dice, costs: Costs) -> Any:
    """As ``Dice.compute_expectation``; terms of probability 0 are left out by their place in the sum."""
    total: Any = 0.0
    with shared_intermediates() as cache:
        ring = MarginalRing(cache=cache)
        for place, terms in costs.items():
            found = dice._get_log_factors(place)
            weight = math.exp(sum(x for x in found if not isinstance(x, Tensor)))
            factors = [x for x in found if isinstance(x, Tensor)]
            if not factors:
                total = total + weight * sum(term.sum() for term in terms)
                continue
            probabilities = _probabilities(ring, factors, terms, place)
            for term in terms:
                cost, probability = packed.broadcast_all(term, probabilities[frozenset(term._pyro_dims)])
                # Where it cannot happen, a cost may be infinite.
                total = total + weight * (probability * torch.where(probability > 0, cost, 0.0)).sum()
    return total


def _probabilities(ring: Any, factors: list[Packed], terms: list[Packed], place: Any) -> dict[frozenset[str], Packed]:
    """The marginal probabilities of the values that each term depends on, by the adjoint of the contraction."""
    queries: dict[frozenset[str], Any] = {frozenset(term._pyro_dims): None for term in terms}
    for factor in factors:
        key = frozenset(factor._pyro_dims)
        if key in queries and queries[key] is None:
            queries[key] = factor
    factors = list(factors)
    for term in terms:
        key = frozenset(term._pyro_dims)
        if queries[key] is None:
            queries[key] = torch.zeros_like(term)
            queries[key]._pyro_dims = term._pyro_dims
            factors.append(queries[key])
    for query in queries.values():
        require_backward(query)
    dims: Any = set().union(*(x._pyro_dims for x in factors)) - place
    root = ring.sumproduct(factors, dims)
    root._pyro_backward()
    result = {}
    for key, query in queries.items():
        result[key] = query._pyro_backward_result.exp()
        result[key]._pyro_dims = query._pyro_dims
    return result


@contextlib.contextmanager
def _transformable_log() -> Iterator[None]:
    """Pyro's logarithm of sums, whose slope at 0 is bounded, is one that ``vmap`` cannot read; take this instead."""
    module: Any = pyro.ops.einsum.torch_log
    theirs, module.safe_log = module.safe_log, _safe_log
    try:
        yield
    finally:
        module.safe_log = theirs


def _safe_log(x: Tensor) -> Tensor:
    value = x.detach()
    return value.log() + (x - value) / value.clamp(min=torch.finfo(x.dtype).eps)
