"""Base class of the distributions of a radius."""

from __future__ import annotations

from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor
from torch.distributions.utils import broadcast_all
from typing_extensions import Self

from pyro_hyperbolic.ops.checks import check_precision, checked_integer
from pyro_hyperbolic.ops.tables import SCORE_MAX


class Radius(TorchDistribution):
    r"""Distance from a Riemannian normal variable to its mean, in a space of constant curvature.

    A subclass gives :math:`\log Z_r` (``_log_integral``), the quantile at a normal score (``_quantile``), density,
    distribution function and moments.

    :param dim: dimension ``d >= 1`` of the space.
    :param scale: :math:`\sigma > 0`.
    :param c: the absolute value of the curvature.

    Shapes: batch shape as ``scale`` and ``c`` broadcast, event shape ``()``.
    """

    has_rsample = True

    def __init__(
        self,
        dim: int,
        scale: Tensor | float,
        c: Tensor | float = 1.0,
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        self.dim = checked_integer(f"{name}: dim", dim, least=1)
        scale, c = (_as_floating(f"{name}: {argument}", value) for argument, value in (("scale", scale), ("c", c)))
        try:
            self.scale, self.c = broadcast_all(scale, c)
        except RuntimeError as error:
            raise ValueError(
                f"{name}: the shapes {tuple(torch.as_tensor(scale).shape)} of scale and"
                f" {tuple(torch.as_tensor(c).shape)} of c do not broadcast."
            ) from error
        # torch's validation reads values, which tensors on the meta device do not have.
        super().__init__(self.scale.shape, validate_args=False if self.scale.is_meta else validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        new = self._get_checked_instance(type(self), _instance)
        batch_shape = torch.Size(batch_shape)
        new.dim = self.dim
        new.scale = self.scale.expand(batch_shape)
        new.c = self.c.expand(batch_shape)
        super(Radius, new).__init__(batch_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"(dim: {self.dim}, ", 1)

    def _wide(self) -> Self:
        """This distribution in float64."""
        return type(self)(self.dim, self.scale.double(), self.c.double(), validate_args=False)

    @property
    def log_normalizer(self) -> Tensor:
        r""":math:`\log Z_r`."""
        return self._log_integral(0.0)

    def _log_integral(self, log_factor: float) -> Tensor:
        r""":math:`\log Z_r` and the logarithm of a constant factor, in one sum: in high dimensions the two cancel."""
        raise NotImplementedError

    def _quantile(self, z: Tensor) -> Tensor:
        """The radius at a normal score, which broadcasts with the batch shape."""
        raise NotImplementedError

    def _score_of(self, probability: Tensor) -> tuple[Tensor, Tensor]:
        """The normal score of a probability, and the nearest one that the tables have."""
        if self._validate_args and not bool(((probability >= 0) & (probability <= 1)).all()):
            raise ValueError(f"{type(self).__name__}: icdf takes probabilities in [0, 1].")
        z = torch.special.ndtri(probability)
        return z, z.clamp(-SCORE_MAX, SCORE_MAX)

    def rsample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size()) -> Tensor:
        # The normal score of a uniform is a normal variable, exact in both tails.
        shape = self._extended_shape(sample_shape)
        return self._quantile(torch.randn(shape, dtype=self.scale.dtype, device=self.scale.device))


def _as_floating(name: str, value: Tensor | float) -> Tensor | float:
    """Integers as numbers of the default dtype; half precision and complex numbers are refused."""
    if not isinstance(value, Tensor):
        return value
    if not value.is_floating_point() and not value.is_complex():
        return value.to(torch.get_default_dtype())
    check_precision(value, name)
    return value
