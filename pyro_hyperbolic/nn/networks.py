"""Encoders and decoders of the auto-encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pyro_hyperbolic.nn.linear import GyroplaneLinear, Log0, MobiusLinear
from pyro_hyperbolic.nn.manifold import ManifoldModule
from pyro_hyperbolic.ops.checks import check_choice, checked_integer

Layers = Callable[[], list[nn.Module]]
_MULTIPLE = 4  # of columns: rows of 16 bytes in float32

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
"""Functions between the layers of a network, by name."""


def hidden_layers(
    widths: Sequence[int], activation: str | Callable[[], nn.Module] = "relu", dropout: float = 0.0
) -> list[nn.Module]:
    """An activation, and dropout where asked for, after each of some hidden layers and the linear maps between them.

    :param widths: widths of the hidden layers.
    :param activation: a name in ``ACTIVATIONS``, or a callable that makes a module.
    :param dropout: share of the units to drop during training.
    """
    if isinstance(activation, str):
        check_choice("activation", activation, ACTIVATIONS)
        activation = ACTIVATIONS[activation]
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {dropout!r}.")
    layers: list[nn.Module] = []
    for i, width in enumerate(widths):
        layers += [nn.Linear(widths[i - 1], width)] if i else []
        layers.append(activation())
        layers += [nn.Dropout(dropout)] if dropout else []
    return layers


def mlp(*sizes: int, activation: str | Callable[[], nn.Module] = "relu", dropout: float = 0.0) -> nn.Sequential:
    """Linear layers of the given sizes with an activation, ReLU by default, between them."""
    if len(sizes) < 2:
        raise ValueError(f"sizes must be those of the input, of hidden layers and of the output, got {sizes}.")
    first, *hidden, last = (checked_integer("each of sizes", size, least=1) for size in sizes)
    if not hidden:
        return nn.Sequential(nn.Linear(first, last))
    inner = nn.Linear(first, hidden[0])
    return nn.Sequential(inner, *hidden_layers(hidden, activation, dropout), nn.Linear(hidden[-1], last))


class Encoder(nn.Module):
    """A network from data to the parameters of a posterior: a Euclidean location and a positive scale.

    :param data_shape: event shape of a datum.
    :param hidden_dim: width of the hidden layers.
    :param latent_dim: size of the location.
    :param scale_dim: size of the scale: 1 (isotropic) or ``latent_dim`` (diagonal).
    :param num_hidden_layers: number of hidden layers.
    :param activation: as in :func:`mlp`, as is ``dropout``.
    :param condition_dim: size of the conditions, the second argument of a call: features of covariates.
    :param trunk: your own module in place of the hidden layers, for example convolutions: from data, and conditions
        if there are any, to ``(..., hidden_dim)``. The options of the hidden layers do not apply to it.

    >>> convolution = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten())
    >>> encoder = Encoder((1, 9, 9), 64, latent_dim=2, scale_dim=1, trunk=convolution)
    >>> loc, scale = encoder(torch.rand(5, 1, 9, 9))
    >>> loc.shape, scale.shape
    (torch.Size([5, 2]), torch.Size([5, 1]))
    """

    def __init__(
        self,
        data_shape: tuple[int, ...],
        hidden_dim: int,
        latent_dim: int,
        scale_dim: int,
        *,
        num_hidden_layers: int = 1,
        activation: str | Callable[[], nn.Module] = "relu",
        dropout: float = 0.0,
        condition_dim: int = 0,
        trunk: nn.Module | None = None,
    ) -> None:
        super().__init__()
        hidden_dim = checked_integer("hidden_dim", hidden_dim, least=1)
        self.data_shape = data_shape
        self._flattens = trunk is None
        if trunk is None:
            checked_integer("num_hidden_layers", num_hidden_layers, least=1)
            inner = nn.Linear(math.prod(data_shape) + condition_dim, hidden_dim)
            trunk = nn.Sequential(inner, *hidden_layers([hidden_dim] * num_hidden_layers, activation, dropout))
        self.trunk = trunk
        self.loc = nn.Linear(hidden_dim, latent_dim)
        self.scale = nn.Linear(hidden_dim, scale_dim)

    def forward(self, x: Tensor, conditions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if self._flattens:
            x = x.flatten(x.dim() - len(self.data_shape))
            hidden = self.trunk(x if conditions is None else torch.cat([x, conditions], -1))
        else:
            hidden = self.trunk(x) if conditions is None else self.trunk(x, conditions)
        loc, scale = self._heads(hidden)
        return loc + self.loc.bias, F.softplus(scale + self.scale.bias)

    def check_dtype(self, **inputs: Tensor | None) -> None:
        """Refuse inputs, by name, in another precision than that of the parameters; a trunk of your own may take any.

        Half precision is left to autocast.
        """
        dtype = self.loc.weight.dtype
        for name, value in inputs.items():
            if self._flattens and value is not None and {value.dtype, dtype} == {torch.float32, torch.float64}:
                to, back = ("double", "float") if dtype == torch.float64 else ("float", "double")
                raise ValueError(
                    f"{name} must be {dtype} as the encoder is, got {value.dtype}; pass {name}.{to}(), or convert the"
                    f" model with .{back}()."
                )

    def _heads(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The products of both heads, which are thin, as one; with rows of zeros up to a size that GPUs like."""
        sizes = [self.loc.out_features, self.scale.out_features]
        sizes.append(-sum(sizes) % _MULTIPLE)
        weight = F.pad(torch.cat([self.loc.weight, self.scale.weight]), (0, 0, 0, sizes[-1]))
        loc, scale, _ = F.linear(hidden, weight).split(sizes, -1)
        return loc, scale


