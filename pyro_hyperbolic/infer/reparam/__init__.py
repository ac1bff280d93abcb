"""Latents on a manifold in other coordinates, and curvatures that are drawn."""

from pyro_hyperbolic.infer.reparam.coords import ManifoldReparam
from pyro_hyperbolic.infer.reparam.drawn import DrawnCurvature, with_drawn_curvature
from pyro_hyperbolic.infer.reparam.noise import RiemannianNormalReparam, WrappedNormalReparam

__all__ = [
    "DrawnCurvature",
    "ManifoldReparam",
    "RiemannianNormalReparam",
    "WrappedNormalReparam",
    "with_drawn_curvature",
]
