"""The hyperplanes of a decoder: where the units of its first layer are zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_hyperbolic.models import VAE
from pyro_hyperbolic.nn import GyroplaneLinear

# A plane is chosen among those with so many of the points on their smaller side, if there are any.
LEAST_SHARE = 0.25


def first_layer(vae: VAE) -> GyroplaneLinear | nn.Linear:
    """The first layer of a decoder that has parameters: the gyroplanes, or the affine map of the Euclidean model."""
    for layer in (vae.decoder.embed, vae.decoder.network[0]):
        if isinstance(layer, (GyroplaneLinear, nn.Linear)):
            return layer
    raise ValueError(f"vae must have a decoder that starts with hyperplanes, got {vae.decoder}.")


@torch.no_grad()
def planes(layer: GyroplaneLinear | nn.Linear) -> tuple[Tensor, Tensor]:
    """Points and normals of the hyperplanes, ``(K, D)`` each."""
    if isinstance(layer, GyroplaneLinear):
        return layer.planes()
    weight = layer.weight.detach()
    return -layer.bias.unsqueeze(-1) * weight / weight.square().sum(-1, keepdim=True), weight


@torch.no_grad()
def most_telling(vae: VAE, points: Tensor) -> int:
    """The unit whose output moves the decoder's most over the points, among those whose planes divide them well."""
    units = first_layer(vae)(points)
    influence = units.relu().std(0) * vae.decoder.output.weight.norm(dim=0)
    share = (units > 0).double().mean(0)
    divides = torch.minimum(share, 1 - share) >= LEAST_SHARE
    return int(torch.where(divides | ~divides.any(), influence, -1.0).argmax())
