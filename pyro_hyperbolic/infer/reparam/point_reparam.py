"""What the reparametrisers of a point share."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
from pyro.infer.reparam.reparam import Reparam
from torch import Tensor

from pyro_hyperbolic.private import mask_of


class PointReparam(Reparam):
    """Draws a point as a function of another site, ``"<name>_<suffix>"``.

    A subclass gives that site's distribution and the maps from its values to points and back.
    """

    suffix: str

    def site(self, name: str, fn: Any) -> Any:
        """The distribution of the other site; refuses a distribution that this is not for."""
        raise NotImplementedError

    def to_point(self, fn: Any, value: Tensor) -> Tensor:
        raise NotImplementedError

    def from_point(self, fn: Any, point: Tensor) -> Tensor:
        raise NotImplementedError

    def observed(self, msg: Any) -> Any:
        """What becomes of a site with an observation."""
        return msg

    def apply(self, msg: Any) -> Any:
        name, fn, point = msg["name"], msg["fn"], msg["value"]
        site = self.site(name, fn)
        if msg["is_observed"]:
            return self.observed(msg)
        # A value that is there already is an initial one. If Pyro made it up, the other site may have a better one.
        if not getattr(point, "_pyro_custom_init", True):
            point = None
        initial = None if point is None else self.from_point(fn, point)
        value = pyro.sample(f"{name}_{self.suffix}", wrapped_as(fn, site), obs=initial, infer={"is_observed": False})
        if point is None:
            point = self.to_point(fn, value)
        return {"fn": dist.Delta(point, event_dim=fn.event_dim).mask(False), "value": point, "is_observed": True}


def wrapped_as(fn: Any, inner: Any) -> Any:
    """``inner`` inside the ``to_event`` and ``mask`` that ``fn`` is inside of."""
    if isinstance(fn, dist.Independent):
        return wrapped_as(fn.base_dist, inner).to_event(fn.reinterpreted_batch_ndims)
    if isinstance(fn, dist.MaskedDistribution):
        return wrapped_as(fn.base_dist, inner).mask(mask_of(fn))
    return inner
