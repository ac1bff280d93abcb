"""Charts of hyperbolic space, pure functions and a thin object each, and how nearly a metric is that of a tree."""

from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.geometry.gromov import DeltaHyperbolicity, delta_hyperbolicity, four_point_deltas
from pyro_hyperbolic.geometry.lorentz import Lorentz
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.geometry.poincare import PoincareBall

__all__ = [
    "DeltaHyperbolicity",
    "Lorentz",
    "Manifold",
    "PoincareBall",
    "delta_hyperbolicity",
    "four_point_deltas",
    "frechet_mean",
]
