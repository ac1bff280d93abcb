"""Spaces, most of constant curvature, and their products: pure functions and a thin object each; metrics of trees."""

from pyro_hyperbolic.geometry.constant_curvature import ConstantCurvature
from pyro_hyperbolic.geometry.euclidean import Euclidean
from pyro_hyperbolic.geometry.frechet import frechet_mean
from pyro_hyperbolic.geometry.gromov import DeltaHyperbolicity, delta_hyperbolicity, four_point_deltas
from pyro_hyperbolic.geometry.lorentz import Lorentz
from pyro_hyperbolic.geometry.manifold import Manifold
from pyro_hyperbolic.geometry.poincare import PoincareBall
from pyro_hyperbolic.geometry.product import Product
from pyro_hyperbolic.geometry.scaled import ScaledManifold
from pyro_hyperbolic.geometry.signature import from_signature, signature_dim
from pyro_hyperbolic.geometry.sphere import Sphere
from pyro_hyperbolic.geometry.stereographic import Stereographic

__all__ = [
    "ConstantCurvature",
    "DeltaHyperbolicity",
    "Euclidean",
    "Lorentz",
    "Manifold",
    "PoincareBall",
    "Product",
    "ScaledManifold",
    "Sphere",
    "Stereographic",
    "delta_hyperbolicity",
    "four_point_deltas",
    "frechet_mean",
    "from_signature",
    "signature_dim",
]
