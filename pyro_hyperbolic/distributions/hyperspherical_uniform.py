"""The uniform distribution on the unit sphere."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from torch import Tensor

from pyro_hyperbolic.distributions.constraints import on
from pyro_hyperbolic.geometry import Sphere
from pyro_hyperbolic.ops.checks import checked_integer
from pyro_hyperbolic.ops.special import safe_norm


class HypersphericalUniform(TorchDistribution):
    r"""The uniform distribution on :math:`S^{d-1} \subset \mathbb{R}^d`, with density :math:`\Gamma(d/2) / 2\pi^{d/2}`.

    :param dim: number of coordinates ``d >= 1``; with one coordinate the sphere is the two points -1 and 1.

    Shapes: batch shape ``()``, event shape ``(d,)``.

    >>> HypersphericalUniform(3).sample((2,)).norm(dim=-1)
    tensor([1., 1.])
    """

    arg_constraints: dict[str, Any] = {}
    has_rsample = True

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        validate_args: bool | None = None,
    ) -> None:
        dim = checked_integer("HypersphericalUniform: dim", dim, least=1)
        if dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"HypersphericalUniform: dtype must be float32 or float64, got {dtype}.")
        self.dim, self.dtype, self.device = dim, dtype, device
        super().__init__(torch.Size(), torch.Size((dim,)), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> HypersphericalUniform:
        new = self._get_checked_instance(HypersphericalUniform, _instance)
        _check_expansion(self.batch_shape, torch.Size(batch_shape))
        new.dim, new.dtype, new.device = self.dim, self.dtype, self.device
        super(HypersphericalUniform, new).__init__(torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @constraints.dependent_property(event_dim=1, is_discrete=False)
    def support(self) -> Any:
        """The sphere as a manifold; of one coordinate, which has no dimension, as Pyro has it."""
        return constraints.sphere if self.dim == 1 else on(Sphere(1.0))

    @property
    def log_area(self) -> float:
        """Logarithm of the area of the sphere."""
        return math.log(2) + self.dim / 2 * math.log(math.pi) - math.lgamma(self.dim / 2)

    @property
    def mean(self) -> Tensor:
        """The mean in the ambient space, which is 0. On the sphere every point is a Fréchet mean."""
        shape = self.batch_shape + self.event_shape
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate in the ambient space, 1/d."""
        return torch.full_like(self.mean, 1 / self.dim)

    def entropy(self) -> Tensor:
        """The logarithm of the area."""
        return torch.full(self.batch_shape, self.log_area, dtype=self.dtype, device=self.device)

    @classmethod
    def infer_shapes(cls, **arg_shapes: Any) -> tuple[torch.Size, torch.Size]:
        raise NotImplementedError(
            "HypersphericalUniform: the event shape is dim, which cannot be told from the shapes of the arguments."
        )

    def __repr__(self) -> str:
        return f"HypersphericalUniform(dim: {self.dim}, batch_shape: {tuple(self.batch_shape)})"

    def rsample(self, sample_shape: torch.Size | list[int] | tuple[int, ...] = torch.Size()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        x = torch.randn(shape, dtype=self.dtype, device=self.device)
        length = safe_norm(x)
        # A float32 draw can be exactly 0 in one dimension.
        return torch.where(length == 0, 1.0, x) / torch.where(length == 0, math.sqrt(self.dim), length)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args and not value.is_meta:  # which has no values to be validated
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        density = value.new_full(shape, -self.log_area)
        # Without validation as of the other distributions.
        density = density.masked_fill(value.isinf().any(-1), -torch.inf)
        return density.masked_fill(value.isnan().any(-1), torch.nan)


def _check_expansion(old: torch.Size, new: torch.Size) -> None:
    # What torch says of the parameters of other distributions: sizes of 1 grow, others stay.
    try:
        torch.empty(old, device="meta").expand(new)
    except RuntimeError as error:
        raise ValueError(
            f"HypersphericalUniform: batch shape {tuple(old)} does not expand to {tuple(new)}; only sizes of 1 do."
        ) from error
