"""What works on points and distances that are already there."""

from pyro_hyperbolic.analysis.mds import hyperbolic_mds

__all__ = ["hyperbolic_mds"]
