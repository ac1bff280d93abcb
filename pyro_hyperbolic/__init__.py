"""Probabilistic programming with hyperbolic latent spaces, in Pyro."""

from pyro_hyperbolic import distributions
from pyro_hyperbolic._version import __version__
from pyro_hyperbolic.geometry import PoincareBall

__all__ = ["PoincareBall", "__version__", "distributions"]
