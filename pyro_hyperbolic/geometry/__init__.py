"""Charts of hyperbolic space: pure functions and a thin object each."""

from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.geometry.lorentz import Lorentz
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.geometry.poincare import PoincareBall

__all__ = ["Lorentz", "Manifold", "PoincareBall", "frechet_mean"]
