"""Pyro's bound with enumerated sites as a tensor: no host synchronisation, no branch on data.

The factors and the way they are contracted are Pyro's. What is done anew is the expectation over the sites that the
guide enumerates, in which Pyro selects the terms of positive probability by their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from opt_einsum import shared_intermediates
from pyro.infer.util import Dice
from pyro.ops import packed
from pyro.ops.contract import contract_tensor_tree
from pyro.ops.einsum import contract
from pyro.ops.rings import LogRing

from pyro_hyperbolic.accelerate.bounds import log_einsum
from pyro_hyperbolic.accelerate.private import model_factors, names_of_dims, with_names_of_dims

# Tensors that carry the names of their dimensions.
Packed = Any
Costs = dict[Any, list[Packed]]


def enumerated_elbo(model_trace: Any, guide_trace: Any) -> Any:
    """What ``TraceEnum_ELBO`` makes of a pair of packed traces, with its first derivatives."""
    costs, log_factors, ordering, sum_dims, scale = model_factors(model_trace, guide_trace)
    if log_factors:
        sizes: dict[str, int] = {}
        for terms in log_factors.values():
            for term in terms:
                sizes.update(zip(names_of_dims(term), term.shape, strict=False))
        with shared_intermediates() as cache:
            ring = _Ring(cache=cache, dim_to_size=sizes)
            for place, terms in contract_tensor_tree(log_factors, sum_dims, ring=ring).items():
                costs.setdefault(place, []).extend(packed.scale_and_mask(term, scale=scale) for term in terms)
    for name, site in guide_trace.nodes.items():
        if site["type"] == "sample":
            costs.setdefault(ordering[name], []).append(packed.neg(site["packed"]["log_prob"]))
    return _expectation(Dice(guide_trace, ordering), costs)


class _Ring(LogRing):
    """Pyro's logarithms, contracted in a way that function transforms can read."""

    def sumproduct(self, terms: list[Packed], dims: Iterable[str]) -> Packed:
        inputs = [names_of_dims(term) for term in terms]
        output = "".join(sorted(set("".join(inputs)) - set(dims)))
        result = contract(",".join(inputs) + "->" + output, *terms, backend=log_einsum.__name__)
        return with_names_of_dims(result, output)


def _expectation(dice: Dice, costs: Costs) -> Any:
    """As ``Dice.compute_expectation``; terms of probability 0 are left out by their place in the sum."""
    total: Any = 0.0
    with shared_intermediates() as cache:
        ring = _Ring(cache=cache)
        for place, terms in costs.items():
            # Sites that are enumerated one value at a time, and not upstream, count this place once for every value.
            weight = math.exp(-sum(count for other, count in dice.log_denom.items() if not other <= place))
            factors = [factor for other, found in dice.log_probs.items() if other <= place for factor in found]
            for term in terms:
                if factors:
                    term, probability = packed.broadcast_all(term, _probability(ring, factors, term))
                    # Where it cannot happen, a cost may be infinite.
                    term = probability * torch.where(probability > 0, term, 0.0)
                total = total + weight * term.sum()
    return total


def _probability(ring: _Ring, factors: list[Packed], term: Packed) -> Packed:
    """The marginal probabilities of the values that a term depends on."""
    names = names_of_dims(term)
    # In logarithms; with the sizes of dimensions that no factor has.
    ones = with_names_of_dims(torch.zeros_like(term), names)
    dims = set("".join(names_of_dims(factor) for factor in factors)) - set(names)
    result = ring.sumproduct([*factors, ones], dims)
    return with_names_of_dims(result.exp(), names_of_dims(result))
