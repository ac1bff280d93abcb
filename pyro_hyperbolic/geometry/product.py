"""Products of spaces."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.ops.checks import check_sizes, checked_integer
from pyro_hyperbolic.ops.special import inverse_norm, safe_norm

Factor = tuple[Manifold, int]


class Product(Manifold):
    r"""The Riemannian product :math:`M_1 \times \cdots \times M_n`.

    A point is the concatenation of the coordinates of its factors, and so are its normal coordinates ``(..., d)`` and
    tangent vectors. Squared distances add up; exponential and logarithm map, transport and frames act factor by factor.
    A factor may be a product itself.

    :param factors: pairs of a space and its dimension; a product, which knows its dimension, may stand alone.

    >>> from pyro_hyperbolic import PoincareBall, Sphere
    >>> space = Product((PoincareBall(1.0), 2), (Sphere(1.0), 2))
    >>> space.dim, space.ambient_dim(4)
    (4, 5)
    >>> space.dist0(space.from_normal_coords(None, torch.tensor([3.0, 0.0, 0.0, 2.0])))
    tensor(3.6056)
    """

    def __init__(self, *factors: Factor | Product) -> None:
        if not factors:
            raise ValueError("Product needs at least one factor; pass for example Product((PoincareBall(1.0), 2)).")
        self.factors = tuple(_check_factor(factor) for factor in factors)
        self.sizes = tuple(space.ambient_dim(dim) for space, dim in self.factors)
        self.dims = tuple(dim for _, dim in self.factors)
        _ = self.batch_shape  # raises if those of the factors do not broadcast

    @property
    def dim(self) -> int:
        """The dimension, the sum of those of the factors."""
        return sum(self.dims)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape that those of all curvatures make."""
        shapes = [space.batch_shape for space, _ in self.factors]
        try:
            return torch.broadcast_shapes(*shapes)
        except RuntimeError as error:
            raise ValueError(
                f"Product: the shapes {[tuple(shape) for shape in shapes]} of the curvatures do not broadcast."
            ) from error

    @property
    def curvatures(self) -> tuple[float | Tensor, ...]:
        return tuple(c for space, _ in self.factors for c in space.curvatures)

    def with_curvatures(self, values: Sequence[float | Tensor]) -> Self:
        rest = list(values)
        factors = []
        for space, dim in self.factors:
            count = len(space.curvatures)
            factors.append((space.with_curvatures(rest[:count]), dim))
            rest = rest[count:]
        return self._of(factors)

    def _of(self, factors: Sequence[Factor]) -> Self:
        new = copy.copy(self)
        new.factors = tuple(factors)
        _ = new.batch_shape  # raises if those of the factors do not broadcast
        return new

    @property
    def signed_curvatures(self) -> tuple[bool, ...]:
        return tuple(signed for space, _ in self.factors for signed in space.signed_curvatures)

    def assume_valid(self) -> Self:
        return self._of([(space.assume_valid(), dim) for space, dim in self.factors])

    @property
    def kind(self) -> str:
        return " x ".join(space.kind for space, _ in self.factors)

    @property
    def geodesics_close(self) -> bool:
        return any(space.geodesics_close for space, _ in self.factors)

    def leaves(self, dim: int) -> list[Factor]:
        return [leaf for space, d in self.factors for leaf in space.leaves(d)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'({space!r}, {dim})' for space, dim in self.factors)})"

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self.factors == other.factors)

    def __hash__(self) -> int:
        return hash((type(self), self.factors))

    def intrinsic_dim(self, size: int) -> int:
        if size != sum(self.sizes):
            raise ValueError(
                f"points of {self!r} have {sum(self.sizes)} coordinates, {' + '.join(map(str, self.sizes))}, got"
                f" {size}."
            )
        return self.dim

    def ambient_dim(self, dim: int) -> int:
        if dim != self.dim:
            raise ValueError(f"{self!r} has dimension {self.dim}, {' + '.join(map(str, self.dims))}, got {dim}.")
        return sum(self.sizes)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The coordinates of points or tangent vectors ``(..., D)`` by factor."""
        check_sizes(x)
        self.intrinsic_dim(x.shape[-1])
        return x.split(self.sizes, -1)

    def split_coords(self, v: Tensor) -> tuple[Tensor, ...]:
        """Normal coordinates ``(..., d)`` by factor."""
        check_sizes(v)
        self.ambient_dim(v.shape[-1])
        return v.split(self.dims, -1)

    def origin(self, dim: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        self.ambient_dim(dim)
        return _cat([space.origin(d, dtype, device) for space, d in self.factors])

    def from_normal_coords(self, x: Tensor | None, v: Tensor) -> Tensor:
        rows = self._rows(None if x is None else self.split(x), self.split_coords(v))
        return _cat([space.from_normal_coords(p, u) for space, p, u in rows])

    def to_normal_coords(self, x: Tensor | None, y: Tensor) -> Tensor:
        rows = self._rows(None if x is None else self.split(x), self.split(y))
        return _cat([space.to_normal_coords(p, q) for space, p, q in rows])

    def frame(self, x: Tensor, v: Tensor) -> Tensor:
        return _cat([space.frame(p, u) for space, p, u in self._rows(self.split(x), self.split_coords(v))])

    def coframe(self, x: Tensor, u: Tensor) -> Tensor:
        rows = self._rows(self.split(x), self.split(u))
        return _cat([space.coframe(p, w) for space, p, w in rows])

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Geodesic distance; its derivative at ``x = y`` is taken as 0."""
        return _root_of_squares([space.dist(p, q) for space, p, q in self._rows(self.split(x), self.split(y))])

    def dist0(self, x: Tensor) -> Tensor:
        return _root_of_squares([space.dist0(p) for space, p in self._rows(self.split(x))])

    def pairwise_dist(self, x: Tensor, y: Tensor) -> Tensor:
        self._check_sets()
        rows = self._rows(self.split(x), self.split(y))
        return _root_of_squares([space.pairwise_dist(p, q) for space, p, q in rows])

    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        rows = self._rows(self.split(x), self.split(y), self.split(v))
        return _cat([space.transp(p, q, u) for space, p, q, u in rows])

    def dist2plane(self, x: Tensor, p: Tensor, a: Tensor, signed: bool = True) -> Tensor:
        r"""The sum of the signed distances to one plane in each factor, weighted by the shares of their normals.

        .. math:: \sum_i \frac{|a_i|}{|a|}\, d(x_i, H_{a_i, p_i}), \qquad |a|^2 = \sum_i |a_i|^2

        With flat factors that is the distance to the plane of the product. With curved ones the set where it is 0 is
        no geodesic plane (a product has few): it is the function that an affine layer of the product computes.
        """
        return self.dist2plane0(x, p, self.coframe(p, a), signed)

    def dist2plane0(self, x: Tensor, p: Tensor, v: Tensor, signed: bool = True) -> Tensor:
        parts = self.split_coords(v)
        inverse = inverse_norm(v).squeeze(-1)
        rows = self._rows(self.split(x), self.split(p), parts)
        terms = [safe_norm(u).squeeze(-1) * inverse * space.dist2plane0(y, q, u) for space, y, q, u in rows]
        out = _sum(terms)
        return out if signed else out.abs()

    def projx(self, x: Tensor) -> Tensor:
        return _cat([space.projx(p) for space, p in self._rows(self.split(x))])

    def contains(self, x: Tensor) -> Tensor:
        inside = torch.broadcast_tensors(*[space.contains(p) for space, p in self._rows(self.split(x))])
        return torch.stack(inside).all(0)

    def log_volume_element(self, x: Tensor) -> Tensor:
        return _sum([space.log_volume_element(p) for space, p in self._rows(self.split(x))])

    def log_det_exp(self, v: Tensor) -> Tensor:
        return _sum([space.log_det_exp(u) for space, u in self._rows(self.split_coords(v))])

    def hessian(self, v: Tensor, weights: Tensor) -> Tensor:
        blocks = [space.hessian(u, weights) for space, u in self._rows(self.split_coords(v))]
        return _block_diagonal(blocks)

    def conditioning(self, x: Tensor) -> Tensor:
        each = torch.broadcast_tensors(*[space.conditioning(p) for space, p in self._rows(self.split(x))])
        return torch.stack(each).amax(0)

    def base_point_variation(self, m: Tensor, v: Tensor, dm: Tensor) -> Tensor:
        rows = self._rows(self.split_coords(m), self.split_coords(v), self.split_coords(dm))
        return _cat([space.base_point_variation(*parts) for space, *parts in rows])

    def recentre(self, m: Tensor, v: Tensor) -> Tensor:
        return _cat(
            [space.recentre(*parts) for space, *parts in self._rows(self.split_coords(m), self.split_coords(v))]
        )

    def from_unconstrained(self, v: Tensor) -> Tensor:
        return _cat([space.from_unconstrained(u) for space, u in self._rows(self.split_coords(v))])

    def to_unconstrained(self, x: Tensor) -> Tensor:
        return _cat([space.to_unconstrained(p) for space, p in self._rows(self.split(x))])

    def log_det_unconstrained(self, v: Tensor) -> Tensor:
        return _sum([space.log_det_unconstrained(u) for space, u in self._rows(self.split_coords(v))])

    def num_features(self, dim: int) -> int:
        self.ambient_dim(dim)
        return sum(space.num_features(d) for space, d in self.factors)

    def features(self, x: Tensor) -> Tensor:
        parts = self.split(x)
        made = [space.features(p) for space, p in self._rows(parts)]
        return x if all(a is b for a, b in zip(made, parts, strict=True)) else _cat(made)

    def reach(self, dtype: torch.dtype) -> float | Tensor:
        """The smallest of those of the factors: mass beyond it may be lost in one of them."""
        reaches = [torch.as_tensor(space.reach(dtype), dtype=torch.float64) for space, _ in self.factors]
        least = reaches[0]
        for other in reaches[1:]:
            least = torch.minimum(least, other)
        return least if least.dim() > 0 else least.item()

    def _rows(self, *parts: tuple[Tensor, ...] | None) -> list[tuple]:
        """The spaces with their parts of the arguments."""
        columns = [(None,) * len(self.factors) if part is None else part for part in parts]
        return list(zip([space for space, _ in self.factors], *columns, strict=True))