class Decoder(nn.Module):
    """A network from latent points to data: a first layer that knows the geometry, then an ordinary network.

    The first layer computes in the dtype of the latents, the network in that of its parameters. Conditions, the second
    argument of a call, are mapped linearly and added to the first hidden layer before its activation, as if they were
    further inputs of a linear layer.

    :param embed: the first layer.
    :param network: the other layers; the last is linear.
    :param data_shape: shape of the output.
    :param condition_dim: size of the conditions.
    """

    def __init__(
        self, embed: nn.Module, network: nn.Sequential, data_shape: tuple[int, ...], condition_dim: int = 0
    ) -> None:
        super().__init__()
        self.embed = embed
        self.network = network
        self.data_shape = data_shape
        # Where the network begins with a linear layer, this one makes the hidden units; else the embedding does.
        self._inner = 1 if isinstance(network[0], nn.Linear) else 0
        if condition_dim:
            width = next(layer.in_features for layer in list(network)[self._inner :] if isinstance(layer, nn.Linear))
            self.condition = nn.Linear(condition_dim, width, bias=False)

    @property
    def output(self) -> nn.Linear:
        """The last layer."""
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        return last

    def forward(self, z: Tensor, conditions: Tensor | None = None) -> Tensor:
        hidden = self.embed(z).to(self.output.weight.dtype)
        for i, layer in enumerate(self.network):
            if i == self._inner and conditions is not None:
                hidden = hidden + self.condition(conditions)
            hidden = layer(hidden)
        return hidden.unflatten(-1, self.data_shape)


def _gyroplane(
    manifold: ManifoldModule, latent_dim: int, hidden_dim: int, rest: Layers
) -> tuple[nn.Module, list[nn.Module]]:
    layers = rest()  # before the gyroplanes: a seed gives the weights that it always gave
    return GyroplaneLinear(latent_dim, hidden_dim, manifold), layers


def _mobius(
    manifold: ManifoldModule, latent_dim: int, hidden_dim: int, rest: Layers
) -> tuple[nn.Module, list[nn.Module]]:
    return nn.Sequential(MobiusLinear(latent_dim, hidden_dim, manifold), Log0(manifold)), rest()


def _logmap(
    manifold: ManifoldModule, latent_dim: int, hidden_dim: int, rest: Layers
) -> tuple[nn.Module, list[nn.Module]]:
    return Log0(manifold), [nn.Linear(latent_dim, hidden_dim), *rest()]


def _mlp(manifold: ManifoldModule, latent_dim: int, hidden_dim: int, rest: Layers) -> tuple[nn.Module, list[nn.Module]]:
    space = manifold()
    origin = space.origin(latent_dim)
    embed = nn.Identity() if space.features(origin) is origin else Features(manifold)
    return embed, [nn.Linear(space.num_features(latent_dim), hidden_dim), *rest()]


class Features(nn.Module):
    """Points as the inputs of a network, by :meth:`Manifold.features <pyro_hyperbolic.geometry.Manifold.features>`.

    Points of a hyperboloid become points of the ball, which are bounded.

    :param manifold: the manifold.
    """

    def __init__(self, manifold: ManifoldModule) -> None:
        super().__init__()
        self.manifold = manifold

    def forward(self, x: Tensor) -> Tensor:
        return self.manifold().features(x)


DECODERS: dict[str, Callable[[ManifoldModule, int, int, Layers], tuple[nn.Module, list[nn.Module]]]] = {
    "gyroplane": _gyroplane,
    "logmap": _logmap,
    "mlp": _mlp,
    "mobius": _mobius,
}
"""First layers of a decoder on a manifold, by name."""


def build_decoder(
    name: str,
    manifold: ManifoldModule,
    latent_dim: int,
    data_shape: tuple[int, ...],
    *,
    hidden_dim: int,
    num_hidden_layers: int = 1,
    activation: str | Callable[[], nn.Module] = "relu",
    dropout: float = 0.0,
    condition_dim: int = 0,
) -> Decoder:
    """The decoder of that name in ``DECODERS``; the other arguments are those of :class:`Encoder`."""
    check_choice("decoder", name, DECODERS)
    checked_integer("num_hidden_layers", num_hidden_layers, least=1)
    hidden_dim = checked_integer("hidden_dim", hidden_dim, least=1)

    def rest() -> list[nn.Module]:
        hidden = hidden_layers([hidden_dim] * num_hidden_layers, activation, dropout)
        return [*hidden, nn.Linear(hidden_dim, math.prod(data_shape))]

    embed, layers = DECODERS[name](manifold, latent_dim, hidden_dim, rest)
    return Decoder(embed, nn.Sequential(*layers), data_shape, condition_dim)
