"""Probabilistic programming with hyperbolic latent spaces, in Pyro."""

import importlib
from types import ModuleType

from pyro_hyperbolic import accelerate, distributions, geometry, infer, models, nn
from pyro_hyperbolic._version import __version__
from pyro_hyperbolic.geometry import Euclidean, Lorentz, PoincareBall, Product, Sphere, Stereographic

# Not all who import the package want data, pictures or analyses: these come when first asked for.
_LAZY = ("analysis", "datasets", "plotting")

__all__ = [
    "Euclidean",
    "Lorentz",
    "PoincareBall",
    "Product",
    "Sphere",
    "Stereographic",
    "__version__",
    "accelerate",
    "analysis",
    "datasets",
    "distributions",
    "geometry",
    "infer",
    "models",
    "nn",
    "plotting",
]


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
