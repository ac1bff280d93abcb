"""Layers and networks: gyroplanes, Möbius maps, encoders, decoders, graph convolution, learnable curvature."""

from pyro_hyperbolic.nn.graph import GCNConv, GraphAdjacency
from pyro_hyperbolic.nn.linear import Exp0, GyroplaneLinear, Log0, MobiusLinear
from pyro_hyperbolic.nn.manifold import ManifoldModule
from pyro_hyperbolic.nn.networks import DECODERS, Decoder, Encoder, build_decoder, mlp

__all__ = [
    "DECODERS",
    "Decoder",
    "Encoder",
    "Exp0",
    "GCNConv",
    "GraphAdjacency",
    "GyroplaneLinear",
    "Log0",
    "ManifoldModule",
    "MobiusLinear",
    "build_decoder",
    "mlp",
]
