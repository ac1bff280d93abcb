"""Probabilistic programming with hyperbolic latent spaces, in Pyro."""

from pyro_hyperbolic import distributions, infer, models, nn
from pyro_hyperbolic._version import __version__
from pyro_hyperbolic.geometry import Lorentz, PoincareBall

__all__ = ["Lorentz", "PoincareBall", "__version__", "distributions", "infer", "models", "nn"]
