"""A module that holds the curvature of a manifold."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.geometry import Manifold, from_signature, signature_dim


class ManifoldModule(nn.Module):
    r"""Keeps the curvatures with a model: they move with the device, are saved with the state, and can be learned.

    Calling the module gives the manifold with its current curvatures.

    If the data are flat, a learned sphere grows: its densities tend to the Gaussian ones and its gradient to 0, until
    the square of its radius overflows (c = 1e-38 in float32), which is an error. If your data may need the other sign,
    use ``Stereographic``.

    :param manifold: the manifold, with the curvatures to start from; or a signature such as ``"h2,s2,e2"``
        (:func:`~pyro_hyperbolic.geometry.from_signature`).
    :param learnable: make each curvature a parameter, with gradients through every operation of the manifold. The
        curvature is then :math:`c = \operatorname{softplus}(\text{raw}) > 0`, or ``k`` itself for
        :class:`~pyro_hyperbolic.Stereographic`, which may change its sign. Otherwise each curvature is a buffer. The
        names are ``raw`` and ``fixed``; with several curvatures ``raw_0``, ``raw_1`` and so on.

    >>> from pyro_hyperbolic import PoincareBall
    >>> module = ManifoldModule(PoincareBall(1.4), learnable=True)
    >>> module().dist0(torch.tensor([0.1, 0.2])).backward()
    >>> module.raw.grad is not None
    True
    """

    def __init__(self, manifold: Manifold | str, learnable: bool = False) -> None:
        super().__init__()
        self._signature = manifold if isinstance(manifold, str) else None
        if isinstance(manifold, str):
            manifold = from_signature(manifold)
        if not isinstance(manifold, Manifold):
            raise ValueError(f"manifold must be a manifold, got {manifold!r}; pass for example PoincareBall(c=1.0).")
        self.learnable = learnable
        starts = [torch.as_tensor(c).detach().clone() for c in manifold.curvatures]
        self._template = manifold.with_curvatures([1.0] * len(starts)).assume_valid()  # what comes from here is valid
        self._is_signed = manifold.signed_curvatures
        for name, start, signed in zip(self._names(), starts, self._is_signed, strict=True):
            self._keep(name, start, signed)

    def _keep(self, name: str, c: Tensor, signed: bool) -> None:
        if not self.learnable:
            self.register_buffer(name, c)
            return
        if signed:
            self.register_parameter(name, nn.Parameter(c))
            return
        if not bool((c > 0).all()):
            raise ValueError(f"a learnable curvature must start above 0, got c = {c.min().item()}; start from c = 1.0.")
        # The inverse of softplus, in the form that does not overflow.
        self.register_parameter(name, nn.Parameter(c + torch.log(-torch.expm1(-c))))

    def _names(self) -> list[str]:
        name = "raw" if self.learnable else "fixed"
        count = len(self._is_signed)
        return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]

    @property
    def curvatures(self) -> list[Tensor]:
        """The current curvatures, as in :attr:`Manifold.curvatures <pyro_hyperbolic.geometry.Manifold>`."""
        values = [getattr(self, name) for name in self._names()]
        if not self.learnable:
            return values
        return [value if signed else F.softplus(value) for value, signed in zip(values, self._is_signed, strict=True)]

    @property
    def c(self) -> Tensor:
        """The current curvature of a manifold that has one, with the shape of the initial one."""
        (c,) = self.curvatures
        return c

    def forward(self) -> Manifold:
        return self._template.with_curvatures(self.curvatures)

    def check_dim(self, name: str, dim: int) -> None:
        """Refuse the value ``dim`` of an argument ``name`` if the space is of another dimension, as far as it has one.

        A signature and a product do. A chart such as ``PoincareBall`` has points of every dimension.
        """
        if self._signature is not None and signature_dim(self._signature) != dim:
            raise ValueError(
                f"{name} must be the dimension {signature_dim(self._signature)} of {self._signature!r}, got {dim}."
            )
        self._template.ambient_dim(dim)  # a product refuses a dimension that is not its own

    def extra_repr(self) -> str:
        return f"{self._template.kind}, learnable={self.learnable}"


def as_module(manifold: Manifold | ManifoldModule | str) -> ManifoldModule:
    """Wrap a manifold in a module. A manifold that is a module already is shared."""
    return manifold if isinstance(manifold, ManifoldModule) else ManifoldModule(manifold)