def _check_factor(factor: Factor | Product) -> Factor:
    if isinstance(factor, Product):
        return factor, factor.dim
    if not isinstance(factor, tuple) or len(factor) != 2 or not isinstance(factor[0], Manifold):
        raise ValueError(
            f"a factor must be a pair of a space and its dimension, got {factor!r}; pass (Sphere(1.0), 2)."
        )
    space, dim = factor
    dim = checked_integer(f"the dimension of the factor {space!r}", dim, least=1)
    space.ambient_dim(dim)  # a product refuses a dimension that is not its own
    return space, dim


def _cat(parts: list[Tensor]) -> Tensor:
    batch = torch.broadcast_shapes(*[part.shape[:-1] for part in parts])
    return torch.cat([part.expand(batch + part.shape[-1:]) for part in parts], -1)


def _sum(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _root_of_squares(distances: list[Tensor]) -> Tensor:
    return safe_norm(torch.stack(torch.broadcast_tensors(*distances), -1)).squeeze(-1)


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    batch = torch.broadcast_shapes(*[block.shape[:-2] for block in blocks])
    size = sum(block.shape[-1] for block in blocks)
    rows, start = [], 0
    for block in blocks:
        left = block.new_zeros(batch + (block.shape[-1], start))
        right = block.new_zeros(batch + (block.shape[-1], size - start - block.shape[-1]))
        rows.append(torch.cat([left, block.expand(batch + block.shape[-2:]), right], -1))
        start += block.shape[-1]
    return torch.cat(rows, -2)
