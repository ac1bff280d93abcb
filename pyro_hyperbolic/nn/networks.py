"""Encoders and decoders of the auto-encoders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.geometry import Lorentz
from pyro_hyperbolic.nn.linear import GyroplaneLinear, Log0, MobiusLinear
from pyro_hyperbolic.nn.manifold import ManifoldModule


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Encoder(nn.Module):
    """Data to the parameters of a posterior: a Euclidean location and a positive scale.

    :param data_shape: event shape of a datum.
    :param hidden_dim: width of the hidden layer.
    :param latent_dim: size of the location.
    :param scale_dim: size of the scale: 1 (isotropic) or ``latent_dim`` (diagonal).
    """

    def __init__(self, data_shape: tuple[int, ...], hidden_dim: int, latent_dim: int, scale_dim: int) -> None:
        super().__init__()
        self.data_shape = data_shape
        self.trunk = nn.Sequential(nn.Linear(math.prod(data_shape), hidden_dim), nn.ReLU())
        self.loc = nn.Linear(hidden_dim, latent_dim)
        self.scale = nn.Linear(hidden_dim, scale_dim)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x.flatten(x.dim() - len(self.data_shape)))
        return self.loc(hidden), F.softplus(self.scale(hidden))


class Decoder(nn.Module):
    """Latent points to data: a first layer that knows the geometry, then an ordinary network.

    The first layer computes in the dtype of the latents, the network in that of its parameters.
    """

    def __init__(self, embed: nn.Module, network: nn.Sequential, data_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.embed = embed
        self.network = network
        self.data_shape = data_shape

    @property
    def output(self) -> nn.Linear:
        """The last layer."""
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        return last

    def forward(self, z: Tensor) -> Tensor:
        flat = self.network(self.embed(z).to(self.output.weight.dtype))
        return flat.unflatten(-1, self.data_shape)


def _gyroplane(manifold: ManifoldModule, latent_dim: int, hidden_dim: int, out: int) -> tuple[nn.Module, nn.Sequential]:
    head = nn.Sequential(nn.ReLU(), nn.Linear(hidden_dim, out))
    return GyroplaneLinear(latent_dim, hidden_dim, manifold), head


def _mobius(manifold: ManifoldModule, latent_dim: int, hidden_dim: int, out: int) -> tuple[nn.Module, nn.Sequential]:
    embed = nn.Sequential(MobiusLinear(latent_dim, hidden_dim, manifold), Log0(manifold))
    return embed, nn.Sequential(nn.ReLU(), nn.Linear(hidden_dim, out))


def _logmap(manifold: ManifoldModule, latent_dim: int, hidden_dim: int, out: int) -> tuple[nn.Module, nn.Sequential]:
    return Log0(manifold), mlp(latent_dim, hidden_dim, out)


def _mlp(manifold: ManifoldModule, latent_dim: int, hidden_dim: int, out: int) -> tuple[nn.Module, nn.Sequential]:
    leaves = manifold().leaves(latent_dim)
    has_hyperboloid = any(isinstance(leaf, Lorentz) for leaf, _ in leaves)
    size = sum(dim if isinstance(leaf, Lorentz) else leaf.ambient_dim(dim) for leaf, dim in leaves)
    embed = BallCoordinates(manifold, latent_dim) if has_hyperboloid else nn.Identity()
    return embed, mlp(size, hidden_dim, out)


class BallCoordinates(nn.Module):
    """Points of hyperboloids as points of the ball, bounded as the inputs of a network should be; others as they are.

    :param manifold: the manifold.
    :param dim: its dimension.
    """

    def __init__(self, manifold: ManifoldModule, dim: int) -> None:
        super().__init__()
        self.manifold = manifold
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        leaves = self.manifold().leaves(self.dim)
        parts = x.split([leaf.ambient_dim(dim) for leaf, dim in leaves], -1)
        points = zip(leaves, parts, strict=True)
        return torch.cat([leaf.to_poincare(p) if isinstance(leaf, Lorentz) else p for (leaf, _), p in points], -1)


DECODERS: dict[str, Callable[[ManifoldModule, int, int, int], tuple[nn.Module, nn.Sequential]]] = {
    "gyroplane": _gyroplane,
    "logmap": _logmap,
    "mlp": _mlp,
    "mobius": _mobius,
}
"""First layers of a decoder on a manifold, by name."""


def build_decoder(
    name: str, manifold: ManifoldModule, latent_dim: int, hidden_dim: int, data_shape: tuple[int, ...]
) -> Decoder:
    """The decoder of that name; see ``DECODERS``."""
    if name not in DECODERS:
        raise ValueError(f"decoder must be one of {sorted(DECODERS)}, got {name!r}.")
    embed, network = DECODERS[name](manifold, latent_dim, hidden_dim, math.prod(data_shape))
    return Decoder(embed, network, data_shape)
