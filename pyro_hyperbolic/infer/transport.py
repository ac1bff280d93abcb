"""A program whose latents are functions of one vector."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions.constraints import Constraint

# From the name and the present support of a latent to its value and the logarithm of the determinant.
Carry = Callable[[str, Constraint], tuple[Tensor, Tensor]]


class Transport(Messenger):
    """Gives latents the values of functions of one vector; they keep their density and become deterministic.

    :param names: of the latents; each must be one of the program.
    :param carry: the functions.
    :param batch_shape: of the vector.

    :ivar log_det: the logarithm of the determinant of all functions, of shape ``batch_shape``.
    """

    def __init__(self, names: Collection[str], carry: Carry, batch_shape: torch.Size) -> None:
        super().__init__()
        self._missing, self._carry, self._batch_shape = dict.fromkeys(names), carry, batch_shape
        self.log_det: Any = 0.0

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
        done = super().__exit__(exc_type, exc_value, traceback)
        if exc_type is None and self._missing:
            raise ValueError(
                f"the guide has a latent {next(iter(self._missing))!r}, but the model has none in this run; pass the"
                " model that the guide was made for."
            )
        return done

    def _pyro_sample(self, msg: Any) -> None:
        name, fn = msg["name"], msg["fn"]
        if name not in self._missing:
            return
        if msg["is_observed"]:
            raise ValueError(
                f"site {name!r} is a latent of the guide, but is observed in the model; condition the model first and"
                " make a guide for that."
            )
        del self._missing[name]
        value, log_det = self._carry(name, fn.support)
        # Elements of plates are together in the vector, but not the particles on their left.
        self.log_det = self.log_det + log_det.sum_to_size(self._batch_shape)
        density = 0.0 if poutine.get_mask() is False else fn.log_prob(value)
        msg["fn"], msg["value"] = dist.Delta(value, log_density=density, event_dim=fn.event_dim), value
        msg["is_observed"] = True
