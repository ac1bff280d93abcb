"""Reparametrisation of hyperbolic latents."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.reparam.reparam import Reparam

from pyro_hyperbolic.distributions import WrappedNormal
from pyro_hyperbolic.distributions.base import base_law


class WrappedNormalReparam(Reparam):
    r"""Draws a latent with a :class:`~pyro_hyperbolic.distributions.WrappedNormal` law as a function of white noise.

    .. math:: \epsilon \sim \mathcal{N}(0, I), \qquad z = \exp_\mu(L\epsilon/\lambda_\mu), \quad LL^T = \Sigma

    The site ``"<name>_base"`` is the noise, ``(..., d)``, and the site itself becomes a deterministic function of
    it. The law of the program is the same; what an algorithm sees of the site is a standard normal
    in place of a point whose place and spread depend on other latents. This is the non-centred form of a hierarchical
    model, which HMC and NUTS explore more easily where the data say little about a point (Papaspiliopoulos et al., *A
    general framework for the parametrization of hierarchical models*, 2007), as
    :class:`~pyro.infer.reparam.loc_scale.LocScaleReparam` with ``centered=0`` gives it for a law of Euclidean space.

    An observed site is left as it is. Use it as any reparametriser of Pyro; ``to_event``, ``mask``, ``expand`` and
    initial values are respected:

    >>> from pyro_hyperbolic import PoincareBall
    >>> ball = PoincareBall(1.0)
    >>> def model():
    ...     scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.2))
    ...     with pyro.plate("data", 3):
    ...         return pyro.sample("z", WrappedNormal(torch.zeros(2), scale.unsqueeze(-1), ball))
    >>> reparametrised = pyro.poutine.reparam(model, config={"z": WrappedNormalReparam()})
    >>> trace = pyro.poutine.trace(reparametrised).get_trace()
    >>> trace.stochastic_nodes, trace.nodes["z"]["value"].shape
    (['scale', 'data', 'z_base'], torch.Size([3, 2]))
    """

    def apply(self, msg: Any) -> Any:
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        law = base_law(fn)
        if not isinstance(law, WrappedNormal):
            raise ValueError(
                f"site {name!r} is drawn from {type(law).__name__}, but WrappedNormalReparam is for WrappedNormal; take"
                " it out of the config of poutine.reparam."
            )
        if msg["is_observed"]:
            return msg
        # A value that is there already is an initial one.
        noise = None if value is None else law.to_noise(value)
        noise = pyro.sample(f"{name}_base", _wrapped_as(fn, _white(law)), obs=noise, infer={"is_observed": False})
        if value is None:
            value = law.from_noise(noise)
        return {"fn": dist.Delta(value, event_dim=fn.event_dim).mask(False), "value": value, "is_observed": True}


def _white(law: WrappedNormal) -> Any:
    zero = torch.zeros(law.batch_shape + (law.dim,), dtype=law.loc.dtype, device=law.loc.device)
    return dist.Normal(zero, 1.0).to_event(1)


def _wrapped_as(fn: Any, law: Any) -> Any:
    """``law`` inside of the ``to_event`` and ``mask`` that ``fn`` is inside of."""
    if isinstance(fn, dist.Independent):
        return _wrapped_as(fn.base_dist, law).to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, dist.MaskedDistribution):
        return _wrapped_as(fn.base_dist, law).mask(fn._mask)
    return law
