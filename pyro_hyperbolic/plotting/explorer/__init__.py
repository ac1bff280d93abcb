"""A page on which points of a surface can be moved, searched and looked at."""

from pyro_hyperbolic.plotting.explorer.explore import explore
from pyro_hyperbolic.plotting.explorer.page import Explorer

__all__ = ["Explorer", "explore"]
