"""Layers and networks: gyroplanes, Möbius maps, encoders, decoders, covariates, graph convolution, curvature."""

from pyro_hyperbolic.nn.covariates import Continuous, Covariate, Covariates, Embedding, OneHot
from pyro_hyperbolic.nn.graph import GCNConv, GraphAdjacency
from pyro_hyperbolic.nn.linear import Exp0, GyroplaneLinear, Log0, MobiusLinear, exp0, log0
from pyro_hyperbolic.nn.manifold import ManifoldModule
from pyro_hyperbolic.nn.networks import ACTIVATIONS, DECODERS, Decoder, Encoder, build_decoder, mlp

__all__ = [
    "ACTIVATIONS",
    "DECODERS",
    "Continuous",
    "Covariate",
    "Covariates",
    "Decoder",
    "Embedding",
    "Encoder",
    "Exp0",
    "GCNConv",
    "GraphAdjacency",
    "GyroplaneLinear",
    "Log0",
    "ManifoldModule",
    "MobiusLinear",
    "OneHot",
    "build_decoder",
    "exp0",
    "log0",
    "mlp",
]
