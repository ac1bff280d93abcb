"""What works on points and distances that are already there."""

from pyro_hyperbolic.analysis.components import Projection
from pyro_hyperbolic.analysis.horo_pca import HoroPCA
from pyro_hyperbolic.analysis.mds import hyperbolic_mds
from pyro_hyperbolic.analysis.procrustes import Alignment, procrustes
from pyro_hyperbolic.analysis.tangent_pca import TangentPCA

__all__ = ["Alignment", "HoroPCA", "Projection", "TangentPCA", "hyperbolic_mds", "procrustes"]
