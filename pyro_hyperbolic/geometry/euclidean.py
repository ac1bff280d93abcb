"""Euclidean space as an object."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer
from pyro_hyperbolic.ops.pairs import pairwise_norm
from pyro_hyperbolic.ops.special import dot, safe_norm, unit


class Euclidean(ConstantCurvature):
    r"""The flat space :math:`\mathbb{R}^d` with the metric :math:`dx^2`.

    Normal coordinates at ``x`` are differences to ``x``. The metric is not that of ``PoincareBall(0)``, which is
    :math:`4\,dx^2`.

    >>> flat = Euclidean()
    >>> flat.dist(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0]))
    tensor(5.)
    """

    def __init__(self) -> None:
        super().__init__(0.0)

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        return ()

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        () = values
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def intrinsic_dim(self, size: int) -> int:
        return size

    def ambient_dim(self, dim: int) -> int:
        return dim

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        return torch.zeros(checked_integer("dim", dim, least=1), dtype=dtype, device=device)

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        check_sizes(v, x)
        # A view, since a sample is recognised as the object that it is.
        return v.view_as(v) if x is None else x + v

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        check_sizes(y, x)
        return y if x is None else y - x

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        check_sizes(x, v)
        return v.expand(torch.broadcast_shapes(x.shape, v.shape))

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        return self.frame(x, u)

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Euclidean distance; its derivative at ``x = y`` is taken as 0."""
        check_sizes(x, y)
        return safe_norm(x - y).squeeze(-1)

    def dist0(self, x: Tensor) -> Tensor:
        check_sizes(x)
        return safe_norm(x).squeeze(-1)

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        check_sizes(x, y)
        return pairwise_norm(x, y)

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        check_sizes(x, y, v)
        return v.expand(torch.broadcast_shapes(x.shape, y.shape, v.shape))

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r""":math:`\langle x - p, a\rangle/|a|`; 0 for ``a = 0``."""
        check_sizes(x, p, a)
        normal = unit(a)
        out = dot(x, normal) - dot(p, normal)
        return out if signed else out.abs()

    def projx(self, x: Tensor) -> Tensor:
        return x

    def contains(self, x: Tensor) -> Tensor:
        """Which points are finite."""
        return x.isfinite().all(-1)

    def log_volume_element(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[..., 0])

    def log_det_exp(self, v: Tensor) -> Tensor:
        return torch.zeros_like(v[..., 0])

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        return weights.sum(-2, keepdim=True) * torch.eye(v.shape[-1], dtype=v.dtype, device=v.device)

    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        check_sizes(m, v, dm)
        return dm.expand(torch.broadcast_shapes(dm.shape, v.shape))

    def recentre(self, m: Tensor, v: Tensor) -> Tensor:
        check_sizes(m, v)
        return v - m

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        return torch.finfo(dtype).max
