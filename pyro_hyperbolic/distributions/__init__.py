"""Distributions on manifolds for Pyro. Import them with ``import pyro_hyperbolic.distributions as hdist``."""

from pyro_hyperbolic.distributions import constraints, kl
from pyro_hyperbolic.distributions.base import ManifoldDistribution
from pyro_hyperbolic.distributions.continuous import conditional_continuous_flow, continuous_flow
from pyro_hyperbolic.distributions.flow import (
    ConditionalManifoldFlow,
    ManifoldFlow,
    conditional_manifold_flow,
    manifold_flow,
)
from pyro_hyperbolic.distributions.hyperbolic_radius import HyperbolicRadius
from pyro_hyperbolic.distributions.hyperspherical_uniform import HypersphericalUniform
from pyro_hyperbolic.distributions.mixture import ManifoldMixture
from pyro_hyperbolic.distributions.negative_binomial import NegativeBinomial
from pyro_hyperbolic.distributions.riemannian_normal import RiemannianNormal
from pyro_hyperbolic.distributions.spherical import PowerSpherical, VonMisesFisher
from pyro_hyperbolic.distributions.spherical_radius import SphericalRadius
from pyro_hyperbolic.distributions.transforms import ExpMapTransform, ManifoldTransform
from pyro_hyperbolic.distributions.truncated_normal import TruncatedNormal
from pyro_hyperbolic.distributions.wrapped_normal import WrappedNormal

__all__ = [
    "ConditionalManifoldFlow",
    "ExpMapTransform",
    "HyperbolicRadius",
    "HypersphericalUniform",
    "ManifoldDistribution",
    "ManifoldFlow",
    "ManifoldMixture",
    "ManifoldTransform",
    "NegativeBinomial",
    "PowerSpherical",
    "RiemannianNormal",
    "SphericalRadius",
    "TruncatedNormal",
    "VonMisesFisher",
    "WrappedNormal",
    "conditional_continuous_flow",
    "conditional_manifold_flow",
    "constraints",
    "continuous_flow",
    "kl",
    "manifold_flow",
]
