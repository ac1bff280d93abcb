"""Layers that take or return points of a manifold."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_hyperbolic.geometry import Euclidean, Manifold, Product
from pyro_hyperbolic.nn.manifold import ManifoldModule, as_module
from pyro_hyperbolic.ops.checks import at_least_float32, check_sizes, checked_integer
from pyro_hyperbolic.ops.special import safe_norm, unit

_OFFSETS = ("free", "along")
GAIN, SPREAD = 2.0, 1.0
"""The initial values of gyroplanes; see :meth:`GyroplaneLinear.reset_parameters`."""


class GyroplaneLinear(nn.Module):
    r"""Signed, scaled distances to gyroplanes: the affine layer of hyperbolic space (the paper's Section 3.2).

    .. math:: f_k(z) = \operatorname{sign}(\langle a_k, \log_{p_k} z\rangle_{p_k})\, |a_k|_{p_k}\, d(z, H_{a_k, p_k})

    The normal :math:`a_k` is stored at the origin and carried to :math:`p_k` by parallel transport, so
    :math:`|a_k|_{p_k} = 2|a_k^0|` for every offset. The offset is stored as a Euclidean vector,
    :math:`p_k = \exp_0(p_k')`. At ``c = 0`` the layer is exactly :math:`z \mapsto 4\langle a_k^0, z - p_k'\rangle`.
    In float32 the whole layer is one matrix product of ``d + 1`` columns, in either chart; see
    :mod:`pyro_hyperbolic.geometry.planes`.

    The layer computes in the dtype of ``z``, but never in less than float32, and returns the dtype of its parameters.
    So latents may be float64 in a float32 network, and neither autocast nor TF32 changes the result.

    :meth:`reset_parameters` describes the initial values.

    :param in_features: dimension ``d`` of the space.
    :param out_features: number of gyroplanes.
    :param manifold: a manifold, or the :class:`ManifoldModule` that a model shares between its parts.
    :param offset: ``"free"``, or ``"along"`` for offsets along the normals (one number per plane).

    >>> from pyro_hyperbolic import PoincareBall
    >>> layer = GyroplaneLinear(2, 5, PoincareBall(1.0))
    >>> layer(torch.zeros(7, 2)).shape
    torch.Size([7, 5])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        manifold: Manifold | ManifoldModule | str,
        offset: str = "free",
    ) -> None:
        super().__init__()
        if offset not in _OFFSETS:
            raise ValueError(f"offset must be one of {_OFFSETS}, got {offset!r}.")
        self.in_features = checked_integer("in_features", in_features, least=1)
        self.out_features = checked_integer("out_features", out_features, least=1)
        self._is_along = offset == "along"
        self.manifold = as_module(manifold)
        self.manifold.check_dim("in_features", in_features)
        self.normal = nn.Parameter(torch.empty(out_features, in_features))
        self.offset = nn.Parameter(torch.empty(out_features, 1 if self._is_along else in_features))
        self.reset_parameters()

    def reset_parameters(self, gain: float = GAIN, spread: float = SPREAD) -> None:
        r"""Draw initial values.

        :math:`2a^0` is uniform in :math:`\pm g/\sqrt d` for a gain ``g``. ``nn.Linear`` would use ``g = 1`` for normal
        coordinates :math:`v = 2z`, but distances to a plane grow like logarithms of the coordinates and need more. The
        distances of the planes from the origin are uniform in :math:`\pm s\sqrt{3/d}` for a spread ``s``.

        No other values that we tried are better by more than the noise on held-out training images of MNIST; see
        ``python -m experiments choices``.

        :param gain: gain of the normals.
        :param spread: spread of the offsets.
        """
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            self.normal.uniform_(-gain * bound / 2, gain * bound / 2)
            reach = spread * math.sqrt(3) * bound
            distance = torch.empty(self.out_features, 1).uniform_(-reach, reach)
            self.offset.copy_(distance / 2)
            if not self._is_along:
                self.offset.mul_(nn.functional.normalize(self.normal, dim=-1))

    def planes(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The points ``p`` of the gyroplanes and the normals ``a`` at them, ``(out_features, D)`` each.

        A batch of curvatures gives as many sets of planes, ``(..., out_features, D)``.
        """
        manifold, p, normal = self._planes(dtype)
        return p, manifold.frame(p, 2 * normal)

    def _planes(self, dtype: torch.dtype | None) -> tuple[Manifold, Tensor, Tensor]:
        """The manifold of all pairs, the points ``p``, and the normals at the origin."""
        normal, offset = self.normal.to(dtype), self.offset.to(dtype)
        if self._is_along:
            offset = offset * unit(normal)
        manifold = self.manifold().unsqueeze()
        return manifold, manifold.from_normal_coords(None, 2 * offset), normal

    def forward(self, z: Tensor) -> Tensor:
        z = at_least_float32(z)
        manifold, p, normal = self._planes(z.dtype)
        distance = manifold.dist2plane0(x=z.unsqueeze(-2), p=p, v=normal)
        return (2 * safe_norm(normal).squeeze(-1) * distance).to(self.normal.dtype)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class MobiusLinear(nn.Module):
    r"""Möbius affine map :math:`x \mapsto \exp_0(W \log_0 x) \oplus \exp_0(b)` from one ball to another.

    Ganea et al., *Hyperbolic neural networks* (2018). ``W`` is initialised as in ``nn.Linear``, and ``b`` starts at 0.
    Under autocast the product with ``W`` is in half precision, as in any linear layer, and the points are float32.

    :param in_features: dimension of the input points.
    :param out_features: dimension of the output points.
    :param manifold: a manifold or a :class:`ManifoldModule`.
    """

    def __init__(self, in_features: int, out_features: int, manifold: Manifold | ManifoldModule | str) -> None:
        super().__init__()
        self.in_features = checked_integer("in_features", in_features, least=1)
        self.out_features = checked_integer("out_features", out_features, least=1)
        self.manifold = as_module(manifold)
        if isinstance(self.manifold(), Product):
            raise ValueError(
                "MobiusLinear maps between spaces of one kind, and a product has its dimensions; use GyroplaneLinear or"
                " Log0 on a product."
            )
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        bound = 1 / math.sqrt(in_features)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        manifold, x = self.manifold(), at_least_float32(x)
        coords = manifold.to_normal_coords(None, x)
        check_sizes(self.weight, coords)
        v = at_least_float32(coords @ self.weight.to(x.dtype).mT)
        # x (+) exp_0(b) is the point with normal coordinates 2b at x, in every chart.
        return manifold.from_normal_coords(manifold.from_normal_coords(None, v), 2 * self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


class Exp0(nn.Module):
    """The function :func:`exp0` as a layer, from Euclidean vectors to points."""

    def __init__(self, manifold: Manifold | ManifoldModule | str) -> None:
        super().__init__()
        self.manifold = as_module(manifold)

    def forward(self, v: Tensor) -> Tensor:
        return exp0(self.manifold(), at_least_float32(v))


class Log0(nn.Module):
    """The function :func:`log0` as a layer, from points to Euclidean vectors."""

    def __init__(self, manifold: Manifold | ManifoldModule | str) -> None:
        super().__init__()
        self.manifold = as_module(manifold)

    def forward(self, x: Tensor) -> Tensor:
        return log0(self.manifold(), at_least_float32(x))


def exp0(manifold: Manifold, v: Tensor) -> Tensor:
    r"""The paper's :math:`\exp_0`: the point at distance :math:`2|v|` from the origin, :math:`|v|` in flat factors.

    So encoders and layers are those of the paper, whose metric at the origin of the ball is :math:`4\,dz^2`, in every
    chart.
    """
    return manifold.from_normal_coords(None, _times_two(manifold, v, 1))


def log0(manifold: Manifold, x: Tensor) -> Tensor:
    """The inverse of :func:`exp0`."""
    return _times_two(manifold, manifold.to_normal_coords(None, x), -1)


def _times_two(manifold: Manifold, v: Tensor, power: int) -> Tensor:
    """Multiply by 2 to this power in factors that are not Euclidean, whose metric at the origin is :math:`dz^2`."""
    leaves = manifold.leaves(v.shape[-1])
    parts = zip(leaves, v.split([dim for _, dim in leaves], -1), strict=True)
    scaled = [u if isinstance(leaf, Euclidean) else 2.0**power * u for (leaf, _), u in parts]
    return scaled[0] if len(scaled) == 1 else torch.cat(scaled, -1)
