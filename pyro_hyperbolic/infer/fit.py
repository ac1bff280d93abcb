"""How well a guide fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.importance import vectorized_importance_weights

from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.pareto import FEWEST_WEIGHTS, pareto_smoothed


@torch.no_grad()
def pareto_k(
    model: Callable[..., Any], guide: Callable[..., Any], *args: Any, num_samples: int = 1000, **kwargs: Any
) -> float:
    r"""Pareto's k of a guide: the shape of the tail of its weights :math:`p(x, z)/q(z)`.

    A guide with ``k`` below 0.5 fits well, and one below 0.7 will do for averages by importance weights (Yao et al.,
    *Yes, but did it work? Evaluating variational inference*, 2018); above, do not rely on it. See
    :func:`~pyro_hyperbolic.ops.pareto.pareto_smoothed`. A guide that misses a piece of the posterior altogether draws
    nothing there and may still have a small ``k``.

    :param model: the model.
    :param guide: the guide, of all its latents.
    :param args: arguments of both, like ``kwargs``.
    :param num_samples: how many draws.

    >>> import pyro, pyro.distributions as dist
    >>> _ = pyro.set_rng_seed(0)
    >>> model = lambda: pyro.sample("z", dist.Normal(0.0, 1.0))
    >>> pareto_k(model, lambda: pyro.sample("z", dist.Normal(0.0, 1.2))) < 0.5
    True
    >>> pareto_k(model, lambda: pyro.sample("z", dist.Normal(0.0, 0.3))) > 0.7
    True
    """
    num_samples = checked_integer("num_samples", num_samples, least=FEWEST_WEIGHTS)
    with poutine.block():
        trace = poutine.trace(model).get_trace(*args, **kwargs)
    dims = [
        frame.dim for site in trace.nodes.values() for frame in site.get("cond_indep_stack", ()) if frame.vectorized
    ]
    weights, _, _ = vectorized_importance_weights(
        model,
        guide,
        *args,
        num_samples=num_samples,
        max_plate_nesting=max([-dim for dim in dims], default=0),
        normalized=False,
        **kwargs,
    )
    return pareto_smoothed(weights)[1].item()
