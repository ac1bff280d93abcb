"""A manifold whose curvature is part of a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.geometry import Manifold


class ManifoldModule(nn.Module):
    r"""Keeps the curvature with a model: it moves with the device, is saved with the state, and can be learned.

    Calling the module gives the manifold with the present curvature.

    :param manifold: the manifold, with the curvature to start from.
    :param learnable: make the curvature a parameter, :math:`c = \operatorname{softplus}(\text{raw}) > 0`;
        its gradient flows through every operation of the manifold. Otherwise it is a buffer.

    >>> from pyro_hyperbolic import PoincareBall
    >>> module = ManifoldModule(PoincareBall(1.4), learnable=True)
    >>> module().dist0(torch.tensor([0.1, 0.2])).backward()
    >>> module.raw.grad is not None
    True
    """

    def __init__(self, manifold: Manifold, learnable: bool = False) -> None:
        super().__init__()
        if not isinstance(manifold, Manifold):
            raise ValueError(f"manifold must be a manifold, got {manifold!r}; pass for example PoincareBall(c=1.0).")
        self._chart = type(manifold)
        self.learnable = learnable
        c = torch.as_tensor(manifold.c).detach().clone()
        if not learnable:
            self.register_buffer("fixed", c)
            return
        if not bool((c > 0).all()):
            raise ValueError(f"a learnable curvature must start above 0, got c = {c.min().item()}; start from c = 1.0.")
        # The inverse of softplus, in the form that does not overflow.
        self.raw = nn.Parameter(c + torch.log(-torch.expm1(-c)))

    @property
    def c(self) -> Tensor:
        """The present curvature, a tensor of the shape of that to start from."""
        return F.softplus(self.raw) if self.learnable else self.get_buffer("fixed")

    def forward(self) -> Manifold:
        return self._chart.with_curvature(self.c)

    def extra_repr(self) -> str:
        return f"{self._chart.__name__}, learnable={self.learnable}"


def as_module(manifold: Manifold | ManifoldModule) -> ManifoldModule:
    """The module that keeps a manifold; one that is a module already stays shared."""
    return manifold if isinstance(manifold, ManifoldModule) else ManifoldModule(manifold)
